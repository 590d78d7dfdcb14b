#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vram/base/bytes.hpp"
#include "vram/io/document.hpp"

namespace vram::io {

/// Both ends included.
struct IntegerRange {
    std::int64_t min = std::numeric_limits<std::int64_t>::min(), max = std::numeric_limits<std::int64_t>::max();
};
/// Both ends included; infinities and NaN are out of every range.
struct NumberRange {
    double min = std::numeric_limits<double>::lowest(), max = std::numeric_limits<double>::max();
};
/// How many items a list may hold.
struct Length {
    std::int64_t min = 0, max = std::numeric_limits<std::int64_t>::max();
};
/// May one value stand for a list of one, as in `resolution: 1024`?
enum class Single : std::uint8_t { refused, is_a_list };
/// Is `key: null` the same as no key?
enum class Nulls : std::uint8_t { complain, are_absent };

/// Instead of a fallback: the key must be there.
struct Required {};
inline constexpr Required required;

/// One word of a choice and what it means.
template <class T>
struct Choice {
    std::string_view word;
    T value;
};

/// Reads the members of one map, by name and type, and collects every complaint instead of stopping at the first.
///
///     Fields job(document, complaints);
///     Fields train = job.map("train");
///     const std::int64_t rank = train.integer("rank", {.min = 1}, required);
///     train.finish(Severity::error);  // what was not asked for is unknown
///
/// A getter comes in three forms: with a fallback; with `required`; with neither, giving an optional. An absent key
/// gives the fallback, missing_key, nothing. A key whose value is wrong gives its complaint (wrong_type, bad_value,
/// bad_unit, out_of_range, overflow) and then what an absent key would; `required` gives a value within the range.
/// So a reader goes on to the end and looks at the complaints once.
///
/// Complaints carry dotted keys from the root ("data.buckets[2][0]") and the place of the value, or of the key if that
/// is unknown. Fields keeps references to the document and the complaints, which must outlive it and not move.
class Fields {
  public:
    /// The document's root; anything but a map there is wrong_type.
    Fields(const Document& document, Diagnostics& complaints, Nulls nulls = Nulls::complain);
    /// Any node of the document; `path` is its dotted key.
    Fields(const Document& document, const Node& node, std::string path, Diagnostics& complaints,
           Nulls nulls = Nulls::complain);

    /// Is the key there, whatever its value? It counts as known from then on, as with every getter.
    [[nodiscard]] bool has(std::string_view key);
    /// The value as it is; null if absent.
    [[nodiscard]] const Node* node(std::string_view key);

    /// 4, and 4.0 and 1e3 too, since they mean a whole number.
    [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key, IntegerRange range = {});
    [[nodiscard]] std::int64_t integer(std::string_view key, IntegerRange range, std::int64_t fallback);
    [[nodiscard]] std::int64_t integer(std::string_view key, IntegerRange range, Required);

    /// Whole numbers too, and texts are not numbers.
    [[nodiscard]] std::optional<double> number(std::string_view key, NumberRange range = {});
    [[nodiscard]] double number(std::string_view key, NumberRange range, double fallback);
    [[nodiscard]] double number(std::string_view key, NumberRange range, Required);

    [[nodiscard]] std::optional<bool> boolean(std::string_view key);
    [[nodiscard]] bool boolean(std::string_view key, bool fallback);
    [[nodiscard]] bool boolean(std::string_view key, Required);

    [[nodiscard]] std::optional<std::string> text(std::string_view key);
    [[nodiscard]] std::string text(std::string_view key, std::string_view fallback);
    [[nodiscard]] std::string text(std::string_view key, Required);

    /// Any scalar as it is written: `torch: 2.10` is "2.10", not 2.1.
    [[nodiscard]] std::optional<std::string> word(std::string_view key);
    [[nodiscard]] std::string word(std::string_view key, std::string_view fallback);
    [[nodiscard]] std::string word(std::string_view key, Required);

    /// "24 GiB", or a whole number of bytes; never negative.
    [[nodiscard]] std::optional<Bytes> size(std::string_view key);
    [[nodiscard]] Bytes size(std::string_view key, Bytes fallback);
    [[nodiscard]] Bytes size(std::string_view key, Required);

