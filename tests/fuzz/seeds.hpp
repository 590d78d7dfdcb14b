#pragma once

#include <string>
#include <vector>

#include "unit/io/image_bytes.hpp"
#include "unit/io/tensor_bytes.hpp"

namespace vram::fuzz {

/// What the mutations start from: small files that use all of their format.
inline std::vector<std::string> seeds() {
    using namespace vram::io;
    return {
        "vramest: 1\ntrainer: torch\nmodel: flux1_dev # c\ntrain:\n  method: lora\n  rank: 16\n  lr: 1e-4\ndata:\n"
        "  resolution: [1024, 768]\n  buckets: [[1024, 768], [512, 512, 33]]\ngpu: \"rtx-4090\"\n",
        "---\na: &x {k: 'it''s', \"q\": \"\\u00e9\\n\"}\nb: *x\nc:\n  <<: *x\n  n: ~\n  e:\nd:\n- 1\n- - 2\n  - "
        "3\n-\n...\n",
        "t: |\n  one\n   two\n\nf: >-\n  folded\n  more\nm: one\n  two\n? q\n: !!str 4\nh: 0x1F\no: 010\ns: 1:30\ny: "
        "yes\n",
        "\xEF\xBB\xBF"
        "a: \xC3\xA9\r\nb:\r\n  - x y\r\n  - { c : , d }\r\n",
        R"({"a": [1, -2.5e3, "x\u00e9\ud83d\ude00\\\"", true, false, null, {}], "b": {"c": 9223372036854775808}, "a": 2})",
        "// c\n{\"a\": /* d */ 1, \"l\": [[1, 2], [], {\"k\": \"v\"}] }//",
        "# c\nz = 1_000\n\"k k\" = 'x' # d\nf = 1e-4\nd = 1979-05-27 07:32:00\nl = [ 1, [2], \"\"\"m\n\"\"\" ]\ni = {a "
        "= 1, b.c = inf}\n"
        "[s.t]\nk = true\n[[u]]\nk = 0x10\n[[u]]\nk = '''\nx'''\n",
        "Steps:   2%|#  | 30/1500 [01:00<50:00,  2.00s/it, loss=0.1]\rbucket: (480, 480, 61), count: 4\n"
        "  File \"a.py\", line 3, in decode\n    x\nCUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB "
        "total capacity; 7.00 GiB already allocated; 0 bytes free; 7.50 GiB reserved in total by PyTorch)\n",
        "got prompt\n**Node Type:** KSampler\nAllocation on device 0 would exceed allowed memory. (out of memory)\n"
        "Requested               : 12.50 MiB\nPrompt executed in 3\n# Running job: a\na:  1%|# | 3/9 [00:01<00:09, "
        "1.0it/s]\n# OOM during training step, skipping batch 1/3 #\n512x768: 12 files\nMemoryError\n",
        "train.batch_size=4",
        "data.buckets[0][1]=[[1024, 1024, 1]]",
        png(640, 480, png_chunk("eXIf", tiff(6))),
        jpeg(640, 480, jpeg_exif(tiff(6, true)) + jpeg_segment(0xC4, "table")),
        webp(vp8(640, 480)),
        webp(vp8l(640, 480)),
        webp(vp8x(640, 480, 8) + vp8(640, 480) + riff_chunk("EXIF", tiff(8))),
        safetensors({{"a.weight", {4, 3}, "BF16"}, {"b", {}, "F32", 4}}, R"({"format":"pt"})"),
        gguf(2, 2,
             gguf_key("general.architecture", "flux") + gguf_text("t") + little64(9, 4) + little64(8, 4) + little64(1) +
                 gguf_text("x") + gguf_tensor("w", {256, 2}, 12, 0) + gguf_tensor("b", {4}, 0, 288),
             304),
    };
}

/// What is put in between.
inline const std::vector<std::string>& tokens() {
    static const std::vector<std::string> words = {
        ": ",
        "- ",
        "? ",
        "\n",
        "\r\n",
        "\r",
        "\t",
        " ",
        "#",
        " # ",
        "&x ",
        "*x",
        "<<: ",
        "!!str ",
        "!!int ",
        "!t ",
        "|",
        ">",
        "|2\n",
        "\"",
        "'",
        "\\",
        "\\u",
        "{",
        "}",
        "[",
        "]",
        ",",
        "=",
        ".",
        "..",
        "---\n",
        "...\n",
        "%",
        "@",
        "null",
        "~",
        "yes",
        ".inf",
        "0x",
        "1e999",
        "-0",
        "_",
        ":",
        "99999999999999999999",
        "[[",
        "]]",
        "\"\"\"",
        "'''",
        "//",
        "/*",
        "*/",
        "\xEF\xBB\xBF",
        "\xC3\xA9",
        "\xFF",
        "\xED\xA0\x80",
        std::string(1, '\0'),
        std::string(4, '\xFF'),
        "Exif",
        "GGUF",
        "\"shape\":[",
        "\"data_offsets\":[0,",
        "F8_E4M3",
        vram::io::little64(1ULL << 62U),
        vram::io::little64(8, 4),
        "eXIf",
        "\xFF\xE1",
        "\xFF\xC0",
        "%|",
        "| 3/9 [",
        "out of memory. Tried to allocate ",
        " GiB",
        "Process 7 has ",
        "\x1b[31m",
        "\xFF\xFE",
        std::string(70, '['),
        std::string(70, '.'),
    };
    return words;
}

}  // namespace vram::fuzz
