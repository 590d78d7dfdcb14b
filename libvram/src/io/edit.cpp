#include "vram/io/edit.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/steps.hpp"
#include "vram/io/path.hpp"

namespace vram::io {
namespace {

/// Text that takes the place of [begin, end).
struct Splice {
    std::size_t begin = 0, end = 0;
    std::string text{};
};

std::size_t at(std::int64_t offset) { return static_cast<std::size_t>(offset); }

Unexpected refuse(const Document& document, const Node& node, Problem problem, const std::string& path,
                  std::string text) {
    return {{{Severity::error, problem, document.place_of(node), path, node.spelled(), {}, std::move(text)}}};
}

// ---- does the new text say what it should? ----------------------------------------------------------------------

bool same(const Node& a, const Node& b);

bool same_members(const Map& a, const Map& b) {
    return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const Member& member) {
               const auto other =
                   std::find_if(b.begin(), b.end(), [&](const Member& m) { return m.key == member.key; });
               return other != b.end() && same(member.value, other->value);
           });
}

/// Whether two nodes say the same; the order of keys says nothing.
bool same(const Node& a, const Node& b) {
    if (a.kind() != b.kind()) return false;
    if (const Map* map = a.map()) return same_members(*map, *b.map());
    if (const List* list = a.list())
        return std::equal(list->begin(), list->end(), b.list()->begin(), b.list()->end(), same);
    if (const double* number = a.number())
        return *number == *b.number() || (std::isnan(*number) && std::isnan(*b.number()));
    if (const std::int64_t* integer = a.integer()) return *integer == *b.integer();
    if (const bool* boolean = a.boolean()) return *boolean == *b.boolean();
    return a.text() == nullptr || *a.text() == *b.text();
}

bool take_away(Node& root, const std::vector<Step>& steps) {
    Node* node = &root;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        const bool is_last = i + 1 == steps.size();
        if (steps[i].item) {
            auto* list = std::get_if<List>(&node->value);
            if (list == nullptr || *steps[i].item >= list->size()) return false;
            if (is_last)
                list->erase(list->begin() + static_cast<std::ptrdiff_t>(*steps[i].item));
            else
                node = &(*list)[*steps[i].item];
        } else {
            auto* map = std::get_if<Map>(&node->value);
            if (map == nullptr) return false;
            const auto member =
                std::find_if(map->begin(), map->end(), [&](const Member& m) { return m.key == steps[i].key; });
            if (member == map->end()) return false;
            if (is_last)
                map->erase(member);
            else
                node = &member->value;
        }
    }
    return true;
}

// ---- how a value is written -------------------------------------------------------------------------------------

std::string in_quotes(std::string_view text) {
    // What is no UTF-8 comes out as another text, which the check of the result then meets.
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// In JSON, and in TOML where `equals` stands between a key and its value.
std::string in_braces(const Node& node, std::string_view equals) {
    switch (node.kind()) {
        case Kind::null: return "null";
        case Kind::boolean: return *node.boolean() ? "true" : "false";
        case Kind::integer: return std::to_string(*node.integer());
        case Kind::number: return nlohmann::json(*node.number()).dump();
        case Kind::text: return in_quotes(*node.text());
        case Kind::list: {
            std::string out;
            for (const Node& item : *node.list()) out += (out.empty() ? "" : ", ") + in_braces(item, equals);
            return "[" + out + "]";
        }
        case Kind::map: {
            std::string out;
            for (const Member& member : *node.map())
                out += (out.empty() ? "" : ", ") + in_quotes(member.key) + std::string(equals) +
                       in_braces(member.value, equals);
            return "{" + out + "}";
        }
    }
    return {};
}

bool is_json(Format format) { return format == Format::json || format == Format::jsonc; }

/// `said`: the value as YAML flow; `node`: the same, read.
std::string written(const std::string& said, const Node& node, Format format) {
    if (format == Format::yaml) return said.empty() ? "null" : said;
    return in_braces(node, is_json(format) ? ": " : " = ");
}

std::string written_key(std::string_view key, Format format) {
    const bool is_plain = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
    });
    return is_json(format) || !is_plain ? in_quotes(key) : std::string(key);
}

