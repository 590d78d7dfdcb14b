#include "io/pieces.hpp"

#include <algorithm>
#include <fstream>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

namespace vram::io {

namespace fs = std::filesystem;

namespace {

/// "job.yml" for "job.yaml": names beside it, as far as a person would look.
std::string nearest_beside(const fs::path& path) {
    constexpr std::size_t most_names = 1000;
    std::vector<std::string> names;
    std::error_code error;
    const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end && names.size() < most_names;
         entry.increment(error))
        names.push_back(entry->path().filename().string());
    const std::string name = vram::nearest(path.filename().string(), names);
    return name.empty() ? name : (path.parent_path() / name).string();
}

}  // namespace

std::optional<Diagnostic> refuse_file(const fs::path& path) {
    const std::string name = path.string();
    const auto refuse = [&](std::string why, std::string found = {}, std::string nearest = {}) {
        return Diagnostic{Severity::error,  Problem::file_not_found, {name, 0, 0},  {},
                          std::move(found), std::move(nearest),      std::move(why)};
    };
    if (name.empty()) return refuse("no file is named");
    if (name.find('\0') != std::string::npos) return refuse("a file's name holds no NUL");
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    switch (status.type()) {
        case fs::file_type::regular: return {};
        case fs::file_type::not_found: return refuse("there is no such file", {}, nearest_beside(path));
        case fs::file_type::directory: return refuse("this is a folder, not a file", "a folder");
        default: return refuse(error ? "cannot be opened: " + error.message() : "this is no regular file");
    }
}

expected<Pieces> pieces_of_file(const fs::path& path) {
    if (std::optional<Diagnostic> refused = refuse_file(path)) return Unexpected{{*std::move(refused)}};
    const auto refuse = [&](std::string_view why) {
        return Unexpected{
            {{Severity::error, Problem::file_not_found, {path.string(), 0, 0}, {}, {}, {}, std::string(why)}}};
    };
    std::error_code error;
    const std::uintmax_t size = fs::file_size(path, error);
    if (error || size > static_cast<std::uintmax_t>(INT64_MAX)) return refuse("its size cannot be read");
    auto file = std::make_shared<std::ifstream>(path, std::ios::binary);
    if (!*file) return refuse("cannot be opened");
    return Pieces{[file](std::int64_t offset, std::int64_t count) {
                      std::string bytes(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)), '\0');
                      file->clear();
                      file->seekg(offset);
                      if (*file) file->read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
                      bytes.resize(file->fail() && !file->eof() ? 0 : static_cast<std::size_t>(file->gcount()));
                      return bytes;
                  },
                  static_cast<Bytes>(size)};
}

Pieces pieces_of_bytes(std::string_view bytes) {
    return {[bytes](std::int64_t offset, std::int64_t size) {
                if (offset < 0 || size <= 0 || offset >= static_cast<std::int64_t>(bytes.size())) return std::string();
                return std::string(bytes.substr(static_cast<std::size_t>(offset), static_cast<std::size_t>(size)));
            },
            static_cast<Bytes>(bytes.size())};
}

std::int64_t whole(std::string_view bytes, std::size_t at, std::size_t size, End end) {
    if (at > bytes.size() || size > bytes.size() - at) return 0;
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < size; ++i)
        value = value << 8U | static_cast<unsigned char>(bytes[end == End::big ? at + i : at + size - 1 - i]);
    return static_cast<std::int64_t>(value);
}

}  // namespace vram::io
