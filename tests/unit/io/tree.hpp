#pragma once

#include <string>

#include "vram/io/document.hpp"
#include "vram/io/path.hpp"

namespace vram::io {

/// A node as one line, types shown: {a: 1, b: [2.5, "x", true, null], big: ~1e+30}. For tests.
inline std::string shown(const Node& node) {
    std::string out;
    switch (node.kind()) {
        case Kind::null: return "null";
        case Kind::boolean: return *node.boolean() ? "true" : "false";
        case Kind::integer: return std::to_string(*node.integer());
        case Kind::number: {
            Node plain{*node.number()};
            return (node.beyond_int64 ? "~" : "") + plain.spelled() +
                   (plain.spelled().find_first_of(".enf") == std::string::npos ? ".0" : "");
        }
        case Kind::text: return '"' + *node.text() + '"';
        case Kind::list:
            for (const Node& item : *node.list()) out += (out.empty() ? "" : ", ") + shown(item);
            return "[" + out + "]";
        case Kind::map:
            for (const Member& member : *node.map())
                out += (out.empty() ? "" : ", ") + member.key + ": " + shown(member.value);
            return "{" + out + "}";
    }
    return "?";
}

/// What the text reads as, or its first complaint as "problem line:column".
inline std::string reading(std::string_view text, Format format, const Limits& limits = {}) {
    const expected<Document> document = read(text, "f", format, limits);
    if (document) return shown(document->root);
    const Diagnostic& first = document.error().front();
    return std::string(to_text(first.problem)) + " " + std::to_string(first.place.line) + ":" +
           std::to_string(first.place.column);
}

inline std::string_view slice(const Document& document, Span span) {
    return std::string_view(document.text)
        .substr(static_cast<std::size_t>(span.begin), static_cast<std::size_t>(span.end - span.begin));
}

}  // namespace vram::io
