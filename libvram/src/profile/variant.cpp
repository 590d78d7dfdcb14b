#include "profile/variant.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "profile/config_json.hpp"
#include "profile/config_value.hpp"
#include "profile/tensor_names.hpp"

namespace vram::profile {
namespace {

/// "FluxTransformer2DModel, diffusers 0.42.1" → "FluxTransformer2DModel"
std::string_view class_of(const ModelProfile& profile) {
    const std::string_view source = profile.source;
    return source.substr(0, source.find(','));
}

std::vector<const ModelProfile*> profiles_of(const Catalogue& catalogue, std::string_view class_name) {
    std::vector<const ModelProfile*> out;
    for (const ModelProfile& profile : catalogue.models())
        if (class_of(profile) == class_name) out.push_back(&profile);
    return out;
}
/// A family reads lists of a length that hang together; only those of the base's are known to. One that may be empty is
/// as long as it likes.
bool fits(const Config& config, const Config& base, const std::set<std::string>& free_lists, const Choices& choices) {
    return std::all_of(config.values.begin(), config.values.end(), [&](const auto& member) {
        const auto& [key, value] = member;
        if (unknown_choice(choices, key, value)) return false;  // a default of the class that no profile has
        const auto found = base.values.find(key);
        if (found == base.values.end() || free_lists.contains(key) || !is_list(value)) return true;
        return is_list(found->second) && length_of(value) == length_of(found->second);
    });
}

std::string told(const Config& config, std::string_view key) {
    const auto found = config.values.find(key);
    return found == config.values.end() ? "not said" : spelled(found->second);
}

/// What files say, over the class's defaults, over a base.
struct Overlay {
    std::string path;
    const ModelClass* facts;  // null: what is not said is as in the base
    Said said;
    std::set<std::string> free_lists;
    Choices choices;
};

std::optional<Variant> variant_of(const ModelProfile& base, const Overlay& overlay) {
    Variant out{base, base.id, {}};
    Config& config = out.profile.config;
    Config before = base.config;
    if (overlay.facts != nullptr) {
        for (const auto& [key, value] : overlay.facts->defaults) {
            before.values.emplace(key, value);
            config.values.insert_or_assign(key, value);
        }
        for (const std::string& key : overlay.facts->unset) config.values.erase(key);
    }
    for (const auto& [key, value] : overlay.said) {
        if (value)
            config.values.insert_or_assign(key, *value);
        else
            config.values.erase(key);
    }
    if (!fits(config, before, overlay.free_lists, overlay.choices)) return {};
    std::set<std::string> keys;
    for (const Config* one : {&config, &before})
        for (const auto& [key, value] : one->values) keys.insert(key);
    for (const std::string& key : keys)
        if (const std::string now = told(config, key), then = told(before, key); now != then)
            out.changed.push_back(key + ": " + now + " (" + then + ")");
    out.profile.id = config.profile = overlay.path;
    out.profile.aliases.clear();
    return out;
}

std::vector<Variant> all_variants(const std::vector<const ModelProfile*>& bases, const Overlay& overlay) {
    std::vector<Variant> out;
    for (const ModelProfile* base : bases)
        if (std::optional<Variant> variant = variant_of(*base, overlay)) out.push_back(*std::move(variant));
    std::stable_sort(out.begin(), out.end(),
                     [](const Variant& a, const Variant& b) { return a.changed.size() < b.changed.size(); });
    return out;
}

expected<Variants> by_config(const SavedModel& model, const Catalogue& catalogue) {
    Variants out;
    out.class_name = model.class_name;
    if (out.class_name.empty()) {
        out.why_not = "its config.json names no class";
        return out;
    }
    const ModelClass* facts = catalogue.model_class(out.class_name);
    std::vector<const ModelProfile*> bases = profiles_of(catalogue, out.class_name);
    if (bases.empty() && facts != nullptr) bases = profiles_of(catalogue, facts->name);
    if (bases.empty()) {
        out.why_not = out.class_name + " is a class that vramest does not know";
        return out;
    }
    if (const io::Node* quantized = model.config.root.find("quantization_config");
        quantized != nullptr && quantized->map() != nullptr) {
        const io::Node* how = quantized->find("quant_method");
        out.why_not = "its weights are quantised" + (how == nullptr ? "" : " (" + how->spelled() + ")") +
                      ", and layers that were saved so are not modelled";
        return out;
    }
    Diagnostics complaints;
    ConfigSaid read = read_config_json(model.config, out.class_name, facts, bases, complaints, out.notes);
    if (!complaints.empty()) return Unexpected{std::move(complaints)};
    if (facts == nullptr)
        out.notes.push_back({Severity::note,
                             Problem::missing_key,
                             {model.config.file_name, 0, 0},
                             {},
                             {},
                             {},
                             "the defaults of " + out.class_name +
                                 " are not known: what config.json leaves out is as "
                                 "in the nearest profile"});
    out.variants = all_variants(
        bases, {model.path, facts, std::move(read.said), std::move(read.free_lists), choices_of(bases, facts)});
    if (out.variants.empty())
        out.why_not = "its config has lists of other lengths, or makes other choices, than any known " + out.class_name;
    return out;
}

/// Whether a name is that of a matrix that PEFT, kohya's scripts or LyCORIS train beside a weight.
bool is_of_adapter(std::string_view name) {
    constexpr std::string_view parts[] = {".lora_A.", ".lora_B.", ".lora_down.", ".lora_up.", ".hada_w1_a", ".lokr_w"};
    return std::any_of(std::begin(parts), std::end(parts),
                       [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
}

Variants by_names(const SavedModel& model, const Catalogue& catalogue) {
    Names names;
    for (const io::StoredTensor& tensor : model.weights.tensors) names.emplace(tensor.name, &tensor);
    Variants out;
    std::vector<std::string> others;
    for (const ModelClass& facts : catalogue.model_classes())
        for (const NamingScheme& scheme : facts.named) {
            const std::optional<std::string> prefix = prefix_of(names, scheme);
            if (!prefix) continue;
            if (!out.class_name.empty()) {
                if (out.class_name != facts.name) others.push_back(facts.name);
                continue;
            }
            out.class_name = facts.name;
            out.prefix = *prefix;
            out.variants = all_variants(profiles_of(catalogue, facts.name),
                                        {model.path, nullptr, config_of_names(names, *prefix, scheme), {}, {}});
        }
    if (!others.empty()) {
        out.why_not = "the names of its tensors are those of " + out.class_name + " and of " + others.front();
        out.variants.clear();
        out.class_name.clear();
    } else if (out.class_name.empty()) {
        const bool is_adapter =
            std::any_of(names.begin(), names.end(), [](const auto& tensor) { return is_of_adapter(tensor.first); });
        out.why_not = is_adapter ? "its tensors are an adapter's (LoRA, LoHa or LoKr), and not a model's"
                                 : "the names of its tensors are those of no model that vramest knows by them; "
                                   "a folder with its config.json would say its class";
    } else if (out.variants.empty()) {
        out.why_not = "no profile of " + out.class_name + " is known";
    }
    return out;
}

}  // namespace

expected<Variants> variants_of(const SavedModel& model, const Catalogue& catalogue) {
    if (model.config.root.is(io::Kind::map)) return by_config(model, catalogue);
    return by_names(model, catalogue);
}

}  // namespace vram::profile
