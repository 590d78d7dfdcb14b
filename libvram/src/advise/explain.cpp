#include "vram/advise/explain.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "advise/contributions.hpp"
#include "base/blocks.hpp"
#include "report/kernels.hpp"
#include "report/opened.hpp"
#include "report/played.hpp"
#include "report/summarize.hpp"
#include "run/asides.hpp"
#include "shadow/memo.hpp"
#include "shadow/op.hpp"
#include "shadow/provenance.hpp"

namespace vram::advise {
namespace {

using report::CheckOptions;
using report::Report;
using report::Verdict;
using shadow::MarkKind;
using shadow::Trace;

/// A job as its report was read, once more and with where everything comes from.
struct Replayed {
    Trace trace;
    shadow::Provenance provenance;
    report::Card card;
    device::AllocatorConfig config;
    report::Need need;
};

/// `opened` is of a job that has a report.
std::optional<Replayed> replay(const report::Opened& opened, const CheckOptions& options, const Report& report,
                               const profile::Catalogue& catalogue) {
    const job::Environment& environment = opened.job.environment;
    Diagnostics said_already;
    Replayed out;
    out.config = report::allocator_of(opened, said_already);
    out.card = report::named_card(options, opened.job, catalogue.cards());
    if (out.card.profile == nullptr && out.card.line.capacity == 0)
        out.card = report::card_of(*catalogue.cards().device(report.gpu.id), environment, report.gpu.chosen_by);
    shadow::Run run(report::kernels_of(environment, out.card.profile), false);
    run.provenance = &out.provenance;
    const expected<run::Facts> facts = report::guarded(
        [&] { return opened.trainer->play(opened.job, catalogue, run, run::Asides::left_out); }, opened);
    if (!facts) return {};
    run.provenance = nullptr;
    out.trace = std::move(run.trace);
    out.need = report::need_on(
        out.trace, out.config, out.card,
        report::unlimited_need(out.trace, out.config, report::library_of(environment, out.card.profile)));
    return out;
}

/// Phase and innermost stage, by event.
class Places {
  public:
    struct Place {
        std::int64_t from = 0;
        std::string phase, stage;
    };
    explicit Places(const Trace& trace) {
        std::string phase;
        std::vector<std::string> stages;
        places_.emplace_back();
        for (std::size_t i = 0; i < trace.events.size(); ++i) {
            if (trace.events[i].kind != shadow::EventKind::mark) continue;
            const shadow::Mark& mark = trace.marks[static_cast<std::size_t>(trace.events[i].slot)];
            switch (mark.kind) {
                case MarkKind::phase_begin: phase = mark.name; break;
                case MarkKind::phase_end: phase.clear(); break;
                case MarkKind::stage_begin: stages.push_back(mark.name); break;
                case MarkKind::stage_end:
                    if (!stages.empty()) stages.pop_back();
                    break;
                case MarkKind::empty_cache: break;
            }
            places_.push_back({static_cast<std::int64_t>(i), phase, stages.empty() ? std::string() : stages.back()});
        }
    }
    [[nodiscard]] const Place& of(std::int64_t event) const {
        const auto next = std::upper_bound(places_.begin(), places_.end(), event,
                                           [](std::int64_t at, const Place& place) { return at < place.from; });
        return *(next - 1);
    }

