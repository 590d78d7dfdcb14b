#include "vram/advise/grow.hpp"

#include <array>
#include <functional>
#include <utility>

#include "advise/found.hpp"
#include "advise/search.hpp"
#include "base/parallel.hpp"
#include "report/card.hpp"

namespace vram::advise {
namespace {

using report::CheckOptions;
using report::Opened;
using report::Trial;
using report::Verdict;

/// Raises one thing after the other, each from the job as it is.
class Grower {
  public:
    Grower(const io::Document& document, const Opened& opened, const CheckOptions& options,
           const profile::Catalogue& catalogue, const Trial& now)
        : document_(document),
          job_(opened.job),
          axes_(opened, catalogue),
          options_(options),
          catalogue_(catalogue),
          now_(now) {}

    /// In the order of practice: what is free, what makes the result better, what a step costs, what only saves time.
    [[nodiscard]] std::vector<Growth> lines() const {
        std::vector<std::function<Growth()>> asked;
        const auto along = [&](Vary vary) { asked.emplace_back([this, vary] { return axis(vary); }); };
        const bool trains = std::holds_alternative<job::Training>(job_.work);
        if (trains) asked.emplace_back([this] { return steps(); });
        along(Vary::resolution);
        if (trains) asked.emplace_back([this] { return samples(); });
        along(axes_.is_video() ? Vary::frames : Vary::batch_size);
        if (trains) along(Vary::rank);
        if (trains) asked.emplace_back([this] { return checkpointing(); });
        std::vector<Growth> out(asked.size());
        in_parallel(asked.size(), [&](std::size_t i) { out[i] = asked[i](); });
        return out;
    }

  private:
    [[nodiscard]] Growth steps() const {
        return {"steps",
                {},
                "any number",
                true,
                {},
                now_.device_low,
                now_.device_high,
                "free: no peak moves with how many steps are made"};
    }

    [[nodiscard]] Growth axis(Vary vary) const {
        Growth out;
        out.what = to_text(vary);
        if (const std::optional<Diagnostic> complaint = axes_.complaint(vary)) {
            out.why = complaint->text;
            return out;
        }
        const std::int64_t now = axes_.now(vary);
        const Line line{vary, {}, axes_.values(vary), now};
        const Most most = search(document_, axes_, line, options_, catalogue_);
        out.from = axes_.name(vary, now);
        out.grows = most.best && most.best->value > now;
        if (out.grows) {
            out.to = axes_.name(vary, most.best->value);
            out.settings = most.best->settings;
            out.device_low = most.best->trial.device_low;
            out.device_high = most.best->trial.device_high;
            out.why = most.next ? axes_.name(vary, most.next->value) + ": " + found(most.next->trial)
                                : "no larger one is tried";
            return out;
        }
        for (const Tried& tried : most.tried)
            if (tried.value > now && out.why.empty())
                out.why = axes_.name(vary, tried.value) + ": " + found(tried.trial);
        if (out.why.empty()) out.why = "as it is, the job is " + report::words(now_.verdict);
        return out;
    }

    /// A switch that the job may turn.
    [[nodiscard]] Growth turned(std::string what, report::Setting setting, std::string from, std::string to) const {
        Growth out{std::move(what), std::move(from), {}, false, {}, 0, 0, {}};
        CheckOptions here = options_;
        here.settings.push_back(setting);
        const Trial trial = report::try_job(document_, here, catalogue_);
        out.grows = trial.verdict == Verdict::fits;
        if (!out.grows) {
            out.why = to + ": " + found(trial);
            return out;
        }
        out.to = std::move(to);
        out.settings = {std::move(setting)};
        out.device_low = trial.device_low;
        out.device_high = trial.device_high;
        return out;
    }

    [[nodiscard]] Growth samples() const {
        if (!job_.sampling.images.empty()) return {"samples", "on", {}, false, {}, 0, 0, "they are rendered already"};
        return turned("samples", {"sample.enabled", "true"}, "off", "on");
    }
    [[nodiscard]] Growth checkpointing() const {
        if (!std::get<job::Training>(job_.work).gradient_checkpointing)
            return {"gradient_checkpointing", "off", {}, false, {}, 0, 0, "it is off already"};
        return turned("gradient_checkpointing", {"train.gradient_checkpointing", "false"}, "on", "off");
    }

    const io::Document& document_;
    const job::Job& job_;
    const Axes axes_;
    const CheckOptions& options_;
    const profile::Catalogue& catalogue_;
    const Trial& now_;
};

}  // namespace

Grow grow(std::string_view text, std::string file_name, const CheckOptions& options,
          const profile::Catalogue& catalogue) {
    const io::Format format = io::format_of(file_name, text);
    const expected<io::Document> document = io::read(text, file_name, format);
    if (document) return grow(*document, options, catalogue);
    Grow out;
    out.source = std::move(file_name);
    out.diagnostics = document.error();
    return out;
}

Grow grow(const io::Document& document, const CheckOptions& options, const profile::Catalogue& catalogue) {
    Grow out;
    out.source = document.file_name;
    Diagnostics notes;
    const expected<Opened> opened = open_for("grow", document, options, catalogue, notes);
    if (!opened) {
        out.diagnostics = opened.error();
        return out;
    }
    CheckOptions once = options;
    once.compares_checkpointing = false;
    const report::Report now = report::check(document, once, catalogue);
    out.gpu = now.gpu;
    out.verdict = now.verdict;
    out.reason = now.reason;
    if (!now.peak) {
        out.diagnostics = now.diagnostics;
        return out;
    }
    out.device_low = now.peak->device_low;
    out.device_high = now.peak->device_high;
    if (now.verdict == Verdict::does_not_fit) return out;
    Trial trial;
    trial.verdict = now.verdict;
    trial.device_low = out.device_low;
    trial.device_high = out.device_high;
    out.lines = Grower(document, *opened, options, catalogue, trial).lines();
    return out;
}

int exit_code(const Grow& grow) {
    switch (grow.verdict) {
        case Verdict::fits:
        case Verdict::tight: return 0;
        case Verdict::does_not_fit: return 1;
        case Verdict::cannot_say: return 2;
    }
    return 2;
}

}  // namespace vram::advise
