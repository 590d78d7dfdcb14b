#include "trainers/ai_toolkit/section.hpp"

#include <algorithm>
#include <array>

namespace vram::trainers::ai_toolkit {

bool truthy(const io::Node& node) {
    switch (node.kind()) {
        case io::Kind::null: return false;
        case io::Kind::boolean: return *node.boolean();
        case io::Kind::integer: return *node.integer() != 0;
        case io::Kind::number: return *node.number() != 0;
        case io::Kind::text: return !node.text()->empty();
        case io::Kind::list: return !node.list()->empty();
        case io::Kind::map: return !node.map()->empty();
    }
    return false;
}

Section::Section(const io::Document& document, const io::Node& node, std::string path, std::string_view table,
                 bool modelled, Diagnostics& complaints)
    : fields(document, node, std::move(path), complaints),
      keys_(keys_of(table)),
      table_(table),
      modelled_(modelled),
      complaints_(complaints) {}

bool Section::flag(std::string_view key, bool fallback) {
    const io::Node* node = fields.node(key);
    if (node == nullptr) return fallback;
    constexpr std::array<std::string_view, 5> negative{"false", "no", "off", "0", "none"};
    if (const std::string* text = node->text()) {
        std::string lower = *text;
        std::transform(lower.begin(), lower.end(), lower.begin(),
                       [](unsigned char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
        if (std::find(negative.begin(), negative.end(), lower) != negative.end())
            fields.complain(key, Problem::wrong_type, fields.path(key) + " is a text, which the trainer takes as true",
                            "false", Severity::warning);
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
    if (!modelled_) return;
    fields.complain(key, Problem::unsupported, fields.path(key) + " is not modelled: " + std::move(why));
}

void Section::finish() {
    for (const Key& key : keys_) {
        const io::Node* node = fields.node(key.name);
        if (node == nullptr || !modelled_ || !truthy(*node)) continue;
        if (key.means == Means::unsupported) refuse(key.name, std::string(key.why));
        if (key.means == Means::small)
            fields.complain(key.name, Problem::unsupported,
                            fields.path(key.name) + " is not played; it costs at most the size of a few latents", {},
                            Severity::note);
    }
    const std::size_t before = complaints_.size();
    fields.finish(Severity::warning);
    for (std::size_t i = before; i < complaints_.size(); ++i) {
        Diagnostic& complaint = complaints_[i];
        if (complaint.problem != Problem::unknown_key) continue;
        const std::string key = complaint.key.substr(complaint.key.rfind('.') + 1);
        const auto meant =
            std::find_if(keys_.begin(), keys_.end(), [&](const Key& known) { return known.name == complaint.nearest; });
        if (meant != keys_.end() && (meant->means == Means::memory || meant->means == Means::unsupported)) {
            complaint.severity = Severity::error;
            complaint.text += ", which the trainer ignores";
        } else if (const std::string_view home = home_of(key, table_); !home.empty() && complaint.nearest.empty()) {
            complaint.nearest = std::string(home) + "." + key;
            complaint.text += ", which the trainer ignores here";
        }
    }
}

}  // namespace vram::trainers::ai_toolkit