/// key: value, or key: {next: {last: value}} for what is missing on the way.
std::string written_member(std::span<const Step> missing, const std::string& value, Format format) {
    const std::string_view between = format == Format::toml ? " = " : ": ";
    std::string out = written_key(missing.front().key, format) + std::string(between);
    if (missing.size() == 1) return out + value;
    return out + "{" + written_member(missing.subspan(1), value, format) + "}";
}

// ---- where it goes ----------------------------------------------------------------------------------------------

class Text {
  public:
    explicit Text(const Document& document) : document_(document), text_(document.text) {}

    [[nodiscard]] std::size_t line_begin(std::size_t offset) const {
        const std::size_t newline = offset == 0 ? std::string::npos : text_.rfind('\n', offset - 1);
        return newline == std::string::npos ? 0 : newline + 1;
    }
    /// Before the line's end, or the text's.
    [[nodiscard]] std::size_t line_end(std::size_t offset) const {
        const std::size_t newline = std::min(text_.find('\n', offset), text_.size());
        return newline > offset && text_[newline - 1] == '\r' ? newline - 1 : newline;
    }
    [[nodiscard]] std::size_t next_line(std::size_t offset) const {
        const std::size_t newline = text_.find('\n', offset);
        return newline == std::string::npos ? text_.size() : newline + 1;
    }
    [[nodiscard]] std::string newline() const { return text_.find("\r\n") == std::string::npos ? "\n" : "\r\n"; }
    [[nodiscard]] bool is_blank(std::size_t begin, std::size_t end) const {
        return text_.substr(begin, end - begin).find_first_not_of(" \t\r\n") == std::string_view::npos;
    }
    [[nodiscard]] std::string_view between(std::size_t begin, std::size_t end) const {
        return text_.substr(begin, end - begin);
    }
    [[nodiscard]] char operator[](std::size_t offset) const { return offset < text_.size() ? text_[offset] : '\0'; }

    /// Behind a value: of a null of which nothing is written, behind its ':'.
    [[nodiscard]] static std::size_t end_of(const Member& member) {
        return at(std::max(member.value.span.end, member.key_span.end));
    }
    [[nodiscard]] bool is_flow(const Node& node) const {
        // A [table] of TOML begins with its header.
        return node.span.end > node.span.begin && (*this)[at(node.span.begin)] == (node.is(Kind::map) ? '{' : '[');
    }

    /// As the line ends on which `offset` stands; at the end of the text as the others do.
    [[nodiscard]] std::string newline_at(std::size_t offset) const {
        const std::size_t end = line_end(offset);
        return end == text_.size() ? newline() : (*this)[end] == '\r' ? "\r\n" : "\n";
    }

    /// A line of its own behind the one on which `offset` stands, which is the end of some value.
    [[nodiscard]] Splice line_behind(std::size_t offset, const std::string& line) const {
        // A block scalar ends behind its last line end.
        const bool begins_line = offset > 0 && (*this)[offset - 1] == '\n';
        const std::size_t end = begins_line ? offset : line_end(offset);
        return {end, end, begins_line ? line + newline_at(offset - 1) : newline_at(offset) + line};
    }

    [[nodiscard]] Splice value(const Node& node, std::size_t behind_key, const std::string& value) const {
        const std::size_t begin = at(node.span.begin), end = at(node.span.end);
        if (begin == end) {  // a null of which nothing is written
            const bool is_apart = begin > 0 && ((*this)[begin - 1] == ' ' || (*this)[begin - 1] == '\t');
            return {begin, end, (is_apart ? "" : " ") + value};
        }
        const bool is_block = (node.is(Kind::list) || node.is(Kind::map)) && !is_flow(node);
        // `key:` and the block below it become one line where no comment stands between.
        if (is_block && document_.format == Format::yaml && is_blank(behind_key, begin) && behind_key < begin)
            return {behind_key, end, " " + value};
        return {begin, end, value};
    }

