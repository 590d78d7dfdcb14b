#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vram/base/bytes.hpp"
#include "vram/base/diagnostic.hpp"

/// What a log says about running out of memory. The namespace is not `diagnose`, since that is the verb:
/// vram::diagnose.
namespace vram::diagnosis {

/// Where it died. first_steps: a training step, the first or the second, or one whose number the log does not say.
enum class Phase : std::uint8_t {
    model_load,  // also moving to the card, block swap's set-up, fusing a LoRA
    quantize,
    cache_latents,
    cache_text,
    first_steps,
    later_steps,
    sampling,
    vae_decode,
    save,
    unknown,  // the log does not show it
};

/// What kind of failure it is.
enum class Kind : std::uint8_t {
    config_too_big,        // the job needs more than the card has
    other_process,         // somebody else holds much of the card
    fragmentation,         // enough is reserved by torch, in pieces that are too small
    bad_worker_state,      // it failed at what had worked in this very process
    borderline_bucket,     // most batches fit, the heaviest bucket does not
    host_ram,              // RAM, page file, page-locked memory, shared memory
    windows_shared_spill,  // no error: the driver moved memory to the PC's RAM, and steps crawl
    init_failure_oom,      // a library's handle or workspace did not fit
    not_memory,            // it only reads like it
    unknown,
};

enum class Confidence : std::uint8_t { high, medium, low };
enum class System : std::uint8_t { linux_os, windows, wsl, unknown };

/// The text of the failure.
enum class Pattern : std::uint8_t {
    none,              // no text: seen from the times of the steps
    out_of_memory,     // torch.OutOfMemoryError and its older texts, cudaMallocAsync's, HIP's
    skipped_batch,     // ai-toolkit: OOM during training step, skipping batch
    skipped_three,     // ai-toolkit: OOM during training step 3 times in a row
    driver_warning,    // torch 2.13's line per failed call of the driver; alone it is no failure
    cuda_error,        // CUDA error: out of memory, without numbers
    pinned_memory,     // page-locked host memory by its name
    cublas_init,       // CUBLAS_STATUS_ALLOC_FAILED, NOT_INITIALIZED
    cudnn_init,        // CUDNN_STATUS_NOT_INITIALIZED, ALLOC_FAILED
    nccl_init,         // NCCL's buffers
    cudnn_host,        // CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED
    library_failure,   // EXECUTION_FAILED, INTERNAL_ERROR: memory or not
    no_engine,         // unable to find an engine to execute this computation
    kernel_resources,  // triton: a chip's shared memory
    kernel_load,       // triton: the driver could not load a kernel
    paged_optimizer,   // bitsandbytes' own exit
    broken_context,    // illegal memory access and the like
    host_killed,       // SIGKILL as a launcher tells it
    host_killer,       // the kernel's own line
    host_allocator,    // DefaultCPUAllocator
    host_python,       // MemoryError
    commit_limit,      // WinError 1455 and the like
    host_map,          // mmap or fork refused
    shared_memory,     // /dev/shm
};

[[nodiscard]] std::string_view to_text(Phase phase);
[[nodiscard]] std::string_view to_text(Kind kind);
[[nodiscard]] std::string_view to_text(Confidence confidence);
[[nodiscard]] std::string_view to_text(System system);
[[nodiscard]] std::string_view to_text(Pattern pattern);

/// Bytes that the message states; it prints two decimals, so a GiB is known to 5 MiB. Absent: not stated, or
/// nonsense (a process of 2^64 bytes, where the driver does not tell).
struct Numbers {
    std::optional<Bytes> tried{};      // the segment that was asked for: 2 MiB and 20 MiB stand for anything smaller
    std::optional<Bytes> capacity{};   // of the card, as torch reports it
    std::optional<Bytes> free{};       // on the card
    std::optional<Bytes> process{};    // this process, with its context
    std::optional<Bytes> allocated{};  // by torch
    std::optional<Bytes> reserved_unallocated{};
    std::optional<Bytes> other_processes{};  // the sum of the listed ones, without this process
    std::optional<Bytes> allowed{};          // a limit that the program set itself
    std::optional<Bytes> host_tried{};       // of host memory
    std::optional<Bytes> host_process{};     // the killed process's resident memory
    bool operator==(const Numbers&) const = default;
};

/// A (w, h, frames) group of the dataset, as the log lists it.
struct Bucket {
    std::array<std::int64_t, 3> size{};  // width, height, frames
    std::int64_t count = 0;              // 0: not said
    bool operator==(const Bucket&) const = default;
};

/// A line of the log that something was concluded from.
struct Evidence {
    std::int64_t line = 0;  // from 1; 0: from the whole log
    std::string text;       // at most 200 bytes of it
    std::string says;       // what it shows
    bool operator==(const Evidence&) const = default;
};

/// What the config beside the log is predicted to do.
struct Prediction {
    std::string verdict, reason;  // of the report
    std::string phase;            // the predicted tightest one, or where it breaks first; empty where it cannot be said
    bool breaks = false;          // `phase` is where it breaks first; else the tightest
    bool compared = false;        // the report has the phase where it died
    /// With where it died; and, where the failure is one of size, that it does not fit. False where that is not
    /// compared.
    bool agrees = false;
    Bytes needs_low = 0, needs_high = 0;  // of the phase that failed, where the report has it; else of `phase`
    Bytes capacity = 0;
    /// What makes it fit, the safest that is known (finish_beside): what it is, then a line for each edit of the
    /// config and for what is typed. Empty where the config is not what failed, or nothing makes it fit.
    std::vector<std::string> change;
    bool operator==(const Prediction&) const = default;
};

struct Diagnosis {
    bool recognised = false;  // a failure was found; if not, `looked_for` says of what kinds
    Phase phase = Phase::unknown;
    Kind kind = Kind::unknown;
    Confidence confidence = Confidence::low;
    Pattern pattern = Pattern::none;
    std::string source;   // the log's name
    std::string trainer;  // "ai-toolkit", …; empty where nothing tells it
    System system = System::unknown;
    std::string wording;              // "torch 2.1": the versions that write so; empty where the message has no numbers
    Numbers numbers;                  // as the message has them
    std::optional<Bytes> short_by{};  // tried − free: at least so much was missing
    std::optional<std::int64_t> step{}, steps{};  // the step that failed, and of how many; where a bar tells
    bool went_on = false;                         // the run went on after it
    std::int64_t failures = 0;                    // how many were met in the log
    std::optional<Bucket> heaviest_bucket{};
    std::string cause;                    // one sentence
    std::string first_change;             // what to change first
    std::vector<std::string> then;        // what next, in this order
    std::vector<std::string> notes;       // what else a person should know
    std::vector<Evidence> evidence;       // by line
    std::vector<std::string> looked_for;  // where nothing was recognised
    std::optional<Prediction> prediction{};
    Diagnostics diagnostics;  // of the log, where it cannot be read, and of the config
    bool operator==(const Diagnosis&) const = default;
};

/// Version of the JSON's fields; grows when one changes its meaning.
inline constexpr int schema_version = 1;

/// 0: a diagnosis was reached; 2: nothing was recognised, or the log cannot be read.
[[nodiscard]] int exit_code(const Diagnosis& diagnosis);

/// One JSON object; `indent` < 0: on one line. `vramest schema` describes it.
[[nodiscard]] std::string to_json(const Diagnosis& diagnosis, int indent = 2);

/// For a terminal. The first lines say where it died, what kind it is, by how much, and what to change first.
[[nodiscard]] std::string to_text(const Diagnosis& diagnosis);

}  // namespace vram::diagnosis
