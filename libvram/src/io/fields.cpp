#include "vram/io/fields.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace vram::io {

namespace {

constexpr std::int64_t most_unknown = 100;             // a file with more is not one of ours
constexpr double exact_integers = 9007199254740992.0;  // 2^53: doubles beyond skip whole numbers

std::string quoted(const Node& node) {
    const std::string what = node.spelled();
    constexpr std::size_t most = 60;
    const bool scalar = !node.is(Kind::null) && !node.is(Kind::list) && !node.is(Kind::map);
    if (!scalar) return what;
    std::size_t cut = std::min(what.size(), most);
    while (cut < what.size() && cut > 0 && (static_cast<unsigned char>(what[cut]) & 0xC0U) == 0x80U) --cut;
    const std::string shown = what.substr(0, cut) + (cut < what.size() ? "…" : "");
    return node.is(Kind::text) ? "the text \"" + shown + "\"" : shown;
}

std::string shortest(double value) {
    std::array<char, 32> out{};
    return {out.data(), std::to_chars(out.data(), out.data() + out.size(), value).ptr};
}

template <class Number>
std::string range_text(Number min, Number max, Number lowest, Number highest, std::string (*show)(Number)) {
    if (min == lowest) return "at most " + show(max);
    if (max == highest) return "at least " + show(min);
    return "from " + show(min) + " to " + show(max);
}

}  // namespace

Fields::Fields(const Document& document, Diagnostics& complaints, Nulls nulls)
    : Fields(document, document.root, "", complaints, nulls) {}

Fields::Fields(const Document& document, const Node& node, std::string path, Diagnostics& complaints, Nulls nulls)
    : document_(&document),
      complaints_(&complaints),
      path_(std::move(path)),
      place_(document.place_of(node)),
      nulls_(nulls) {
    if (node.is(Kind::map))
        node_ = &node;
    else
        wrong_type(node, path_, "a map");
}

Fields::Fields(const Fields& parent, const Node* node, std::string path, Place place)
    : document_(parent.document_),
      complaints_(parent.complaints_),
      node_(node),
      path_(std::move(path)),
      place_(std::move(place)),
      nulls_(parent.nulls_) {}

