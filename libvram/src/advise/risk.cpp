#include "vram/advise/risk.hpp"

#include <algorithm>
#include <utility>

#include "advise/found.hpp"
#include "report/opened.hpp"
#include "report/words.hpp"

namespace vram::advise {
namespace {

using report::CheckOptions;
using report::Report;
using report::RiskLevel;
using report::Setting;
using report::Verdict;

constexpr std::size_t most_instead = 3;

CheckOptions with(CheckOptions options, const std::vector<Setting>& settings) {
    options.settings.insert(options.settings.end(), settings.begin(), settings.end());
    return options;
}

auto says(std::string_view key) {
    return [key](const Setting& setting) { return setting.key == key; };
}

Setting checkpointing(bool on) { return {"train.gradient_checkpointing", on ? "true" : "false"}; }

/// Of each size and count the phase that needs most.
std::vector<BucketRisk> buckets_of(const Report& report) {
    std::vector<BucketRisk> out;
    for (const report::Phase& phase : report.phases) {
        if (phase.kind != "train" || phase.bucket[0] == 0) continue;
        const BucketRisk bucket{phase.bucket,    phase.batch_size, phase.name,
                                phase.needs_low, phase.needs_high, phase.verdict};
        const auto same = std::find_if(out.begin(), out.end(), [&](const BucketRisk& other) {
            return other.bucket == bucket.bucket && other.batch_size == bucket.batch_size;
        });
        if (same == out.end())
            out.push_back(bucket);
        else if (bucket.needs_high > same->needs_high)
            *same = bucket;
    }
    return out;
}

bool needs_less(const BucketRisk& a, const BucketRisk& b) { return a.needs_high < b.needs_high; }

/// The largest need of the phases of a kind; none where there is none.
const report::Phase* costliest(const Report& report, std::string_view kind) {
    const report::Phase* out = nullptr;
    for (const report::Phase& phase : report.phases)
        if (phase.kind == kind && (out == nullptr || phase.needs_high > out->needs_high)) out = &phase;
    return out;
}

/// "11.2": a quotient of bytes with one decimal.
std::string times(Bytes more, Bytes less) {
    const Bytes tenths =
        less == 0 ? 0 : static_cast<Bytes>(static_cast<double>(more) * 10 / static_cast<double>(less) + 0.5);
    return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
}

std::string card_text(const Report& report) {
    return offer(report.gpu) + (report.gpu.other_processes > 0 ? " left" : "");
}

std::string room_text(const Report& report) {
    const Bytes room = report.gpu.usable() - report.peak->device_high;
    return report::room_text(report.verdict, room, report.peak->device_low - report.gpu.usable_high(), -room);
}

class Assessor {
  public:
    Assessor(const io::Document& document, CheckOptions options, const profile::Catalogue& catalogue,
             CheckpointingRisk& out)
        : document_(document), options_(std::move(options)), catalogue_(catalogue), out_(out) {}

    void assess() {
        out_.buckets = buckets_of(out_.off);
        plan();
        why();
        level();
        if (out_.off.verdict != Verdict::fits) instead();
    }

  private:
    void plan() {
        const Setting off = checkpointing(false);
        if (out_.buckets.empty()) {
            run("as it is", {off});
            return;
        }
        const BucketRisk& top = *std::max_element(out_.buckets.begin(), out_.buckets.end(), needs_less);
        const BucketRisk& least = *std::min_element(out_.buckets.begin(), out_.buckets.end(), needs_less);
        const bool samples = costliest(out_.off, "sample") != nullptr;
        const bool sizes = top.bucket != least.bucket;
        std::vector<Setting> settings{off};
        if (samples) settings.push_back({"sample", "null"});
        const std::vector<Setting> bare = settings;
        const auto at = [&](const BucketRisk& bucket, std::int64_t batch) {
            std::vector<Setting> all = bare;
            if (sizes) all.push_back({"data.buckets", "[[" + joined(bucket) + "]]"});
            if (batch != bucket.batch_size || sizes) all.push_back({"train.batch_size", std::to_string(batch)});
            return all;
        };
        const std::string quiet = samples ? ", no samples" : "";
        if (!run((sizes ? "the smallest bucket, " : "its one bucket, ") + size_text(least.bucket) + ", batch 1" + quiet,
                 at(least, 1)))
            return;
        if (sizes && !run("the top bucket, " + size_text(top.bucket), at(top, 1))) return;
        if (top.batch_size > 1 && !run("the job's batch, " + std::to_string(top.batch_size), at(top, top.batch_size)))
            return;
        if (sizes && !run("every bucket", bare)) return;
        if (samples) run("samples, as in the job", {off});
    }

    static std::string joined(const BucketRisk& bucket) {
        std::string out = std::to_string(bucket.bucket[0]) + ", " + std::to_string(bucket.bucket[1]);
        if (bucket.bucket[2] > 1) out += ", " + std::to_string(bucket.bucket[2]);
        return out;
    }

    /// Whether it fits, or nothing could be said, so that the next one is worth asking about.
    bool run(std::string text, std::vector<Setting> settings) {
        PlannedRun planned;
        planned.text = std::move(text);
        planned.settings = std::move(settings);
        CheckOptions options = options_;
        const bool sizes_said = std::any_of(planned.settings.begin(), planned.settings.end(), says("data.buckets"));
        // A resolution that was asked for stands in the buckets already, and the two exclude each other.
        if (sizes_said) std::erase_if(options.settings, says("data.resolution"));
        const Report report = report::check(document_, with(std::move(options), planned.settings), catalogue_);
        planned.verdict = report.verdict;
        if (report.peak) {
            planned.phase = report.peak->phase;
            planned.device_low = report.peak->device_low;
            planned.device_high = report.peak->device_high;
        } else {
            planned.why_not = report.reason;
        }
        out_.plan.push_back(std::move(planned));
        return report.verdict == Verdict::fits || report.verdict == Verdict::cannot_say;
    }

