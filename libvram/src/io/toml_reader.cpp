// toml++ gives regions by line and column (code points), sorts tables by key, and recurses into dotted keys without a
// limit; this file turns regions into bytes, restores the file's order, and looks at the dots first.
//
// toml++ 3.3 asserts on `d = 1979-05-27 1` (a date, a blank, one digit), and in a release build assumes that it cannot
// happen. Its assertions are kept in every build, and throw: they become complaints as its parse errors do.
namespace vram::io {
namespace {
struct Confused {};
[[noreturn]] void toml_assertion_failed() { throw Confused{}; }
}  // namespace
}  // namespace vram::io

#undef NDEBUG
#undef TOML_HEADER_ONLY  // a packaged library has its assertions built in
#undef TOML_SHARED_LIB
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 1
#define TOML_MAX_NESTED_VALUES 128
#define TOML_ASSERT(condition) ((condition) ? void() : vram::io::toml_assertion_failed())
#include <toml++/toml.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "io/readers.hpp"

namespace vram::io {

namespace {

/// The first byte of a key of more than `most` dotted parts, or npos. Strings and comments are stepped over.
std::size_t find_deep_key(std::string_view text, std::int64_t most) {
    std::int64_t dots = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (c == '"' || c == '\'') {
            const std::string triple(3, c);
            const bool is_long = text.substr(i).starts_with(triple);
            std::size_t end = i + (is_long ? 3 : 1);
            while (end < text.size() &&
                   !(is_long ? text.substr(end).starts_with(triple) : text[end] == c || text[end] == '\n'))
                end += c == '"' && text[end] == '\\' ? 2U : 1U;
            i = end + (is_long ? 2 : 0);
        } else if (c == '#') {
            i = std::min(text.find('\n', i), text.size());
            dots = 0;
        } else if (c == '.') {
            if (++dots >= most) return i;
        } else if (std::string_view("=,{}[]\n").find(c) != std::string_view::npos) {
            dots = 0;
        }
    }
    return std::string_view::npos;
}

/// The byte of `1979-05-27 1` where something else than a second digit follows, or 0.
std::size_t find_half_date(std::string_view text) {
    const auto is_digit = [&](std::size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
    for (std::size_t blank = text.find(' ', 10); blank != std::string_view::npos; blank = text.find(' ', blank + 1))
        if (text[blank - 6] == '-' && text[blank - 3] == '-' && is_digit(blank + 1) && !is_digit(blank + 2))
            return blank - 10;
    return 0;
}

/// From line and column to bytes. Remembers the last answer, since most questions go forward on the same line.
class Positions {
  public:
    Positions(std::string_view text, std::int64_t start) : text_(text) {
        lines_.push_back(static_cast<std::size_t>(start));
        for (std::size_t i = text.find('\n'); i != std::string_view::npos; i = text.find('\n', i + 1))
            lines_.push_back(i + 1);
    }
    std::int64_t at(const toml::source_position& position) {
        const std::size_t line = std::clamp<std::size_t>(position.line, 1, lines_.size());
        if (line != line_ || position.column < column_) {
            line_ = line;
            column_ = 1;
            byte_ = lines_[line - 1];
        }
        for (; column_ < position.column && byte_ < text_.size(); ++column_) {
            ++byte_;
            while (byte_ < text_.size() && (static_cast<unsigned char>(text_[byte_]) & 0xC0U) == 0x80U) ++byte_;
        }
        return static_cast<std::int64_t>(byte_);
    }
    Span span(const toml::source_region& region) {
        const std::int64_t begin = at(region.begin);
        return {begin, std::max(begin, at(region.end))};
    }

  private:
    std::string_view text_;
    std::vector<std::size_t> lines_;
    std::size_t line_ = 0, byte_ = 0;
    toml::source_index column_ = 1;
};

class Walk {
  public:
    Walk(std::string_view text, std::int64_t start, TreeBuilder& tree)
        : text_(text), places_(text, start), tree_(tree) {}

    bool table(const toml::table& table) {
        struct Entry {
            const toml::key* key;
            const toml::node* node;
        };
        std::vector<Entry> entries;
        for (auto&& [key, node] : table) entries.push_back({&key, &node});
        std::stable_sort(entries.begin(), entries.end(),
                         [](const Entry& a, const Entry& b) { return a.key->source().begin < b.key->source().begin; });
        const std::int64_t begin = places_.at(table.source().begin);
        if (!tree_.begin(Kind::map, begin)) return false;
        for (const Entry& entry : entries)
            if (!tree_.key(std::string(entry.key->str()), places_.span(entry.key->source())) || !node(*entry.node))
                return false;
        // An inline table has a bracket to end with; `a.b = 1` and [headers] end with their last value.
        if (text_[std::min(static_cast<std::size_t>(begin), text_.size() - 1)] != '{') return tree_.end();
        return tree_.end(places_.at(table.source().end));
    }

  private:
    bool array(const toml::array& array) {
        const bool of_tables = !array.empty() && array[0].is_table() && !array[0].as_table()->is_inline();
        if (!tree_.begin(Kind::list, places_.at(array.source().begin))) return false;
        for (const toml::node& item : array)
            if (!node(item)) return false;
        return of_tables ? tree_.end() : tree_.end(places_.at(array.source().end));
    }

    bool node(const toml::node& from) {
        if (const toml::table* inner = from.as_table()) return table(*inner);
        if (const toml::array* inner = from.as_array()) return array(*inner);
        Node out{.span = places_.span(from.source())};
        out.written = text_.substr(static_cast<std::size_t>(out.span.begin),
                                   static_cast<std::size_t>(out.span.end - out.span.begin));
        if (const auto* boolean = from.as_boolean())
            out.value = boolean->get();
        else if (const auto* integer = from.as_integer())
            out.value = integer->get();
        else if (const auto* number = from.as_floating_point())
            out.value = number->get();
        else {  // a string, or a date as it is written
            const auto* string = from.as_string();
            out.value = string ? string->get() : out.written;
            out.written.clear();
        }
        return tree_.scalar(std::move(out));
    }

    std::string_view text_;
    Positions places_;
    TreeBuilder& tree_;
};

}  // namespace

void read_toml(const Document& document, std::int64_t start, TreeBuilder& tree, const Limits& limits) {
    const std::string_view text = std::string_view(document.text).substr(static_cast<std::size_t>(start));
    if (const std::size_t deep = find_deep_key(text, limits.depth); deep != std::string_view::npos) {
        const std::int64_t here = start + static_cast<std::int64_t>(deep);
        tree.fail(Problem::too_deep, {here, here}, "a key of more than " + std::to_string(limits.depth) + " parts");
        return;
    }
    try {
        const toml::table table = toml::parse(text);
        Walk(document.text, start, tree).table(table);
    } catch (const toml::parse_error& error) {
        const std::string_view what = error.description();
        const std::int64_t here = Positions(document.text, start).at(error.source().begin);
        if (what.find("exceeded maximum nested") != std::string_view::npos)
            tree.fail(Problem::too_deep, {here, here}, "lists and maps nest too deep");
        else if (what.find("cannot redefine") != std::string_view::npos)
            tree.fail(Problem::duplicate_key, {here, here}, "not TOML: " + std::string(what));
        else
            tree.fail(Problem::syntax, {here, here}, "not TOML: " + std::string(what));
    } catch (const Confused&) {
        const std::int64_t here = start + static_cast<std::int64_t>(find_half_date(text));
        tree.fail(Problem::syntax, {here, here}, "not TOML: half a time behind a date");
    }
}

}  // namespace vram::io
