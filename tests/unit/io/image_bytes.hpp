#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vram::io {

/// The first bytes of images, put together by hand. For tests and seeds.
inline std::string big(std::uint32_t value, int bytes) {
    std::string out;
    for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(value >> (8 * i) & 0xFFU);
    return out;
}
inline std::string little(std::uint32_t value, int bytes) {
    std::string out;
    for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xFFU);
    return out;
}
inline std::uint32_t length_of(std::string_view bytes) { return static_cast<std::uint32_t>(bytes.size()); }

/// A TIFF structure with ImageWidth and Orientation.
inline std::string tiff(std::uint32_t orientation, bool big_endian = false) {
    const auto number = big_endian ? big : little;
    return std::string(big_endian ? "MM" : "II") + number(42, 2) + number(8, 4) + number(2, 2) +  //
           number(0x0100, 2) + number(4, 2) + number(1, 4) + number(99, 4) +                      //
           number(0x0112, 2) + number(3, 2) + number(1, 4) + number(orientation, 2) + number(0, 2) + number(0, 4);
}

inline std::string png_chunk(std::string_view id, std::string_view data) {
    return big(length_of(data), 4) + std::string(id) + std::string(data) + "CRC.";
}
inline std::string png(std::uint32_t width, std::uint32_t height, const std::string& between = {}) {
    return "\x89PNG\r\n\x1A\n" + png_chunk("IHDR", big(width, 4) + big(height, 4) + std::string("\x08\x02\0\0\0", 5)) +
           between + png_chunk("IDAT", "data") + png_chunk("IEND", "");
}

inline std::string jpeg_segment(unsigned char marker, std::string_view data) {
    return std::string("\xFF") + static_cast<char>(marker) + big(length_of(data) + 2, 2) + std::string(data);
}
inline std::string jpeg(std::uint32_t width, std::uint32_t height, const std::string& before = {},
                        unsigned char sof = 0xC0) {
    return "\xFF\xD8" + jpeg_segment(0xE0, std::string("JFIF\0\x01\x01\0\0\x01\0\x01\0\0", 14)) + before +
           jpeg_segment(sof, "\x08" + big(height, 2) + big(width, 2) + std::string("\x01\x01\x11\0", 4)) + "\xFF\xDA";
}
inline std::string jpeg_exif(std::string_view tiff_bytes) {
    return jpeg_segment(0xE1, std::string("Exif\0\0", 6) + std::string(tiff_bytes));
}

inline std::string riff_chunk(std::string_view id, std::string_view data) {
    return std::string(id) + little(length_of(data), 4) + std::string(data) + std::string(data.size() % 2, '\0');
}
inline std::string webp(const std::string& chunks) {
    return "RIFF" + little(length_of(chunks) + 4, 4) + "WEBP" + chunks;
}
inline std::string vp8(std::uint32_t width, std::uint32_t height) {
    return riff_chunk("VP8 ", std::string("\x10\x02\0\x9D\x01\x2A", 6) + little(width, 2) + little(height, 2) + "data");
}
inline std::string vp8l(std::uint32_t width, std::uint32_t height) {
    return riff_chunk("VP8L", "\x2F" + little((width - 1) | (height - 1) << 14, 4) + "data");
}
inline std::string vp8x(std::uint32_t width, std::uint32_t height, std::uint32_t flags) {
    return riff_chunk("VP8X", little(flags, 4) + little(width - 1, 3) + little(height - 1, 3));
}

}  // namespace vram::io