    void why() {
        const Report& on = out_.on;
        const Report& off = out_.off;
        add(card_text(off) + ": without checkpointing " + room_text(off) + ", with it " + room_text(on));
        const Bytes kept = on.facts.kept_for_backward, kept_without = off.facts.kept_for_backward;
        if (kept > 0 && kept_without > kept)
            add("without it a step of " + off.job.model + " keeps " + vram::to_text(kept_without) +
                " for backward instead of " + vram::to_text(kept) + ", " + times(kept_without, kept) +
                " times as much");
        if (!out_.buckets.empty()) of_buckets();
        if (const report::Phase* sample = costliest(off, "sample")) {
            const report::Phase* step = costliest(off, "train");
            const bool tightest = step == nullptr || sample->needs_high >= step->needs_high;
            add("rendering samples needs " + report::range_text(sample->needs_low, sample->needs_high) +
                (tightest ? ", more than a step: it is what decides, and checkpointing does not touch it"
                          : ", less than a step"));
        }
        if (off.peak->device_high <= on.peak->device_high)
            add("it needs no more without: what decides, " + off.peak->phase + ", has nothing to recompute");
    }
    void of_buckets() {
        const BucketRisk& top = *std::max_element(out_.buckets.begin(), out_.buckets.end(), needs_less);
        const BucketRisk& least = *std::min_element(out_.buckets.begin(), out_.buckets.end(), needs_less);
        if (top.bucket != least.bucket)
            add("a batch of its top bucket, " + size_text(top.bucket) + ", needs " +
                report::range_text(top.needs_low, top.needs_high) + ", one of its smallest, " +
                size_text(least.bucket) + ", " + report::range_text(least.needs_low, least.needs_high) +
                (least.verdict == Verdict::fits && top.verdict != Verdict::fits
                     ? ": a run goes well for as long as no large batch comes"
                     : ""));
        if (top.batch_size > 1)
            add("what is kept grows with the batch, which is " + std::to_string(top.batch_size) +
                " at the top bucket, " + size_text(top.bucket));
        const auto fitting = std::count_if(out_.buckets.begin(), out_.buckets.end(),
                                           [](const BucketRisk& bucket) { return bucket.verdict == Verdict::fits; });
        const auto all = static_cast<std::ptrdiff_t>(out_.buckets.size());
        if (fitting < all && all > 1)
            add(std::to_string(fitting) + " of " + std::to_string(all) + " buckets fit without it");
    }
    void add(std::string reason) { out_.why.push_back(std::move(reason)); }

    void level() {
        out_.level = out_.off.verdict == Verdict::fits ? out_.off.risk.level : RiskLevel::high;
        for (const std::string& reason : out_.off.risk.why) add(reason);
    }

    void instead() {
        const Advised advised = advise(document_, with(options_, {checkpointing(false)}), catalogue_);
        out_.instead = advised.fits;
        if (out_.instead.empty() && advised.nearest) out_.instead = {*advised.nearest};
        out_.instead.resize(std::min(out_.instead.size(), most_instead));
    }

    const io::Document& document_;
    const CheckOptions options_;
    const profile::Catalogue& catalogue_;
    CheckpointingRisk& out_;
};

/// At the line that says what the job is about.
Report no_training(const report::Opened& opened) {
    const std::string key = opened.job.component ? "component" : "model";
    const io::Node& node = report::said(opened.document, key);
    return report::refused(opened.document.file_name,
                           {{Severity::error,
                             Problem::conflict,
                             opened.document.place_of(node),
                             key,
                             opened.job.model,
                             {},
                             "nothing trains here, so there is no gradient checkpointing to turn off: risk is about "
                             "trainings"}});
}

}  // namespace

CheckpointingRisk risk(std::string_view text, std::string file_name, const CheckOptions& options,
                       const profile::Catalogue& catalogue) {
    expected<io::Document> document = io::read(text, file_name, io::format_of(file_name, text));
    if (document) return risk(*std::move(document), options, catalogue);
    CheckpointingRisk out;
    out.on = out.off = report::check(text, std::move(file_name), options, catalogue);
    return out;
}

CheckpointingRisk risk(io::Document document, const CheckOptions& options, const profile::Catalogue& catalogue) {
    CheckpointingRisk out;
    CheckOptions once = options;
    once.compares_checkpointing = false;
    Diagnostics notes;
    const expected<report::Opened> opened = report::open(document, once, catalogue, notes);
    if (!opened || std::holds_alternative<job::WeightsOnly>(opened->job.work)) {
        out.on = out.off = report::check(document, once, catalogue);
        return out;
    }
    const auto* training = std::get_if<job::Training>(&opened->job.work);
    if (training == nullptr) {
        out.on = out.off = no_training(*opened);
        return out;
    }
    out.is_on = training->gradient_checkpointing;
    out.on = report::check(document, with(once, {checkpointing(true)}), catalogue);
    if (out.on.verdict != Verdict::cannot_say && out.on.gpu.chosen_by == report::ChosenBy::smallest_that_holds)
        once.gpu = out.on.gpu.id;
    out.off = report::check(document, with(once, {checkpointing(false)}), catalogue);
    if (out.on.verdict == Verdict::cannot_say || out.off.verdict == Verdict::cannot_say) return out;
    Assessor(document, once, catalogue, out).assess();
    return out;
}

int exit_code(const CheckpointingRisk& risk) {
    if (risk.on.verdict == Verdict::cannot_say || risk.off.verdict == Verdict::cannot_say) return 2;
    return risk.off.verdict == Verdict::fits ? 0 : 1;
}

}  // namespace vram::advise
