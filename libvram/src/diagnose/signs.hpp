#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "diagnose/phrases.hpp"
#include "vram/base/expected.hpp"
#include "vram/diagnose/diagnosis.hpp"
#include "vram/diagnose/knowledge.hpp"

namespace vram::diagnosis {

/// Where a program is, as its log says; which step it is, is counted.
enum class Where : std::uint8_t { model_load, quantize, cache_latents, cache_text, step, sampling, vae_decode, save };

/// What a frame of a stack trace is worth (failures/signs.yaml, `frames`).
enum class Strength : std::uint8_t { place, detail, weak };

/// What a found phrase belongs to. `index` is into the list of that name, where there is one.
struct Sign {
    enum class Of : std::uint8_t {
        trainer,
        system,
        run,
        finished,
        place,
        node,
        offload,
        context,
        foreign_backend,
        expandable,
        expandable_advice,
        step_line,
        bucket,
        failure,
        bar,
        frame,
        traceback,
    };
    Of of = Of::place;
    std::size_t index = 0;
};

struct RunSign {
    bool names_bar = false;
    std::vector<std::string> says;
};
struct NodeSign {
    std::string part;
    Where where = Where::model_load;
};
struct BarSign {
    Where where = Where::step;
    std::vector<std::string> starts;
    std::string ends;
    bool denoises = false;
    bool unnamed = false;
    std::int64_t at_most = 0;           // steps of an unnamed one
    std::vector<std::string> trainers;  // in whose logs it counts, "unknown" where none is known; empty: all
};
struct FrameSign {
    Where where = Where::step;
    Strength strength = Strength::place;
    std::vector<std::string> files;  // parts of the path; empty: any file
};
struct StepLine {
    std::string step, seconds;
};
struct BucketSign {
    std::string says, between;  // between: what stands between width and height before the phrase; else they follow it
};
struct FailureSign {
    Pattern pattern = Pattern::out_of_memory;
    std::vector<std::string> says, needs, unless;
    bool retried = false, warns = false, whole_line = false;
};

enum class Quantity : std::uint8_t {
    tried,
    capacity,
    free,
    process,
    listed_process,
    allocated,
    reserved,
    reserved_unallocated,
    private_pools,
    allowed,
    host_tried,
    host_process,
};
struct NumberSign {
    Quantity is = Quantity::tried;
    std::string before, after;  // lower case, blanks squeezed; # stands for digits
    bool raw = false;           // bytes without a unit
};
struct Wording {
    std::string id, has;
};

/// failures/signs.yaml, read.
struct Signs {
    Phrases phrases;  // ids are into `signs`
    std::vector<Sign> signs;
    std::vector<std::string> trainers;
    std::vector<System> systems;
    std::vector<RunSign> runs;
    std::vector<Where> places;
    std::vector<std::string> announced_by;  // of nodes
    std::vector<NodeSign> nodes;
    std::vector<BarSign> bars;
    std::vector<FrameSign> frames;
    std::unordered_multimap<std::string, std::size_t> functions;  // → frames
    std::vector<StepLine> step_lines;
    std::vector<BucketSign> buckets;
    std::vector<FailureSign> failures;
    std::vector<NumberSign> numbers;
    std::vector<Wording> wordings;
};

/// One line of failures/changes.yaml.
struct Change {
    std::vector<Phase> phases;    // empty: all
    std::vector<System> systems;  // empty: all
    std::string by;               // a finer cause; empty: whatever it was
    std::string text;
    std::string unless_key, unless_value;  // of the job as it was understood; "set": any value but none
};
struct KindOfFailure {
    std::string cause;
    std::vector<Change> changes;
};
struct Changes {
    std::unordered_map<Kind, KindOfFailure> kinds;
};

[[nodiscard]] expected<Signs> read_signs(std::string_view text, std::string file_name);
/// Every kind is there and has a change for every phase and system.
[[nodiscard]] expected<Changes> read_changes(std::string_view text, std::string file_name);

}  // namespace vram::diagnosis
