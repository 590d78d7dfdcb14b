#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "vram/base/expected.hpp"

namespace vram::io {

enum class ImageFormat : std::uint8_t { png, jpeg, webp };

/// Pixels, as a trainer sees them: after PIL.ImageOps.exif_transpose.
struct ImageSize {
    std::int64_t width = 0, height = 0;
    ImageFormat format = ImageFormat::png;
    bool transposed = false;  // EXIF orientation 5 to 8: the file stores height x width
    bool operator==(const ImageSize&) const = default;
};

/// Reads a PNG's, JPEG's or WebP's size out of its header, by what the file starts with and not by its name. Pixels are
/// never decoded, and at most a few hundred small reads are made, however large or broken the file is.
///
/// The orientation is that of EXIF: a JPEG's first APP1 "Exif" segment before its frame header, a PNG's eXIf chunk
/// before its image data, a WebP's EXIF chunk where VP8X announces one. One that cannot be read counts as none, as in
/// Pillow; Pillow's fallback to XMP's tiff:Orientation, and PNG's "Raw profile type exif", are not looked at.
///
/// Errors: file_not_found as read_file; unsupported (no PNG, JPEG or WebP; a JPEG that gives its height only after the
/// first scan); syntax (cut off or corrupt before the size, or a size of 0).
/// Sources: PNG 3rd edition (W3C) 5 and 11; ITU-T T.81 B; RFC 9649 2; CIPA DC-008 (Exif 2.32) 4.6.
[[nodiscard]] expected<ImageSize> image_size(const std::filesystem::path& path);
/// The same of a file's bytes; `name` is for the complaint.
[[nodiscard]] expected<ImageSize> image_size_of(std::string_view bytes, std::string_view name);

}  // namespace vram::io
