#include "vram/io/tensor_file.hpp"

#include <doctest/doctest.h>

#include <filesystem>

#include "temporary_folder.hpp"
#include "tensor_bytes.hpp"

using namespace vram;
using namespace vram::io;

TEST_CASE("a safetensors header is read, and nothing behind it") {
    const expected<TensorFile> file =
        tensor_file_of(safetensors(R"({"__metadata__":{"format":"pt","n":1},)"
                                   R"("w":{"dtype":"BF16","shape":[4,3],"data_offsets":[2,26]},)"
                                   R"("scale":{"dtype":"F16","shape":[],"data_offsets":[0,2]},)"
                                   R"("none":{"dtype":"F32","shape":[0,8],"data_offsets":[26,26]},)"
                                   R"("codes":{"dtype":"F4","shape":[5,2],"data_offsets":[26,31]}}  )",
                                   31),
                       "x");
    REQUIRE(file);
    CHECK(file->format == TensorFormat::safetensors);
    CHECK(file->tensors == std::vector<StoredTensor>{{"w", "BF16", {4, 3}, 12, 24},
                                                     {"scale", "F16", {}, 1, 2},
                                                     {"none", "F32", {0, 8}, 0, 0},
                                                     {"codes", "F4", {5, 2}, 10, 5}});
    CHECK(by_type(file->tensors).front() == StoredType{"BF16", 1, 12, 24});
    CHECK(by_type(file->tensors).size() == 4);
}

TEST_CASE("every dtype of safetensors has its size") {
    struct Case {
        const char* type;
        std::int64_t bytes;
    };
    for (const Case& c :
         {Case{"BOOL", 1}, Case{"U8", 1}, Case{"I8", 1}, Case{"F8_E4M3", 1}, Case{"F8_E5M2", 1}, Case{"F8_E8M0", 1},
          Case{"I16", 2}, Case{"U16", 2}, Case{"F16", 2}, Case{"BF16", 2}, Case{"I32", 4}, Case{"U32", 4},
          Case{"F32", 4}, Case{"F64", 8}, Case{"I64", 8}, Case{"U64", 8}, Case{"C64", 8}}) {
        CAPTURE(std::string(c.type));
        const expected<TensorFile> file = tensor_file_of(safetensors({{"w", {3, 7}, c.type, c.bytes}}), "x");
        REQUIRE(file);
        CHECK(file->tensors[0].bytes == 21 * c.bytes);
    }
}

TEST_CASE("a safetensors file that is broken says where") {
    const auto one = [](std::string_view entry, std::size_t data = 24) {
        return safetensors("{\"w\":" + std::string(entry) + "}", data);
    };
    struct Case {
        const char* why;
        std::string bytes;
        Problem problem;
        std::string key;
        std::int32_t column;
        const char* nearest = "";
    };
    for (const Case& c : {
             Case{"nothing", "", Problem::empty_file, "", 0},
             Case{"no whole length", "\x10", Problem::syntax, "", 0},
             Case{"a header longer than the file", little64(100) + "{}", Problem::syntax, "", 0},
             Case{"a header of 2^62 bytes", little64(1ULL << 62U) + "{}", Problem::file_too_large, "", 0},
             Case{"a length below zero", little64(~0ULL) + "{}", Problem::file_too_large, "", 0},
             Case{"no JSON", safetensors("{\"w\":", 0), Problem::syntax, "", 6},
             Case{"a list", safetensors("[]", 0), Problem::syntax, "", 0},
             Case{"the file is cut off", one(R"({"dtype":"BF16","shape":[4,3],"data_offsets":[0,24]})", 23),
                  Problem::syntax, "", 0},
             Case{"more than announced", one(R"({"dtype":"BF16","shape":[4,3],"data_offsets":[0,24]})", 25),
                  Problem::syntax, "", 0},
             Case{"a hole", one(R"({"dtype":"BF16","shape":[4,3],"data_offsets":[2,26]})", 26), Problem::syntax,
                  "w.data_offsets", 51},
             Case{"shape and offsets differ", one(R"({"dtype":"BF16","shape":[4,3],"data_offsets":[0,26]})", 26),
                  Problem::syntax, "w.data_offsets", 51},
             Case{"an unknown dtype", one(R"({"dtype":"BF61","shape":[4,3],"data_offsets":[0,24]})"),
                  Problem::bad_value, "w.dtype", 15, "BF16"},
             Case{"a dtype that is no text", one(R"({"dtype":16,"shape":[4,3],"data_offsets":[0,24]})"),
                  Problem::bad_value, "w.dtype", 15, "I16"},
             Case{"no shape", one(R"({"dtype":"BF16","data_offsets":[0,24]})"), Problem::missing_key, "w.shape", 6},
             Case{"a size below zero", one(R"({"dtype":"BF16","shape":[-4,3],"data_offsets":[0,24]})"),
                  Problem::out_of_range, "w.shape[0]", 31},
             Case{"three offsets", one(R"({"dtype":"BF16","shape":[4,3],"data_offsets":[0,24,1]})"),
                  Problem::out_of_range, "w.data_offsets", 51},
             Case{"a tensor that is no map", one("3"), Problem::wrong_type, "w", 6},
             Case{"2^63 elements", one(R"({"dtype":"BF16","shape":[4294967296,4294967296],"data_offsets":[0,24]})"),
                  Problem::overflow, "w.shape", 30},
             Case{"a name twice",
                  safetensors(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                              R"("w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                              1),
                  Problem::duplicate_key, "w", 54},
             Case{"half a byte", one(R"({"dtype":"F4","shape":[3],"data_offsets":[0,1]})", 1), Problem::syntax,
                  "w.data_offsets", 47},
         }) {
        CAPTURE(std::string(c.why));
        const expected<TensorFile> file = tensor_file_of(c.bytes, "x.safetensors");
        REQUIRE_FALSE(file);
        const Diagnostic& first = file.error().front();
        CAPTURE(to_text(first));
        CHECK(first.problem == c.problem);
        CHECK(first.severity == Severity::error);
        CHECK(first.key == c.key);
        CHECK(first.nearest == c.nearest);
        CHECK(first.place.file == "x.safetensors");
        CHECK(first.place.column == c.column);
    }
}

