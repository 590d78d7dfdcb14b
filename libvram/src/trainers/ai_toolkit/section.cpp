#include "trainers/ai_toolkit/section.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/text.hpp"
#include "trainers/ai_toolkit/reading.hpp"
#include "trainers/truthy.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

constexpr std::array<std::string_view, 7> negative_words{"false", "no", "off", "n", "f", "0", "none"};
constexpr std::array<std::string_view, 6> positive_words{"true", "yes", "on", "y", "t", "1"};
constexpr std::array<std::string_view, 6> flag_words{"true", "false", "yes", "no", "on", "off"};

bool holds(std::span<const std::string_view> words, std::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

void Reading::complain_at(const io::Node& node, std::string key, Problem problem, std::string text,
                          std::string nearest) {
    complaints.push_back({Severity::error, problem, document.place_of(node), std::move(key), node.spelled(),
                          std::move(nearest), std::move(text)});
}

bool Reading::gives_up(const io::Node& item, const std::string& key) {
    constexpr std::size_t most_complaints = 1000;  // beyond what anybody reads; each takes time to find
    if (complaints.size() < most_complaints) return false;
    complain_at(item, key, Problem::out_of_range,
                "after " + std::to_string(complaints.size()) + " complaints the rest of the list is not read");
    return true;
}

Section::Section(Reading& shared, io::Fields own, SectionId id) : fields(std::move(own)), reading(shared), id_(id) {}

Section Section::section(std::string_view key, SectionId id) {
    return {reading, fields.map(key, io::Nulls::are_absent), id};
}

Section Section::item(const io::Node& node, std::string path, SectionId id) const {
    return {reading, io::Fields(reading.document, node, std::move(path), reading.complaints), id};
}

bool Section::flag(std::string_view key, bool fallback) {
    const io::Node* node = fields.node(key);
    if (node == nullptr) return fallback;
    if (node->is(io::Kind::list) || node->is(io::Kind::map))
        fields.complain(key, Problem::wrong_type, fields.path(key) + " must be true or false, not " + node->spelled());
    if (const std::string* text = node->text(); text != nullptr && !text->empty()) {
        const std::string word = lower(*text);
        if (holds(negative_words, word))
            fields.complain(key, Problem::wrong_type, fields.path(key) + " is a text, which the trainer takes as true",
                            "false", Severity::warning);
        else if (!holds(positive_words, word))
            fields.complain(key, Problem::bad_value,
                            fields.path(key) + " must be true or false; the trainer takes any text as true",
                            nearest(word, flag_words));
    }
    return truthy(*node);
}

const io::Node* Section::value(std::string_view key) {
    const io::Node* node = fields.node(key);
    return node != nullptr && !node->is(io::Kind::null) ? node : nullptr;
}

bool Section::is_null(std::string_view key) {
    const io::Node* node = fields.node(key);
    return node != nullptr && node->is(io::Kind::null);
}

std::vector<std::string> Section::parts(std::string_view key) {
    if (value(key) == nullptr) return {};
    return fields.texts(key, {}, io::Single::is_a_list).value_or(std::vector<std::string>{});
}

void Section::refuse(std::string_view key, std::string why) {
    if (!reading.modelled) return;
    fields.complain(key, Problem::unsupported, fields.path(key) + " is not modelled: " + std::move(why));
}

void Section::finish_known() {
    for (const Key& key : keys_of(id_)) {
        const io::Node* node = fields.node(key.name);
        if (node == nullptr) continue;
        switch (key.means) {
            case Means::nothing:
            case Means::memory: break;
            case Means::map:
                if (!node->is(io::Kind::null)) static_cast<void>(fields.map(key.name));
                break;
            case Means::unsupported:
                if (truthy(*node)) refuse(key.name, std::string(key.why));
                break;
            case Means::small:
                if (truthy(*node) && reading.modelled)
                    fields.complain(
                        key.name, Problem::unsupported,
                        fields.path(key.name) + " is not played; it costs at most the size of a few latents", {},
                        Severity::note);
                break;
        }
    }
}

void Section::finish() {
    finish_known();
    const std::span<const Key> keys = keys_of(id_);
    const std::size_t before = reading.complaints.size();
    fields.finish(Severity::warning);
    for (std::size_t i = before; i < reading.complaints.size(); ++i) {
        Diagnostic& complaint = reading.complaints[i];
        if (complaint.problem != Problem::unknown_key) continue;
        const std::string key = complaint.key.substr(complaint.key.rfind('.') + 1);
        const auto meant =
            std::find_if(keys.begin(), keys.end(), [&](const Key& known) { return known.name == complaint.nearest; });
        if (meant != keys.end() && (meant->means == Means::memory || meant->means == Means::unsupported)) {
            complaint.severity = Severity::error;
            complaint.text += ", which the trainer ignores";
        } else if (const std::string_view home = home_of(key, id_); !home.empty() && complaint.nearest.empty()) {
            complaint.nearest = std::string(home) + "." + key;
            complaint.text += ", which the trainer ignores here";
        }
    }
}

}  // namespace vram::trainers::ai_toolkit
