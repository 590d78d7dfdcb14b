// library/train_util.py, read_config_from_file (48d368fa): sections are flattened, whatever they are called; the later
// key wins, and nothing is checked.
#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/text.hpp"
#include "trainers/sd_scripts/config_file.hpp"
#include "trainers/sd_scripts/keys.hpp"
#include "trainers/sd_scripts/reading.hpp"

namespace vram::trainers::sd_scripts {
namespace {

using io::Node;

/// What other models' scripts alone are told.
struct OtherScript {
    std::string_view argument, network, model;
};
constexpr std::array<OtherScript, 4> other_scripts{{
    {"clip_g", "networks.lora_sd3", "Stable Diffusion 3"},
    {"byt5", "networks.lora_hunyuan_image", "HunyuanImage"},
    {"qwen3", "networks.lora_anima", "Anima"},
    {"gemma2", "networks.lora_lumina", "Lumina"},
}};

/// network_args, each as an argument of its own.
void put_network_args(Reading& reading, const Node& value, const SaidAt& at) {
    const io::List* items = value.list();
    reading.config.said.erase("network_args.");  // a later list counts whole
    for (std::size_t i = 0; items != nullptr && i < items->size(); ++i) {
        const Node& item = (*items)[i];
        const bool has_place = item.origin == io::Origin::file;
        const SaidAt where{has_place ? reading.document.place_of(item) : at.place,
                           has_place ? at.key + "[" + std::to_string(i) + "]" : at.key};
        const std::string text = item.spelled();
        const std::size_t equals = text.find('=');
        if (equals == std::string::npos)
            reading.complaints.push_back({Severity::error,
                                          Problem::bad_value,
                                          where.place,
                                          where.key,
                                          text,
                                          {},
                                          "the trainer stops: an argument of the network is key=value, not " + text});
        else
            reading.config.said.set(
                {"network_args." + text.substr(0, equals), Node{text.substr(equals + 1)}, where, true});
    }
}

void set(Reading& reading, const std::string& name, const Node& value, SaidAt at, bool converted) {
    if (name == "network_args") put_network_args(reading, value, at);
    reading.config.said.set({name, value, std::move(at), converted});
}

/// The arguments that a flag of a command line may be: the one of its name, or those that begin so.
std::vector<const Key*> flagged(const Script& script, std::string_view name) {
    if (has_argument(script, name)) return {argument_key(name)};
    std::vector<const Key*> out;
    for (const Key& key : argument_keys())
        if (!name.empty() && key.name.starts_with(name) && has_argument(script, key.name)) out.push_back(&key);
    return out;
}

class ConfigFile {
  public:
    explicit ConfigFile(Reading& reading) : reading_(reading) {}

    const Script* read(const Script* said) {
        std::map<std::string, std::int64_t> sections;
        for (const io::Member& member : *reading_.document.root.map()) {
            if (member.key == "vramest") continue;
            if (const io::Map* section = member.value.map()) {
                for (const io::Member& inner : *section) take(inner, member.key + ".");
                sections[member.key + "."] += static_cast<std::int64_t>(section->size());
            } else {
                take(member, "");
                ++sections[""];
            }
        }
        std::int64_t most = 0;
        for (const auto& [name, count] : sections)
            if (count > most) {
                most = count;
                reading_.config.section = name;
            }
        reading_.check_types();
        const Script* found = script(said);
        if (found != nullptr) unknown_arguments(*found);
        return found;
    }

  private:
    void take(const io::Member& member, const std::string& section) {
        const SaidAt at{reading_.document.place_of(member.value), section + member.key};
        if (const Argument* before = reading_.config.said.find(member.key))
            reading_.notes.push_back({Severity::warning,
                                      Problem::duplicate_key,
                                      reading_.document.place_of(member.key_span),
                                      at.key,
                                      member.value.spelled(),
                                      {},
                                      member.key + " stands in two sections: here it counts, and not as " +
                                          before->at.key + " in line " + std::to_string(before->at.place.line)});
        set(reading_, member.key, member.value, at, false);
        taken_.push_back({&member, section + member.key});
    }

    /// Nobody looks at these.
    void unknown_arguments(const Script& script) {
        for (const auto& [member, key] : taken_) {
            if (has_argument(script, member->key)) continue;
            const bool is_of_another = argument_key(member->key) != nullptr;
            std::string near(is_of_another ? std::string_view() : nearest_argument(member->key));
            const Severity severity = moves_memory(near) ? Severity::error : Severity::warning;
            Diagnostics& to = severity == Severity::error ? reading_.complaints : reading_.notes;
            to.push_back({severity, Problem::unknown_key, reading_.document.place_of(member->key_span), key,
                          member->value.spelled(), std::move(near),
                          std::string(script.file) + " knows no argument " + member->key + ", and ignores it"});
        }
    }

