#include "diagnose/message.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/text.hpp"
#include "diagnose/progress_bar.hpp"

namespace vram::diagnosis {
namespace {

constexpr Bytes nonsense = Bytes{1} << 60;
constexpr Bytes most_of_a_context = GiB + GiB / 2;  // CUDA's context and libraries beside torch's memory

struct Unit {
    std::string_view word;
    Bytes bytes;
};
// c10's format_size, nvidia-smi and Linux: KB is 1024 in all of them. The longer word first.
constexpr Unit units[] = {
    {"bytes", 1},        {"byte", 1}, {"kib", KiB}, {"mib", MiB}, {"gib", GiB},
    {"tib", 1024 * GiB}, {"kb", KiB}, {"mb", MiB},  {"gb", GiB},  {"tb", 1024 * GiB},
};

/// Does `text` end with `pattern`, in which # stands for a run of digits?
bool ends_with(std::string_view text, std::string_view pattern) {
    while (!pattern.empty()) {
        if (text.empty()) return false;
        if (pattern.back() == '#') {
            if (!is_digit(text.back())) return false;
            while (!text.empty() && is_digit(text.back())) text.remove_suffix(1);
        } else if (pattern.back() == text.back()) {
            text.remove_suffix(1);
        } else {
            return false;
        }
        pattern.remove_suffix(1);
    }
    return true;
}

std::string_view trimmed_end(std::string_view text) {
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    return text;
}
std::string_view trimmed_start(std::string_view text) {
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    return text;
}

struct Found {
    std::vector<Bytes> listed;  // processes by number
    std::optional<Bytes> reserved{}, process{};
};

void put(std::optional<Bytes>& where, Bytes bytes) {
    if (!where) where = bytes;
}

void put(Stated& stated, Found& found, Quantity is, Bytes bytes) {
    Numbers& numbers = stated.numbers;
    switch (is) {
        case Quantity::tried: return put(numbers.tried, bytes);
        case Quantity::capacity: return put(numbers.capacity, bytes);
        case Quantity::free: return put(numbers.free, bytes);
        case Quantity::process: return put(found.process, bytes);
        case Quantity::listed_process: found.listed.push_back(bytes); return;
        case Quantity::allocated: return put(numbers.allocated, bytes);
        case Quantity::reserved: return put(found.reserved, bytes);
        case Quantity::reserved_unallocated: return put(numbers.reserved_unallocated, bytes);
        case Quantity::private_pools: return;  // part of what is allocated
        case Quantity::allowed: return put(numbers.allowed, bytes);
        case Quantity::host_tried: return put(numbers.host_tried, bytes);
        case Quantity::host_process: return put(numbers.host_process, bytes);
    }
}

void tell_processes(Numbers& numbers, Found found) {
    if (found.process && *found.process > 0) numbers.process = found.process;
    const bool unnamed = !found.process && numbers.allocated;
    if (unnamed) {
        const Bytes torch = *numbers.allocated + numbers.reserved_unallocated.value_or(0);
        const auto is_own = [&](Bytes process) {
            return process >= torch - 16 * MiB && process <= torch + most_of_a_context;  // two decimals of a GiB each
        };
        const auto own = std::min_element(found.listed.begin(), found.listed.end(), [&](Bytes a, Bytes b) {
            return std::pair(!is_own(a), a) < std::pair(!is_own(b), b);
        });
        if (own != found.listed.end() && is_own(*own)) {
            numbers.process = *own;
            found.listed.erase(own);
        }
    }
    if (found.listed.empty()) return;
    Bytes sum = 0;
    for (const Bytes process : found.listed) sum = std::min(nonsense, sum + process);
    numbers.other_processes = sum;
}

}  // namespace

std::string squeezed(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) {
        char c = lower(text[i]);
        // U+2500 to U+257F, of which boxes are drawn.
        if (c == '\xE2' && i + 2 < text.size() && (text[i + 1] == '\x94' || text[i + 1] == '\x95')) {
            i += 2;
            c = ' ';
        }
        if (text.substr(i).starts_with("[rank")) {
            const std::size_t end = text.find("]:", i);
            if (end != std::string_view::npos && end - i < 12) {
                i = end + 1;
                c = ' ';
            }
        }
        if (c == '\t' || c == '\n' || c == '|') c = ' ';
        if (c != ' ' || (!out.empty() && out.back() != ' ')) out += c;
    }
    return out;
}

Stated read_message(const Signs& signs, std::string_view message) {
    Stated stated;
    Found found;
    for (std::size_t i = 0; i < message.size();) {
        if (!is_digit(message[i]) || (i > 0 && (is_digit(message[i - 1]) || message[i - 1] == '.'))) {
            ++i;
            continue;
        }
        std::size_t end = i;
        while (end < message.size() && (is_digit(message[end]) || message[end] == '.')) ++end;
        std::string_view rest = trimmed_start(message.substr(end));
        const Unit* unit = nullptr;
        for (const Unit& one : units)
            if (unit == nullptr && rest.starts_with(one.word)) unit = &one;
        const std::optional<double> value = number(message.substr(i, end - i));
        const std::string_view before = trimmed_end(message.substr(0, i));
        if (unit != nullptr) rest = trimmed_start(rest.substr(unit->word.size()));
        i = end;
        if (!value) continue;
        for (const NumberSign& sign : signs.numbers) {
            if (!(unit != nullptr || sign.raw)) continue;
            if (!ends_with(before, sign.before) || !rest.starts_with(sign.after)) continue;
            const double bytes = *value * static_cast<double>(unit != nullptr ? unit->bytes : 1);
            if (bytes < static_cast<double>(nonsense))
                put(stated, found, sign.is, static_cast<Bytes>(std::llround(bytes)));
            else if (sign.is == Quantity::process)
                found.process = 0;  // it is there, and says nothing
            break;
        }
    }
    if (found.reserved && stated.numbers.allocated)
        stated.numbers.reserved_unallocated = std::max<Bytes>(0, *found.reserved - *stated.numbers.allocated);
    tell_processes(stated.numbers, std::move(found));
    const Numbers& numbers = stated.numbers;
    if (numbers.tried || numbers.capacity)
        for (const Wording& wording : signs.wordings)
            if (message.find(wording.has) != std::string_view::npos) {
                stated.wording = wording.id;
                break;
            }
    return stated;
}

}  // namespace vram::diagnosis
