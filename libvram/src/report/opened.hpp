#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "trainers/trainer.hpp"
#include "vram/base/expected.hpp"
#include "vram/device/allocator_config.hpp"
#include "vram/io/document.hpp"
#include "vram/report/check.hpp"

namespace vram::report {

/// A job that was read, and whose it is.
struct Opened {
    const trainers::Trainer* trainer = nullptr;
    io::Document document;
    job::Job job;
};

/// Where a key of the job file stands in the document, in a trainer's own file under `vramest`; the document's root if
/// nowhere.
[[nodiscard]] const io::Node& said(const io::Document& document, std::string_view key);

/// settings → which trainer → resolve. Warnings and notes go to `notes` in either case.
[[nodiscard]] expected<Opened> open(io::Document document, const CheckOptions& options,
                                    const profile::Catalogue& catalogue, Diagnostics& notes);
/// The same behind `read`.
[[nodiscard]] expected<Opened> open(std::string_view text, std::string file_name, const CheckOptions& options,
                                    const profile::Catalogue& catalogue, Diagnostics& notes);

/// Runs a step that may meet a job too large to be played, and turns what it throws into a complaint.
/// What a config asks that was read from a folder, and its own class could not do either, is that config's mistake.
[[nodiscard]] expected<run::Facts> guarded(const std::function<run::Facts()>& step, const Opened& opened);

}  // namespace vram::report
