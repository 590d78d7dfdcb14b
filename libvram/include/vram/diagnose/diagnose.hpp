#pragma once

#include <filesystem>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>

#include "vram/diagnose/diagnosis.hpp"
#include "vram/diagnose/knowledge.hpp"
#include "vram/report/check.hpp"

namespace vram::diagnosis {

/// Reads a log piece by piece, in memory that does not grow with it.
///
///     LogReader reader(knowledge);
///     while (…) reader.feed(piece);
///     Diagnosis diagnosis = reader.finish();
///
/// Any bytes are a log: UTF-8, UTF-16 with a byte order mark or seen from its zero bytes, code pages (letters beyond
/// ASCII are passed by), NUL, ANSI colours, progress bars' carriage returns, lines without an end (read in pieces of
/// 64 KiB). Nothing is thrown but std::bad_alloc.
class LogReader {
  public:
    explicit LogReader(Knowledge knowledge = Knowledge::built_in());
    LogReader(LogReader&&) noexcept;
    LogReader& operator=(LogReader&&) noexcept;
    ~LogReader();

    void feed(std::string_view bytes);
    /// The diagnosis of what was fed; `report` is the check of the config that was run, or null. Once.
    [[nodiscard]] Diagnosis finish(std::string source = {}, const report::Report* report = nullptr);
    /// The card's memory as the log's messages say it; 0 where they do not. Nothing may be fed after it.
    [[nodiscard]] Bytes capacity();

  private:
    class State;
    std::unique_ptr<State> state_;
};

/// The diagnosis of a log's text. No clock, environment, GPU or file is touched.
[[nodiscard]] Diagnosis diagnose(std::string_view log, std::string source = {}, const report::Report* report = nullptr,
                                 const Knowledge& knowledge = Knowledge::built_in());

/// Of a file or of the rest of a stream, read in pieces of 64 KiB. What cannot be read is a Diagnostic of the
/// diagnosis, file_not_found.
[[nodiscard]] LogReader read_log(std::istream& stream, const Knowledge& knowledge = Knowledge::built_in());
[[nodiscard]] expected<LogReader> read_log(const std::filesystem::path& path,
                                           const Knowledge& knowledge = Knowledge::built_in());

/// `log.finish` beside the config that was run: its check, and where the failure is one of size and the config is
/// predicted not to fit, the first change that advise::advise proposes, `prediction->change`. What cannot be read of
/// the config is told as `check` tells it, of `config_source`.
[[nodiscard]] Diagnosis finish_beside(LogReader& log, std::string source, const expected<io::Document>& config,
                                      const std::string& config_source, report::CheckOptions options,
                                      const profile::Catalogue& catalogue);

/// What is said of a log that cannot be read: nothing recognised, these complaints.
[[nodiscard]] Diagnosis unreadable(std::string source, Diagnostics complaints);

}  // namespace vram::diagnosis
