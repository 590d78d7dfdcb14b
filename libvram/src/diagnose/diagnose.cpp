#include "vram/diagnose/diagnose.hpp"

#include <algorithm>
#include <fstream>
#include <istream>
#include <utility>

#include "advise/found.hpp"
#include "diagnose/decide.hpp"
#include "diagnose/lines.hpp"
#include "diagnose/story.hpp"
#include "io/pieces.hpp"
#include "vram/advise/advise.hpp"

namespace vram::diagnosis {
namespace {

constexpr std::size_t piece = 1 << 16;

/// What was looked for and not found, for people.
std::vector<std::string> looked_for() {
    return {"CUDA, HIP and cudaMallocAsync out of memory, as PyTorch 1.0 to 2.14 write it",
            "CUDA error: out of memory; cuBLAS, cuDNN and NCCL that cannot start", "ai-toolkit's skipped batches",
            "host memory: SIGKILL and the kernel's OOM killer, DefaultCPUAllocator, MemoryError, WinError 1455, mmap, "
            "/dev/shm",
            "steps that become slower for good, as a Windows driver's shared memory makes them"};
}

/// Failures that a smaller job would not have met.
bool is_of_size(Kind kind) {
    return kind == Kind::config_too_big || kind == Kind::borderline_bucket || kind == Kind::fragmentation ||
           kind == Kind::windows_shared_spill || kind == Kind::init_failure_oom;
}

Prediction prediction_of(const report::Report& report, Phase phase, Kind kind) {
    Prediction out;
    out.verdict = std::string(report::to_text(report.verdict));
    out.reason = report.reason;
    out.capacity = report.gpu.usable();
    if (!report.peak) return out;
    out.breaks = report.breaks_first.has_value();
    out.phase = out.breaks ? report.breaks_first->phase : report.peak->phase;
    const report::Phase* tightest = report.phase(out.phase);
    const report::Phase* failed = phase_of(report, phase);
    out.compared = failed != nullptr;
    const bool is_told_to_fit = is_of_size(kind) && report.verdict == report::Verdict::fits;
    out.agrees = tightest != nullptr && failed != nullptr && !is_told_to_fit &&
                 (tightest == failed || (!tightest->kind.empty() && tightest->kind == failed->kind));
    if (const report::Phase* shown = failed != nullptr ? failed : tightest) {
        out.needs_low = shown->needs_low;
        out.needs_high = shown->needs_high;
    }
    return out;
}

}  // namespace

class LogReader::State {
  public:
    explicit State(Knowledge known)
        : knowledge(std::move(known)),
          story(knowledge.signs()),
          lines([this](std::string_view line, std::int64_t n) { story.take(line, n); }) {}

    Knowledge knowledge;
    Story story;
    Lines lines;
    bool ended = false;

    void end() {
        if (std::exchange(ended, true)) return;
        lines.finish();
        story.finish();
    }
};

LogReader::LogReader(Knowledge knowledge) : state_(std::make_unique<State>(std::move(knowledge))) {}
LogReader::LogReader(LogReader&&) noexcept = default;
LogReader& LogReader::operator=(LogReader&&) noexcept = default;
LogReader::~LogReader() = default;

void LogReader::feed(std::string_view bytes) { state_->lines.feed(bytes); }

Bytes LogReader::capacity() {
    state_->end();
    return state_->story.capacity;
}

Diagnosis LogReader::finish(std::string source, const report::Report* report) {
    state_->end();
    Decided decided = decide(state_->story, report);
    Diagnosis& out = decided.diagnosis;
    out.source = std::move(source);
    if (report != nullptr) {
        out.prediction = prediction_of(*report, out.phase, out.kind);
        out.diagnostics = report->diagnostics;
    }
    if (!out.recognised) {
        out.looked_for = looked_for();
        return std::move(out);
    }
    Advised advised = first_change(state_->knowledge, out.kind, out.phase, out.system, report, decided.by);
    out.cause = std::move(advised.cause);
    out.first_change = std::move(advised.changes.front());
    out.then.assign(std::make_move_iterator(advised.changes.begin() + 1),
                    std::make_move_iterator(advised.changes.end()));
    return std::move(out);
}

Diagnosis diagnose(std::string_view log, std::string source, const report::Report* report, const Knowledge& knowledge) {
    LogReader reader(knowledge);
    while (!log.empty()) {
        const std::string_view next = log.substr(0, piece);
        reader.feed(next);
        log.remove_prefix(next.size());
    }
    return reader.finish(std::move(source), report);
}

Diagnosis finish_beside(LogReader& log, std::string source, const expected<io::Document>& config,
                        const std::string& config_source, report::CheckOptions options,
                        const profile::Catalogue& catalogue) {
    options.compares_checkpointing = false;
    const report::Report report =
        config ? report::check(*config, options, catalogue) : report::refused(config_source, config.error());
    Diagnosis out = log.finish(std::move(source), &report);
    const bool is_short = report.verdict == report::Verdict::tight || report.verdict == report::Verdict::does_not_fit;
    if (!is_short || !is_of_size(out.kind)) return out;
    const advise::Advised advised = advise::advise(*config, options, catalogue);
    if (!advised.fits.empty()) out.prediction->change = advise::lines_of(advised.fits.front(), advised.before);
    return out;
}

LogReader read_log(std::istream& stream, const Knowledge& knowledge) {
    LogReader reader(knowledge);
    std::string buffer(piece, '\0');
    while (stream) {
        stream.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
        reader.feed(std::string_view(buffer).substr(0, static_cast<std::size_t>(stream.gcount())));
    }
    return reader;
}

expected<LogReader> read_log(const std::filesystem::path& path, const Knowledge& knowledge) {
    if (std::optional<Diagnostic> refused = io::refuse_file(path)) return Unexpected{{*std::move(refused)}};
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        Diagnostic closed;
        closed.problem = Problem::file_not_found;
        closed.place.file = path.string();
        closed.text = "cannot be opened";
        return Unexpected{{std::move(closed)}};
    }
    return read_log(file, knowledge);
}

Diagnosis unreadable(std::string source, Diagnostics complaints) {
    Diagnosis out;
    out.source = std::move(source);
    out.diagnostics = std::move(complaints);
    return out;
}

}  // namespace vram::diagnosis
