#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vram::io {

/// Files of tensors, put together by hand; their data is zeros. For tests and seeds.
inline std::string little64(std::uint64_t value, int bytes = 8) {
    std::string out;
    for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xFFU);
    return out;
}

/// A safetensors file with this header and as many bytes of data.
inline std::string safetensors(std::string_view header, std::size_t data) {
    return little64(header.size()) + std::string(header) + std::string(data, '\0');
}

struct MadeTensor {
    std::string name;
    std::vector<std::int64_t> shape;  // outermost first
    std::string type;                 // safetensors' word, of `size` bytes an element
    std::int64_t size = 2;
};
/// Its tensors one behind the other.
inline std::string safetensors(const std::vector<MadeTensor>& tensors, std::string_view metadata = {}) {
    std::string header = metadata.empty() ? "{" : "{\"__metadata__\":" + std::string(metadata);
    std::int64_t at = 0;
    for (const MadeTensor& tensor : tensors) {
        std::int64_t bytes = tensor.size;
        std::string shape;
        for (const std::int64_t size : tensor.shape) {
            bytes *= size;
            shape += (shape.empty() ? "" : ",") + std::to_string(size);
        }
        header += (header.size() > 1 ? ",\"" : "\"") + tensor.name + "\":{\"dtype\":\"" + tensor.type +
                  "\",\"shape\":[" + shape + "],\"data_offsets\":[" + std::to_string(at) + "," +
                  std::to_string(at + bytes) + "]}";
        at += bytes;
    }
    return safetensors(header + "}", static_cast<std::size_t>(at));
}

inline std::string gguf_text(std::string_view text) { return little64(text.size()) + std::string(text); }
inline std::string gguf_key(std::string_view key, std::string_view text) {
    return gguf_text(key) + little64(8, 4) + gguf_text(text);
}
/// `innermost_first`, as the file has it.
inline std::string gguf_tensor(std::string_view name, const std::vector<std::uint64_t>& innermost_first,
                               std::uint64_t type, std::uint64_t offset) {
    std::string out = gguf_text(name) + little64(innermost_first.size(), 4);
    for (const std::uint64_t size : innermost_first) out += little64(size);
    return out + little64(type, 4) + little64(offset);
}
inline std::string gguf(std::uint64_t tensors, std::uint64_t keys, std::string_view entries, std::size_t data,
                        std::uint64_t version = 3) {
    std::string out = "GGUF" + little64(version, 4) + little64(tensors) + little64(keys) + std::string(entries);
    out.resize((out.size() + 31) / 32 * 32, '\0');
    return out + std::string(data, '\0');
}

}  // namespace vram::io
