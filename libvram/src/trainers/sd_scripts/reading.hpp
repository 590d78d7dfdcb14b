#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainers/sd_scripts/arguments.hpp"

namespace vram::trainers::sd_scripts {

/// What a file may say at most. The trainer has no bounds; these are far beyond any card, and keep the sizes of one
/// tensor within 63 bits.
inline constexpr std::int64_t most_items = 4096;   // in a batch, and batches that accumulate
inline constexpr std::int64_t most_side = 65536;   // pixels
inline constexpr std::int64_t most_rank = 65536;   // FLUX's widest linear has 15360 features
inline constexpr std::int64_t most_tokens = 4096;  // of T5
inline constexpr std::int64_t most_datasets = 1024;
inline constexpr std::int64_t most_repeats = 1'000'000;  // of a folder

/// From which number to which, both of them among it.
struct Range {
    std::int64_t min = std::numeric_limits<std::int64_t>::min(), max = std::numeric_limits<std::int64_t>::max();
};

/// A whole number of a text as people write it, blanks around it or not; nothing: it is none. Python's int() takes
/// "1_000", too.
[[nodiscard]] std::optional<std::int64_t> integer_of(std::string_view text);
/// A number of a text as people write it, finite; Python's float() takes "1_000" and "inf", too.
[[nodiscard]] std::optional<double> number_of(std::string_view text);

/// Reads arguments by name and type. An argument that is not said, or is None, gives nothing.
class Reading {
  public:
    Reading(const io::Document& document_in, Config& config_in, Diagnostics& complaints_in, Diagnostics& notes_in)
        : document(document_in), config(config_in), complaints(complaints_in), notes(notes_in) {}

    /// Python's idea of a flag; a text that means no is taken as yes, with a warning. Errors: bad_value, another text;
    /// wrong_type, a list, a map, a number but 0 and 1.
    [[nodiscard]] bool flag(std::string_view name);
    [[nodiscard]] std::optional<std::int64_t> integer(std::string_view name, Range range = {});
    [[nodiscard]] std::optional<double> number(std::string_view name);
    /// From 0 to 1, as torch's dropout takes it.
    [[nodiscard]] std::optional<double> probability(std::string_view name);
    [[nodiscard]] std::string text(std::string_view name, std::string_view fallback = "");
    /// A list of texts, or one text as a list of one.
    [[nodiscard]] std::vector<std::string> list(std::string_view name);
    [[nodiscard]] bool said(std::string_view name) const { return config.said.find(name) != nullptr; }

    void complain(std::string_view name, Problem problem, std::string text, std::string nearest = {},
                  Severity severity = Severity::error);
    /// Complains about each argument that is not of its type, and forgets it: argparse converts what a command line
    /// says, and the trainer fails at what a file says otherwise. Flags become what Python takes them for, so that one
    /// that is asked for often is told about once.
    void check_types();
    /// Understood and not modelled.
    void refuse(std::string_view name, std::string_view why);

    const io::Document& document;
    Config& config;
    Diagnostics& complaints;
    Diagnostics& notes;

  private:
    [[nodiscard]] const Argument* argument(std::string_view name) const;
};

// The parts of read_config, a file each.

/// read_gui.cpp: the GUI's fields as arguments, and which script they are for; null after a complaint.
[[nodiscard]] const Script* read_gui(Reading& reading, const Script* script);
/// read_config_file.cpp: sections flattened.
[[nodiscard]] const Script* read_config_file(Reading& reading, const Script* script);
/// Of the flags in a text, as a shell would hand them to the script's argparse; they go before what the file says.
void read_command_line(Reading& reading, const Script& script, const std::vector<std::string>& words, const SaidAt& at);

/// read_optimizer.cpp: optimizer_type and optimizer_args, as train_util.py, get_optimizer, takes them.
[[nodiscard]] job::Optimizer read_optimizer(Reading& reading);
/// What `--set train.optimizer` may say: the names that are played, in any case.
[[nodiscard]] std::optional<job::Optimizer> optimizer_named(std::string_view name);
[[nodiscard]] std::vector<std::string_view> optimizer_names();

/// read_network_args.cpp: network_args.
void read_network_args(Reading& reading);

/// "1024,768" or "1024".
[[nodiscard]] std::optional<std::pair<std::int64_t, std::int64_t>> resolution_of(std::string_view text);

}  // namespace vram::trainers::sd_scripts
