#include "vram/device/allocator_config.hpp"

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace vram::device {

namespace {

constexpr std::int64_t least_segment_mib = 10;  // kMinLargeAlloc
constexpr std::int64_t most_mib = unlimited / MiB;

// Source: AcceleratorAllocatorConfig::getMutableKeys, CUDAAllocatorConfig::getKeys, and the names that parseArgs takes
// for ROCm. The last two came after 2.13 (pytorch PR 192269): they reserve virtual addresses only.
constexpr std::array<std::string_view, 20> known_options{"backend",
                                                         "expandable_segments",
                                                         "max_split_size_mb",
                                                         "max_non_split_rounding_mb",
                                                         "large_segment_size_mb",
                                                         "garbage_collection_threshold",
                                                         "per_process_memory_fraction",
                                                         "throw_on_cudamalloc_oom",
                                                         "roundup_power2_divisions",
                                                         "release_lock_on_cudamalloc",
                                                         "release_lock_on_hipmalloc",
                                                         "pinned_use_cuda_host_register",
                                                         "pinned_use_hip_host_register",
                                                         "pinned_num_register_threads",
                                                         "pinned_reserve_segment_size_mb",
                                                         "pinned_use_background_threads",
                                                         "pinned_free_catch_all",
                                                         "graph_capture_record_stream_reuse",
                                                         "expandable_segments_reserve",
                                                         "expandable_segments_reserve_by_class"};

struct Option {
    std::string name;
    std::vector<std::string> value;  // one word, or what stood between [ and ], split at ':' and ','
    bool is_list = false;
};

// One pass over the text; blanks carry no meaning, as in torch's ConfigTokenizer.
class Reader {
  public:
    Reader(std::string_view text, const Place& place, Diagnostics& complaints)
        : place_(place), complaints_(complaints) {
        for (char c : text) {
            const bool separator = c == ',' || c == ':' || c == '[' || c == ']';
            if (separator || tokens_.empty() || is_separator(tokens_.back())) {
                if (std::isspace(static_cast<unsigned char>(c))) continue;
                tokens_.emplace_back(1, c);
            } else if (!std::isspace(static_cast<unsigned char>(c))) {
                tokens_.back() += c;
            }
        }
    }

    [[nodiscard]] std::vector<Option> options() {
        std::vector<Option> out;
        while (position_ < tokens_.size()) {
            Option option;
            option.name = tokens_[position_++];
            if (is_separator(option.name)) return broken(std::move(out), "an option's name", option.name);
            if (peek() != ":") return broken(std::move(out), "':' after " + option.name, peek());
            ++position_;
            if (peek() == "[") {
                option.is_list = true;
                while (++position_ < tokens_.size() && tokens_[position_] != "]")
                    option.value.push_back(tokens_[position_]);
                if (peek() != "]") return broken(std::move(out), "']' to close the list of " + option.name, peek());
            } else if (is_separator(peek()) || peek().empty()) {
                return broken(std::move(out), "a value for " + option.name, peek());
            } else {
                option.value.push_back(peek());
            }
            ++position_;
            out.push_back(std::move(option));
            if (position_ < tokens_.size() && tokens_[position_++] != ",")
                return broken(std::move(out), "',' between options", tokens_[position_ - 1]);
        }
        return out;
    }

  private:
    static bool is_separator(std::string_view token) {
        return token == "," || token == ":" || token == "[" || token == "]";
    }
    [[nodiscard]] std::string peek() const { return position_ < tokens_.size() ? tokens_[position_] : std::string(); }
    std::vector<Option> broken(std::vector<Option> so_far, const std::string& due, const std::string& found) {
        complaints_.push_back(
            {Severity::error, Problem::syntax, place_, "alloc_conf", found, "",
             "the allocator setting wants " + due + (found.empty() ? ", it ends here" : ", not " + found)});
        return so_far;
    }

    const Place& place_;
    Diagnostics& complaints_;
    std::vector<std::string> tokens_;
    std::size_t position_ = 0;
};

// Turns one option's words into a value, or into a complaint.
class Values {
  public:
    Values(const Place& place, Diagnostics& complaints) : place_(place), complaints_(complaints) {}

    void complain(Problem problem, const Option& option, std::string text, std::string nearest_value = {}) {
        complaints_.push_back(
            {Severity::error, problem, place_, option.name, joined(option), std::move(nearest_value), std::move(text)});
    }
    bool word(const Option& option) {
        if (!option.is_list && option.value.size() == 1) return true;
        complain(Problem::wrong_type, option, option.name + " takes one value, not a list");
        return false;
    }
    void boolean(const Option& option, bool& out) {
        if (!word(option)) return;
        const std::string& text = option.value.front();
        if (text == "True" || text == "False") {
            out = text == "True";
            return;
        }
        // torch takes no other spelling (ConfigTokenizer::toBool).
        constexpr std::array<std::string_view, 2> spellings{"True", "False"};
        std::string near = nearest(text, std::span<const std::string_view>(spellings));
        if (text == "1" || text == "yes" || text == "on") near = "True";
        if (text == "0" || text == "no" || text == "off") near = "False";
        complain(Problem::bad_value, option, option.name + " must be True or False", near);
    }
    void mebibytes(const Option& option, std::int64_t least, Bytes& out) {
        std::int64_t value = 0;
        if (!word(option) || !integer(option, option.value.front(), value)) return;
        if (value < least)
            complain(Problem::out_of_range, option, option.name + " must be at least " + std::to_string(least));
        else
            out = std::min(value, most_mib) * MiB;
    }
    void fraction(const Option& option, bool ends_allowed, double& out) {
        if (!word(option)) return;
        const std::string& text = option.value.front();
        double value = 0;
        const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (failure != std::errc{} || end != text.data() + text.size() || !std::isfinite(value))
            complain(Problem::wrong_type, option, option.name + " must be a number");
        else if (value < 0 || value > 1 || (!ends_allowed && (value <= 0 || value >= 1)))
            complain(Problem::out_of_range, option,
                     option.name + (ends_allowed ? " must be between 0 and 1" : " must be above 0 and below 1"));
        else
            out = value;
    }
    bool integer(const Option& option, std::string_view text, std::int64_t& out) {
        const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), out);
        if (failure == std::errc::result_out_of_range && end == text.data() + text.size() && text.front() != '-') {
            out = std::numeric_limits<std::int64_t>::max();
            return true;
        }
        if (failure == std::errc{} && end == text.data() + text.size() && out >= 0) return true;
        complain(Problem::wrong_type, option, option.name + " wants a whole number, not " + std::string(text));
        return false;
    }
    bool power_of_two(const Option& option, std::string_view text, std::int64_t& out) {
        if (!integer(option, text, out)) return false;
        if (out == 0 || std::has_single_bit(static_cast<std::uint64_t>(out))) return true;
        complain(Problem::bad_value, option, option.name + " wants powers of two, not " + std::string(text));
        return false;
    }
    // "8", or "[256:1,512:2,>:4]": an interval of sizes in MiB and its divisions; the first counts for all below it.
    void divisions(const Option& option, std::array<std::int64_t, 16>& out) {
        std::array<std::int64_t, 16> result{};
        std::int64_t value = 0;
        if (!option.is_list) {
            if (!power_of_two(option, option.value.front(), value)) return;
            if (value == 0) return complain(Problem::out_of_range, option, option.name + " must be a power of two");
            out.fill(value);
            return;
        }
        bool first = true;
        std::size_t last = 0;
        for (std::size_t i = 0; i < option.value.size(); i += 4) {
            if (i + 2 >= option.value.size() || option.value[i + 1] != ":" ||
                (i + 3 < option.value.size() && option.value[i + 3] != ","))
                return complain(Problem::syntax, option, option.name + " wants a list such as [256:1,512:2,>:4]");
            if (!power_of_two(option, option.value[i + 2], value)) return;
            if (option.value[i] == ">") {
                std::fill(result.begin() + static_cast<std::ptrdiff_t>(std::min(last + 1, result.size())), result.end(),
                          value);
                continue;
            }
            std::int64_t boundary = 0;
            if (!power_of_two(option, option.value[i], boundary)) return;
            if (boundary == 0)
                return complain(Problem::out_of_range, option, option.name + " has an interval of 0 MiB");
            const std::size_t index = std::min<std::size_t>(
                static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(boundary)) - 1), result.size() - 1);
            if (first) std::fill(result.begin(), result.begin() + static_cast<std::ptrdiff_t>(index), value);
            first = false;
            result[index] = value;
            last = index;
        }
        out = result;
    }

  private:
    static std::string joined(const Option& option) {
        std::string out = option.is_list ? "[" : "";
        for (const std::string& token : option.value) out += token;
        return option.is_list ? out + "]" : out;
    }
    const Place& place_;
    Diagnostics& complaints_;
};

}  // namespace

