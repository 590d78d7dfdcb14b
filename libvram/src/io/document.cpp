#include "vram/io/document.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <utility>

#include "io/readers.hpp"

namespace vram::io {

std::string_view to_text(Kind kind) {
    switch (kind) {
        case Kind::null: return "null";
        case Kind::boolean: return "a boolean";
        case Kind::integer: return "a whole number";
        case Kind::number: return "a number";
        case Kind::text: return "a text";
        case Kind::list: return "a list";
        case Kind::map: return "a map";
    }
    return "?";
}

std::string_view to_text(Format format) {
    switch (format) {
        case Format::yaml: return "yaml";
        case Format::json: return "json";
        case Format::jsonc: return "jsonc";
        case Format::toml: return "toml";
    }
    return "?";
}

const Member* Node::member(std::string_view key) const noexcept {
    if (const Map* members = map())
        for (const Member& member : *members)
            if (member.key == key) return &member;
    return nullptr;
}

const Node* Node::find(std::string_view key) const noexcept {
    const Member* found = member(key);
    return found ? &found->value : nullptr;
}

Node& Node::put(std::string key, Node member_value) {
    if (!is(Kind::map)) value = Map{};
    Map& members = std::get<Map>(value);
    for (Member& member : members)
        if (member.key == key) return member.value = std::move(member_value);
    members.push_back({std::move(key), {}, std::move(member_value)});
    return members.back().value;
}

std::string Node::spelled() const {
    if (!written.empty()) return written;
    std::array<char, 32> digits{};
    const auto shortest = [&](auto number) {
        return std::string(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr);
    };
    switch (kind()) {
        case Kind::boolean: return *boolean() ? "true" : "false";
        case Kind::integer: return shortest(*integer());
        case Kind::number: return shortest(*number());
        case Kind::text: return *text();
        case Kind::null:
        case Kind::list:
        case Kind::map: return std::string(to_text(kind()));
    }
    return {};
}

namespace {

constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

/// The first byte that starts no well-formed UTF-8 character (RFC 3629) or is a control character other than tab,
/// line feed and carriage return; npos if there is none. yaml-cpp takes byte 4 for the end of the file.
std::size_t find_bad_byte(std::string_view text) {
    std::size_t i = 0;
    while (i < text.size()) {
        const auto c = static_cast<unsigned char>(text[i]);
        if (c < 0x80U) {
            if (c < 0x20U && c != '\t' && c != '\n' && c != '\r') return i;
            ++i;
            continue;
        }
        const std::size_t length = c >= 0xF0U ? 4 : c >= 0xE0U ? 3 : 2;
        if (c < 0xC2U || c > 0xF4U || i + length > text.size()) return i;
        for (std::size_t k = 1; k < length; ++k)
            if (!is_continuation(text[i + k])) return i;
        const auto second = static_cast<unsigned char>(text[i + 1]);
        const bool overlong = (c == 0xE0U && second < 0xA0U) || (c == 0xF0U && second < 0x90U);
        const bool beyond = (c == 0xEDU && second > 0x9FU) || (c == 0xF4U && second > 0x8FU);  // surrogates, > U+10FFFF
        if (overlong || beyond) return i;
        i += length;
    }
    return std::string_view::npos;
}

/// Past blanks, line breaks and lines that start with '#'.
std::string_view skip_comments(std::string_view text) {
    while (true) {
        const std::size_t first = text.find_first_not_of(" \t\r\n");
        if (first == std::string_view::npos) return {};
        text.remove_prefix(first);
        if (text[0] != '#') return text;
        text.remove_prefix(std::min(text.find('\n'), text.size()));
    }
}

bool ends_with(std::string_view name, std::string_view extension) {
    if (name.size() < extension.size()) return false;
    const std::string_view tail = name.substr(name.size() - extension.size());
    return std::equal(tail.begin(), tail.end(), extension.begin(),
                      [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; });
}

bool looks_like_toml(std::string_view text) {
    std::string_view line = text.substr(0, text.find_first_of("\r\n"));
    const std::string_view key_characters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.\"' \t";
    if (line.starts_with('[')) {
        const std::size_t name = line.find_first_not_of('[');
        const std::size_t close = std::min(line.find(']'), line.size());
        return name < close && close < line.size() &&
               line.substr(name, close - name).find_first_not_of(key_characters) == std::string_view::npos &&
               std::isdigit(static_cast<unsigned char>(line[name])) == 0;
    }
    const std::size_t sign = line.find('=');
    return sign != std::string_view::npos && sign > 0 &&
           line.substr(0, sign).find_first_not_of(key_characters) == std::string_view::npos;
}

constexpr std::size_t mark_step = 4096;

void advance(Mark& mark, std::string_view bytes) {
    mark.lines += static_cast<std::int32_t>(std::count(bytes.begin(), bytes.end(), '\n'));
    if (const std::size_t line_break = bytes.rfind('\n'); line_break != std::string_view::npos) {
        mark.columns = 0;
        bytes.remove_prefix(line_break + 1);
    }
    mark.columns += static_cast<std::int32_t>(
        std::count_if(bytes.begin(), bytes.end(), [](char c) { return !is_continuation(c); }));
}

}  // namespace

Format format_of(std::string_view file_name, std::string_view text) {
    if (ends_with(file_name, ".yaml") || ends_with(file_name, ".yml")) return Format::yaml;
    if (ends_with(file_name, ".json")) return Format::json;
    if (ends_with(file_name, ".jsonc")) return Format::jsonc;
    if (ends_with(file_name, ".toml")) return Format::toml;
    if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
    text = skip_comments(text);
    if (text.starts_with('{') || text.starts_with("//") || text.starts_with("/*")) return Format::jsonc;
    return looks_like_toml(text) ? Format::toml : Format::yaml;
}

Place Document::place_of(Span span) const {
    const std::size_t offset = std::min(static_cast<std::size_t>(std::max<std::int64_t>(span.begin, 0)), text.size());
    const std::size_t i = std::min(offset / mark_step + 1, marks.size());
    const std::size_t from = i == 0 ? 0 : (i - 1) * mark_step;
    Mark mark = i == 0 ? Mark{} : marks[i - 1];
    advance(mark, std::string_view(text).substr(from, offset - from));
    const bool behind_mark = mark.lines == 0 && offset >= byte_order_mark.size() && text.starts_with(byte_order_mark);
    return {file_name, mark.lines + 1, mark.columns + (behind_mark ? 0 : 1)};
}

Place Document::place_of(const Node& node) const {
    switch (node.origin) {
        case Origin::file:
        case Origin::shared: return place_of(node.span);
        case Origin::assigned: return {"--set", 0, 0};
        case Origin::code: return {file_name, 0, 0};
    }
    return {};
}

expected<Document> read(std::string_view text, std::string file_name, Format format, const Limits& limits) {
    Document document{.file_name = std::move(file_name), .format = format};
    const auto refuse = [&](Problem problem, Place place, std::string why, std::string found = {}) {
        return Unexpected{{{Severity::error, problem, std::move(place), {}, std::move(found), {}, std::move(why)}}};
    };
    if (static_cast<std::int64_t>(text.size()) > limits.bytes)
        return refuse(Problem::file_too_large, {document.file_name, 0, 0}, "larger than " + vram::to_text(limits.bytes),
                      vram::to_text(static_cast<Bytes>(text.size())));
    document.text = text;
    for (std::size_t at = 0; at < text.size(); at += mark_step) {
        Mark mark = document.marks.empty() ? Mark{} : document.marks.back();
        if (at > 0) advance(mark, text.substr(at - mark_step, mark_step));
        document.marks.push_back(mark);
    }
    if (const std::size_t bad = find_bad_byte(text); bad != std::string_view::npos) {
        const auto byte = static_cast<unsigned char>(text[bad]);
        return refuse(Problem::bad_encoding,
                      document.place_of(Span{static_cast<std::int64_t>(bad), static_cast<std::int64_t>(bad)}),
                      byte < 0x20U ? "a control character; a config is text" : "not UTF-8",
                      "byte " + std::to_string(byte));
    }
    const auto start = static_cast<std::int64_t>(text.starts_with(byte_order_mark) ? byte_order_mark.size() : 0);
    // yaml-cpp would drop a second one without counting it.
    if (text.substr(static_cast<std::size_t>(start)).starts_with(byte_order_mark))
        return refuse(Problem::bad_encoding, document.place_of(Span{start, start}), "two byte order marks");
    TreeBuilder tree(document, limits);
    if (format == Format::yaml && skip_comments(text.substr(static_cast<std::size_t>(start))).empty())
        return refuse(Problem::empty_file, {document.file_name, 0, 0}, "nothing in it");
    if ((format == Format::json || format == Format::jsonc) &&
        text.find_first_not_of(" \t\r\n", static_cast<std::size_t>(start)) == std::string_view::npos)
        return refuse(Problem::empty_file, {document.file_name, 0, 0}, "nothing in it");
    switch (format) {
        case Format::yaml: read_yaml(document, start, tree); break;
        case Format::json: read_json(document, start, tree, false); break;
        case Format::jsonc: read_json(document, start, tree, true); break;
        case Format::toml: read_toml(document, start, tree, limits); break;
    }
    if (tree.failure()) return Unexpected{{*tree.failure()}};
    return document;
}

}  // namespace vram::io
