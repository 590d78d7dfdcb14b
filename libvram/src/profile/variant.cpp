#include "profile/variant.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>

#include "profile/config_value.hpp"
#include "vram/io/fields.hpp"

namespace vram::profile {
namespace {

constexpr std::int64_t most_layers = 1024, most_size = std::int64_t{1} << 24;

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

bool holds(const std::vector<std::string>& list, std::string_view word) {
    return std::find(list.begin(), list.end(), word) != list.end();
}

/// A key's values as files say them; no value: null, the key counts as not said.
using Said = std::map<std::string, std::optional<Config::Value>, std::less<>>;

/// What is known of the values of one key, from the class's default and its profiles.
struct Known {
    std::vector<const Config::Value*> values;

    [[nodiscard]] bool any(auto holds_for) const {
        return std::any_of(values.begin(), values.end(), [&](const Config::Value* value) { return holds_for(*value); });
    }
    [[nodiscard]] bool has_kind(std::size_t kind) const {
        return any([&](const Config::Value& value) { return value.index() == kind; });
    }
    /// The least and the most of the numbers that are known; 1 and 1 where none is.
    [[nodiscard]] std::pair<double, double> bounds() const {
        std::vector<double> all;
        for (const Config::Value* value : values) {
            if (const auto* whole = std::get_if<std::int64_t>(value)) all.push_back(static_cast<double>(*whole));
            if (const auto* real = std::get_if<double>(value)) all.push_back(*real);
            if (const auto* list = std::get_if<std::vector<std::int64_t>>(value))
                for (const std::int64_t item : *list) all.push_back(static_cast<double>(item));
        }
        if (all.empty()) return {1, 1};
        const auto [least, most] = std::minmax_element(all.begin(), all.end());
        return {*least, *most};
    }
};

/// What is chosen and not counted: words and flags, those in a list one by one; nothing of a number.
std::vector<std::string> choices_in(const Config::Value& value) {
    if (const auto* flag = std::get_if<bool>(&value)) return {*flag ? "true" : "false"};
    if (const auto* text = std::get_if<std::string>(&value)) return {*text};
    if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) return *texts;
    return {};
}
/// Key → what profiles of the class choose there. Another choice is another path through a family's code.
using Choices = std::map<std::string, std::set<std::string>, std::less<>>;
Choices choices_of(const std::vector<const ModelProfile*>& profiles) {
    Choices out;
    for (const ModelProfile* profile : profiles)
        for (const auto& [key, value] : profile->config.values)
            for (std::string& choice : choices_in(value)) out[key].insert(std::move(choice));
    return out;
}
/// The first choice of a value that no profile made, or nothing.
std::optional<std::string> unknown_choice(const Choices& choices, std::string_view key, const Config::Value& value) {
    const auto known = choices.find(key);
    if (known == choices.end()) return {};
    for (std::string& choice : choices_in(value))
        if (!known->second.contains(choice)) return std::move(choice);
    return {};
}

constexpr std::size_t whole_kind = Config::Value(std::int64_t{}).index();

/// How many of something a model has: a family builds so many blocks.
bool counts_layers(std::string_view key) {
    return key.find("layer") != std::string_view::npos || key.find("depth") != std::string_view::npos ||
           key.find("num_res_blocks") != std::string_view::npos;
}

bool is_list(const Config::Value& value) {
    return std::holds_alternative<std::vector<std::int64_t>>(value) ||
           std::holds_alternative<std::vector<std::string>>(value);
}
std::size_t length_of(const Config::Value& value) {
    if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value)) return list->size();
    if (const auto* list = std::get_if<std::vector<std::string>>(&value)) return list->size();
    return 0;
}

/// Reads a config.json against what is known of its class.
class ConfigReader {
  public:
    ConfigReader(const io::Document& document, std::string class_name, const ModelClass* facts,
                 std::vector<const ModelProfile*> profiles)
        : document_(document),
          class_name_(std::move(class_name)),
          facts_(facts),
          profiles_(std::move(profiles)),
          choices_(choices_of(profiles_)) {}

