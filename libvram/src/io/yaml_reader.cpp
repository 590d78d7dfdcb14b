// yaml-cpp's events carry the byte where a node begins, but not where it ends, and say nothing of quotes but the tag
// "!". The ends are found here by walking the text: quotes and brackets show their end, a plain scalar's value is
// matched against the text (folding turns blanks and line breaks into a space), a block scalar ends where the indent
// does.
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "io/readers.hpp"

namespace vram::io {

namespace {

struct Refused {};  // thrown through yaml-cpp's parser, caught in read_yaml; the builder knows why

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// Finds where things end. All positions are bytes; none leaves the text.
class Text {
  public:
    explicit Text(std::string_view text) : text_(text) {}

    [[nodiscard]] char at(std::size_t i) const { return i < text_.size() ? text_[i] : '\0'; }
    [[nodiscard]] std::size_t size() const { return text_.size(); }
    [[nodiscard]] std::string_view slice(std::size_t begin, std::size_t end) const {
        return text_.substr(begin, end - begin);
    }
    [[nodiscard]] std::size_t line_end(std::size_t i) const { return std::min(text_.find('\n', i), text_.size()); }
    /// Past blanks, line breaks and comments.
    [[nodiscard]] std::size_t skip_blanks(std::size_t i) const {
        while (i < text_.size()) {
            if (is_blank(text_[i]))
                ++i;
            else if (text_[i] == '#' && (i == 0 || is_blank(text_[i - 1])))
                i = line_end(i);
            else
                break;
        }
        return i;
    }
    /// The end of the `&anchor` or `!tag` here, by yaml-cpp's characters (its exp.h); `i` if there is none.
    [[nodiscard]] std::size_t property_end(std::size_t i) const {
        constexpr std::string_view in_tag =
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-#;/?:@&=+$_.~*'()%!";
        if (at(i) == '&') return std::min(text_.find_first_of(" \t\r\n,[]{}", i), text_.size());
        if (at(i) != '!') return i;
        if (at(i + 1) == '<') return std::min(text_.find('>', i), text_.size() - 1) + 1;
        return std::min(text_.find_first_not_of(in_tag, i), text_.size());
    }
    [[nodiscard]] std::size_t quoted_end(std::size_t i) const {
        const char quote = at(i++);
        for (; i < text_.size(); ++i) {
            if (quote == '"' && text_[i] == '\\')
                ++i;
            else if (text_[i] == quote && quote == '\'' && at(i + 1) == quote)
                ++i;
            else if (text_[i] == quote)
                return i + 1;
        }
        return text_.size();
    }
    /// The end of a plain scalar with this value; npos if that does not stand here.
    [[nodiscard]] std::size_t plain_end(std::size_t i, std::string_view value) const {
        for (std::size_t v = 0; v < value.size();) {
            if (is_blank(value[v])) {
                while (v < value.size() && is_blank(value[v])) ++v;
                while (i < text_.size() && is_blank(text_[i])) ++i;
            } else {
                if (at(i) != value[v]) return std::string_view::npos;
                ++i, ++v;
            }
        }
        return i;
    }
    /// The end of a block scalar (`|`, `>`) in a block of this indent (-1 at the root): its last line that is not
    /// blank.
    [[nodiscard]] std::size_t block_end(std::size_t i, std::int64_t parent_indent) const {
        const std::size_t header = line_end(i);
        std::int64_t indent = -1;
        for (std::size_t h = i; h < header && !is_blank(text_[h]); ++h)
            if (text_[h] >= '1' && text_[h] <= '9')
                indent = std::max<std::int64_t>(parent_indent, 0) + (text_[h] - '0');
        std::size_t end = header;
        while (end > i && is_blank(text_[end - 1])) --end;
        for (std::size_t line = header; line < text_.size();) {
            const std::size_t begin = line + 1, next = line_end(begin);
            const std::size_t first = std::min(text_.find_first_not_of(' ', begin), text_.size());
            line = next;
            if (first >= next || at(first) == '\r') continue;
            const auto column = static_cast<std::int64_t>(first - begin);
            if (indent < 0) indent = std::max(column, parent_indent + 1);
            if (column < indent) break;
            end = next;
            while (end > begin && (text_[end - 1] == '\r')) --end;
        }
        return end;
    }

