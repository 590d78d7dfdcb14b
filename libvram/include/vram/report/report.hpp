#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vram/base/bytes.hpp"
#include "vram/base/diagnostic.hpp"
#include "vram/job/job.hpp"
#include "vram/run/facts.hpp"
#include "vram/shadow/trace.hpp"

namespace vram::report {

/// fits: device_high ≤ usable. does_not_fit: device_low > usable_high. tight: else. cannot_say: the reason says why.
enum class Verdict : std::uint8_t { fits, tight, does_not_fit, cannot_say };
/// Which counter a verdict hangs on.
enum class Counter : std::uint8_t { tensors, allocated, reserved, device };
enum class ChosenBy : std::uint8_t { flag, job, driver, smallest_that_holds };
enum class RiskLevel : std::uint8_t { low, medium, high };
[[nodiscard]] std::string_view to_text(Verdict verdict);
[[nodiscard]] std::string_view to_text(Counter counter);
[[nodiscard]] std::string_view to_text(ChosenBy chosen_by);
[[nodiscard]] std::string_view to_text(RiskLevel level);

struct JobLine {
    std::string trainer, model, source;           // source: the file's name
    std::map<std::string, std::string> resolved;  // every key as it was understood
    bool operator==(const JobLine&) const = default;
};

/// The card that was asked about.
struct GpuLine {
    std::string id;  // empty where only a capacity is known
    std::string name;
    ChosenBy chosen_by = ChosenBy::smallest_that_holds;
    Bytes capacity = 0;       // as torch reports it: the least that this card has been seen with
    Bytes capacity_high = 0;  // above `capacity` where the number is nominal: no machine is known to have printed it
    Bytes other_processes = 0;
    [[nodiscard]] Bytes usable() const { return std::max<Bytes>(0, capacity - other_processes); }
    [[nodiscard]] Bytes usable_high() const { return std::max<Bytes>(0, capacity_high - other_processes); }
    bool operator==(const GpuLine&) const = default;
};

/// The run's highest, each counter its own; `phase` is the one that needs most by itself, `stage` where it does.
struct Peak {
    std::string phase, stage;
    Counter decides = Counter::reserved;
    Bytes tensors = 0, allocated = 0, reserved = 0;
    Bytes device = 0, device_low = 0, device_high = 0;
    // By the least and the most that kernels of convolutions may take; `allocated` and `reserved` are in between.
    Bytes allocated_low = 0, allocated_high = 0, reserved_low = 0, reserved_high = 0;
    bool operator==(const Peak&) const = default;
};

struct Stage {
    std::string name;
    Bytes tensors_peak = 0, tensors_end = 0, allocated_peak = 0, reserved_peak = 0;
    bool operator==(const Stage&) const = default;
};

struct Phase {
    std::string name, kind;
    std::array<std::int64_t, 3> bucket{};  // width, height, frames; zeros where the phase has none
    std::int64_t batch_size = 0;
    Bytes kept_for_backward = 0;
    Bytes tensors_start = 0, tensors_peak = 0, tensors_end = 0, allocated_peak = 0, reserved_peak = 0, device_peak = 0;
    Bytes needs_low = 0, needs_high = 0;    // of the card, had earlier phases left nothing in torch's cache
    Verdict verdict = Verdict::cannot_say;  // of that range
    std::vector<Stage> stages;
    bool operator==(const Phase&) const = default;
};

/// Where a run that does not fit stops: the first phase that does not fit by itself, and its first stage that needs
/// more than the card has.
struct Break {
    std::string phase, stage;
    bool operator==(const Break&) const = default;
};

/// One line of the breakdown: bytes of one component and category, and who says so.
struct Part {
    std::string component;
    shadow::Category category = shadow::Category::activations;
    Bytes low = 0, high = 0;  // equal where the run counted them
    std::string source;       // "counted", "replayed", or where the number stands
    bool operator==(const Part&) const = default;
};

/// The same job with gradient checkpointing turned the other way, played and measured like it.
struct OtherWay {
    std::string phase;  // that needs most by itself
    Bytes device_low = 0, device_high = 0;
    Verdict verdict = Verdict::cannot_say;
    bool operator==(const OtherWay&) const = default;
};

struct Checkpointing {
    bool on = false;
    Bytes kept = 0, kept_without = 0;
    double factor = 1;                // kept / kept_without; 1 where nothing is kept
    std::optional<OtherWay> other{};  // of a training
    bool operator==(const Checkpointing&) const = default;
};

/// The smallest change that helps; written by advise/.
struct Advice {
    std::string key, value, text;
    Bytes saves = 0;
    bool operator==(const Advice&) const = default;
};

struct Risk {
    RiskLevel level = RiskLevel::low;
    std::vector<std::string> why;
    bool operator==(const Risk&) const = default;
};

/// The answer: the fields of job-file.md §3. Sizes are bytes. Where the verdict is cannot_say there is no peak;
/// of a model that is not known, `stored` still says what its weights weigh.
struct Report {
    JobLine job;
    GpuLine gpu;
    Verdict verdict = Verdict::cannot_say;
    std::string reason;  // one sentence
    std::optional<Peak> peak;
    run::Facts facts;  // counts, weights, adapter, optimizer_state, gradients, inputs, targets, kept_for_backward,
                       // input_tensors
    std::vector<job::StoredWeights> stored;  // where the model is a folder or a file: what it holds, by type
    Checkpointing checkpointing;
    std::vector<Phase> phases;
    std::optional<Break> breaks_first;
    std::vector<Part> breakdown;  // adds up to peak->device_low and device_high, to the byte
    std::vector<Advice> advice;
    Risk risk;
    Diagnostics diagnostics;

    /// The phase named so, or null.
    [[nodiscard]] const Phase* phase(std::string_view name) const;
    bool operator==(const Report&) const = default;
};

/// Version of the report's fields; grows when one changes its meaning.
inline constexpr int schema_version = 1;
[[nodiscard]] std::string_view library_version();  // "0.1.0"

/// 0 fits or tight, 1 does not fit (tight too if strict), 2 cannot say.
[[nodiscard]] int exit_code(const Report& report, bool strict = false);

/// One JSON object, keys in the order of job-file.md §3; `indent` < 0: on one line.
[[nodiscard]] std::string to_json(const Report& report, int indent = 2);

/// For a terminal: the line that decides, the phases, the breakdown, what was complained about. GiB with two decimals.
[[nodiscard]] std::string to_text(const Report& report);

}  // namespace vram::report
