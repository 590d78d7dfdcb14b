#include "advise/xml.hpp"

namespace vram::advise {
namespace {

/// How many bytes the well-formed UTF-8 character at `i` has; 0: there is none.
std::size_t character_at(std::string_view text, std::size_t i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const std::size_t length = c < 0x80U ? 1 : c >= 0xF0U ? 4 : c >= 0xE0U ? 3 : c >= 0xC2U ? 2 : 0;
    if (length == 0 || c > 0xF4U || i + length > text.size()) return 0;
    for (std::size_t k = 1; k < length; ++k)
        if ((static_cast<unsigned char>(text[i + k]) & 0xC0U) != 0x80U) return 0;
    return length;
}

}  // namespace

std::string xml(std::string_view text, std::size_t most) {
    std::string out;
    std::size_t count = 0;
    for (std::size_t i = 0; i < text.size(); ++count) {
        if (count == most) return out + "…";
        const std::size_t length = character_at(text, i);
        if (length <= 1) {
            const char c = text[i++];
            if (c == '&')
                out += "&amp;";
            else if (c == '<')
                out += "&lt;";
            else if (c == '>')
                out += "&gt;";
            else if (c == '"')
                out += "&quot;";
            else
                out += length == 0 || (c >= 0 && c < ' ') || c == 127 ? '?' : c;
        } else {
            out += text.substr(i, length);
            i += length;
        }
    }
    return out;
}

}  // namespace vram::advise
