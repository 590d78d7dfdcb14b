#include "input.hpp"

#include <filesystem>
#include <fstream>
#include <iostream>

#include "arguments.hpp"
#include "vram/io/file.hpp"
#include "vram/probe/driver.hpp"

namespace vram::cli {
expected<std::string> read_input(const std::string& file) {
    std::error_code ignored;
    if (file == "-") return io::read_stream(std::cin, file);
    if (!std::filesystem::is_fifo(file, ignored)) return io::read_file(file);
    std::ifstream pipe(file, std::ios::binary);  // a shell's <(command)
    return io::read_stream(pipe, file);
}

Diagnostics write_output(const std::string& file, const std::string& text) {
    std::ofstream stream(file, std::ios::binary);
    stream << text;
    stream.close();
    return stream
               ? Diagnostics{}
               : Diagnostics{{Severity::error, Problem::file_not_found, {file, 0, 0}, {}, {}, {}, "cannot be written"}};
}

Diagnostics refuse_own_file(const std::string& flag, const std::string& output, const std::string& file) {
    std::error_code ignored;
    if (!std::filesystem::equivalent(file, output, ignored)) return {};
    return {{Severity::error,
             Problem::conflict,
             {},
             flag,
             output,
             {},
             flag + " names the file itself, which is never touched"}};
}

report::CheckOptions options_of(const Arguments& arguments) {
    report::CheckOptions options = arguments.options;
    if (arguments.asks_driver) options.driver = probe::card_of_this_machine();
    return options;
}

}  // namespace vram::cli