    /// The file does not say which script it is handed to; what it asks for does. Null, after a complaint: one that is
    /// not played.
    const Script* script(const Script* said) {
        const std::string module = reading_.text("network_module");
        const std::string model = lower(reading_.text("pretrained_model_name_or_path"));
        const auto holds = [&](std::string_view part) { return model.find(part) != std::string::npos; };
        if (module.empty()) {
            reading_.complain("network_module", Problem::unsupported,
                              "without network_module this is for a script that trains a whole model or an embedding, "
                              "which is not modelled: of sd-scripts LoRA is");
            return nullptr;
        }
        if (said != nullptr) return said;
        for (const auto& [argument, network, title] : other_scripts)
            if (module == network || reading_.said(argument)) {
                const std::string at(reading_.said(argument) ? argument : "network_module");
                reading_.complain(at, Problem::unsupported,
                                  "this is for " + std::string(title) + ", which is not modelled with sd-scripts");
                return nullptr;
            }
        if (holds("sd3") || holds("stable-diffusion-3")) {
            reading_.complain("pretrained_model_name_or_path", Problem::unsupported,
                              "this is for Stable Diffusion 3, which is not modelled with sd-scripts");
            return nullptr;
        }
        if (module == flux.network_module || module == "networks.oft_flux" || holds("flux")) return &flux;
        // SDXL alone has the former, and Stable Diffusion 1 and 2 have no cache of text.
        if (reading_.said("cache_text_encoder_outputs") || reading_.said("cache_text_encoder_outputs_to_disk") ||
            holds("xl") || holds("pony") || holds("illustrious") || holds("noob"))
            return &sdxl;
        return reading_.flag("v2") ? &sd2 : &sd1;
    }

    struct Taken {
        const io::Member* member;
        std::string key;
    };
    std::vector<Taken> taken_;
    Reading& reading_;
};

bool is_said(const Node& root, std::string_view name) {
    if (root.find(name) != nullptr) return true;
    const io::Map* map = root.map();
    return map != nullptr && std::any_of(map->begin(), map->end(), [&](const io::Member& member) {
               return member.value.is(io::Kind::map) && member.value.find(name) != nullptr;
           });
}

}  // namespace

const Script* read_config_file(Reading& reading, const Script* script) { return ConfigFile(reading).read(script); }

void read_command_line(Reading& reading, const Script& script, const std::vector<std::string>& words,
                       const SaidAt& at) {
    const auto stops = [&](Problem problem, const std::string& word, std::string near, const std::string& why) {
        reading.complaints.push_back(
            {Severity::error, problem, at.place, at.key, word, std::move(near), "the trainer stops: " + why});
    };
    for (std::size_t i = 0; i < words.size(); ++i) {
        const std::string& word = words[i];
        const std::size_t equals = word.find('=');
        const std::string flag = word.substr(0, equals);
        const std::vector<const Key*> keys =
            flag.starts_with("--") ? flagged(script, flag.substr(2)) : std::vector<const Key*>{};
        if (word == "-h" || word == "--help") {
            stops(Problem::conflict, word, {}, word + " prints what there is, and trains nothing");
            continue;
        }
        if (keys.empty()) {
            std::string near(flag.starts_with("--") ? nearest_argument(flag.substr(2)) : "");
            near = has_argument(script, near) ? "--" + near : std::string();
            stops(Problem::unknown_key, word, std::move(near), std::string(script.file) + " knows no argument " + word);
            continue;
        }
        if (keys.size() > 1) {
            stops(Problem::bad_value, word, "--" + std::string(keys.front()->name),
                  flag + " may be --" + std::string(keys[0]->name) + " or --" + std::string(keys[1]->name));
            continue;
        }
        const Key& key = *keys.front();
        const std::string name = "--" + std::string(key.name);
        io::List values;
        if (equals != std::string::npos) values.push_back(Node{word.substr(equals + 1)});
        const bool takes_more = key.takes != Takes::flag && values.empty();
        const bool is_list = key.takes == Takes::list || key.takes == Takes::numbers;
        while (takes_more && i + 1 < words.size() && !words[i + 1].starts_with("--")) {
            values.push_back(Node{words[++i]});
            if (!is_list) break;
        }
        if (key.takes == Takes::flag && !values.empty()) {
            stops(Problem::bad_value, word, name, name + " takes no value");
        } else if (key.takes == Takes::flag) {
            set(reading, std::string(key.name), Node{true}, at, true);
        } else if (is_list) {
            set(reading, std::string(key.name), Node{std::move(values)}, at, true);
        } else if (values.empty()) {
            stops(Problem::missing_key, word, {}, name + " wants a value");
        } else {
            set(reading, std::string(key.name), values.front(), at, true);
        }
    }
}

bool is_config_file(const io::Document& document) {
    const Node& root = document.root;
    if (root.map() == nullptr || root.find("job") != nullptr || root.find("datasets") != nullptr) return false;
    // musubi-tuner's files are alike; their model is `dit`.
    if (is_said(root, "dit")) return false;
    if (!is_said(root, "network_module") && !is_said(root, "pretrained_model_name_or_path")) return false;
    std::int64_t met = 0;
    for (const std::string_view name :
         {"network_module", "pretrained_model_name_or_path", "train_data_dir", "dataset_config", "network_dim",
          "optimizer_type", "train_batch_size", "mixed_precision", "output_dir", "resolution", "max_train_steps"})
        met += is_said(root, name) ? 1 : 0;
    return met > 1;
}

}  // namespace vram::trainers::sd_scripts
