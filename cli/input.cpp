#include "input.hpp"

#include <filesystem>
#include <fstream>
#include <iostream>

#include "vram/io/document.hpp"

namespace vram::cli {
namespace {

Diagnostics complaint(Problem problem, const std::string& file, std::string text) {
    return {{Severity::error, problem, {file, 0, 0}, {}, {}, {}, std::move(text)}};
}

}  // namespace

expected<std::string> read_input(const std::string& file) {
    std::error_code ignored;
    const bool piped = file == "-";
    if (!piped && std::filesystem::is_directory(file, ignored))
        return Unexpected{complaint(Problem::file_not_found, file, "is a folder")};
    std::ifstream stream;
    if (!piped) stream.open(file, std::ios::binary);
    if (!piped && !stream) return Unexpected{complaint(Problem::file_not_found, file, "cannot be opened")};
    std::istream& in = piped ? std::cin : stream;

    const Bytes most = io::Limits{}.bytes;
    std::string text(static_cast<std::size_t>(most) + 1, '\0');
    in.read(text.data(), most + 1);
    if (in.gcount() > most)
        return Unexpected{complaint(Problem::file_too_large, file, "is larger than " + to_text(most))};
    text.resize(static_cast<std::size_t>(in.gcount()));
    return text;
}

Diagnostics write_output(const std::string& file, const std::string& text) {
    std::ofstream stream(file, std::ios::binary);
    stream << text;
    stream.close();
    return stream ? Diagnostics{} : complaint(Problem::file_not_found, file, "cannot be written");
}

}  // namespace vram::cli
