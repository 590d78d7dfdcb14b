#include "vram/io/image_header.hpp"

#include <doctest/doctest.h>

#include "image_bytes.hpp"
#include "temporary_folder.hpp"

using namespace vram;
using namespace vram::io;

TEST_CASE("an image's size stands in its header, turned as EXIF says") {
    const std::string icc = jpeg_segment(0xE2, std::string(60'000, 'i')), comment = jpeg_segment(0xFE, "made by hand");
    const std::string xmp = jpeg_segment(0xE1, std::string("http://ns.adobe.com/xap/1.0/\0<x/>", 33));
    struct Case {
        std::string why;
        std::string bytes;
        ImageSize size;
    };
    for (const Case& c : {
             Case{"png", png(640, 480), {640, 480, ImageFormat::png, false}},
             Case{"png at its largest", png(0x7FFFFFFF, 1), {0x7FFFFFFF, 1, ImageFormat::png, false}},
             Case{"png turned",
                  png(640, 480, png_chunk("gAMA", "1234") + png_chunk("eXIf", tiff(6, true))),
                  {480, 640, ImageFormat::png, true}},
             Case{"jpeg", jpeg(640, 480), {640, 480, ImageFormat::jpeg, false}},
             Case{"progressive jpeg", jpeg(640, 480, {}, 0xC2), {640, 480, ImageFormat::jpeg, false}},
             Case{"lossless jpeg", jpeg(640, 480, {}, 0xC3), {640, 480, ImageFormat::jpeg, false}},
             Case{"arithmetic jpeg", jpeg(640, 480, {}, 0xC9), {640, 480, ImageFormat::jpeg, false}},
             Case{"the last of the frame markers", jpeg(640, 480, {}, 0xCF), {640, 480, ImageFormat::jpeg, false}},
             Case{"a Huffman table is no frame",
                  jpeg(640, 480, jpeg_segment(0xC4, "123456789")),
                  {640, 480, ImageFormat::jpeg, false}},
             Case{"nor are JPG and DAC",
                  jpeg(640, 480, jpeg_segment(0xC8, "123456789") + jpeg_segment(0xCC, "123456789")),
                  {640, 480, ImageFormat::jpeg, false}},
             Case{"long profiles before the frame",
                  jpeg(640, 480, icc + icc + comment),
                  {640, 480, ImageFormat::jpeg, false}},
             Case{"fill bytes", jpeg(640, 480, "\xFF\xFF\xFF"), {640, 480, ImageFormat::jpeg, false}},
             Case{"not turned", jpeg(640, 480, jpeg_exif(tiff(1))), {640, 480, ImageFormat::jpeg, false}},
             Case{"upside down is as wide", jpeg(640, 480, jpeg_exif(tiff(3))), {640, 480, ImageFormat::jpeg, false}},
             Case{"mirrored is as wide", jpeg(640, 480, jpeg_exif(tiff(4))), {640, 480, ImageFormat::jpeg, false}},
             Case{"transposed", jpeg(640, 480, jpeg_exif(tiff(5))), {480, 640, ImageFormat::jpeg, true}},
             Case{"a phone held upright", jpeg(640, 480, jpeg_exif(tiff(6))), {480, 640, ImageFormat::jpeg, true}},
             Case{"the last orientation, big-endian",
                  jpeg(640, 480, jpeg_exif(tiff(8, true))),
                  {480, 640, ImageFormat::jpeg, true}},
             Case{"no such orientation", jpeg(640, 480, jpeg_exif(tiff(9))), {640, 480, ImageFormat::jpeg, false}},
             Case{
                 "XMP in front of EXIF", jpeg(640, 480, xmp + jpeg_exif(tiff(6))), {480, 640, ImageFormat::jpeg, true}},
             Case{"EXIF cut off",
                  jpeg(640, 480, jpeg_exif(tiff(6).substr(0, 30))),
                  {640, 480, ImageFormat::jpeg, false}},
             Case{"EXIF's directory far outside",
                  jpeg(640, 480, jpeg_exif(std::string("II*\0\xFF\xFF\xFF\xFF", 8))),
                  {640, 480, ImageFormat::jpeg, false}},
             Case{"webp", webp(vp8(640, 480)), {640, 480, ImageFormat::webp, false}},
             Case{"webp's upper bits are a scale for display",
                  webp(vp8(640 | 0x4000, 480 | 0x8000)),
                  {640, 480, ImageFormat::webp, false}},
             Case{"lossless webp", webp(vp8l(640, 480)), {640, 480, ImageFormat::webp, false}},
             Case{"lossless webp at its largest", webp(vp8l(16384, 16384)), {16384, 16384, ImageFormat::webp, false}},
             Case{"extended webp", webp(vp8x(640, 480, 0) + vp8l(640, 480)), {640, 480, ImageFormat::webp, false}},
             Case{"extended webp turned; its chunk before has an odd length",
                  webp(vp8x(640, 480, 8) + riff_chunk("ALPH", "123") + vp8(640, 480) + riff_chunk("EXIF", tiff(6))),
                  {480, 640, ImageFormat::webp, true}},
             Case{"webp's EXIF with a JPEG's head",
                  webp(vp8x(640, 480, 8) + riff_chunk("EXIF", std::string("Exif\0\0", 6) + tiff(6))),
                  {480, 640, ImageFormat::webp, true}},
             Case{"an EXIF that is not announced is none",
                  webp(vp8x(640, 480, 0) + riff_chunk("EXIF", tiff(6))),
                  {640, 480, ImageFormat::webp, false}},
         }) {
        CAPTURE(c.why);
        const expected<ImageSize> size = image_size_of(c.bytes, "image");
        REQUIRE(size);
        CHECK(*size == c.size);
        const TemporaryFolder folder;
        const expected<ImageSize> from_file = image_size(folder.write("wrong_extension.txt", c.bytes));
        REQUIRE(from_file);
        CHECK(*from_file == c.size);
    }
}

TEST_CASE("what is no image, or a broken one, is a complaint") {
    std::string many;
    for (int i = 0; i < 10'000; ++i) many += jpeg_segment(0xFE, "");
    struct Case {
        std::string why;
        std::string bytes;
        Problem problem;
        std::string text;
    };
    for (const Case& c : {
             Case{"nothing", "", Problem::syntax, "an empty file"},
             Case{"a text", "key: value, and on it goes", Problem::unsupported, "no PNG, JPEG or WebP"},
             Case{"a GIF", "GIF89a\x10\x20", Problem::unsupported, "no PNG, JPEG or WebP"},
             Case{"another RIFF", "RIFF1234WAVEfmt ", Problem::unsupported, "no PNG, JPEG or WebP"},
             Case{"png cut off", png(640, 480).substr(0, 20), Problem::syntax, "a PNG without a whole IHDR chunk"},
             Case{"png without width", png(0, 480), Problem::syntax, "its header gives a size of 0"},
             Case{"png beyond 31 bits", png(0x80000000U, 1), Problem::syntax,
                  "a PNG's width or height exceeds 31 bits"},
             Case{"jpeg cut off", jpeg(640, 480).substr(0, 21), Problem::syntax,
                  "a JPEG that is cut off or corrupt before its frame header"},
             Case{"jpeg cut off in its frame header", jpeg(640, 480).substr(0, 27), Problem::syntax,
                  "a JPEG whose frame header is cut off"},
             Case{"jpeg with rubbish between segments", jpeg(640, 480, "rubbish"), Problem::syntax,
                  "a JPEG that is cut off or corrupt before its frame header"},
             Case{"jpeg with a segment of length 1", jpeg(640, 480, std::string("\xFF\xE5\0\x01", 4)), Problem::syntax,
                  "a JPEG segment of no length"},
             Case{"jpeg with data first", "\xFF\xD8\xFF\xDA\x01\x02", Problem::syntax,
                  "a JPEG without a frame header before its data"},
             Case{"jpeg whose height comes later (DNL)", jpeg(640, 0), Problem::unsupported,
                  "a JPEG that gives its height behind its first scan"},
             Case{"jpeg without width", jpeg(0, 480), Problem::syntax, "its header gives a size of 0"},
             Case{"jpeg of very many segments", jpeg(640, 480, many), Problem::syntax,
                  "a JPEG with too many segments before its frame header"},
             Case{"webp cut off", webp(vp8(640, 480)).substr(0, 25), Problem::syntax,
                  "a WebP that is cut off or corrupt in its first chunk"},
             Case{"webp of another kind", webp(riff_chunk("ANIM", "0123456789")), Problem::syntax,
                  "a WebP that is cut off or corrupt in its first chunk"},
             Case{"webp without its start code", webp(riff_chunk("VP8 ", "0123456789")), Problem::syntax,
                  "a WebP without a key frame's start code"},
             Case{"lossless webp without its signature", webp(riff_chunk("VP8L", "0123456789")), Problem::syntax,
                  "a lossless WebP without its signature"},
             Case{"webp without width", webp(vp8(0, 480)), Problem::syntax, "its header gives a size of 0"},
         }) {
        CAPTURE(c.why);
        const expected<ImageSize> size = image_size_of(c.bytes, "image.png");
        REQUIRE(!size);
        CHECK(size.error().front().problem == c.problem);
        CHECK(size.error().front().text == c.text);
        CHECK(size.error().front().place == Place{"image.png", 0, 0});
        const TemporaryFolder folder;
        const expected<ImageSize> from_file = image_size(folder.write("image", c.bytes));
        REQUIRE(!from_file);
        CHECK(from_file.error().front().text == c.text);
    }
}

TEST_CASE("only regular files are looked into") {
    const TemporaryFolder folder;
    CHECK(image_size(folder.path("none.png")).error().front().problem == Problem::file_not_found);
    CHECK(image_size(folder.path("")).error().front().problem == Problem::file_not_found);
    CHECK(image_size("/dev/zero").error().front().problem == Problem::file_not_found);
}