    Said read(Diagnostics& complaints, Diagnostics& notes) {
        // What stands in a nested map goes before the same key outside of it.
        read_map(document_.root, "", "", complaints);
        if (facts_ != nullptr)
            for (const auto& [key, prefix] : facts_->nested)
                if (const io::Node* nested = document_.root.find(key); nested != nullptr && nested->map() != nullptr)
                    read_map(*nested, key + ".", prefix, complaints);
        if (!unknown_.empty())
            notes.push_back({Severity::note,
                             Problem::unknown_key,
                             {document_.file_name, 0, 0},
                             {},
                             unknown_,
                             {},
                             "not looked at, as " + class_name_ + " is not known to ask for it: " + unknown_});
        return std::move(said_);
    }

    /// Keys whose list may be empty.
    [[nodiscard]] std::set<std::string> free_lists() const {
        std::set<std::string> out;
        const auto note = [&](const auto& values) {
            for (const auto& [key, value] : values)
                if (is_list(value) && length_of(value) == 0) out.insert(key);
        };
        if (facts_ != nullptr) note(facts_->defaults);
        for (const ModelProfile* profile : profiles_) note(profile->config.values);
        return out;
    }

  private:
    void read_map(const io::Node& map, const std::string& path, const std::string& prefix, Diagnostics& complaints) {
        for (const io::Member& member : *map.map())
            if (const std::string& key = member.key; !is_marker(key, path) && !is_nested(key))
                read_member(member, path + key, prefix + key, complaints);
    }

    /// What says whose config it is. Where maps nest, the type of each part counts and not that of the whole.
    [[nodiscard]] bool is_marker(std::string_view key, const std::string& path) const {
        const bool is_whole = path.empty() && facts_ != nullptr && !facts_->nested.empty();
        return key.starts_with('_') || key == "architectures" || (key == "model_type" && is_whole);
    }
    [[nodiscard]] bool is_nested(const std::string& key) const {
        return facts_ != nullptr && facts_->nested.contains(key);
    }

    [[nodiscard]] Known known(std::string_view key) const {
        Known known;
        if (facts_ != nullptr)
            if (const auto found = facts_->defaults.find(key); found != facts_->defaults.end())
                known.values.push_back(&found->second);
        for (const ModelProfile* profile : profiles_)
            if (const auto found = profile->config.values.find(key); found != profile->config.values.end())
                known.values.push_back(&found->second);
        return known;
    }

    void read_member(const io::Member& member, const std::string& path, const std::string& key,
                     Diagnostics& complaints) {
        if (facts_ != nullptr && (holds(facts_->without_effect, member.key) || holds(facts_->without_effect, key)))
            return;
        const auto complain = [&](Problem problem, std::string text) {
            complaints.push_back({Severity::error,
                                  problem,
                                  document_.place_of(member.value),
                                  path,
                                  member.value.spelled(),
                                  {},
                                  path + ": " + std::move(text)});
        };
        const bool is_null = member.value.is(io::Kind::null);
        if (facts_ != nullptr && holds(facts_->assumed_unset, key)) {
            if (!is_null && !is_false(member.value))
                complain(Problem::unsupported, member.value.spelled() + " is not modelled; null is");
            return;
        }
        if (facts_ != nullptr)
            if (const auto assumed = facts_->assumed.find(key); assumed != facts_->assumed.end()) {
                check_assumed(member.value, assumed->second, complain);
                return;
            }
        const Known known = this->known(key);
        const bool may_be_unset = facts_ != nullptr && holds(facts_->unset, key);
        if (known.values.empty() && !may_be_unset) {
            if (!is_null && member.key != "model_type") unknown_ += (unknown_.empty() ? "" : ", ") + path;
            return;
        }
        if (is_null) {
            read_null(key, may_be_unset, known, complain);
            return;
        }
        std::optional<Config::Value> value = config_value(flat(member.value));
        if (!value) {
            complain(Problem::wrong_type, "such a value is not modelled");
        } else if (check(key, *value, known, complain)) {
            said_[key] = std::move(value);
        }
    }