    /// A new member of a map in braces.
    [[nodiscard]] Splice member_in_braces(const Node& map, const std::string& member) const {
        const std::size_t open = at(map.span.begin) + 1, close = at(map.span.end) - 1;
        if (map.map()->empty()) return {open, close, member};
        const Member& first = map.map()->front();
        const std::size_t end = end_of(map.map()->back());
        const std::string_view gap = between(open, at(first.key_span.begin));
        const bool has_lines = gap.find('\n') != std::string_view::npos && is_blank(open, at(first.key_span.begin));
        return {end, end, (has_lines ? "," + std::string(gap) : ", ") + member};
    }

    /// A new member of a block map of YAML.
    [[nodiscard]] Splice member_in_block(const Node& map, const std::string& member) const {
        const std::size_t first = at(map.map()->front().key_span.begin);
        const std::string indent(first - line_begin(first), ' ');  // "- " before the first key counts
        return line_behind(end_of(map.map()->back()), indent + member);
    }

    /// A new member of TOML's root or of a [table]: behind its own members, before the tables below it.
    [[nodiscard]] Splice member_in_table(const Node& table, bool is_root, const std::string& member) const {
        std::size_t end = 0;
        for (const Member& own : *table.map())
            if (!own.value.is(Kind::map) || is_flow(own.value)) end = std::max(end, end_of(own));
        if (end > 0) return line_behind(end, member);
        if (is_root) return {0, 0, member + newline()};
        return line_behind(at(table.span.begin) + 1, member);  // behind the header
    }

    /// A line, or lines, that go as a whole.
    [[nodiscard]] std::optional<Splice> lines(std::size_t begin, std::size_t end, std::string_view allowed) const {
        const std::size_t line = line_begin(begin);
        if (between(line, begin).find_first_not_of(allowed) != std::string_view::npos) return {};
        const bool ends_line = end > begin && (*this)[end - 1] == '\n';
        return Splice{line, ends_line ? end : next_line(end), {}};
    }

    /// One of several that are separated by commas.
    [[nodiscard]] static Splice among(const std::vector<Span>& all, std::size_t i) {
        if (all.size() == 1) return Splice{at(all[0].begin), at(all[0].end), {}};
        if (i + 1 < all.size()) return Splice{at(all[i].begin), at(all[i + 1].begin), {}};
        return Splice{at(all[i - 1].end), at(all[i].end), {}};
    }

  private:
    const Document& document_;
    std::string_view text_;
};

class Editor {
  public:
    Editor(const Document& document, const Edit& edit) : document_(document), text_(document), edit_(edit) {}

    /// The splice for the edit, whose value was read as `value` (null for one that takes away).
    expected<Splice> splice(const std::vector<Step>& steps, const Node& value) const {
        const auto [node, member, parent, met] = walk(document_.root, steps);
        if (node->origin != Origin::file)
            return refused(*node, "stands in an anchor or comes out of a merge key: write it there");
        if (!edit_.value) return met < steps.size() ? refused(*node, "is not there") : without(*parent, *node, member);
        const std::string said = written(*edit_.value, value, document_.format);
        if (met == steps.size()) return text_.value(*node, behind_key(member, *node), said);
        const std::span<const Step> missing(steps.begin() + static_cast<std::ptrdiff_t>(met), steps.end());
        if (std::any_of(missing.begin(), missing.end(), [](const Step& step) { return step.item.has_value(); }))
            return refused(*node, "is a new item of a list, which is not written in place");
        const std::string added = written_member(missing, said, document_.format);
        if (node->is(Kind::null)) return text_.value(*node, behind_key(member, *node), "{" + added + "}");
        if (!node->is(Kind::map)) return refused(*node, "stands below " + node->spelled());
        if (text_.is_flow(*node) && (node != &document_.root || document_.format != Format::toml))
            return text_.member_in_braces(*node, added);
        if (document_.format == Format::toml) return text_.member_in_table(*node, node == &document_.root, added);
        return text_.member_in_block(*node, added);
    }

