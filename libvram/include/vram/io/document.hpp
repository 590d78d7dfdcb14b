#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "vram/base/bytes.hpp"
#include "vram/base/diagnostic.hpp"
#include "vram/base/expected.hpp"

namespace vram::io {

/// Half-open range of bytes [begin, end) in the text that was read. Empty at 0 for what no text gave.
struct Span {
    std::int64_t begin = 0, end = 0;
    bool operator==(const Span&) const = default;
};

/// The order is that of Node::value. Dates (YAML, TOML) are text.
enum class Kind : std::uint8_t { null, boolean, integer, number, text, list, map };
[[nodiscard]] std::string_view to_text(Kind kind);  // "a whole number", "a list": for sentences

/// Who wrote a node. Only what stands in the `file` once may be edited in place without a side effect.
enum class Origin : std::uint8_t {
    code,      // built in code, from a Python dict: no place
    file,      // its span is its own
    shared,    // copied out of a YAML anchor or a merge key: its span is the anchor's
    assigned,  // set on the command line: no place
};

struct Node;
struct Member;
using List = std::vector<Node>;
using Map = std::vector<Member>;  // in the file's order; each key once

/// One value of a document. In code: Node{true}, Node{std::int64_t{4}}, Node{std::string("adamw")}, Node{List{…}}.
///
/// The span of a scalar covers exactly its characters, quotes and block indicators included; it is empty, behind the
/// ':' or '-', for a null of which nothing is written. That of `{…}` and `[…]` runs from bracket to bracket; that of a
/// block map or list (YAML) or a [table] (TOML) from its first key, dash or header to the end of its last value. A YAML
/// alias has the span of `*name`; an anchor or tag before a value is outside of its span.
struct Node {
    std::variant<std::monostate, bool, std::int64_t, double, std::string, List, Map> value{};
    Span span{};
    Origin origin = Origin::code;
    bool beyond_int64 = false;  // a whole number too large for `integer`: `value` is a double near it
    std::string written{};  // a plain scalar that is not text, as written: "2.10", "1e-4", "0x10", "yes"; else empty

    [[nodiscard]] Kind kind() const noexcept { return static_cast<Kind>(value.index()); }
    [[nodiscard]] bool is(Kind k) const noexcept { return kind() == k; }

    // Null unless the node is of that kind.
    [[nodiscard]] const bool* boolean() const noexcept { return std::get_if<bool>(&value); }
    [[nodiscard]] const std::int64_t* integer() const noexcept { return std::get_if<std::int64_t>(&value); }
    [[nodiscard]] const double* number() const noexcept { return std::get_if<double>(&value); }
    [[nodiscard]] const std::string* text() const noexcept { return std::get_if<std::string>(&value); }
    [[nodiscard]] const List* list() const noexcept { return std::get_if<List>(&value); }
    [[nodiscard]] const Map* map() const noexcept { return std::get_if<Map>(&value); }

    /// The member with this key; null if there is none, or if the node is no map.
    [[nodiscard]] const Member* member(std::string_view key) const noexcept;
    [[nodiscard]] const Node* find(std::string_view key) const noexcept;

    /// Sets a member of a map, behind the others if it is new; a null becomes a map. Any other kind is replaced by one.
    Node& put(std::string key, Node member_value);

    /// What stands there, for people: text as it is, "2.10", "true", "null", "a list", "a map".
    [[nodiscard]] std::string spelled() const;
};

struct Member {
    std::string key;  // without quotes; keys that are numbers or booleans stay as written
    Span key_span{};  // with quotes
    Node value{};
};

enum class Format : std::uint8_t {
    yaml,
    json,   // strict: RFC 8259
    jsonc,  // with // and /* */ comments
    toml,   // 1.0
};
[[nodiscard]] std::string_view to_text(Format format);

/// By the name's extension (.yaml, .yml, .json, .jsonc, .toml; any case); else by what the text starts with: '{' is
/// jsonc, a `[section]` or `key = value` is TOML, all else YAML.
[[nodiscard]] Format format_of(std::string_view file_name, std::string_view text);

/// How many lines, and columns of the last one, a text has before some byte.
struct Mark {
    std::int32_t lines = 0, columns = 0;
    bool operator==(const Mark&) const = default;
};

/// A text and what it says. Spans index `text`.
struct Document {
    std::string file_name{};
    std::string text{};
    Format format = Format::yaml;
    Node root{};
    Diagnostics complaints{};   // warnings: keys written twice (the last one counts, as in the format's own reader)
    std::vector<Mark> marks{};  // from `read`: of every 4096th byte of `text`, so that a place is found at once

    /// Line and column (in code points) of a span's first byte; a tab is one column, a byte order mark none.
    [[nodiscard]] Place place_of(Span span) const;
    /// Where a complaint about this node points: its span; no line where no text gave it.
    [[nodiscard]] Place place_of(const Node& node) const;
};

/// What a reader accepts. Past a limit it stops with a Diagnostic, having used memory in proportion to the limit.
struct Limits {
    Bytes bytes = 2 * MiB;           // file_too_large
    std::int32_t depth = 64;         // too_deep: lists and maps in one another
    std::int64_t nodes = 200'000;    // file_too_large: keys are not counted
    std::int64_t aliased = 200'000;  // too_many_aliases: nodes copied for YAML anchors, aliases and merge keys
};

/// Reads one document. A byte order mark and CRLF are accepted.
///
/// YAML reads as PyYAML's safe_load does, yes/no/on/off, 1_000, 0x10, 010 and merge keys `<<` included, but for `1e-4`,
/// which is a number as the trainers' own loaders have it; a quoted scalar stays text. Several documents are an error.
/// Numbers that no double holds (1e999) are infinite in YAML and a complaint in JSON and TOML.
///
/// Errors, all with line and column: bad_encoding (not UTF-8, a NUL or another control character), syntax, empty_file
/// (nothing but blanks and comments; never for TOML, where that is an empty map), duplicate_key (TOML only), too_deep,
/// too_many_aliases, file_too_large. Nothing is thrown but std::bad_alloc.
[[nodiscard]] expected<Document> read(std::string_view text, std::string file_name, Format format,
                                      const Limits& limits = {});

}  // namespace vram::io
