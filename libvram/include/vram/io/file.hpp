#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>

#include "vram/base/bytes.hpp"
#include "vram/base/expected.hpp"
#include "vram/io/document.hpp"

namespace vram::io {

/// The whole file, as it is. Only regular files are opened (a link to one too), so no pipe or device is waited for.
/// Errors: file_not_found (not there, a folder, no regular file, not readable; `nearest` is a file beside it with
/// nearly the same name), file_too_large.
[[nodiscard]] expected<std::string> read_file(const std::filesystem::path& path, Bytes limit = Limits{}.bytes);

/// The rest of a stream, `name` in complaints. Errors: file_not_found (not readable), file_too_large.
[[nodiscard]] expected<std::string> read_stream(std::istream& stream, const std::string& name,
                                                Bytes limit = Limits{}.bytes);

/// read_file, format_of and read. The document's name is the path as given.
[[nodiscard]] expected<Document> open(const std::filesystem::path& path, const Limits& limits = {});

}  // namespace vram::io
