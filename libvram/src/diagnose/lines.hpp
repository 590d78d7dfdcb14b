#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace vram::diagnosis {

/// Turns the bytes of a log into lines of text: UTF-16 becomes UTF-8, NUL and ANSI's escape sequences go, a carriage
/// return ends a line as a line feed does (a progress bar's redraw is a line with the same number), and a line beyond
/// 64 KiB comes in pieces. Letters beyond ASCII pass as they are, in whatever code page.
class Lines {
  public:
    /// The line and its number, from 1; it lives until the call returns.
    using Take = std::function<void(std::string_view line, std::int64_t number)>;
    explicit Lines(Take take) : take_(std::move(take)) {}

    void feed(std::string_view bytes);
    /// What stands after the last line's end.
    void finish();

  private:
    enum class Coding : std::uint8_t { undecided, bytes, utf16_little, utf16_big };
    enum class Escape : std::uint8_t { none, started, sequence, text, text_ends };

    void decide();
    void decode(std::string_view bytes);
    void decode_utf16(std::string_view bytes);
    void unit(std::uint32_t unit);
    void letter(std::uint32_t code);
    void byte(char c);
    void escaped(char c);
    void end_line();

    Take take_;
    Coding coding_ = Coding::undecided;
    Escape escape_ = Escape::none;
    std::string start_;  // until the coding is known
    std::string line_;
    std::int64_t number_ = 1;
    std::int32_t escape_size_ = 0;
    bool half_ = false;  // of a UTF-16 unit: its first byte waits
    unsigned char first_ = 0;
    std::uint32_t high_ = 0;  // a surrogate that waits for its other half
};

}  // namespace vram::diagnosis
