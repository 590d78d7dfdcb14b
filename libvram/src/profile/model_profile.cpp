#include "vram/profile/model_profile.hpp"

#include <optional>
#include <stdexcept>

#include "profile/config_value.hpp"
#include "profile/profile_file.hpp"
#include "vram/io/document.hpp"
#include "vram/io/fields.hpp"

namespace vram::profile {
namespace {

Config::Value read_value(io::Fields& fields, std::string_view key, const io::Node& node) {
    if (std::optional<Config::Value> value = config_value(node)) return *std::move(value);
    const bool is_list = node.list() != nullptr;
    fields.complain(key, Problem::wrong_type,
                    fields.path(key) + (is_list ? " is a list of whole numbers, or of texts"
                                                : " is a number, true or false, a text or a list, not " +
                                                      std::string(to_text(node.kind()))));
    return false;
}

Config read_config(io::Fields fields, const io::Node* node, const std::string& id) {
    Config config{id, {}};
    if (node == nullptr || node->map() == nullptr) return config;
    for (const io::Member& member : *node->map())
        config.values.emplace(member.key, read_value(fields, member.key, *fields.node(member.key)));
    return config;
}

constexpr io::Choice<ModelKind> kinds[] = {
    {"denoiser", ModelKind::denoiser}, {"vae", ModelKind::vae}, {"text_encoder", ModelKind::text_encoder}};
constexpr io::IntegerRange side{8, 32768};

Defaults read_defaults(io::Fields fields) {
    Defaults defaults;
    const auto resolution =
        fields.integers("resolution", side, {1, 2}, io::Single::is_a_list).value_or(std::vector<std::int64_t>{0});
    defaults.width = resolution.front();
    defaults.height = resolution.back();
    defaults.frames = fields.integer("frames", {1, 4097}, 1);
    defaults.text_tokens = fields.integer("text_tokens", {0, 131072}, 0);
    fields.finish();
    return defaults;
}

AtMost read_at_most(io::Fields fields) {
    AtMost at_most{fields.integer("side", {1}, 0), fields.integer("frames", {1}, 0),
                   fields.integer("text_tokens", {1}, 0)};
    fields.finish();
    return at_most;
}

std::map<std::string, std::string, std::less<>> read_forwards(io::Fields fields, const io::Node* node) {
    std::map<std::string, std::string, std::less<>> forwards;
    if (node != nullptr && node->map() != nullptr)
        for (const io::Member& member : *node->map())
            forwards.emplace(member.key, fields.text(member.key, io::required));
    return forwards;
}

Passport read_passport(io::Fields fields) {
    Passport passport{fields.integer("parameters", {1}, io::required), fields.text("against", io::required)};
    fields.finish();
    return passport;
}

}  // namespace

std::string_view to_text(ModelKind kind) {
    for (const io::Choice<ModelKind>& choice : kinds)
        if (choice.value == kind) return choice.word;
    return "?";
}

ModelProfile with_forward(ModelProfile profile, std::string_view forward) {
    const auto found = profile.forwards.find(forward);
    if (found == profile.forwards.end())
        throw std::out_of_range(profile.id + " has no forward " + std::string(forward));
    profile.family = found->second;
    profile.keep_in_fp32.clear();
    profile.config.values.insert_or_assign("forward", std::string(forward));
    return profile;
}

expected<ModelProfile> read_model_profile(std::string_view text, std::string file_name) {
    const std::string stem(stem_of(file_name));
    expected<ProfileFile> file = read_profile_file(text, std::move(file_name));
    if (!file) return Unexpected{file.error()};
    Diagnostics& complaints = file->complaints;

    io::Fields fields(file->document, complaints);
    ModelProfile profile;
    (void)fields.integer("schema", {1, 1}, io::required);
    profile.id = fields.text("id", io::required);
    profile.family = fields.text("family", io::required);
    profile.kind = fields.choice("kind", kinds, io::required);
    profile.name = fields.text("name", io::required);
    profile.aliases = fields.texts("aliases").value_or(std::vector<std::string>{});
    profile.source = fields.text("source", io::required);
    profile.checked = read_passport(fields.map("checked"));
    profile.defaults = read_defaults(fields.map("defaults"));
    profile.divisible_by = fields.integer("divisible_by", {1, 1024}, 1);
    profile.frame_step = fields.integer("frame_step", {0, 64}, 0);
    profile.text_divisible_by = fields.integer("text_divisible_by", {1, 1024}, 1);
    profile.fixed_resolution = fields.boolean("fixed_resolution", false);
    profile.at_most = read_at_most(fields.map("at_most"));
    profile.reference_images = fields.boolean("reference_images", false);
    profile.forwards = read_forwards(fields.map("forwards"), fields.node("forwards"));
    profile.keep_in_fp32 = fields.texts("keep_in_fp32").value_or(std::vector<std::string>{});
    fields.require("config");
    profile.config = read_config(fields.map("config"), fields.node("config"), profile.id);
    if (!profile.id.empty() && profile.id != stem)
        fields.complain("id", Problem::bad_value, "id is " + profile.id + " in a file that is named " + stem, stem);
    fields.finish();
    if (has_errors(complaints)) return Unexpected{std::move(complaints)};
    return profile;
}

}  // namespace vram::profile
