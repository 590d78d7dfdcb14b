#include "vram/io/file.hpp"

#include <fstream>
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

expected<std::string> read_file(const fs::path& path, Bytes limit) {
    const std::string name = path.string();
    const auto refuse = [&](Problem problem, std::string why, std::string found = {}, std::string nearest = {}) {
        return Unexpected{
            {{Severity::error, problem, {name, 0, 0}, {}, std::move(found), std::move(nearest), std::move(why)}}};
    };
    if (name.empty()) return refuse(Problem::file_not_found, "no file is named");
    if (name.find('\0') != std::string::npos) return refuse(Problem::file_not_found, "a file's name holds no NUL");
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    switch (status.type()) {
        case fs::file_type::regular: break;
        case fs::file_type::not_found:
            return refuse(Problem::file_not_found, "there is no such file", {}, nearest_beside(path));
        case fs::file_type::directory:
            return refuse(Problem::file_not_found, "this is a folder, not a file", "a folder");
        default:
            return refuse(Problem::file_not_found,
                          error ? "cannot be opened: " + error.message() : "this is no regular file");
    }
    const std::uintmax_t size = fs::file_size(path, error);
    if (!error && size > static_cast<std::uintmax_t>(limit))
        return refuse(Problem::file_too_large, "larger than " + vram::to_text(limit),
                      vram::to_text(static_cast<Bytes>(size)));
    std::ifstream file(path, std::ios::binary);
    if (!file) return refuse(Problem::file_not_found, "cannot be opened");
    return read_stream(file, name, limit);
}

expected<std::string> read_stream(std::istream& stream, const std::string& name, Bytes limit) {
    const auto refuse = [&](Problem problem, std::string why) {
        return Unexpected{{{Severity::error, problem, {name, 0, 0}, {}, {}, {}, std::move(why)}}};
    };
    // Not by its size alone: a file may grow, and those of /proc say 0.
    std::string text;
    constexpr std::size_t step = 1 << 16;
    while (stream && static_cast<Bytes>(text.size()) <= limit) {
        const std::size_t before = text.size();
        text.resize(before + step);
        stream.read(text.data() + before, static_cast<std::streamsize>(step));
        text.resize(before + static_cast<std::size_t>(stream.gcount()));
    }
    if (stream.bad()) return refuse(Problem::file_not_found, "cannot be read");
    if (static_cast<Bytes>(text.size()) > limit)
        return refuse(Problem::file_too_large, "larger than " + vram::to_text(limit));
    return text;
}

expected<Document> open(const fs::path& path, const Limits& limits) {
    expected<std::string> text = read_file(path, limits.bytes);
    if (!text) return Unexpected{text.error()};
    std::string name = path.string();
    const Format format = format_of(name, *text);
    return read(*text, std::move(name), format, limits);
}

}  // namespace vram::io