    /// One of the table's words, in its case; else bad_value with the nearest word. Several words may mean the same.
    template <class T>
    [[nodiscard]] std::optional<T> choice(std::string_view key, std::span<const Choice<T>> table) {
        const std::optional<std::size_t> index = word_of(key, words(table));
        return index ? std::optional<T>(table[*index].value) : std::nullopt;
    }
    template <class T, std::size_t n>
    [[nodiscard]] std::optional<T> choice(std::string_view key, const Choice<T> (&table)[n]) {
        return choice(key, std::span<const Choice<T>>(table));
    }
    template <class T, std::size_t n>
    [[nodiscard]] T choice(std::string_view key, const Choice<T> (&table)[n], T fallback) {
        return choice(key, table).value_or(fallback);
    }
    template <class T, std::size_t n>
    [[nodiscard]] T choice(std::string_view key, const Choice<T> (&table)[n], Required) {
        return require(key) ? choice(key, table).value_or(table[0].value) : table[0].value;
    }

    /// Lists of one type; nothing if absent or if any item is wrong (each wrong item has its complaint).
    [[nodiscard]] std::optional<std::vector<std::int64_t>> integers(std::string_view key, IntegerRange range = {},
                                                                    Length length = {},
                                                                    Single single = Single::refused);
    [[nodiscard]] std::optional<std::vector<double>> numbers(std::string_view key, NumberRange range = {},
                                                             Length length = {}, Single single = Single::refused);
    [[nodiscard]] std::optional<std::vector<std::string>> texts(std::string_view key, Length length = {},
                                                                Single single = Single::refused);
    /// [[1024, 768], [512, 512, 33]]: `inner` is the length of each.
    [[nodiscard]] std::optional<std::vector<std::vector<std::int64_t>>> integer_lists(std::string_view key,
                                                                                      IntegerRange range, Length inner,
                                                                                      Length outer = {});

    /// A map of its own; absent: one without any key, whose required keys are then missing.
    [[nodiscard]] Fields map(std::string_view key);
    /// With another idea of what a null is there.
    [[nodiscard]] Fields map(std::string_view key, Nulls nulls);
    /// The maps of a list; absent: none.
    [[nodiscard]] std::vector<Fields> maps(std::string_view key, Length length = {});

    /// False, with a complaint missing_key, if the key is absent.
    bool require(std::string_view key);
    /// Keys that are known, read or not.
    void ignore(std::string_view key);
    void ignore(std::span<const std::string_view> keys);
    /// A complaint about every key that nobody asked for, with the nearest of those that were; at most a hundred.
    void finish(Severity severity = Severity::error);

    /// A complaint of the caller's own about a key's value, or the map if the key is absent.
    void complain(std::string_view key, Problem problem, std::string text, std::string nearest = {},
                  Severity severity = Severity::error);

    [[nodiscard]] bool is_absent() const { return node_ == nullptr; }
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::string path(std::string_view key) const;  // "train.rank"
    [[nodiscard]] Place place() const { return place_; }
    [[nodiscard]] Place place(std::string_view key) const;  // of the key's value; of the map if the key is absent

  private:
    Fields(const Fields& parent, const Node* node, std::string path, Place place);

    template <class T>
    static std::vector<std::string_view> words(std::span<const Choice<T>> table) {
        std::vector<std::string_view> out;
        for (const Choice<T>& choice : table) out.push_back(choice.word);
        return out;
    }
    [[nodiscard]] const Node* present(
        std::string_view key);  // known from now on; null if absent or a null that counts so
    [[nodiscard]] std::optional<std::size_t> word_of(std::string_view key, std::span<const std::string_view> words);
    [[nodiscard]] std::optional<std::int64_t> as_integer(const Node& node, const std::string& path, IntegerRange range);
    [[nodiscard]] std::optional<double> as_number(const Node& node, const std::string& path, NumberRange range);
    [[nodiscard]] const List* as_list(const Node& node, const std::string& path, Length length);
    void wrong_type(const Node& node, const std::string& path, std::string_view due);
    void complain(const Node& node, const std::string& path, Problem problem, std::string text,
                  std::string nearest = {});

    const Document* document_;
    Diagnostics* complaints_;
    const Node* node_ = nullptr;  // a map, or null
    std::string path_;
    Place place_;
    Nulls nulls_;
    std::vector<std::string> known_;
};

}  // namespace vram::io