    /// None is what the class has where nothing is said, false for a flag, and else nothing that a family knows.
    void read_null(const std::string& key, bool may_be_unset, const Known& known, const auto& complain) {
        const auto lacks = [&](const ModelProfile* profile) { return !profile->config.has(key); };
        if (may_be_unset || (facts_ == nullptr && std::any_of(profiles_.begin(), profiles_.end(), lacks)))
            said_[key] = std::nullopt;
        else if (known.any([](const Config::Value& value) { return value == Config::Value(false); }))
            said_[key] = Config::Value(false);
        else
            complain(Problem::unsupported, "null is not modelled; " + spelled(*known.values.front()) + " is");
    }

    static bool is_false(const io::Node& node) { return node.boolean() != nullptr && !*node.boolean(); }

    /// [[], [5]] → [0, 5]: a list of lists of at most one number each, as our profiles write it.
    static io::Node flat(const io::Node& node) {
        if (node.list() == nullptr || node.list()->empty()) return node;
        io::List out;
        for (const io::Node& item : *node.list()) {
            if (item.list() == nullptr || item.list()->size() > 1) return node;
            out.push_back(item.list()->empty() ? io::Node{std::int64_t{0}} : item.list()->front());
        }
        return io::Node{std::move(out)};
    }

    static void check_assumed(const io::Node& node, const Config::Value& assumed, const auto& complain) {
        const std::optional<Config::Value> value = config_value(node);
        const auto* flag = std::get_if<bool>(&assumed);
        if (node.is(io::Kind::null) && (flag == nullptr || !*flag)) return;  // None is false
        if (value == assumed || (value && is_one_word(*value, assumed))) return;
        if (value && std::holds_alternative<double>(assumed) && node.integer() != nullptr &&
            static_cast<double>(*node.integer()) == std::get<double>(assumed))
            return;
        complain(Problem::unsupported, node.spelled() + " is not modelled; " + spelled(assumed) + " is");
    }

    /// [A, A, A, A] for [A]: a class has as many of one kind as it has blocks.
    static bool is_one_word(const Config::Value& value, const Config::Value& assumed) {
        const auto* words = std::get_if<std::vector<std::string>>(&value);
        const auto* due = std::get_if<std::vector<std::string>>(&assumed);
        if (words == nullptr || due == nullptr || words->empty() || due->empty()) return false;
        const auto is_it = [&](const std::string& word) { return word == due->front(); };
        return std::all_of(words->begin(), words->end(), is_it) && std::all_of(due->begin(), due->end(), is_it);
    }

    /// A value is one that some family can take: of a kind, within a range, among words that profiles of the class
    /// have.
    bool check(std::string_view key, Config::Value& value, const Known& known, const auto& complain) const {
        if (const auto* real = std::get_if<double>(&value))
            if (!known.has_kind(value.index()) && known.has_kind(whole_kind) && *real >= 0 &&
                *real <= static_cast<double>(most_size) &&
                *real == static_cast<double>(static_cast<std::int64_t>(*real)))
                value = static_cast<std::int64_t>(*real);
        const bool is_whole_for_real = value.index() == whole_kind && known.has_kind(Config::Value(0.0).index());
        if (!known.values.empty() && !known.has_kind(value.index()) && !is_whole_for_real) {
            complain(Problem::wrong_type,
                     spelled(value) + " is not modelled; a value such as " + spelled(*known.values.front()) + " is");
            return false;
        }
        // Far outside of what is known a number is a mistake, and what a family makes of it nobody has looked at.
        constexpr std::int64_t farthest = 64;
        const auto [known_least, known_most] = known.bounds();
        const auto lowest = static_cast<std::int64_t>(std::min(known_least, 1.0));
        const std::int64_t least = counts_layers(key) ? 0 : lowest;
        const std::int64_t most =
            counts_layers(key) ? most_layers
            : known.values.empty()
                ? most_size
                : std::min(most_size, farthest * static_cast<std::int64_t>(std::max(known_most, 64.0)));
        const auto in_range = [&](std::int64_t item) {
            if (item >= least && item <= most) return true;
            complain(Problem::out_of_range,
                     std::to_string(item) + " is not from " + std::to_string(least) + " to " + std::to_string(most));
            return false;
        };
        if (const std::optional<std::string> choice = unknown_choice(choices_, key, value)) {
            std::string all;
            for (const std::string& one : choices_.find(key)->second) all += (all.empty() ? "" : ", ") + one;
            complain(Problem::unsupported, *choice + " is not modelled; known: " + all);
            return false;
        }
        if (const auto* whole = std::get_if<std::int64_t>(&value)) return in_range(*whole);
        if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value))
            return std::all_of(list->begin(), list->end(), in_range);
        if (const auto* real = std::get_if<double>(&value);
            real != nullptr && !(*real >= known_least / farthest && *real <= std::max(known_most, 1.0) * farthest)) {
            complain(Problem::out_of_range, spelled(value) + " is out of range");
            return false;
        }
        return true;
    }

    const io::Document& document_;
    std::string class_name_;
    const ModelClass* facts_;
    std::vector<const ModelProfile*> profiles_;
    Choices choices_;
    Said said_;
    std::string unknown_;
};

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
    ConfigReader reader(model.config, out.class_name, facts, bases);
    Said said = reader.read(complaints, out.notes);
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
    out.variants = all_variants(bases, {model.path, facts, std::move(said), reader.free_lists(), choices_of(bases)});
    if (out.variants.empty())
        out.why_not = "its config has lists of other lengths, or makes other choices, than any known " + out.class_name;
    return out;
}

