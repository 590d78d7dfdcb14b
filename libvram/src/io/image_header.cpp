#include "vram/io/image_header.hpp"

#include <algorithm>
#include <string>

#include "io/pieces.hpp"

namespace vram::io {

namespace fs = std::filesystem;

namespace {

constexpr int most_parts = 256;              // segments or chunks before the size; cameras write about ten
constexpr std::int64_t most_exif = 1 << 16;  // a JPEG segment holds no more

/// The orientation, 1 to 8, in a TIFF structure's first directory (tag 0x0112, a SHORT); 1 if there is none.
int orientation_of(std::string_view tiff) {
    if (tiff.starts_with(std::string_view("Exif\0\0", 6))) tiff.remove_prefix(6);
    if (tiff.size() < 8) return 1;
    const bool big = tiff.starts_with(std::string_view("MM\0*", 4));
    if (!big && !tiff.starts_with(std::string_view("II*\0", 4))) return 1;
    const End end = big ? End::big : End::little;
    const std::int64_t directory = whole(tiff, 4, 4, end);
    if (directory < 8 || directory + 2 > static_cast<std::int64_t>(tiff.size())) return 1;
    const auto first = static_cast<std::size_t>(directory) + 2;
    const std::int64_t entries = whole(tiff, first - 2, 2, end);
    for (std::size_t i = 0; i < static_cast<std::size_t>(entries); ++i) {
        const std::size_t entry = first + 12 * i;
        if (entry + 12 > tiff.size()) return 1;
        if (whole(tiff, entry, 2, end) != 0x0112) continue;
        constexpr std::int64_t is_short = 3;
        const std::int64_t value = whole(tiff, entry + 8, 2, end);
        const bool valid = whole(tiff, entry + 2, 2, end) == is_short && whole(tiff, entry + 4, 4, end) == 1;
        return valid && value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
    }
    return 1;
}

/// A size, or why there is none.
struct Found {
    ImageSize size{};
    Problem problem = Problem::syntax;
    std::string_view why{};  // empty: the size is good
};

Found refused(std::string_view why, Problem problem = Problem::syntax) { return {{}, problem, why}; }

Found sized(std::int64_t width, std::int64_t height, ImageFormat format, int orientation) {
    if (width <= 0 || height <= 0) return refused("its header gives a size of 0");
    ImageSize size{width, height, format, orientation >= 5};
    if (size.transposed) std::swap(size.width, size.height);
    return {size, Problem::syntax, {}};
}

Found png_size(const ReadAt& read) {
    const std::string head = read(8, 17);  // length, "IHDR", width, height, bit depth
    if (head.size() < 17 || head.compare(4, 4, "IHDR") != 0) return refused("a PNG without a whole IHDR chunk");
    const std::int64_t width = whole(head, 8, 4, End::big), height = whole(head, 12, 4, End::big);
    constexpr std::int64_t largest = INT32_MAX;  // PNG 7.1: 2^31 - 1
    if (width > largest || height > largest) return refused("a PNG's width or height exceeds 31 bits");
    int orientation = 1;
    std::int64_t at = 8 + 12 + whole(head, 0, 4, End::big);
    for (int parts = 0; parts < most_parts; ++parts) {
        const std::string chunk = read(at, 8);
        if (chunk.size() < 8 || chunk.compare(4, 4, "IDAT") == 0 || chunk.compare(4, 4, "IEND") == 0) break;
        const std::int64_t length = whole(chunk, 0, 4, End::big);
        if (chunk.compare(4, 4, "eXIf") == 0) {
            orientation = orientation_of(read(at + 8, std::min(length, most_exif)));
            break;
        }
        at += 12 + length;
    }
    return sized(width, height, ImageFormat::png, orientation);
}

Found jpeg_size(const ReadAt& read) {
    int orientation = 1;
    bool has_exif = false;
    std::int64_t at = 2;
    for (int parts = 0; parts < most_parts; ++parts) {
        std::string head = read(at, 4);
        if (head.size() < 2 || head[0] != '\xFF')
            return refused("a JPEG that is cut off or corrupt before its frame header");
        const auto marker = static_cast<unsigned char>(head[1]);
        if (marker == 0xFF) {  // a fill byte
            ++at;
            continue;
        }
        const bool alone = marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8);  // TEM, RSTn, SOI: no segment
        if (alone) {
            at += 2;
            continue;
        }
        if (marker == 0xD9 || marker == 0xDA) return refused("a JPEG without a frame header before its data");
        const std::int64_t length = whole(head, 2, 2, End::big);
        if (head.size() < 4 || length < 2) return refused("a JPEG segment of no length");
        // SOF0 to SOF15 but DHT (C4), JPG (C8) and DAC (CC), which share the range.
        const bool frame = marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
        if (frame) {
            const std::string sof = read(at + 4, 5);  // precision, height, width
            if (sof.size() < 5 || length < 8) return refused("a JPEG whose frame header is cut off");
            const std::int64_t height = whole(sof, 1, 2, End::big), width = whole(sof, 3, 2, End::big);
            if (height == 0 && width > 0)
                return refused("a JPEG that gives its height behind its first scan", Problem::unsupported);
            return sized(width, height, ImageFormat::jpeg, orientation);
        }
        if (marker == 0xE1 && !has_exif) {
            const std::string segment = read(at + 4, length - 2);
            has_exif = segment.starts_with(std::string_view("Exif\0\0", 6));
            if (has_exif) orientation = orientation_of(segment);
        }
        at += 2 + length;
    }
    return refused("a JPEG with too many segments before its frame header");
}

Found webp_size(const ReadAt& read) {
    const std::string head = read(12, 18);  // chunk id, its length, and what each kind has of a header
    if (head.starts_with("VP8 ") && head.size() >= 18) {
        const bool key_frame = (static_cast<unsigned char>(head[8]) & 1U) == 0;
        if (!key_frame || head.compare(11, 3, "\x9D\x01\x2A") != 0)
            return refused("a WebP without a key frame's start code");
        constexpr std::int64_t size_bits = 0x3FFF;  // the upper two bits are a scale for display
        return sized(whole(head, 14, 2, End::little) & size_bits, whole(head, 16, 2, End::little) & size_bits,
                     ImageFormat::webp, 1);
    }
    if (head.starts_with("VP8L") && head.size() >= 13) {
        if (head[8] != '\x2F') return refused("a lossless WebP without its signature");
        const std::int64_t bits = whole(head, 9, 4, End::little);
        return sized((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, ImageFormat::webp, 1);
    }
    if (!head.starts_with("VP8X") || head.size() < 18)
        return refused("a WebP that is cut off or corrupt in its first chunk");
    const std::int64_t width = whole(head, 12, 3, End::little) + 1, height = whole(head, 15, 3, End::little) + 1;
    int orientation = 1;
    const bool announces_exif = (static_cast<unsigned char>(head[8]) & 0x08U) != 0;
    std::int64_t at = 12;
    for (int parts = 0; announces_exif && parts < most_parts; ++parts) {
        const std::string chunk = read(at, 8);
        if (chunk.size() < 8) break;
        const std::int64_t length = whole(chunk, 4, 4, End::little);
        if (chunk.starts_with("EXIF")) {
            orientation = orientation_of(read(at + 8, std::min(length, most_exif)));
            break;
        }
        at += 8 + length + (length & 1);  // chunks are padded to even lengths
    }
    return sized(width, height, ImageFormat::webp, orientation);
}

expected<ImageSize> image_size_by(const ReadAt& read, std::string_view name) {
    const std::string magic = read(0, 12);
    Found found = refused("no PNG, JPEG or WebP", Problem::unsupported);
    if (magic.starts_with("\x89PNG\r\n\x1A\n"))
        found = png_size(read);
    else if (magic.starts_with("\xFF\xD8\xFF"))
        found = jpeg_size(read);
    else if (magic.size() == 12 && magic.starts_with("RIFF") && magic.ends_with("WEBP"))
        found = webp_size(read);
    else if (magic.empty())
        found = refused("an empty file");
    if (found.why.empty()) return found.size;
    return Unexpected{
        {{Severity::error, found.problem, {std::string(name), 0, 0}, {}, {}, {}, std::string(found.why)}}};
}

}  // namespace

expected<ImageSize> image_size_of(std::string_view bytes, std::string_view name) {
    return image_size_by(pieces_of_bytes(bytes).read, name);
}

expected<ImageSize> image_size(const fs::path& path) {
    const expected<Pieces> file = pieces_of_file(path);
    if (!file) return Unexpected{file.error()};
    return image_size_by(file->read, path.string());
}

}  // namespace vram::io
