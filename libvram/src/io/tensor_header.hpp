#pragma once

#include <string>

#include "io/pieces.hpp"
#include "vram/io/tensor_file.hpp"

namespace vram::io {

/// The header of a file that is known to be of this format.
[[nodiscard]] expected<TensorFile> read_safetensors(const Pieces& file, const std::string& name);
[[nodiscard]] expected<TensorFile> read_gguf(const Pieces& file, const std::string& name);

/// A complaint about the file as a whole.
[[nodiscard]] Unexpected refuse_header(const std::string& name, Problem problem, std::string why);

/// The product, or nothing where it exceeds 63 bits; sizes are not negative.
[[nodiscard]] std::optional<std::int64_t> numel_of(const std::vector<std::int64_t>& shape);

}  // namespace vram::io
