#include "vram/profile/model_class.hpp"

#include "profile/config_value.hpp"
#include "profile/profile_file.hpp"
#include "vram/io/document.hpp"
#include "vram/io/fields.hpp"

namespace vram::profile {
namespace {

/// What transformers' configs hold beside sizes: PreTrainedConfig's own, and what its children share. Source:
/// transformers 5.24.0, configuration_utils.py, and config.json files as older versions wrote them.
constexpr std::string_view of_pretrained_config[] = {"transformers_version",
                                                     "dtype",
                                                     "torch_dtype",
                                                     "use_cache",
                                                     "initializer_range",
                                                     "initializer_factor",
                                                     "bos_token_id",
                                                     "pad_token_id",
                                                     "attention_dropout",
                                                     "rms_norm_eps",
                                                     "rope_theta",
                                                     "rope_parameters",
                                                     "rope_scaling",
                                                     "output_attentions",
                                                     "output_hidden_states",
                                                     "return_dict",
                                                     "_attn_implementation_autoset",
                                                     "chunk_size_feed_forward",
                                                     "id2label",
                                                     "label2id",
                                                     "is_encoder_decoder",
                                                     "problem_type",
                                                     "attn_implementation"};

/// {num_layers: 19, out_channels: null}: values and what is null.
void read_values(io::Fields fields, const io::Node* node, std::map<std::string, Config::Value, std::less<>>& values,
                 std::vector<std::string>& unset) {
    if (node == nullptr || node->map() == nullptr) return;
    for (const io::Member& member : *node->map()) {
        if (member.value.is(io::Kind::null))
            unset.push_back(member.key);
        else if (std::optional<Config::Value> value = config_value(member.value))
            values.emplace(member.key, *std::move(value));
        else
            fields.complain(member.key, Problem::wrong_type, fields.path(member.key) + " is no value of a config");
    }
}

std::map<std::string, std::string> read_texts(io::Fields fields, const io::Node* node) {
    std::map<std::string, std::string> out;
    if (node == nullptr || node->map() == nullptr) return out;
    for (const io::Member& member : *node->map()) out.emplace(member.key, fields.text(member.key, io::required));
    return out;
}

std::map<std::string, NamingScheme::Size> read_sizes(io::Fields fields, const io::Node* node) {
    std::map<std::string, NamingScheme::Size> out;
    if (node == nullptr || node->map() == nullptr) return out;
    for (const io::Member& member : *node->map()) {
        const io::List* pair = fields.node(member.key)->list();
        if (pair == nullptr || pair->size() != 2 || (*pair)[0].text() == nullptr || (*pair)[1].integer() == nullptr ||
            *(*pair)[1].integer() < 0)
            fields.complain(member.key, Problem::wrong_type, "a size is a tensor's name and one of its dimensions");
        else
            out.emplace(member.key, NamingScheme::Size{*(*pair)[0].text(), *(*pair)[1].integer()});
    }
    return out;
}

NamingScheme read_scheme(io::Fields fields) {
    NamingScheme scheme;
    static_cast<void>(fields.require("recognised_by"));
    scheme.recognised_by = fields.texts("recognised_by", {.min = 1}).value_or(std::vector<std::string>{});
    scheme.without = fields.texts("without").value_or(std::vector<std::string>{});
    scheme.layers = read_texts(fields.map("layers"), fields.node("layers"));
    scheme.sizes = read_sizes(fields.map("sizes"), fields.node("sizes"));
    scheme.present = read_texts(fields.map("present"), fields.node("present"));
    fields.finish();
    return scheme;
}

}  // namespace

expected<ModelClass> read_model_class(std::string_view text, std::string file_name) {
    const std::string stem(stem_of(file_name));
    expected<ProfileFile> file = read_profile_file(text, std::move(file_name));
    if (!file) return Unexpected{file.error()};
    Diagnostics& complaints = file->complaints;

    io::Fields fields(file->document, complaints);
    ModelClass out;
    (void)fields.integer("schema", {1, 1}, io::required);
    out.name = fields.text("name", io::required);
    out.source = fields.text("source", io::required);
    read_values(fields.map("defaults"), fields.node("defaults"), out.defaults, out.unset);
    read_values(fields.map("assumed"), fields.node("assumed"), out.assumed, out.assumed_unset);
    for (const auto& [key, list] :
         {std::pair{"without_effect", &out.without_effect}, {"also", &out.also}, {"beside", &out.beside}})
        *list = fields.texts(key).value_or(std::vector<std::string>{});
    if (fields.boolean("pretrained_config", false))
        out.without_effect.insert(out.without_effect.end(), std::begin(of_pretrained_config),
                                  std::end(of_pretrained_config));
    out.nested = read_texts(fields.map("nested"), fields.node("nested"));
    for (io::Fields& scheme : fields.maps("named")) out.named.push_back(read_scheme(scheme));
    if (!out.name.empty() && out.name != stem)
        fields.complain("name", Problem::bad_value, "the class is " + out.name + " in a file that is named " + stem,
                        stem);
    fields.finish();
    if (has_errors(complaints)) return Unexpected{std::move(complaints)};
    return out;
}

}  // namespace vram::profile