Place Fields::place(std::string_view key) const {
    const Node* value = node_ != nullptr ? node_->find(key) : nullptr;
    return value != nullptr ? document_->place_of(*value) : place_;
}
std::string Fields::path(std::string_view key) const {
    return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

void Fields::complain(const Node& node, const std::string& path, Problem problem, std::string text,
                      std::string nearest) {
    complaints_->push_back({Severity::error, problem, document_->place_of(node), path, node.spelled(),
                            std::move(nearest), std::move(text)});
}

void Fields::complain(std::string_view key, Problem problem, std::string text, std::string nearest, Severity severity) {
    const Node* value = node_ ? node_->find(key) : nullptr;
    complaints_->push_back({severity, problem, value ? document_->place_of(*value) : place_, path(key),
                            value ? value->spelled() : std::string(), std::move(nearest), std::move(text)});
}

void Fields::wrong_type(const Node& node, const std::string& path, std::string_view due) {
    complain(node, path, Problem::wrong_type,
             (path.empty() ? "the file" : path) + " must be " + std::string(due) + ", not " + quoted(node));
}

void Fields::ignore(std::string_view key) {
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.emplace_back(key);
}

void Fields::ignore(std::span<const std::string_view> keys) {
    for (const std::string_view key : keys) ignore(key);
}

const Node* Fields::node(std::string_view key) {
    ignore(key);
    return node_ ? node_->find(key) : nullptr;
}

const Node* Fields::present(std::string_view key) {
    const Node* value = node(key);
    return value && value->is(Kind::null) && nulls_ == Nulls::are_absent ? nullptr : value;
}

bool Fields::has(std::string_view key) { return present(key) != nullptr; }

bool Fields::require(std::string_view key) {
    if (present(key)) return true;
    complaints_->push_back(
        {Severity::error, Problem::missing_key, place_, path(key), {}, {}, path(key) + " is missing"});
    return false;
}

std::optional<std::int64_t> Fields::as_integer(const Node& node, const std::string& path, IntegerRange range) {
    std::optional<std::int64_t> value;
    if (const std::int64_t* integer = node.integer()) value = *integer;
    if (node.beyond_int64) {
        complain(node, path, Problem::overflow, path + " exceeds 63 bits: " + node.spelled());
        return std::nullopt;
    }
    if (const double* number = node.number();
        number && std::abs(*number) <= exact_integers && std::trunc(*number) == *number)
        value = static_cast<std::int64_t>(*number);
    if (!value) {
        wrong_type(node, path, "a whole number");
        return std::nullopt;
    }
    if (*value >= range.min && *value <= range.max) return value;
    constexpr IntegerRange all;
    const auto show = [](std::int64_t number) { return std::to_string(number); };
    complain(node, path, Problem::out_of_range,
             path + " must be " + range_text<std::int64_t>(range.min, range.max, all.min, all.max, show) + ", not " +
                 quoted(node));
    return std::nullopt;
}

std::optional<double> Fields::as_number(const Node& node, const std::string& path, NumberRange range) {
    std::optional<double> value;
    if (const std::int64_t* integer = node.integer()) value = static_cast<double>(*integer);
    if (const double* number = node.number()) value = *number;
    if (!value) {
        wrong_type(node, path, "a number");
        return std::nullopt;
    }
    if (*value >= range.min && *value <= range.max) return value;
    constexpr NumberRange all;
    const std::string due =
        std::isfinite(*value) ? range_text<double>(range.min, range.max, all.min, all.max, shortest) : "finite";
    complain(node, path, Problem::out_of_range, path + " must be " + due + ", not " + quoted(node));
    return std::nullopt;
}

const List* Fields::as_list(const Node& node, const std::string& path, Length length) {
    const List* list = node.list();
    if (!list) {
        wrong_type(node, path, "a list");
        return nullptr;
    }
    const auto size = static_cast<std::int64_t>(list->size());
    if (size >= length.min && size <= length.max) return list;
    const auto show = [](std::int64_t number) { return std::to_string(number); };
    const std::string due = length.min == length.max
                                ? std::to_string(length.min)
                                : range_text<std::int64_t>(length.min, length.max, 0, Length{}.max, show);
    complain(node, path, Problem::out_of_range,
             path + " must hold " + due + (due == "1" ? " item" : " items") + ", not " + std::to_string(size));
    return nullptr;
}

std::optional<std::int64_t> Fields::integer(std::string_view key, IntegerRange range) {
    const Node* value = present(key);
    return value ? as_integer(*value, path(key), range) : std::nullopt;
}
std::int64_t Fields::integer(std::string_view key, IntegerRange range, std::int64_t fallback) {
    return integer(key, range).value_or(fallback);
}
std::int64_t Fields::integer(std::string_view key, IntegerRange range, Required) {
    const std::int64_t stand_in = std::clamp<std::int64_t>(0, range.min, range.max);
    return require(key) ? integer(key, range).value_or(stand_in) : stand_in;
}

std::optional<double> Fields::number(std::string_view key, NumberRange range) {
    const Node* value = present(key);
    return value ? as_number(*value, path(key), range) : std::nullopt;
}
double Fields::number(std::string_view key, NumberRange range, double fallback) {
    return number(key, range).value_or(fallback);
}
double Fields::number(std::string_view key, NumberRange range, Required) {
    const double stand_in = std::clamp(0.0, range.min, range.max);
    return require(key) ? number(key, range).value_or(stand_in) : stand_in;
}

std::optional<bool> Fields::boolean(std::string_view key) {
    const Node* value = present(key);
    if (!value) return std::nullopt;
    if (const bool* boolean = value->boolean()) return *boolean;
    wrong_type(*value, path(key), "true or false");
    return std::nullopt;
}
bool Fields::boolean(std::string_view key, bool fallback) { return boolean(key).value_or(fallback); }
bool Fields::boolean(std::string_view key, Required) { return require(key) && boolean(key).value_or(false); }

std::optional<std::string> Fields::text(std::string_view key) {
    const Node* value = present(key);
    if (!value) return std::nullopt;
    if (const std::string* text = value->text()) return *text;
    wrong_type(*value, path(key), "a text");
    return std::nullopt;
}
std::string Fields::text(std::string_view key, std::string_view fallback) {
    return text(key).value_or(std::string(fallback));
}
std::string Fields::text(std::string_view key, Required) { return require(key) ? text(key).value_or("") : ""; }

std::optional<std::string> Fields::word(std::string_view key) {
    const Node* value = present(key);
    if (!value) return std::nullopt;
    if (!value->is(Kind::null) && !value->is(Kind::list) && !value->is(Kind::map)) return value->spelled();
    wrong_type(*value, path(key), "a word or a number");
    return std::nullopt;
}
std::string Fields::word(std::string_view key, std::string_view fallback) {
    return word(key).value_or(std::string(fallback));
}
std::string Fields::word(std::string_view key, Required) { return require(key) ? word(key).value_or("") : ""; }

std::optional<Bytes> Fields::size(std::string_view key) {
    const Node* value = present(key);
    if (!value) return std::nullopt;
    const std::string* text = value->text();
    if (!text && !value->is(Kind::integer) && !value->is(Kind::number)) {
        wrong_type(*value, path(key), "a size such as 24 GiB");
        return std::nullopt;
    }
    if (!text) return as_integer(*value, path(key), {.min = 0});
    Bytes bytes = 0;
    if (parse_bytes(*text, bytes)) return bytes;
    complain(*value, path(key), Problem::bad_unit, path(key) + " must be a size such as 24 GiB, not " + quoted(*value));
    return std::nullopt;
}
Bytes Fields::size(std::string_view key, Bytes fallback) { return size(key).value_or(fallback); }
Bytes Fields::size(std::string_view key, Required) { return require(key) ? size(key).value_or(0) : 0; }

std::optional<std::size_t> Fields::word_of(std::string_view key, std::span<const std::string_view> words) {
    const Node* value = present(key);
    if (!value) return std::nullopt;
    if (value->is(Kind::null) || value->is(Kind::list) || value->is(Kind::map)) {
        wrong_type(*value, path(key), "a word");
        return std::nullopt;
    }
    const std::string word = value->spelled();
    const auto found = std::find(words.begin(), words.end(), word);
    if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
    std::string all;
    for (const std::string_view allowed : words) all += (all.empty() ? "" : ", ") + std::string(allowed);
    complain(*value, path(key), Problem::bad_value, path(key) + " must be one of " + all + ", not " + quoted(*value),
             vram::nearest(word, words));
    return std::nullopt;
}

namespace {
/// Reads each item; nothing if one was wrong, after all have been looked at.
template <class T, class Read>
std::optional<std::vector<T>> each(const List& list, const std::string& path, const Read& read) {
    std::vector<T> out;
    for (std::size_t i = 0; i < list.size(); ++i)
        if (std::optional<T> item = read(list[i], path + "[" + std::to_string(i) + "]"))
            out.push_back(std::move(*item));
    return out.size() == list.size() ? std::optional(std::move(out)) : std::nullopt;
}
}  // namespace

std::optional<std::vector<std::int64_t>> Fields::integers(std::string_view key, IntegerRange range, Length length,
                                                          Single single) {
    const Node* value = present(key);
    if (!value) return std::nullopt;
    const auto read = [&](const Node& item, const std::string& where) { return as_integer(item, where, range); };
    if (single == Single::is_a_list && !value->is(Kind::list)) {
        const std::optional<std::int64_t> item = read(*value, path(key));
        return item ? std::optional(std::vector{*item}) : std::nullopt;
    }
    const List* list = as_list(*value, path(key), length);
    return list ? each<std::int64_t>(*list, path(key), read) : std::nullopt;
}

std::optional<std::vector<double>> Fields::numbers(std::string_view key, NumberRange range, Length length,
                                                   Single single) {
    const Node* value = present(key);
    if (!value) return std::nullopt;
    const auto read = [&](const Node& item, const std::string& where) { return as_number(item, where, range); };
    if (single == Single::is_a_list && !value->is(Kind::list)) {
        const std::optional<double> item = read(*value, path(key));
        return item ? std::optional(std::vector{*item}) : std::nullopt;
    }
    const List* list = as_list(*value, path(key), length);
    return list ? each<double>(*list, path(key), read) : std::nullopt;
}

std::optional<std::vector<std::string>> Fields::texts(std::string_view key, Length length, Single single) {
    const Node* value = present(key);
    if (!value) return std::nullopt;
    const auto read = [&](const Node& item, const std::string& where) -> std::optional<std::string> {
        if (const std::string* text = item.text()) return *text;
        wrong_type(item, where, "a text");
        return std::nullopt;
    };
    if (single == Single::is_a_list && !value->is(Kind::list)) {
        const std::optional<std::string> item = read(*value, path(key));
        return item ? std::optional(std::vector{*item}) : std::nullopt;
    }
    const List* list = as_list(*value, path(key), length);
    return list ? each<std::string>(*list, path(key), read) : std::nullopt;
}

std::optional<std::vector<std::vector<std::int64_t>>> Fields::integer_lists(std::string_view key, IntegerRange range,
                                                                            Length inner, Length outer) {
    const Node* value = present(key);
    const List* list = value ? as_list(*value, path(key), outer) : nullptr;
    if (!list) return std::nullopt;
    return each<std::vector<std::int64_t>>(*list, path(key), [&](const Node& item, const std::string& where) {
        const List* items = as_list(item, where, inner);
        return items ? each<std::int64_t>(
                           *items, where,
                           [&](const Node& leaf, const std::string& at) { return as_integer(leaf, at, range); })
                     : std::nullopt;
    });
}

Fields Fields::map(std::string_view key) { return map(key, nulls_); }

Fields Fields::map(std::string_view key, Nulls nulls) {
    const Node* value = node(key);
    if (value && value->is(Kind::null) && nulls == Nulls::are_absent) value = nullptr;
    if (value && !value->is(Kind::map)) {
        wrong_type(*value, path(key), "a map");
        value = nullptr;
    }
    const Member* member = value ? node_->member(key) : nullptr;
    const bool in_file = member && value->origin == Origin::file;
    return {*this, value, path(key),
            in_file ? document_->place_of(member->key_span)
            : value ? document_->place_of(*value)
                    : place_};
}

std::vector<Fields> Fields::maps(std::string_view key, Length length) {
    std::vector<Fields> out;
    const Node* value = present(key);
    const List* list = value ? as_list(*value, path(key), length) : nullptr;
    if (!list) return out;
    for (std::size_t i = 0; i < list->size(); ++i) {
        const Node& item = (*list)[i];
        const std::string where = path(key) + "[" + std::to_string(i) + "]";
        if (item.is(Kind::map))
            out.push_back({*this, &item, where, document_->place_of(item)});
        else
            wrong_type(item, where, "a map");
    }
    return out;
}

void Fields::finish(Severity severity) {
    if (!node_) return;
    std::int64_t unknown = 0;
    for (const Member& member : *node_->map()) {
        if (std::find(known_.begin(), known_.end(), member.key) != known_.end()) continue;
        if (++unknown > most_unknown) continue;
        const bool in_file = member.value.origin == Origin::file && member.key_span != Span{};
        complaints_->push_back({severity, Problem::unknown_key,
                                in_file ? document_->place_of(member.key_span) : document_->place_of(member.value),
                                path(member.key), member.value.spelled(), vram::nearest(member.key, known_),
                                "unknown option " + path(member.key)});
    }
    if (unknown > most_unknown)
        complaints_->push_back({severity,
                                Problem::unknown_key,
                                place_,
                                path_,
                                {},
                                {},
                                std::to_string(unknown - most_unknown) + " more unknown options"});
}

}  // namespace vram::io
