#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vram::diagnosis {

/// Finds many phrases in a text in one pass (Aho and Corasick, 1975), the case of ASCII letters ignored: a log of
/// megabytes costs a table look-up a byte, however many phrases there are.
class Phrases {
  public:
    /// `ids` may repeat: several phrases that mean the same. An empty phrase is found nowhere.
    void add(std::string_view phrase, std::int32_t id);
    /// Once, after the last `add`.
    void build();

    /// Calls found(id, end) for each place where a phrase ends, from left to right.
    template <class Found>
    void scan(std::string_view text, Found found) const {
        const std::uint32_t* next = steps_.data();
        std::uint32_t row = 0;
        for (std::size_t i = 0; i < text.size(); ++i) {
            const std::uint32_t step = next[row + class_[static_cast<unsigned char>(text[i])]];
            row = step >> 1;
            if ((step & 1) == 0) continue;
            for (std::int32_t at = ends_here_[row / width_]; at >= 0; at = shorter_[static_cast<std::size_t>(at)])
                for (const std::int32_t id : ids_[static_cast<std::size_t>(at)]) found(id, i + 1);
        }
    }

  private:
    std::vector<std::pair<std::string, std::int32_t>> phrases_;
    std::array<std::uint8_t, 256> class_{};  // bytes that stand in no phrase share class 0
    std::size_t width_ = 1;
    std::vector<std::uint32_t> steps_;     // state x class → where the next state's row begins, shifted by one, and
                                           // whether a phrase ends there
    std::vector<std::int32_t> ends_here_;  // the nearest state, itself included, at which a phrase ends; or -1
    std::vector<std::int32_t> shorter_;    // of such a state: the next one, for a phrase that is a suffix of it
    std::vector<std::vector<std::int32_t>> ids_;  // by state
};

[[nodiscard]] inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
/// Without the blanks and tabs before it, and behind it.
[[nodiscard]] std::string_view skip_blanks(std::string_view text);
[[nodiscard]] std::string_view trimmed(std::string_view text);
/// Does `text` hold `part`, the case of ASCII letters ignored? For short texts.
[[nodiscard]] bool holds(std::string_view text, std::string_view part);

}  // namespace vram::diagnosis