  private:
    std::string_view text_;
};

class Events final : public YAML::EventHandler {
  public:
    Events(std::string_view text, std::int64_t start, TreeBuilder& tree) : text_(text), start_(start), tree_(tree) {}

    void OnDocumentStart(const YAML::Mark&) override {}
    void OnDocumentEnd() override {}

    void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
        const std::size_t begin = value_begin(mark);
        std::size_t end = begin;
        while (end < text_.size() && std::isalpha(static_cast<unsigned char>(text_.at(end)))) ++end;
        if (text_.at(begin) == '~') end = begin + 1;
        const std::string_view word = text_.slice(begin, end);
        const bool is_word = word == "~" || word == "null" || word == "Null" || word == "NULL";
        if (is_word && !is_dedented(begin))
            return give({}, {as_offset(begin), as_offset(end)}, anchor, std::string(word));
        const std::size_t empty = tree_.wants_key() ? begin : empty_value();
        give({}, {as_offset(empty), as_offset(empty)}, anchor, "");
    }

    void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
        const std::size_t begin = offset(mark);
        std::size_t end = begin + 1;
        while (end < text_.size() && !is_blank(text_.at(end)) &&
               std::string_view(",[]{}").find(text_.at(end)) == std::string_view::npos)
            ++end;
        const Span span{as_offset(begin), as_offset(end)};
        const auto found = anchors_.find(anchor);
        if (found == anchors_.end()) return refuse(Problem::syntax, span, "the alias stands inside its own anchor");
        if (tree_.wants_key()) {
            const std::string* name = found->second.text();
            if (!name) return refuse(Problem::syntax, span, "a key must be a word");
            return check(tree_.key(*name, span));
        }
        check(tree_.alias(found->second, span));
    }

