// nlohmann's SAX parser decides what is JSON; it is not recursive and validates UTF-8, escapes and numbers. It gives no
// places, so a cursor follows it through the text: between two events stand only blanks, comments, ',' and ':', and
// every token shows where it ends. This is smaller than a parser of our own, and it accepts exactly what nlohmann does.
#include <nlohmann/json.hpp>

#include "io/readers.hpp"

namespace vram::io {

namespace {

class Events final : public nlohmann::json::json_sax_t {
  public:
    Events(std::string_view text, std::int64_t start, TreeBuilder& tree)
        : text_(text), at_(static_cast<std::size_t>(start)), start_(start), tree_(tree) {}

    bool null() override { return scalar({}, word()); }
    bool boolean(bool value) override { return scalar({.value = value}, word()); }
    bool number_integer(number_integer_t value) override { return scalar({.value = std::int64_t{value}}, word()); }
    bool number_unsigned(number_unsigned_t value) override {
        if (value <= number_unsigned_t{INT64_MAX}) return scalar({.value = static_cast<std::int64_t>(value)}, word());
        return scalar({.value = static_cast<double>(value), .beyond_int64 = true}, word());
    }
    bool number_float(number_float_t value, const string_t& written) override {
        const bool whole = written.find_first_of(".eE") == string_t::npos;
        return scalar({.value = value, .beyond_int64 = whole}, word());
    }
    bool string(string_t& value) override { return tree_.scalar({.value = std::move(value), .span = quoted()}); }
    bool binary(binary_t&) override { return false; }  // not in text
    bool start_object(std::size_t) override { return tree_.begin(Kind::map, bracket().begin); }
    bool key(string_t& value) override { return tree_.key(std::move(value), quoted()); }
    bool end_object() override { return tree_.end(bracket().end); }
    bool start_array(std::size_t) override { return tree_.begin(Kind::list, bracket().begin); }
    bool end_array() override { return tree_.end(bracket().end); }
    bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
        // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error while …": the place is ours.
        std::string_view what = error.what();
        if (const std::size_t head = what.find("] "); head != std::string_view::npos) what.remove_prefix(head + 2);
        if (what.starts_with("parse error at line"))
            if (const std::size_t colon = what.find(": "); colon != std::string_view::npos)
                what.remove_prefix(colon + 2);
        const std::int64_t offset = start_ + static_cast<std::int64_t>(position) - (position > 0 ? 1 : 0);
        return tree_.fail(Problem::syntax, {offset, offset}, "not JSON: " + std::string(what));
    }

  private:
    bool scalar(Node node, Span span) {
        node.span = span;
        node.written =
            text_.substr(static_cast<std::size_t>(span.begin), static_cast<std::size_t>(span.end - span.begin));
        return tree_.scalar(std::move(node));
    }
    void skip_to_token() {
        while (at_ < text_.size()) {
            const char c = text_[at_];
            if (c == '/' && at_ + 1 < text_.size() && text_[at_ + 1] == '/')
                at_ = text_.find_first_of("\r\n", at_);
            else if (c == '/')
                at_ = text_.find("*/", at_ + 2) + 2;
            else if (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == ',' || c == ':')
                ++at_;
            else
                return;
        }
    }
    Span take(std::size_t end) {
        const Span span{static_cast<std::int64_t>(at_), static_cast<std::int64_t>(end)};
        at_ = end;
        return span;
    }
    Span bracket() {
        skip_to_token();
        return take(at_ + 1);
    }
    Span word() {
        skip_to_token();
        return take(std::min(text_.find_first_of(" \t\r\n,:]}/", at_), text_.size()));
    }
    Span quoted() {
        skip_to_token();
        std::size_t end = at_ + 1;
        while (text_[end] != '"') end += text_[end] == '\\' ? 2U : 1U;
        return take(end + 1);
    }

    std::string_view text_;
    std::size_t at_;
    std::int64_t start_;
    TreeBuilder& tree_;
};

}  // namespace

void read_json(const Document& document, std::int64_t start, TreeBuilder& tree, bool comments) {
    Events events(document.text, start, tree);
    const auto first = document.text.begin() + start;
    nlohmann::json::sax_parse(first, document.text.end(), &events, nlohmann::json::input_format_t::json, true,
                              comments);
}

}  // namespace vram::io
