#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "vram/base/bytes.hpp"
#include "vram/base/expected.hpp"

namespace vram::io {

/// A tensor as a file's header announces it.
struct StoredTensor {
    std::string name;
    std::string type;                 // as the format writes it: "BF16", "F8_E4M3", "Q4_K"
    std::vector<std::int64_t> shape;  // outermost dimension first, as torch has it; [] is a scalar
    std::int64_t numel = 0;
    Bytes bytes = 0;
    bool operator==(const StoredTensor&) const = default;
};

enum class TensorFormat : std::uint8_t { safetensors, gguf };
[[nodiscard]] std::string_view to_text(TensorFormat format);  // "safetensors", "GGUF"

/// What one file, or the shards of one index, hold. Sums over all tensors fit 63 bits; no name stands there twice.
struct TensorFile {
    TensorFormat format = TensorFormat::safetensors;
    std::vector<StoredTensor> tensors;  // in the order of the header
    bool operator==(const TensorFile&) const = default;
};

/// How much of a file has one type.
struct StoredType {
    std::string type;
    std::int64_t tensors = 0, numel = 0;
    Bytes bytes = 0;
    bool operator==(const StoredType&) const = default;
};
/// By type, the most bytes first.
[[nodiscard]] std::vector<StoredType> by_type(const std::vector<StoredTensor>& tensors);

/// Whether a name ends as files of weights do: of safetensors and GGUF (".safetensors", ".sft", ".gguf"), or of
/// torch.save
/// (".bin", ".ckpt", ".pt", ".pth"), which are pickles.
[[nodiscard]] bool is_tensor_file_name(std::string_view name);
[[nodiscard]] bool is_pickle_name(std::string_view name);

/// Past a limit a header is refused (file_too_large), having used memory in proportion to the limit.
inline constexpr Bytes most_header_bytes = 100'000'000;  // as safetensors has it
inline constexpr std::int64_t most_stored_tensors = 100'000, most_shards = 4096;

/// Reads the header of a safetensors or GGUF file (versions 2 and 3), told apart by what it starts with. Its data is
/// never read, however large it is; no code of a checkpoint is ever run.
///
/// What the header says is held against itself and the file's length: a tensor's shape and type give its bytes, which
/// must be what its offsets give (safetensors), must lie within the file, and leave no hole (safetensors).
///
/// Errors: file_not_found as read_file; empty_file; unsupported (a PyTorch pickle: convert it to safetensors; a Git LFS
/// pointer; another format, GGUF 1, a type that is not known); syntax (cut off, or a header that contradicts itself);
/// wrong_type, missing_key, bad_value, duplicate_key of an entry, with line and column in safetensors' JSON; overflow;
/// file_too_large. At most twenty of one file.
/// Sources: safetensors 0.8.0, safetensors/src/tensor.rs (Metadata::validate, Dtype); ggml, docs/gguf.md, and ggml.h
/// and ggml-common.h for types and their blocks.
[[nodiscard]] expected<TensorFile> read_tensor_file(const std::filesystem::path& path);
/// The same of a whole file's bytes; `name` is for complaints.
[[nodiscard]] expected<TensorFile> tensor_file_of(std::string_view bytes, std::string_view name);

/// Reads `*.safetensors.index.json` and the header of every shard that it names, which lie beside it.
/// Errors: those of `open` and of each shard; file_not_found for a missing shard and missing_key for a tensor that its
/// shard has not, at their places in the index; bad_value for a shard that is no plain file name.
[[nodiscard]] expected<TensorFile> read_tensor_index(const std::filesystem::path& path);

}  // namespace vram::io