    void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  const std::string& value) override {
        std::size_t begin = value_begin(mark);
        // `!!str` with nothing behind it is a text; what stands next is not its.
        const bool nothing = value.empty() && (is_dedented(begin) || std::string_view("\"'|>").find(text_.at(begin)) ==
                                                                         std::string_view::npos);
        if (nothing) begin = behind_properties(offset(mark));
        const char first = nothing ? '\0' : text_.at(begin);
        const bool quoted = first == '"' || first == '\'';
        const bool block = first == '|' || first == '>';
        const std::size_t end = quoted  ? text_.quoted_end(begin)
                                : block ? text_.block_end(begin, block_indent())
                                        : text_.plain_end(begin, value);
        if (end == std::string_view::npos)  // no such case is known
            return refuse(Problem::syntax, {as_offset(begin), as_offset(begin)},
                          "not YAML: a value that does not stand here");
        const Span span{as_offset(begin), as_offset(end)};
        if (tree_.wants_key()) {
            if (anchor != YAML::NullAnchor)
                anchors_[anchor] = Node{.value = value, .span = span, .origin = Origin::file};
            return check(tree_.key(value, span, value == "<<" && !quoted));
        }
        give(tagged(tag, value, quoted || block, span), span, anchor, {});
    }

    void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                         YAML::EmitterStyle::value style) override {
        open(Kind::list, mark, tag, "tag:yaml.org,2002:seq", anchor, style == YAML::EmitterStyle::Flow);
    }
    void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                    YAML::EmitterStyle::value style) override {
        open(Kind::map, mark, tag, "tag:yaml.org,2002:map", anchor, style == YAML::EmitterStyle::Flow);
    }
    void OnSequenceEnd() override { close(); }
    void OnMapEnd() override { close(); }

  private:
    struct Open {
        YAML::anchor_t anchor;
        bool bracketed;
        std::optional<std::int64_t> indent;  // of the innermost block list or map; once known
    };

    [[nodiscard]] std::size_t offset(const YAML::Mark& mark) const {
        return std::min(static_cast<std::size_t>(start_ + mark.pos), text_.size());
    }
    static std::int64_t as_offset(std::size_t i) { return static_cast<std::int64_t>(i); }
    static void check(bool accepted) {
        if (!accepted) throw Refused{};
    }
    void refuse(Problem problem, Span where, std::string why, std::string found = {}) {
        check(tree_.fail(problem, where, std::move(why), std::move(found)));
    }

    /// Behind the ':' or '-' (or the key, or the ',') that the empty value belongs to.
    [[nodiscard]] std::size_t empty_value() const {
        const auto from = static_cast<std::size_t>(tree_.cursor());
        const std::size_t sign = text_.skip_blanks(tree_.at_root() ? static_cast<std::size_t>(start_) : from);
        if (tree_.in_map() && text_.at(sign) == ':') return behind_properties(sign + 1);
        if (tree_.in_list() && (text_.at(sign) == '-' || text_.at(sign) == ',')) return behind_properties(sign + 1);
        return std::min(from, text_.size());
    }
    /// `i`, or the end of the last `&anchor` or `!tag` that follows it.
    [[nodiscard]] std::size_t behind_properties(std::size_t i) const {
        for (std::size_t next = text_.skip_blanks(i); text_.property_end(next) > next; next = text_.skip_blanks(i))
            i = text_.property_end(next);
        return i;
    }
    /// Where the value at this mark begins, behind its properties. yaml-cpp ends them at letters that PyYAML refuses:
    /// `!é4`.
    [[nodiscard]] std::size_t value_begin(const YAML::Mark& mark) {
        std::size_t i = offset(mark);
        for (std::size_t end = text_.property_end(i); end > i; end = text_.property_end(i)) {
            if (end < text_.size() && !is_blank(text_.at(end)) &&
                std::string_view(",]}").find(text_.at(end)) == std::string_view::npos)
                refuse(Problem::syntax, {as_offset(i), as_offset(end)},
                       "not YAML: a blank is due behind an anchor or a tag");
            i = text_.skip_blanks(end);
        }
        return i;
    }

    /// The column of the innermost block list's or map's first dash or key; -1 at the root.
    std::int64_t block_indent() {
        if (open_.empty()) return -1;
        Open& open = open_.back();
        if (!open.indent) open.indent = column(tree_.indent_anchor());
        return *open.indent;
    }
    /// After an empty value the mark is that of the next token; is it on a later line and no deeper than this block?
    bool is_dedented(std::size_t i) {
        const auto from = static_cast<std::size_t>(tree_.cursor());
        if (open_.empty() || open_.back().bracketed || tree_.wants_key() || from >= i) return false;
        return text_.slice(from, i).find('\n') != std::string_view::npos && column(as_offset(i)) <= block_indent();
    }
    [[nodiscard]] std::int64_t column(std::int64_t i) const {
        std::int64_t begin = i;
        while (begin > start_ && text_.at(static_cast<std::size_t>(begin - 1)) != '\n') --begin;
        return i - begin;
    }

    Node tagged(const std::string& tag, const std::string& value, bool quoted, Span span) {
        constexpr std::string_view core = "tag:yaml.org,2002:";
        if (tag == "?") return resolve_plain(value);
        if (tag == "!" || tag.empty() || (quoted && tag == "?")) return {.value = value};
        const std::string_view name =
            tag.starts_with(core) ? std::string_view(tag).substr(core.size()) : std::string_view();
        if (name == "str" || name == "binary" || name == "timestamp") return {.value = value};
        Node node = resolve_plain(value);
        if (name == "float" && node.integer()) node.value = static_cast<double>(*node.integer());
        const bool agrees = (name == "int" && (node.is(Kind::integer) || node.beyond_int64)) ||
                            (name == "float" && node.is(Kind::number)) || (name == "bool" && node.is(Kind::boolean)) ||
                            (name == "null" && node.is(Kind::null));
        if (!agrees) refuse(Problem::syntax, span, "the tag " + tag + " does not go with this value", value);
        return node;
    }

    void give(Node node, Span span, YAML::anchor_t anchor, std::string written) {
        if (tree_.wants_key()) return check(tree_.key(std::move(written), span));
        node.span = span;
        if (!written.empty()) node.written = std::move(written);
        check(tree_.scalar(std::move(node)));
        remember(anchor);
    }

    void open(Kind kind, const YAML::Mark& mark, const std::string& tag, std::string_view own_tag,
              YAML::anchor_t anchor, bool flow) {
        const std::size_t begin = value_begin(mark);
        const Span here{as_offset(begin), as_offset(begin)};
        if (tree_.wants_key()) return refuse(Problem::syntax, here, "a key must be a word, not a list or a map");
        if (tag != "?" && tag != "!" && !tag.empty() && tag != own_tag)
            return refuse(Problem::syntax, here, "the tag " + tag + " is not known", tag);
        const bool bracketed = flow && (text_.at(begin) == '[' || text_.at(begin) == '{');
        const std::int64_t outer = block_indent();
        check(tree_.begin(kind, here.begin));
        open_.push_back({anchor, bracketed, bracketed ? std::optional(outer) : std::nullopt});
        if (bracketed) inside_ = begin + 1;
    }
    void close() {
        const Open open = open_.back();
        open_.pop_back();
        if (open.bracketed) {
            std::size_t i = std::max(inside_, static_cast<std::size_t>(tree_.cursor()));
            while (i < text_.size() && text_.at(i) != ']' && text_.at(i) != '}') i = text_.skip_blanks(i + 1);
            inside_ = std::min(i + 1, text_.size());
            check(tree_.end(as_offset(inside_)));
        } else {
            check(tree_.end());
        }
        remember(open.anchor);
    }
    void remember(YAML::anchor_t anchor) {
        if (anchor == YAML::NullAnchor) return;
        check(tree_.count_copy(tree_.last(), tree_.last().span));
        anchors_[anchor] = tree_.last();
    }

    Text text_;
    std::int64_t start_;
    TreeBuilder& tree_;
    std::vector<Open> open_;
    std::map<YAML::anchor_t, Node> anchors_;
    std::size_t inside_ = 0;  // behind the last bracket
};