expected<AllocatorConfig> parse(std::string_view alloc_conf, const Place& place, Diagnostics* notes) {
    AllocatorConfig config;
    Diagnostics complaints;
    const std::vector<Option> options = Reader(alloc_conf, place, complaints).options();
    Values values(place, complaints);

    // The segment size first: limits of others follow from it. Source: AcceleratorAllocatorConfig::parseArgs.
    for (const Option& option : options)
        if (option.name == "large_segment_size_mb")
            values.mebibytes(option, least_segment_mib + 1, config.large_segment_size);
    const std::int64_t segment_mib = config.large_segment_size / MiB;
    config.max_non_split_rounding = config.large_segment_size;

    bool native_only = false;
    for (const Option& option : options) {
        const std::string& name = option.name;
        if (name == "large_segment_size_mb") {
            native_only = true;
        } else if (name == "backend") {
            if (!values.word(option)) continue;
            const std::string& backend = option.value.front();
            constexpr std::array<std::string_view, 3> backends{"native", "cudaMallocAsync", "hipMallocAsync"};
            if (std::find(backends.begin(), backends.end(), backend) == backends.end())
                values.complain(Problem::bad_value, option, "backend must be native or cudaMallocAsync",
                                nearest(backend, std::span<const std::string_view>(backends)));
            else if (backend != "native")
                config.backend = AllocatorConfig::Backend::cuda_malloc_async;
        } else if (name == "expandable_segments") {
            values.boolean(option, config.expandable_segments);
            native_only = true;
        } else if (name == "max_split_size_mb") {
            values.mebibytes(option, segment_mib, config.max_split_size);
            native_only = true;
        } else if (name == "max_non_split_rounding_mb") {
            values.mebibytes(option, segment_mib, config.max_non_split_rounding);
            native_only = true;
        } else if (name == "garbage_collection_threshold") {
            values.fraction(option, false, config.garbage_collection_threshold);
            native_only = true;
        } else if (name == "per_process_memory_fraction") {
            values.fraction(option, true, config.per_process_memory_fraction);
        } else if (name == "throw_on_cudamalloc_oom") {
            values.boolean(option, config.throw_on_cudamalloc_oom);
        } else if (name == "roundup_power2_divisions") {
            values.divisions(option, config.roundup_power2_divisions);
            native_only = true;
        } else if (std::find(known_options.begin(), known_options.end(), name) == known_options.end()) {
            complaints.push_back({Severity::error, Problem::unknown_key, place, name,
                                  option.value.empty() ? std::string() : option.value.front(),
                                  nearest(name, std::span<const std::string_view>(known_options)),
                                  "unknown allocator option " + name});
        }
    }
    if (!complaints.empty()) return Unexpected{std::move(complaints)};
    if (notes != nullptr && native_only && config.backend == AllocatorConfig::Backend::cuda_malloc_async)
        notes->push_back({Severity::warning, Problem::conflict, place, "backend", "cudaMallocAsync", "",
                          "backend:cudaMallocAsync ignores the options of the native allocator"});
    if (notes != nullptr && config.garbage_collection_threshold > 0 && config.per_process_memory_fraction >= 1)
        notes->push_back({Severity::note, Problem::conflict, place, "garbage_collection_threshold", "", "",
                          "garbage_collection_threshold does nothing without a memory fraction below 1"});
    return config;
}

}  // namespace vram::device