TEST_CASE("a GGUF's tensors weigh what their blocks weigh") {
    struct Case {
        const char* name;
        std::uint64_t type;
        std::int64_t bytes;  // of 512 x 2 elements
    };
    for (const Case& c : {Case{"F32", 0, 4096}, Case{"F16", 1, 2048}, Case{"Q4_0", 2, 576}, Case{"Q4_1", 3, 640},
                          Case{"Q5_0", 6, 704}, Case{"Q5_1", 7, 768}, Case{"Q8_0", 8, 1088}, Case{"Q2_K", 10, 336},
                          Case{"Q3_K", 11, 440}, Case{"Q4_K", 12, 576}, Case{"Q5_K", 13, 704}, Case{"Q6_K", 14, 840},
                          Case{"IQ4_NL", 20, 576}, Case{"IQ4_XS", 23, 544}, Case{"BF16", 30, 2048}}) {
        CAPTURE(std::string(c.name));
        for (const std::uint64_t version : {2U, 3U}) {
            const expected<TensorFile> file = tensor_file_of(
                gguf(1, 1, gguf_key("general.architecture", "flux") + gguf_tensor("w", {512, 2}, c.type, 0),
                     static_cast<std::size_t>(c.bytes), version),
                "x");
            REQUIRE(file);
            CHECK(file->format == TensorFormat::gguf);
            CHECK(file->tensors == std::vector<StoredTensor>{{"w", c.name, {2, 512}, 1024, c.bytes}});
        }
    }
}

TEST_CASE("a GGUF's other keys are passed over") {
    const std::string keys = gguf_text("tokens") + little64(9, 4) + little64(8, 4) + little64(2) + gguf_text("a") +
                             gguf_text("bc") + gguf_text("scores") + little64(9, 4) + little64(6, 4) + little64(3) +
                             std::string(12, 'x') + gguf_text("general.alignment") + little64(4, 4) + little64(64, 4) +
                             gguf_text("flag") + little64(7, 4) + "\x01" + gguf_text("nested") + little64(9, 4) +
                             little64(9, 4) + little64(1) + little64(0, 4) + little64(2) + "ab";
    const std::string header = keys + gguf_tensor("w", {4}, 0, 0);
    std::string bytes = gguf(1, 5, header, 0);
    bytes.resize((bytes.size() + 63) / 64 * 64 + 16);
    const expected<TensorFile> file = tensor_file_of(bytes, "x");
    REQUIRE(file);
    CHECK(file->tensors[0].bytes == 16);
    bytes.pop_back();
    CHECK_FALSE(tensor_file_of(bytes, "x"));  // the alignment counted
}