/// Fails a second document as it starts.
class Second final : public YAML::EventHandler {
  public:
    explicit Second(std::int64_t start, TreeBuilder& tree) : start_(start), tree_(tree) {}
    void OnDocumentStart(const YAML::Mark& mark) override {
        tree_.fail(Problem::syntax, {start_ + mark.pos, start_ + mark.pos},
                   "a second document starts here; a config is one document");
        throw Refused{};
    }
    void OnDocumentEnd() override {}
    void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
    void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
    void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
    void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
    void OnSequenceEnd() override {}
    void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
    void OnMapEnd() override {}

  private:
    std::int64_t start_;
    TreeBuilder& tree_;
};

/// What most likely is wrong in the line where a parser gave up, for people.
std::string hint(std::string_view text, std::int64_t offset) {
    const std::size_t at = std::min(static_cast<std::size_t>(offset), text.size());
    const std::size_t begin = at == 0 ? 0 : text.rfind('\n', at - 1) + 1;  // npos + 1 is 0
    const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
    const std::size_t indent = std::min(line.find_first_not_of(" \t"), line.size());
    if (line.substr(0, indent).find('\t') != std::string_view::npos) return "; a tab stands where blanks must indent";
    return "; is the line, or the one before it, indented as its neighbours are?";
}

}  // namespace

void read_yaml(const Document& document, std::int64_t start, TreeBuilder& tree) {
    const std::string& text = document.text;
    // yaml-cpp drops a carriage return that stands alone and joins the lines around it.
    for (std::size_t i = text.find('\r'); i != std::string::npos; i = text.find('\r', i + 1))
        if (i + 1 == text.size() || text[i + 1] != '\n') {
            const auto here = static_cast<std::int64_t>(i);
            tree.fail(Problem::syntax, {here, here}, "a carriage return without a line feed");
            return;
        }
    std::istringstream stream(text.substr(static_cast<std::size_t>(start)));
    try {
        YAML::Parser parser(stream);
        Events events(text, start, tree);
        Second second(start, tree);
        if (parser.HandleNextDocument(events)) parser.HandleNextDocument(second);
    } catch (const Refused&) {  // tree.failure() is set
    } catch (const YAML::Exception& error) {
        const std::int64_t offset = start + std::max(error.mark.pos, 0);
        tree.fail(Problem::syntax, {offset, offset}, "not YAML: " + error.msg + hint(text, offset));
    }
}

}  // namespace vram::io
