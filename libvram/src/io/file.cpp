#include "vram/io/file.hpp"

#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "io/pieces.hpp"

namespace vram::io {

namespace fs = std::filesystem;

expected<std::string> read_file(const fs::path& path, Bytes limit) {
    if (std::optional<Diagnostic> refused = refuse_file(path)) return Unexpected{{*std::move(refused)}};
    const std::string name = path.string();
    const auto refuse = [&](Problem problem, std::string why, std::string found = {}) {
        return Unexpected{{{Severity::error, problem, {name, 0, 0}, {}, std::move(found), {}, std::move(why)}}};
    };
    std::error_code error;
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