using Names = std::map<std::string_view, const io::StoredTensor*>;

/// What stands before every one of a scheme's names, or nothing if they are not all there.
std::optional<std::string> prefix_of(const Names& names, const NamingScheme& scheme) {
    const auto is_there = [&](const std::string& prefix, const std::string& name) {
        return names.contains(prefix + name);
    };
    const std::string& first = scheme.recognised_by.front();
    for (const auto& [name, tensor] : names) {
        if (!name.ends_with(first)) continue;
        const std::string prefix(name.substr(0, name.size() - first.size()));
        if (!prefix.empty() && !prefix.ends_with('.')) continue;
        const auto here = [&](const std::string& one) { return is_there(prefix, one); };
        if (std::all_of(scheme.recognised_by.begin(), scheme.recognised_by.end(), here) &&
            std::none_of(scheme.without.begin(), scheme.without.end(), here))
            return prefix;
    }
    return {};
}

/// The highest N of names that start with `stem` and N, plus one.
std::int64_t layers_under(const Names& names, const std::string& stem) {
    std::int64_t layers = 0;
    for (auto at = names.lower_bound(stem); at != names.end() && at->first.starts_with(stem); ++at) {
        std::int64_t number = 0;
        std::size_t digit = stem.size();
        for (;
             digit < at->first.size() && digit < stem.size() + 6 && at->first[digit] >= '0' && at->first[digit] <= '9';
             ++digit)
            number = 10 * number + (at->first[digit] - '0');
        if (digit > stem.size()) layers = std::max(layers, number + 1);
    }
    return layers;
}

Said derived(const Names& names, const std::string& prefix, const NamingScheme& scheme) {
    Said said;
    for (const auto& [key, stem] : scheme.layers) said[key] = std::min(layers_under(names, prefix + stem), most_layers);
    for (const auto& [key, tensor] : scheme.present) said[key] = names.contains(prefix + tensor);
    for (const auto& [key, size] : scheme.sizes) {
        const auto found = names.find(prefix + size.tensor);
        if (found == names.end() || size.dimension < 0) continue;
        const std::vector<std::int64_t>& shape = found->second->shape;
        if (size.dimension < static_cast<std::int64_t>(shape.size()))
            if (const std::int64_t value = shape[static_cast<std::size_t>(size.dimension)];
                value >= 1 && value <= most_size)
                said[key] = value;
    }
    return said;
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
                                        {model.path, nullptr, derived(names, *prefix, scheme), {}, {}});
        }
    if (!others.empty()) {
        out.why_not = "the names of its tensors are those of " + out.class_name + " and of " + others.front();
        out.variants.clear();
        out.class_name.clear();
    } else if (out.class_name.empty()) {
        out.why_not = "the names of its tensors are those of no model that vramest knows";
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
