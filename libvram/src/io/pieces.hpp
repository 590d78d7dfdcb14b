#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "vram/base/bytes.hpp"
#include "vram/base/expected.hpp"

namespace vram::io {

/// At most `size` bytes from `offset` on; fewer, or none, at the end of the file.
using ReadAt = std::function<std::string(std::int64_t offset, std::int64_t size)>;

/// A file of which only small pieces are read.
struct Pieces {
    ReadAt read;
    Bytes size = 0;
};
/// Errors: those of `refuse_file`.
[[nodiscard]] expected<Pieces> pieces_of_file(const std::filesystem::path& path);
/// Of bytes that outlive the value.
[[nodiscard]] Pieces pieces_of_bytes(std::string_view bytes);

/// Why a path is no file that may be opened, or nothing: only regular files are (a link to one too), so no pipe or
/// device is waited for. The problem is file_not_found, with the nearest name beside it where there is none.
[[nodiscard]] std::optional<Diagnostic> refuse_file(const std::filesystem::path& path);

enum class End : std::uint8_t { big, little };
/// `size` bytes at `at` as a whole number; 0 where they are not all there. Eight bytes wrap.
[[nodiscard]] std::int64_t whole(std::string_view bytes, std::size_t at, std::size_t size, End end);

}  // namespace vram::io