  private:
    std::vector<Place> places_;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// "blocks.3.attn" → "blocks.*.attn": what modules of one list have in common.
std::string without_numbers(const std::string& name) {
    std::string out;
    for (std::size_t i = 0; i < name.size(); ++i) {
        const bool starts = i == 0 || name[i - 1] == '.';
        std::size_t end = i;
        while (end < name.size() && is_digit(name[end])) ++end;
        if (starts && end > i && (end == name.size() || name[end] == '.')) {
            out += '*';
            i = end - 1;
        } else {
            out += name[i];
        }
    }
    return out;
}

/// What two names that are alike but for their numbers have in common.
std::string common(const std::string& a, const std::string& b) {
    std::string out;
    std::size_t i = 0, j = 0;
    while (i < a.size() && j < b.size()) {
        const std::size_t end_a = std::min(a.find('.', i), a.size()), end_b = std::min(b.find('.', j), b.size());
        const std::string_view part_a(a.data() + i, end_a - i), part_b(b.data() + j, end_b - j);
        if (!out.empty()) out += '.';
        out += part_a == part_b ? part_a : std::string_view("*");
        i = end_a + 1;
        j = end_b + 1;
    }
    return out;
}

/// The block and the line that an event comes from.
void tell_birth(const shadow::Provenance& provenance, std::int64_t event, LiveBlocks& out) {
    const shadow::Provenance::Birth birth = provenance.birth(static_cast<std::size_t>(event));
    out.backward = birth.backward;
    if (birth.block >= 0) {
        const shadow::Provenance::Block& block = provenance.blocks()[static_cast<std::size_t>(birth.block)];
        out.module = block.name;
        out.class_name = block.class_name;
    }
    if (birth.line < 0) return;
    const shadow::Provenance::Line& line = provenance.lines()[static_cast<std::size_t>(birth.line)];
    out.line = line.file + ":" + std::to_string(line.number);
}

std::vector<LiveBlocks> blocks_of(const Replayed& replayed, std::int64_t event) {
    const Trace& trace = replayed.trace;
    const Places places(trace);
    const std::vector<Bytes> convolutions = replayed.need.scratch.sizes(trace);
    using Key = std::tuple<std::uint16_t, std::uint8_t, Bytes, std::string, std::string, std::string, std::string, bool,
                           std::string>;
    std::map<Key, std::size_t> index;
    std::vector<LiveBlocks> out;
    for (const device::LiveSlot& slot : device::alive_after(trace, event)) {
        const Bytes bytes =
            slot.convolution < 0 ? slot.bytes : convolutions[static_cast<std::size_t>(slot.convolution)];
        if (bytes == 0) continue;
        const Places::Place& born = places.of(slot.born);
        LiveBlocks blocks;
        blocks.module = replayed.provenance.parameter_at(slot.slot);
        if (blocks.module.empty()) tell_birth(replayed.provenance, slot.born, blocks);
        const Key key{slot.tag,          slot.op,         bytes,
                      born.phase,        born.stage,      without_numbers(blocks.module),
                      blocks.class_name, blocks.backward, blocks.line};
        const auto [at, fresh] = index.emplace(key, out.size());
        if (fresh) {
            const shadow::Tag& tag = trace.tags[slot.tag];
            blocks.bytes = bytes;
            blocks.component = tag.component;
            blocks.category = tag.category;
            blocks.op = to_text(static_cast<shadow::Op>(slot.op));
            blocks.phase = born.phase;
            blocks.stage = born.stage;
            out.push_back(std::move(blocks));
        } else {
            LiveBlocks& first = out[at->second];
            first.module = common(first.module, blocks.module);
        }
        LiveBlocks& group = out[at->second];
        ++group.count;
        group.total += in_blocks(bytes);
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const LiveBlocks& a, const LiveBlocks& b) { return a.total > b.total; });
    return out;
}

Moment moment_of(const Replayed& replayed, const Report& report, const device::PhaseUsage& phase,
                 const ExplainOptions& how) {
    const report::Need& need = replayed.need;
    const auto i = static_cast<std::size_t>(&phase - need.usage.phases.data());
    const bool decides = phase.name == report.peak->phase;
    // The run's highest is the deciding phase's, whatever an earlier one left; another shows what it has by then.
    const Bytes low = decides ? need.low.reserved_peak : need.low.reserved[i];
    const Bytes high = decides ? need.reserved_high : need.high.reserved[i] + need.bands[i];
    Moment out;
    out.phase = phase.name;
    out.stage = Places(replayed.trace).of(phase.allocated_peak_event).stage;
    out.allocated = phase.allocated_peak;
    out.reserved = phase.reserved_peak;
    out.device_low = low + replayed.card.outside_low();
    out.device_high = high + replayed.card.outside_high();
    out.breakdown = report::breakdown_of(replayed.trace, need, replayed.card, phase, low, high);
    for (const report::Part& part : out.breakdown)
        if (part.source == "counted" && part.category != shadow::Category::workspace) out.tensors += part.low;
    // Weights are much and known; what else is alive has as many lines of its own.
    std::size_t weights = 0, others = 0;
    for (LiveBlocks& blocks : blocks_of(replayed, phase.allocated_peak_event)) {
        std::size_t& of_its_kind = blocks.category == shadow::Category::weights ? weights : others;
        if (of_its_kind++ < how.most_blocks) {
            out.blocks.push_back(std::move(blocks));
        } else {
            out.left_out_blocks += blocks.count;
            out.left_out += blocks.total;
        }
    }
    return out;
}

Report no_such_phase(const Report& report, const std::string& phase) {
    std::vector<std::string> names;
    std::string listed;
    for (const report::Phase& known : report.phases) {
        names.push_back(known.name);
        listed += (listed.empty() ? "" : ", ") + known.name;
    }
    return report::refused(report.job.source, {{Severity::error,
                                                Problem::bad_value,
                                                {"--phase", 0, 0},
                                                "phase",
                                                phase,
                                                nearest(phase, names),
                                                "the job has no phase " + phase + "; it has " + listed}});
}

}  // namespace

Explained explain(std::string_view text, std::string file_name, const CheckOptions& options,
                  const profile::Catalogue& catalogue, const ExplainOptions& how) {
    expected<io::Document> document = io::read(text, file_name, io::format_of(file_name, text));
    if (!document) return {report::check(text, std::move(file_name), options, catalogue), {}, {}, {}};
    return explain(*std::move(document), options, catalogue, how);
}

Explained explain(io::Document document, const CheckOptions& options, const profile::Catalogue& catalogue,
                  const ExplainOptions& how) {
    Explained out;
    CheckOptions once = options;
    once.compares_checkpointing = false;
    out.report = report::check(document, once, catalogue);
    if (out.report.verdict == Verdict::cannot_say) return out;
    if (!how.phase.empty() && out.report.phase(how.phase) == nullptr) {
        out.report = no_such_phase(out.report, how.phase);
        return out;
    }
    Diagnostics said_already;
    const expected<report::Opened> opened = report::open(document, once, catalogue, said_already);
    if (!opened) return out;
    const std::optional<Replayed> replayed = replay(*opened, once, out.report, catalogue);
    if (!replayed) return out;
    const report::Need& need = replayed->need;
    const std::string& phase = how.phase.empty() ? out.report.peak->phase : how.phase;
    out.timeline = device::timeline(replayed->trace, replayed->config, how.most_points, need.within, need.scratch);
    out.moment = moment_of(*replayed, out.report, *need.usage.phase(phase), how);
    if (out.report.gpu.chosen_by == report::ChosenBy::smallest_that_holds) once.gpu = out.report.gpu.id;
    out.contributions = contributions_of(document, once, catalogue, out.report, opened->job);
    return out;
}

int exit_code(const Explained& explained, bool strict) { return report::exit_code(explained.report, strict); }

}  // namespace vram::advise
