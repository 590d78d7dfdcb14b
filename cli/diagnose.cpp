#include "vram/diagnose/diagnose.hpp"

#include <filesystem>
#include <fstream>
#include <iostream>
#include <ostream>

#include "input.hpp"
#include "verbs.hpp"

namespace vram::cli {
namespace {

using diagnosis::LogReader;

expected<LogReader> read_log(const std::string& log) {
    std::error_code ignored;
    if (log == "-") return diagnosis::read_log(std::cin);
    if (!std::filesystem::is_fifo(log, ignored)) return diagnosis::read_log(std::filesystem::path(log));
    std::ifstream pipe(log, std::ios::binary);  // a shell's <(command)
    if (!pipe)
        return Unexpected{{{Severity::error, Problem::file_not_found, {log, 0, 0}, {}, {}, {}, "cannot be read"}}};
    return diagnosis::read_log(pipe);
}

/// The check of the config that was run, on the card that the flags or else the log name; null without a config.
std::optional<report::Report> checked(const Arguments& arguments, Bytes capacity) {
    if (arguments.file.empty()) return std::nullopt;
    const expected<std::string> text = read_input(arguments.file);
    if (!text) return report::refused(arguments.file, text.error());
    report::CheckOptions options = arguments.options;
    options.compares_checkpointing = false;
    if (options.gpu.empty() && options.capacity == 0) options.capacity = capacity;
    return report::check(*text, arguments.file, options, profile::Catalogue::built_in());
}

}  // namespace

int diagnose(const Arguments& arguments, std::ostream& out, std::ostream& err) {
    expected<LogReader> log = read_log(arguments.log);
    diagnosis::Diagnosis answer;
    if (log) {
        const std::optional<report::Report> report = checked(arguments, log->capacity());
        answer = log->finish(arguments.log, report ? &*report : nullptr);
    } else {
        answer = diagnosis::unreadable(arguments.log, log.error());
    }
    if (arguments.json || log) out << (arguments.json ? to_json(answer) + "\n" : to_text(answer));
    print_complaints(answer.diagnostics, err);
    return exit_code(answer);
}

}  // namespace vram::cli
