#include "diagnose/decide.hpp"

#include <algorithm>
#include <cmath>

namespace vram::diagnosis {
namespace {

// Where a number is a choice and not a fact it stands here, with what it is chosen by.

/// Free beyond what was asked for: more than the rounding of a segment and a context's slack explain.
constexpr Bytes clearly_free = GiB / 2;
/// A desktop holds 0.5 to 2.5 GiB of a card; a program that computes more.
constexpr Bytes more_than_a_desktop = 4 * GiB;
constexpr double much_of_a_card = 0.25;
constexpr Bytes a_desktop = GiB / 2;
/// CUDA's context and libraries, where the message does not say what the process holds.
constexpr Bytes about_a_context = GiB / 2;
/// Idle pieces of torch's cache are always some; these are many (and as much as was asked for).
constexpr Bytes many_pieces = GiB;
constexpr double many_pieces_of_a_card = 0.05;
constexpr double nearly_full = 0.95;
/// Back ends fail for want of memory where little is free.
constexpr double much_free = 0.2;
/// Steps that worked before one that a heavier bucket, and not the job, explains.
constexpr std::int64_t many_steps = 10;
/// Two buckets that differ by this much in pixels times frames need clearly different memory.
constexpr double heavier = 1.5;
/// A driver that spills costs a factor, and it stays.
constexpr double slower = 2;
constexpr std::int64_t long_enough = 5;  // seconds, to time a stretch of steps

Bytes share(Bytes whole, double part) { return static_cast<Bytes>(static_cast<double>(whole) * part); }

std::int64_t weight(const Bucket& bucket) { return bucket.size[0] * bucket.size[1] * bucket.size[2]; }

std::string name_of(const Bucket& bucket) {
    std::string text = std::to_string(bucket.size[0]) + " x " + std::to_string(bucket.size[1]);
    if (bucket.size[2] > 1) text += " x " + std::to_string(bucket.size[2]) + " frames";
    return text;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

/// How much slower the last steps were than those before, 1 where nothing shows it. Stretches of equally many readings
/// are timed by the clock, since what a bar prints is an average over the run.
double slowdown(const std::vector<Pace>& paces) {
    std::vector<double> each;
    const std::size_t stretches = std::min<std::size_t>(8, paces.size() / 2);
    for (std::size_t i = 0; i < stretches; ++i) {
        const Pace& from = paces[i * (paces.size() - 1) / stretches];
        const Pace& to = paces[(i + 1) * (paces.size() - 1) / stretches];
        if (to.done <= from.done || to.elapsed - from.elapsed < long_enough) continue;
        each.push_back(static_cast<double>(to.elapsed - from.elapsed) / static_cast<double>(to.done - from.done));
    }
    if (each.size() < 4) {  // too short a log to time: as printed
        each.clear();
        for (const Pace& pace : paces)
            if (pace.seconds > 0) each.push_back(pace.seconds);
    }
    if (each.size() < 4) return 1;
    const double before = median({each.begin(), each.end() - 2});
    const double last = std::min(each[each.size() - 1], each[each.size() - 2]);
    return before > 0 ? last / before : 1;
}

class Decision {
  public:
    Decision(const Story& story, const report::Report* report) : story_(story), report_(report) {}

    Decided decide() {
        Diagnosis& d = out_.diagnosis;
        d.trainer = story_.trainer;
        d.system = story_.wsl           ? System::wsl
                   : story_.windows     ? System::windows
                   : story_.linux_paths ? System::linux_os
                                        : System::unknown;
        d.failures = story_.failures;
        const Failure* cause = !story_.episode.empty() ? &story_.episode.front()
                               : story_.survived       ? &*story_.survived
                                                       : nullptr;
        if (cause == nullptr) {
            by_pace();
            return std::move(out_);
        }
        d.recognised = true;
        d.pattern = cause->pattern;
        d.went_on = story_.episode.empty();
        numbers(*cause);
        where(*cause);
        see(*cause, "the failure");
        kind(*cause);
        if (d.went_on) note("the run, or another one in the same log, went on after it");
        if (story_.foreign_backend && d.kind != Kind::not_memory)
            note("the log names a back end that PyTorch was not built for");
        return std::move(out_);
    }

  private:
    void set(Kind kind, Confidence confidence, std::string_view by = {}) {
        out_.diagnosis.kind = kind;
        out_.diagnosis.confidence = confidence;
        out_.by = by;
    }
    void note(std::string text) { out_.diagnosis.notes.push_back(std::move(text)); }
    void see(const Failure& failure, std::string says) {
        out_.diagnosis.evidence.push_back({failure.line, failure.text, std::move(says)});
    }
    void conclude(std::string says) { out_.diagnosis.evidence.push_back({0, {}, std::move(says)}); }

    void numbers(const Failure& cause) {
        Diagnosis& d = out_.diagnosis;
        const auto has = [](const Numbers& n) { return n.tried || n.capacity || n.host_tried || n.host_process; };
        const Stated* stated = &cause.stated;
        for (const Failure& failure : story_.episode)
            if (!has(stated->numbers) && has(failure.stated.numbers)) {
                stated = &failure.stated;
                see(failure, "its numbers");
            }
        // A driver's own line per refused call, for messages that lost their numbers.
        if (!has(stated->numbers) && story_.warning && d.pattern == Pattern::out_of_memory)
            stated = &story_.warning->stated;
        d.numbers = stated->numbers;
        d.wording = stated->wording;
        if (d.numbers.tried && d.numbers.free && *d.numbers.tried > *d.numbers.free)
            d.short_by = *d.numbers.tried - *d.numbers.free;
    }

    void where(const Failure& cause) {
        const Frames& frames = cause.frames;
        std::optional<Where> log = cause.place;
        if (log == Where::sampling && cause.denoised) log = Where::vae_decode;
        std::optional<Where> at = frames.place;
        if (!at) at = cause.node;
        if (!at && frames.detail) {
            // Within a preview or a step, a text encoder or a VAE that encodes, and a load, are part of it.
            const bool part = log == Where::sampling || log == Where::step;
            const bool decides =
                frames.detail == Where::step || frames.detail == Where::vae_decode || frames.detail == Where::save;
            at = part && !decides ? log : frames.detail;
        }
        if (!at) at = log;
        if (!at) at = frames.weak;
        if (cause.pattern == Pattern::skipped_batch || cause.pattern == Pattern::skipped_three) at = Where::step;
        Diagnosis& d = out_.diagnosis;
        if (!at) {
            d.phase = Phase::unknown;
            return;
        }
        switch (*at) {
            case Where::model_load: d.phase = Phase::model_load; break;
            case Where::quantize: d.phase = Phase::quantize; break;
            case Where::cache_latents: d.phase = Phase::cache_latents; break;
            case Where::cache_text: d.phase = Phase::cache_text; break;
            case Where::sampling: d.phase = Phase::sampling; break;
            case Where::vae_decode: d.phase = Phase::vae_decode; break;
            case Where::save: d.phase = Phase::save; break;
            case Where::step: step(cause); break;
        }
    }

    /// Steps that worked before it. ai-toolkit's bar counts a skipped batch as a step.
    [[nodiscard]] std::int64_t worked(const Failure& cause) const {
        return std::max<std::int64_t>(0, cause.steps.done - story_.skipped);
    }

    void step(const Failure& cause) {
        Diagnosis& d = out_.diagnosis;
        d.phase = worked(cause) >= 2 ? Phase::later_steps : Phase::first_steps;
        if (cause.steps.drawn < 0) return;
        d.step = cause.steps.drawn + 1;
        if (cause.steps.total > 0) d.steps = cause.steps.total;
    }

    void kind(const Failure& cause) {
        switch (cause.pattern) {
            case Pattern::none:
            case Pattern::driver_warning: return;
            case Pattern::out_of_memory: return memory(cause);
            case Pattern::skipped_batch:
            case Pattern::skipped_three: return skipped(cause);
            case Pattern::cuda_error: return without_numbers();
            case Pattern::pinned_memory:
            case Pattern::paged_optimizer: return set(Kind::host_ram, Confidence::high, "pinned");
            case Pattern::cublas_init:
            case Pattern::cudnn_init:
            case Pattern::nccl_init:
            case Pattern::kernel_load: return library(cause);
            case Pattern::library_failure: return perhaps();
            case Pattern::no_engine: return no_engine();
            case Pattern::kernel_resources: return set(Kind::not_memory, Confidence::high, "kernel");
            case Pattern::broken_context: return broken();
            case Pattern::cudnn_host: return set(Kind::host_ram, Confidence::medium);
            case Pattern::shared_memory: return set(Kind::host_ram, Confidence::high, "shm");
            case Pattern::host_python:
            case Pattern::commit_limit: return host(cause);
            case Pattern::host_killed:
            case Pattern::host_killer:
            case Pattern::host_allocator:
            case Pattern::host_map: return set(Kind::host_ram, Confidence::high);
        }
    }

    void host(const Failure& cause) {
        // multiprocessing's spawn_main: a worker of the data loader imports torch once more.
        const bool worker = !cause.frames.place && cause.frames.weak == Where::step;
        // An exit code is an access violation first, and a commit limit as its likest reason.
        const bool access_violation = holds(cause.text, "3221225") || holds(cause.text, "0xC0000");
        set(Kind::host_ram, access_violation ? Confidence::medium : Confidence::high, worker ? "workers" : "");
    }

    /// The part of the card that is free, where the message says it.
    [[nodiscard]] std::optional<double> free_part() const {
        const Numbers& n = out_.diagnosis.numbers;
        if (!n.free || !n.capacity || *n.capacity <= 0) return std::nullopt;
        return static_cast<double>(*n.free) / static_cast<double>(*n.capacity);
    }

    void without_numbers() {
        if (story_.makes_context && out_.diagnosis.phase == Phase::unknown) {
            conclude("not even a CUDA context could be made");
            return set(Kind::other_process, Confidence::medium);
        }
        // torch's allocator always prints numbers; a CUDA call beside it is mostly page-locked host memory.
        conclude("a call of CUDA beside torch's allocator failed: that one would have printed numbers");
        const bool likely = story_.offloads || story_.wsl || story_.windows;
        if (story_.offloads) conclude("the run moves layers or blocks to host memory");
        set(Kind::host_ram, likely ? Confidence::high : Confidence::medium, "pinned");
    }

    void library(const Failure& cause) {
        const std::optional<double> free = free_part();
        if (free && *free > much_free && cause.pattern == Pattern::cudnn_init) {
            conclude("much of the card is free: the library itself is broken");
            return set(Kind::not_memory, Confidence::medium);
        }
        set(Kind::init_failure_oom, free && *free < 1 - nearly_full ? Confidence::high : Confidence::medium);
    }

    void perhaps() {
        const std::optional<double> free = free_part();
        if (free && *free < 1 - nearly_full) return set(Kind::init_failure_oom, Confidence::low);
        note("this error is a lack of memory only sometimes; the log has no figure that tells");
        set(Kind::unknown, Confidence::low);
    }

    void no_engine() {
        const std::optional<double> free = free_part();
        if (story_.foreign_backend || (free && *free > much_free)) return set(Kind::not_memory, Confidence::high);
        note("every engine for this operation failed: its workspace did not fit, or the back end has none");
        set(Kind::init_failure_oom, Confidence::low);
    }

    void broken() {
        const bool follows = std::any_of(story_.episode.begin(), story_.episode.end(), [](const Failure& failure) {
            return failure.pattern == Pattern::out_of_memory || failure.pattern == Pattern::cuda_error ||
                   failure.pattern == Pattern::cublas_init;
        });
        if (!follows) return set(Kind::not_memory, Confidence::high, "context");
        conclude("a CUDA error before it broke the process: every later call fails, with whatever text");
        set(Kind::bad_worker_state, Confidence::medium);
    }

    void skipped(const Failure& cause) {
        heaviest();
        if (story_.trained_between || worked(cause) >= 2) {
            conclude(story_.trained_between ? "steps that worked lie between the batches that were skipped"
                                            : "steps before the skipped batches worked");
            note("each skipped batch was never trained on");
            return set(Kind::borderline_bucket, story_.trained_between ? Confidence::high : Confidence::medium);
        }
        set(Kind::config_too_big, cause.pattern == Pattern::skipped_three ? Confidence::high : Confidence::medium);
    }

    void memory(const Failure& cause) {
        if (limited() || commit_limit() || spilled() || somebody_else() || pieces()) return;
        const Numbers& n = out_.diagnosis.numbers;
        if (n.tried && n.capacity && *n.tried > *n.capacity / 2) {
            conclude("one request is more than half of the card");
            note("attention without a fused kernel, or a decode without tiles, asks for so much at once");
            return set(Kind::config_too_big, Confidence::high);
        }
        if (story_.worked_after_failure) {
            conclude("another run in the same process failed and a later one worked");
            return set(Kind::bad_worker_state, Confidence::medium);
        }
        heaviest();
        switch (out_.diagnosis.phase) {
            case Phase::first_steps:
            case Phase::later_steps:
                if (borderline(cause)) return;
                break;
            case Phase::sampling:
            case Phase::vae_decode:
                if (cause.previews >= 1) {
                    conclude("previews before it worked, with training's state on the card");
                    return set(Kind::fragmentation, Confidence::low);
                }
                break;
            case Phase::model_load:
            case Phase::quantize:
            case Phase::cache_latents:
            case Phase::cache_text:
            case Phase::save:
            case Phase::unknown: break;
        }
        const std::optional<Bytes> own = own_use();
        const bool full =
            own && n.capacity && *own + out_.diagnosis.short_by.value_or(0) >= share(*n.capacity, nearly_full);
        set(Kind::config_too_big, full ? Confidence::high : Confidence::medium);
    }

    bool borderline(const Failure& cause) {
        const std::int64_t before = worked(cause);
        const bool after_preview = cause.preview_at >= 0 && cause.steps.done - cause.preview_at <= 1;
        if (after_preview && before >= 2 && !varied()) {
            conclude("it failed in the first step after a preview, and steps before the preview worked");
            set(Kind::fragmentation, Confidence::low);
            return true;
        }
        if (before >= 1 && varied()) {
            conclude("steps before it worked, and the dataset has buckets of clearly different size");
            set(Kind::borderline_bucket, before >= many_steps ? Confidence::high : Confidence::medium);
            return true;
        }
        if (before < 2) return false;
        conclude(std::to_string(before) + " steps before it worked");
        set(Kind::borderline_bucket, before >= many_steps ? Confidence::medium : Confidence::low);
        return true;
    }

    /// Do the listed buckets differ clearly?
    [[nodiscard]] bool varied() const {
        if (story_.buckets.size() < 2) return false;
        const auto [least, most] = std::minmax_element(story_.buckets.begin(), story_.buckets.end(), lighter);
        return static_cast<double>(weight(*most)) >= heavier * static_cast<double>(weight(*least));
    }
    static bool lighter(const Bucket& a, const Bucket& b) { return weight(a) < weight(b); }

    void heaviest() {
        const bool steps = out_.diagnosis.phase == Phase::first_steps || out_.diagnosis.phase == Phase::later_steps;
        if (story_.buckets.empty() || !(steps || out_.diagnosis.phase == Phase::cache_latents)) return;
        out_.diagnosis.heaviest_bucket = *std::max_element(story_.buckets.begin(), story_.buckets.end(), lighter);
        conclude("the heaviest bucket of the log is " + name_of(*out_.diagnosis.heaviest_bucket));
    }

    /// What this process holds: as the driver says, else as torch does, without its context.
    [[nodiscard]] std::optional<Bytes> own_use() const {
        const Numbers& n = out_.diagnosis.numbers;
        if (n.process) return n.process;
        if (n.allocated) return *n.allocated + n.reserved_unallocated.value_or(0);
        return std::nullopt;
    }

    bool limited() {
        const Numbers& n = out_.diagnosis.numbers;
        const bool limits = n.allowed && n.capacity && *n.allowed < *n.capacity;
        if (!limits || !n.tried || !n.free || *n.free < *n.tried) return false;
        conclude("the program limits itself to " + vram::to_text(*n.allowed) + " of the card");
        note("the limit is set by the program (torch.cuda.set_per_process_memory_fraction): raise it");
        set(Kind::config_too_big, Confidence::medium);
        return true;
    }

    bool commit_limit() {
        const Numbers& n = out_.diagnosis.numbers;
        if (!n.tried || !n.free || *n.free < *n.tried + clearly_free) return false;
        conclude(vram::to_text(*n.free) + " of the card are free and " + vram::to_text(*n.tried) + " were refused");
        switch (out_.diagnosis.system) {
            case System::windows:
            case System::wsl:
                conclude("Windows backs the card's memory with its commit limit: RAM and page file ran out");
                set(Kind::host_ram, Confidence::medium);
                return true;
            case System::unknown:
                note("on Windows this is the commit limit: RAM and page file together");
                set(Kind::host_ram, Confidence::low);
                return true;
            case System::linux_os: break;
        }
        note("on Linux a driver refuses like this where the free memory was taken a moment later, or given back since");
        set(Kind::unknown, Confidence::low);
        return true;
    }

    bool spilled() {
        const Numbers& n = out_.diagnosis.numbers;
        if (!n.capacity) return false;
        const Bytes slack = 16 * MiB;  // two decimals of a GiB
        const Bytes held = std::max(n.allocated.value_or(0), n.process.value_or(0));
        if (held <= *n.capacity + slack) return false;
        conclude(vram::to_text(held) + " are held on a card of " + vram::to_text(*n.capacity));
        set(Kind::windows_shared_spill, Confidence::high);
        return true;
    }

    bool somebody_else() {
        const Numbers& n = out_.diagnosis.numbers;
        if (!n.capacity) return false;
        Bytes foreign = n.other_processes.value_or(0);
        const std::optional<Bytes> own = own_use();
        const bool pooled = out_.diagnosis.wording == "cudaMallocAsync";  // its cache is not in the message
        if (own && n.free && !pooled) {
            const Bytes context = n.process ? 0 : about_a_context;
            foreign = std::max(foreign, *n.capacity - *n.free - *own - context);
        }
        if (foreign < a_desktop) return false;
        const bool listed = n.other_processes && *n.other_processes >= foreign / 2;
        const std::string held = "others hold " + vram::to_text(foreign) + " of the card";
        if (const report::Peak* peak = need()) {  // the config knows whether the job would fit alone
            if (peak->device_high <= *n.capacity && peak->device_high > *n.capacity - foreign) {
                conclude(held + ", and the job would fit without them");
                set(Kind::other_process, listed ? Confidence::high : Confidence::medium);
                return true;
            }
            if (peak->device_low > *n.capacity) {
                note(held + "; the job does not fit without them either");
                return false;
            }
        }
        if (foreign < more_than_a_desktop && foreign < share(*n.capacity, much_of_a_card)) {
            note(held + ", as a desktop does");
            return false;
        }
        conclude(held);
        set(Kind::other_process, listed ? Confidence::high : Confidence::medium);
        return true;
    }

    [[nodiscard]] const report::Peak* need() const {
        return report_ != nullptr && report_->peak ? &*report_->peak : nullptr;
    }

    bool pieces() {
        const Numbers& n = out_.diagnosis.numbers;
        if (!n.reserved_unallocated || !n.tried) return false;
        const Bytes idle = *n.reserved_unallocated;
        const Bytes many = std::max(many_pieces, share(n.capacity.value_or(0), many_pieces_of_a_card));
        if (idle < *n.tried || idle < many) return false;
        if (story_.expandable) {
            note("expandable segments are on already");
            return false;
        }
        conclude(vram::to_text(idle) + " lie idle in torch's cache, " + vram::to_text(*n.tried) + " were asked for");
        set(Kind::fragmentation, idle / 2 >= *n.tried ? Confidence::high : Confidence::medium);
        return true;
    }

    /// No failure: steps that became slower for good are what a driver does that moves memory to the PC's RAM.
    void by_pace() {
        Diagnosis& d = out_.diagnosis;
        const double factor = slowdown(story_.paces);
        if (factor < slower) return;
        const std::string times = std::to_string(std::lround(std::min(factor, 1000.0) * 10));
        const std::string says = "the last steps took " + times.substr(0, times.size() - 1) + "." + times.back() +
                                 " times as long as those before";
        if (d.system == System::linux_os) {
            note(says + "; on Linux no driver spills to host memory");
            return;
        }
        d.recognised = true;
        d.failures = 1;
        d.went_on = true;
        d.phase = story_.paces.back().done >= 2 ? Phase::later_steps : Phase::first_steps;
        d.step = story_.paces.back().done;
        conclude(says + ", without an error");
        heaviest();
        set(Kind::windows_shared_spill, d.system == System::unknown ? Confidence::medium : Confidence::high);
    }

    const Story& story_;
    const report::Report* report_;
    Decided out_;
};

/// Of the report's phases, which ones a failed phase may be: by the beginning of its name, as trainers' recipes name
/// them.
std::vector<std::string_view> names_of(Phase phase) {
    switch (phase) {
        case Phase::model_load: return {"load"};
        case Phase::quantize: return {"quantize"};
        case Phase::cache_latents: return {"cache_latents", "cache_validation", "cache"};
        case Phase::cache_text: return {"cache_text", "cache"};
        case Phase::first_steps: return {"step 1", "step 2", "step"};
        case Phase::later_steps: return {"step", "bucket"};
        case Phase::sampling:
        case Phase::vae_decode: return {"sample", "baseline_sample"};
        case Phase::save: return {"save"};
        case Phase::unknown: return {};
    }
    return {};
}

}  // namespace

Decided decide(const Story& story, const report::Report* report) { return Decision(story, report).decide(); }

const report::Phase* phase_of(const report::Report& report, Phase phase) {
    const report::Phase* heaviest = nullptr;
    for (const std::string_view name : names_of(phase)) {
        for (const report::Phase& one : report.phases)
            if (one.name.starts_with(name) && (heaviest == nullptr || one.needs_high > heaviest->needs_high))
                heaviest = &one;
        const bool goes_on = phase == Phase::later_steps;  // each of its phases may have been the one
        if (heaviest != nullptr && !goes_on) return heaviest;
    }
    return heaviest;
}

}  // namespace vram::diagnosis