  private:
    [[nodiscard]] Unexpected refused(const Node& node, const std::string& why) const {
        return refuse(document_, node, Problem::unsupported, edit_.path, edit_.path + " " + why);
    }
    /// Behind the ':' of a key, of an item its begin.
    [[nodiscard]] std::size_t behind_key(const Member* member, const Node& node) const {
        if (member == nullptr) return at(node.span.begin);
        const std::size_t colon = document_.text.find(':', at(member->key_span.end));
        return std::min(colon == std::string::npos ? colon : colon + 1, at(node.span.begin));
    }
    [[nodiscard]] expected<Splice> without(const Node& parent, const Node& node, const Member* member) const {
        std::vector<Span> all;
        std::size_t own = 0;
        if (const Map* map = parent.map()) {
            for (const Member& other : *map) {
                if (&other == member) own = all.size();
                all.push_back({other.key_span.begin, static_cast<std::int64_t>(Text::end_of(other))});
            }
        } else {
            for (const Node& other : *parent.list()) {
                if (&other == &node) own = all.size();
                all.push_back(other.span);
            }
        }
        if (text_.is_flow(parent)) return Text::among(all, own);
        if (all.size() == 1) return refused(node, "is alone there and cannot go without what holds it");
        const std::string_view before = parent.is(Kind::list) ? " \t-" : " \t";
        if (std::optional<Splice> lines = text_.lines(at(all[own].begin), at(all[own].end), before)) return *lines;
        return refused(node, "shares a line with what stays");
    }

    const Document& document_;
    Text text_;
    const Edit& edit_;
};

constexpr std::size_t longest_shown = 60;

std::string as_written(const Document& document, const Node& node) {
    const std::string_view text =
        std::string_view(document.text).substr(at(node.span.begin), at(node.span.end - node.span.begin));
    return text.empty() || text.size() > longest_shown || text.find('\n') != std::string_view::npos ? node.spelled()
                                                                                                    : std::string(text);
}

/// Where the edit lands in the text that people have before them.
Edited described(const Document& document, const Edit& edit, const std::vector<Step>& steps) {
    Edited out{edit, {}, true, {}, edit.value.value_or("")};
    const Met met = walk(document.root, steps);
    const Node* node = met.node;
    if (met.steps == steps.size()) {
        out.place = document.place_of(*node);
        out.is_new = false;
        out.before = as_written(document, *node);
        return out;
    }
    const Map* map = node->map();
    const bool is_behind = node->origin == Origin::file && map != nullptr && !map->empty();
    out.place = is_behind ? document.place_of(map->back().key_span) : document.place_of(*node);
    return out;
}

}  // namespace

expected<EditedDocument> edited(const Document& document, const std::vector<Edit>& edits) {
    EditedDocument out{document, {}};
    Document& now = out.document;
    const bool has_text = !document.text.empty();
    for (const Edit& edit : edits) {
        const std::optional<std::vector<Step>> steps = steps_of(edit.path);
        const auto failed = [&](Problem problem, std::string text) {
            return refuse(document, document.root, problem, edit.path, std::move(text));
        };
        if (!steps) return failed(Problem::unknown_option, edit.path + " is no path of keys");
        Document wanted = now;
        if (edit.value) {
            if (std::optional<Diagnostic> complaint = assign(wanted, edit.path, *edit.value))
                return Unexpected{{*std::move(complaint)}};
        } else if (!take_away(wanted.root, *steps)) {
            return failed(Problem::unknown_option, edit.path + " is not there and cannot be taken away");
        }
        out.edits.push_back(described(document, edit, *steps));
        if (!has_text) {
            now = std::move(wanted);
            continue;
        }
        const Node* value = edit.value ? find(wanted.root, edit.path) : nullptr;
        const expected<Splice> splice = Editor(now, edit).splice(*steps, value == nullptr ? Node{} : *value);
        if (!splice) return Unexpected{splice.error()};
        std::string text = now.text;
        text.replace(splice->begin, splice->end - splice->begin, splice->text);
        expected<Document> again = read(text, now.file_name, now.format);
        if (!again || !same(again->root, wanted.root))
            return failed(Problem::unsupported, edit.path + " cannot be changed in place");
        now = *std::move(again);
    }
    return out;
}

}  // namespace vram::io
