#include "one_input.hpp"

#include <nlohmann/json.hpp>

#include <cmath>

#include "vram/diagnose/diagnose.hpp"
#include "vram/io/document.hpp"
#include "vram/io/fields.hpp"
#include "vram/io/image_header.hpp"
#include "vram/io/path.hpp"
#include "vram/io/tensor_file.hpp"

namespace vram::fuzz {

namespace {

using namespace vram::io;

bool same(const Node& a, const Node& b) {
    const double* x = a.number();
    const double* y = b.number();
    if (x && y) return *x == *y || (std::isnan(*x) && std::isnan(*y));
    if (a.kind() != b.kind() || a.list() || a.map()) return false;
    if (a.text()) return *a.text() == *b.text();
    if (a.integer()) return *a.integer() == *b.integer();
    return !a.boolean() || *a.boolean() == *b.boolean();
}

std::string_view slice(const Document& document, Span span) {
    return std::string_view(document.text)
        .substr(static_cast<std::size_t>(span.begin), static_cast<std::size_t>(span.end - span.begin));
}

bool inside(Span inner, Span outer) {
    return inner.begin >= outer.begin && inner.end <= outer.end && inner.begin <= inner.end;
}

/// What a scalar's span covers, read alone, is the scalar again.
std::string check_scalar(const Document& document, const Node& node) {
    const std::string_view text = slice(document, node.span);
    if (text.empty())
        return node.is(Kind::null) || (node.text() && node.text()->empty()) ? "" : "a value without characters";
    std::string alone;
    switch (document.format) {
        case Format::json:
        case Format::jsonc: alone = text; break;
        case Format::toml: alone = "[" + std::string(text) + "]"; break;
        case Format::yaml:
            // Left out, since they need their surroundings: aliases, blocks, what runs over lines, and tagged values.
            if (text[0] == '*' || text[0] == '|' || text[0] == '>' || text.find('\n') != std::string_view::npos)
                return {};
            if (text == "-") return {};  // a word in a flow only
            if (document.text.find('!') != std::string::npos) return {};
            alone = " " + std::string(text);
    }
    if (document.format == Format::toml) alone = "k = " + alone;
    const expected<Document> again = read(alone, "again", document.format);
    if (!again) return "a span that cannot be read alone: " + alone + " " + to_text(again.error().front());
    const Node* value = &again->root;
    if (document.format == Format::toml) value = &(*again->root.find("k")->list())[0];
    return same(node, *value) ? "" : "a span that reads otherwise alone: " + alone;
}

std::string check_node(const Document& document, const Node& node, std::int64_t depth) {
    if (depth > 64) return "deeper than the limit";
    if (!inside(node.span, {0, static_cast<std::int64_t>(document.text.size())})) return "a span outside of the text";
    const bool own = node.origin == Origin::file &&
                     !(document.format == Format::yaml && slice(document, node.span).starts_with('*'));
    const auto check_inner = [&](const Node& inner) {
        // TOML's tables may be continued anywhere.
        if (own && inner.origin == Origin::file && document.format != Format::toml && !inside(inner.span, node.span))
            return std::string("a value outside of its list or map");
        return check_node(document, inner, depth + 1);
    };
    if (const List* list = node.list()) {
        for (const Node& item : *list)
            if (std::string law = check_inner(item); !law.empty()) return law;
        return {};
    }
    if (const Map* map = node.map()) {
        for (const Member& member : *map)
            if (std::string law = check_inner(member.value); !law.empty()) return law;
        return {};
    }
    return own ? check_scalar(document, node) : "";
}

void ask_everything(const Document& document) {
    Diagnostics complaints;
    Fields f(document, complaints);
    constexpr Choice<int> table[] = {{"lora", 1}, {"full", 2}};
    if (const Map* map = document.root.map())
        for (const Member& member : *map) {
            const std::string& key = member.key;
            static_cast<void>(f.integer(key, {.min = 1}, required));
            static_cast<void>(f.number(key));
            static_cast<void>(f.boolean(key));
            static_cast<void>(f.word(key));
            static_cast<void>(f.size(key));
            static_cast<void>(f.choice(key, table));
            static_cast<void>(f.integers(key, {}, {}, Single::is_a_list));
            static_cast<void>(f.integer_lists(key, {}, {.max = 3}));
            static_cast<void>(f.texts(key));
            for (Fields& inner : f.maps(key)) inner.finish();
            f.map(key).finish();
            if (complaints.size() > 1000) break;
        }
    f.finish();
    for (const Diagnostic& complaint : complaints) static_cast<void>(to_text(complaint));
}

/// A header that is accepted announces no more than the file holds, and sums that fit.
std::string check_tensors(std::string_view input) {
    const expected<TensorFile> file = tensor_file_of(input, "fuzz");
    if (!file) {
        const Diagnostic& first = file.error().front();
        return first.text.empty() || first.place.file != "fuzz" ? "a complaint about tensors without its fields" : "";
    }
    Bytes all = 0;
    for (const StoredTensor& tensor : file->tensors) {
        if (tensor.bytes < 0 || tensor.numel < 0) return "a tensor of less than nothing";
        all += tensor.bytes;
    }
    // The data of GGUF's tensors may overlap; that of safetensors is the rest of the file.
    if (file->format == TensorFormat::safetensors && all > static_cast<Bytes>(input.size()))
        return "more tensors than the file holds";
    Bytes again = 0;
    for (const StoredType& type : by_type(file->tensors)) again += type.bytes;
    return all == again ? "" : "sums by type that do not add up";
}

std::string check_document(std::string_view input, Format format) {
    const expected<Document> document = read(input, "fuzz", format);
    if (!document) {
        const Diagnostic& first = document.error().front();
        if (first.severity != Severity::error || first.text.empty() || first.place.file != "fuzz")
            return "a complaint without its fields";
        if (first.place.line < 1 && first.problem != Problem::empty_file && first.problem != Problem::file_too_large)
            return "a complaint without a line";
        if (format == Format::json && first.problem == Problem::syntax && nlohmann::json::accept(input))
            return "good JSON that is refused";
        return {};
    }
    if (format == Format::json && !nlohmann::json::accept(input)) return "bad JSON that is read";
    if (std::string law = check_node(*document, document->root, 0); !law.empty()) return law;
    ask_everything(*document);
    return {};
}

/// Any bytes are a log: read whole or in pieces it says the same, and what it says is valid JSON.
std::string check_log(std::string_view input) {
    static const diagnosis::Knowledge known = diagnosis::Knowledge::built_in();
    const diagnosis::Diagnosis whole = diagnosis::diagnose(input, "fuzz", nullptr, known);
    diagnosis::LogReader reader(known);
    const std::size_t step = 1 + input.size() % 7;
    for (std::size_t at = 0; at < input.size(); at += step) reader.feed(input.substr(at, step));
    if (reader.finish("fuzz") != whole) return "a log that reads otherwise in pieces";
    if (whole.recognised == whole.first_change.empty()) return "a diagnosis without a change";
    if (whole.recognised != whole.looked_for.empty()) return "a failure and what was looked for";
    if (!nlohmann::json::accept(to_json(whole, -1))) return "a diagnosis that is no JSON";
    return to_text(whole).empty() ? "a diagnosis without a text" : "";
}

}  // namespace

std::string check_one(std::string_view input) {
    for (const Format format : {Format::yaml, Format::json, Format::jsonc, Format::toml})
        if (std::string law = check_document(input, format); !law.empty())
            return std::string(io::to_text(format)) + ": " + law;
    static_cast<void>(format_of("", input));

    const std::size_t sign = input.find('=');
    Document document{.root = {Map{}}};
    if (const auto refused =
            assign(document, input.substr(0, sign), sign == std::string_view::npos ? "" : input.substr(sign + 1));
        refused) {
        if (!document.root.map()->empty()) return "a refused --set that changed something";
    } else if (!find(document.root, input.substr(0, sign))) {
        return "a --set that is not found again";
    }

    if (std::string law = check_tensors(input); !law.empty()) return law;
    if (std::string law = check_log(input); !law.empty()) return law;

    const expected<ImageSize> size = image_size_of(input, "fuzz");
    if (size && (size->width <= 0 || size->height <= 0)) return "an image without a size";
    return {};
}

}  // namespace vram::fuzz
