#include "profile/config_json.hpp"

#include <algorithm>
#include <utility>

#include "profile/config_value.hpp"
#include "vram/io/fields.hpp"

namespace vram::profile {
namespace {

bool holds(const std::vector<std::string>& list, std::string_view word) {
    return std::find(list.begin(), list.end(), word) != list.end();
}
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

constexpr std::size_t whole_kind = Config::Value(std::int64_t{}).index(), real_kind = Config::Value(0.0).index();

/// How many of something a model has: a family builds so many blocks.
bool counts_layers(std::string_view key) {
    return key.find("layer") != std::string_view::npos || key.find("depth") != std::string_view::npos ||
           key.find("num_res_blocks") != std::string_view::npos;
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
          choices_(choices_of(profiles_, facts)) {}

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

    /// [[], [5]] → [0, 5], and [[1, 3], [5]] → ["[1, 3]", "[5]"]: a list of lists, of at most one number each or of
    /// more, as our profiles and classes write it.
    static io::Node flat(const io::Node& node) {
        if (node.list() == nullptr || node.list()->empty()) return node;
        const auto is_list = [](const io::Node& item) { return item.list() != nullptr; };
        if (!std::all_of(node.list()->begin(), node.list()->end(), is_list)) return node;
        const auto is_short = [](const io::Node& item) { return item.list()->size() <= 1; };
        const bool are_short = std::all_of(node.list()->begin(), node.list()->end(), is_short);
        io::List out;
        for (const io::Node& item : *node.list()) {
            if (are_short) {
                out.push_back(item.list()->empty() ? io::Node{std::int64_t{0}} : item.list()->front());
                continue;
            }
            const std::optional<Config::Value> value = config_value(item);
            if (!value) return node;
            out.push_back(io::Node{spelled(*value)});
        }
        return io::Node{std::move(out)};
    }

    static void check_assumed(const io::Node& node, const Config::Value& assumed, const auto& complain) {
        const std::optional<Config::Value> value = config_value(flat(node));
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

    /// A value is one that some family can take: of a kind, among words that profiles of the class have, within a
    /// range.
    bool check(std::string_view key, Config::Value& value, const Known& known, const auto& complain) const {
        if (known.has_kind(whole_kind) && !known.has_kind(value.index())) make_whole(value);
        return is_of_a_kind(value, known, complain) && is_known_choice(key, value, complain) &&
               is_in_range(key, value, known, complain);
    }

    /// 4.0 → 4
    static void make_whole(Config::Value& value) {
        const auto* real = std::get_if<double>(&value);
        if (real == nullptr || !(*real >= 0 && *real <= static_cast<double>(most_size))) return;
        const auto whole = static_cast<std::int64_t>(*real);
        if (*real == static_cast<double>(whole)) value = whole;
    }

    static bool is_of_a_kind(const Config::Value& value, const Known& known, const auto& complain) {
        const bool is_whole_for_real = value.index() == whole_kind && known.has_kind(real_kind);
        if (known.values.empty() || known.has_kind(value.index()) || is_whole_for_real) return true;
        complain(Problem::wrong_type,
                 spelled(value) + " is not modelled; a value such as " + spelled(*known.values.front()) + " is");
        return false;
    }

    bool is_known_choice(std::string_view key, const Config::Value& value, const auto& complain) const {
        const std::optional<std::string> choice = unknown_choice(choices_, key, value);
        if (!choice) return true;
        std::string all;
        for (const std::string& one : choices_.find(key)->second) all += (all.empty() ? "" : ", ") + one;
        complain(Problem::unsupported, *choice + " is not modelled; known: " + all);
        return false;
    }

    /// Far outside of what is known a number is a mistake, and what a family makes of it nobody has looked at.
    static bool is_in_range(std::string_view key, const Config::Value& value, const Known& known,
                            const auto& complain) {
        constexpr std::int64_t farthest = 64;  // times what is known
        const auto [known_least, known_most] = known.bounds();
        if (const auto* real = std::get_if<double>(&value)) {
            if (*real >= known_least / farthest && *real <= std::max(known_most, 1.0) * farthest) return true;
            complain(Problem::out_of_range, spelled(value) + " is out of range");
            return false;
        }
        const auto farthest_most = farthest * static_cast<std::int64_t>(std::max(known_most, 64.0));
        const std::int64_t least = counts_layers(key) ? 0 : static_cast<std::int64_t>(std::min(known_least, 1.0));
        const std::int64_t most = counts_layers(key)     ? most_layers
                                  : known.values.empty() ? most_size
                                                         : std::min(most_size, farthest_most);
        const auto in_range = [&](std::int64_t item) {
            if (item >= least && item <= most) return true;
            complain(Problem::out_of_range,
                     std::to_string(item) + " is not from " + std::to_string(least) + " to " + std::to_string(most));
            return false;
        };
        if (const auto* whole = std::get_if<std::int64_t>(&value)) return in_range(*whole);
        if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value))
            return std::all_of(list->begin(), list->end(), in_range);
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

}  // namespace

Choices choices_of(const std::vector<const ModelProfile*>& profiles, const ModelClass* facts) {
    Choices out;
    for (const ModelProfile* profile : profiles)
        for (const auto& [key, value] : profile->config.values)
            for (std::string& choice : choices_in(value)) out[key].insert(std::move(choice));
    if (facts == nullptr) return out;
    for (auto& [key, choices] : out) {
        const auto fallback = facts->defaults.find(key);
        const auto lacks = [&key = key](const ModelProfile* profile) { return !profile->config.has(key); };
        if (fallback != facts->defaults.end() && std::any_of(profiles.begin(), profiles.end(), lacks))
            for (std::string& choice : choices_in(fallback->second)) choices.insert(std::move(choice));
    }
    return out;
}

std::optional<std::string> unknown_choice(const Choices& choices, std::string_view key, const Config::Value& value) {
    const auto known = choices.find(key);
    if (known == choices.end()) return {};
    for (std::string& choice : choices_in(value))
        if (!known->second.contains(choice)) return std::move(choice);
    return {};
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

ConfigSaid read_config_json(const io::Document& document, const std::string& class_name, const ModelClass* facts,
                            const std::vector<const ModelProfile*>& profiles, Diagnostics& complaints,
                            Diagnostics& notes) {
    ConfigReader reader(document, class_name, facts, profiles);
    return {reader.read(complaints, notes), reader.free_lists()};
}

}  // namespace vram::profile
