#include "diagnose/lines.hpp"

#include <algorithm>
#include <array>

namespace vram::diagnosis {
namespace {

constexpr std::size_t longest_line = 1 << 16;
constexpr std::size_t enough_to_decide = 64;
constexpr std::int32_t longest_sequence = 64, longest_text = 4096;  // of an escape; what is longer was none

constexpr std::array<bool, 256> special_bytes() {
    std::array<bool, 256> special{};
    for (const char c : {'\n', '\r', '\0', '\x1b'}) special[static_cast<unsigned char>(c)] = true;
    return special;
}
constexpr std::array<bool, 256> special = special_bytes();

}  // namespace

void Lines::feed(std::string_view bytes) {
    if (coding_ != Coding::undecided) return decode(bytes);
    start_.append(bytes);
    if (start_.size() >= enough_to_decide) decide();
}

void Lines::finish() {
    if (coding_ == Coding::undecided) decide();
    if (!line_.empty()) end_line();
}

void Lines::decide() {
    std::string_view bytes = start_;
    const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
    coding_ = Coding::bytes;
    if (bytes.size() >= 2 && at(0) == 0xFF && at(1) == 0xFE) {
        coding_ = Coding::utf16_little;
        bytes.remove_prefix(2);
    } else if (bytes.size() >= 2 && at(0) == 0xFE && at(1) == 0xFF) {
        coding_ = Coding::utf16_big;
        bytes.remove_prefix(2);
    } else if (bytes.starts_with("\xEF\xBB\xBF")) {
        bytes.remove_prefix(3);
    } else {
        // Without a mark: in UTF-16 nearly every second byte of a log is zero.
        std::array<std::size_t, 2> zeros{};
        const std::size_t seen = std::min(bytes.size(), enough_to_decide) & ~std::size_t{1};
        for (std::size_t i = 0; i < seen; ++i) zeros[i % 2] += bytes[i] == '\0' ? 1U : 0U;
        if (seen >= 8 && zeros[1] * 4 >= seen && zeros[0] == 0) coding_ = Coding::utf16_little;
        if (seen >= 8 && zeros[0] * 4 >= seen && zeros[1] == 0) coding_ = Coding::utf16_big;
    }
    decode(bytes);
    start_ = {};
}

void Lines::decode(std::string_view bytes) {
    if (coding_ != Coding::bytes) return decode_utf16(bytes);
    for (std::size_t i = 0; i < bytes.size();) {
        if (escape_ != Escape::none || special[static_cast<unsigned char>(bytes[i])]) {
            byte(bytes[i++]);
            continue;
        }
        std::size_t end = i;
        const std::size_t most = std::min(bytes.size(), i + (longest_line - line_.size()));
        while (end < most && !special[static_cast<unsigned char>(bytes[end])]) ++end;
        line_.append(bytes.substr(i, end - i));
        i = end;
        if (line_.size() >= longest_line) end_line();
    }
}

void Lines::decode_utf16(std::string_view bytes) {
    for (const char c : bytes) {
        const auto second = static_cast<unsigned char>(c);
        if (!half_) {
            first_ = second;
            half_ = true;
            continue;
        }
        half_ = false;
        unit(coding_ == Coding::utf16_little ? first_ | static_cast<std::uint32_t>(second) << 8
                                             : static_cast<std::uint32_t>(first_) << 8 | second);
    }
}

void Lines::unit(std::uint32_t unit) {
    const bool low = unit >= 0xDC00 && unit < 0xE000;
    if (high_ != 0 && low) {
        letter(0x10000 + ((high_ - 0xD800) << 10) + (unit - 0xDC00));
        high_ = 0;
        return;
    }
    high_ = unit >= 0xD800 && unit < 0xDC00 ? unit : 0;
    if (high_ == 0) letter(low ? '?' : unit);
}

void Lines::letter(std::uint32_t code) {
    const auto put = [&](std::uint32_t bits) { byte(static_cast<char>(static_cast<unsigned char>(bits))); };
    if (code < 0x80) return put(code);
    if (code < 0x800) {
        put(0xC0 | code >> 6);
    } else {
        if (code < 0x10000) {
            put(0xE0 | code >> 12);
        } else {
            put(0xF0 | code >> 18);
            put(0x80 | (code >> 12 & 0x3F));
        }
        put(0x80 | (code >> 6 & 0x3F));
    }
    put(0x80 | (code & 0x3F));
}

void Lines::byte(char c) {
    if (c == '\n' || c == '\r') {
        escape_ = Escape::none;
        if (!line_.empty()) end_line();
        if (c == '\n') ++number_;
        return;
    }
    if (escape_ != Escape::none) return escaped(c);
    if (c == '\0') return;
    if (c == '\x1b') {
        escape_ = Escape::started;
        escape_size_ = 0;
        return;
    }
    line_ += c;
    if (line_.size() >= longest_line) end_line();
}

/// ECMA-48: ESC [ parameters letter; ESC ] text BEL or ESC \; ESC and one more.
void Lines::escaped(char c) {
    ++escape_size_;
    switch (escape_) {
        case Escape::none: break;
        case Escape::started: escape_ = c == '[' ? Escape::sequence : c == ']' ? Escape::text : Escape::none; break;
        case Escape::sequence:
            if ((c >= '@' && c <= '~') || escape_size_ > longest_sequence) escape_ = Escape::none;
            break;
        case Escape::text:
            if (c == '\x1b') escape_ = Escape::text_ends;
            if (c == '\a' || escape_size_ > longest_text) escape_ = Escape::none;
            break;
        case Escape::text_ends: escape_ = Escape::none; break;
    }
}

void Lines::end_line() {
    take_(line_, number_);
    line_.clear();
}

}  // namespace vram::diagnosis