TEST_CASE("a GGUF that is broken is refused") {
    const std::string good = gguf_tensor("w", {32}, 0, 0);
    struct Case {
        const char* why;
        std::string bytes;
        Problem problem;
    };
    for (const Case& c : {
             Case{"the magic alone", "GGUF", Problem::syntax},
             Case{"version 1", gguf(0, 0, "", 0, 1), Problem::unsupported},
             Case{"big-endian", gguf(0, 0, "", 0, 0x03000000), Problem::unsupported},
             Case{"2^63 tensors", gguf(1ULL << 63U, 0, "", 0), Problem::syntax},
             Case{"2^40 keys", gguf(0, 1ULL << 40U, "", 0), Problem::syntax},
             Case{"a tensor that is not there", gguf(2, 0, good, 128), Problem::syntax},
             Case{"five dimensions", gguf(1, 0, gguf_tensor("w", {1, 1, 1, 1, 1}, 0, 0), 4), Problem::syntax},
             Case{"a type that nobody named", gguf(1, 0, gguf_tensor("w", {32}, 4, 0), 128), Problem::unsupported},
             Case{"a row that is no whole block", gguf(1, 0, gguf_tensor("w", {33}, 2, 0), 128), Problem::syntax},
             Case{"data behind the end", gguf(1, 0, gguf_tensor("w", {32}, 0, 32), 128), Problem::syntax},
             Case{"an offset of 2^63 - 1, behind an end within the padding",
                  ("GGUF" + little64(3, 4) + little64(1) + little64(0) + gguf_tensor("w", {32}, 0, INT64_MAX)),
                  Problem::syntax},
             Case{"an offset of 2^62", gguf(1, 0, gguf_tensor("w", {32}, 0, 1ULL << 62U), 128), Problem::syntax},
             Case{"2^66 elements", gguf(1, 0, gguf_tensor("w", {1ULL << 33U, 1ULL << 33U}, 0, 0), 128),
                  Problem::overflow},
             Case{"a name twice", gguf(2, 0, good + good, 128), Problem::duplicate_key},
             Case{"a key's text of 2^50 bytes", gguf(0, 1, gguf_text("k") + little64(8, 4) + little64(1ULL << 50U), 0),
                  Problem::syntax},
             Case{"an array of arrays without end",
                  gguf(
                      0, 1,
                      gguf_text("k") + little64(9, 4) +
                          [] {
                              std::string nested;
                              for (int i = 0; i < 20; ++i) nested += little64(9, 4) + little64(1);
                              return nested;
                          }(),
                      0),
                  Problem::syntax},
         }) {
        CAPTURE(std::string(c.why));
        const expected<TensorFile> file = tensor_file_of(c.bytes, "x");
        REQUIRE_FALSE(file);
        CAPTURE(to_text(file.error().front()));
        CHECK(file.error().front().problem == c.problem);
    }
}

TEST_CASE("what is no file of tensors is refused by what it is") {
    struct Case {
        const char *why, *name;
        std::string bytes;
        const char* says;
    };
    for (const Case& c : {
             Case{"torch.save", "x.pt", "PK\x03\x04rest", "pickle"},
             Case{"torch.save under another name", "x", "PK\x03\x04rest", "pickle"},
             Case{"a bare pickle", "x.ckpt", "\x80\x02}", "pickle"},
             Case{"a pointer", "x.safetensors", "version https://git-lfs.github.com/spec/v1\n", "Git LFS"},
             Case{"a text", "x.txt", "hello, world", "neither"},
         }) {
        CAPTURE(std::string(c.why));
        const expected<TensorFile> file = tensor_file_of(c.bytes, c.name);
        REQUIRE_FALSE(file);
        CHECK(file.error().front().problem == Problem::unsupported);
        CHECK(file.error().front().text.find(c.says) != std::string::npos);
    }
}

TEST_CASE("only the header of a file is read, however large it is") {
    const TemporaryFolder folder;
    constexpr std::int64_t sparse = std::int64_t{8} << 40;  // 8 TiB that no disk has
    const std::string path =
        folder.write("big.safetensors", safetensors(R"({"w":{"dtype":"BF16","shape":[4398046511104],)"
                                                    R"("data_offsets":[0,8796093022208]}})",
                                                    0));
    std::error_code error;
    std::filesystem::resize_file(
        path, static_cast<std::uintmax_t>(std::filesystem::file_size(path)) + static_cast<std::uintmax_t>(sparse),
        error);
    if (error) return;  // a file system without sparse files
    const expected<TensorFile> file = read_tensor_file(path);
    REQUIRE(file);
    CHECK(file->tensors[0].bytes == sparse);
}

TEST_CASE("an index gathers its shards") {
    const TemporaryFolder folder;
    const std::string a = "m-1.safetensors", b = "m-2.safetensors";
    folder.write(a, safetensors({{"x", {2}, "BF16"}, {"y", {3}, "BF16"}}));
    folder.write(b, safetensors({{"z", {4}, "F32", 4}}));
    const auto index = [&](const std::string& map) {
        return read_tensor_index(folder.write("m.safetensors.index.json", "{\"weight_map\": {" + map + "}}"));
    };
    const expected<TensorFile> all = index(R"("x": "m-1.safetensors", "y": "m-1.safetensors", "z": "m-2.safetensors")");
    REQUIRE(all);
    CHECK(all->tensors.size() == 3);

    struct Case {
        const char* why;
        std::string map;
        Problem problem;
        const char* key;
    };
    for (const Case& c : {
             Case{"a missing shard is named", R"("x": "m-1.safetensors", "w": "m-3.safetensors")",
                  Problem::file_not_found, "weight_map.w"},
             Case{"a tensor that its shard has not", R"("x": "m-1.safetensors", "w": "m-1.safetensors")",
                  Problem::missing_key, "weight_map.w"},
             Case{"no way out of the folder", R"("x": "../m-1.safetensors")", Problem::bad_value, "weight_map.x"},
             Case{"a shard is a text", R"("x": 1)", Problem::wrong_type, "weight_map.x"},
         }) {
        CAPTURE(std::string(c.why));
        const expected<TensorFile> file = index(c.map);
        REQUIRE_FALSE(file);
        CHECK(file.error().front().problem == c.problem);
        CHECK(file.error().front().key == c.key);
        CHECK(file.error().front().place.line == 1);
    }
    CHECK_FALSE(read_tensor_index(folder.write("no.json", "{}")));
    CHECK_FALSE(read_tensor_index(folder.path("absent.json")));
}
