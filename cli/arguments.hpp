#pragma once

#include <string>
#include <vector>

#include "vram/advise/max.hpp"
#include "vram/advise/sweep.hpp"
#include "vram/base/expected.hpp"
#include "vram/report/check.hpp"

namespace vram::cli {

enum class Verb : std::uint8_t {
    check,
    advise,
    max,
    grow,
    sweep,
    diagnose,
    explain,
    risk,
    trace,
    models,
    gpus,
    trainers,
    schema,
    version,
    help
};

/// A command line, understood.
struct Arguments {
    Verb verb = Verb::help;
    std::string file;   // "-": standard input; models: what is looked at, all that is known if empty
    std::string log;    // diagnose: the log, "-" as well; `file` is the config that was run, empty where there is none
    std::string out;    // trace: where the events go; advise: where the changed file goes; explain: the picture
    std::string phase;  // explain: whose peak
    std::string help;   // what --help prints
    std::string svg;    // sweep: where its picture goes
    bool json = false, strict = false, scratch = false, csv = false;
    std::vector<advise::Axis> axes;  // sweep: those of one value first
    std::vector<advise::Vary> vary;  // max
    bool asks_driver = true;         // neither --gpu nor --capacity, or --gpu auto
    report::CheckOptions options;    // without `driver`
};

/// Never exits and prints nothing. Every complaint has the problem unknown_option, bad_unit, conflict or missing_key,
/// its place is the command line, and `nearest` the right flag or verb.
[[nodiscard]] expected<Arguments> read_arguments(const std::vector<std::string>& args);

}  // namespace vram::cli
