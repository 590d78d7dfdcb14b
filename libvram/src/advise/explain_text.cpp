#include <algorithm>
#include <cstdlib>

#include "advise/pictures.hpp"
#include "report/words.hpp"
#include "vram/advise/explain.hpp"

namespace vram::advise {
namespace {

using report::Verdict;

constexpr std::size_t name_width = 46, most_parts = 24, columns = 72;

std::string left(std::string text, std::size_t width) {
    text.resize(std::max(width, text.size() + 1), ' ');
    return text;
}

std::string timeline_text(const Explained& explained) {
    const device::Timeline& timeline = explained.timeline;
    const Bytes full = full_height(explained);
    const std::vector<std::size_t> widths = columns_of(timeline, columns);
    const bool parted = timeline.parts.size() <= most_parts;
    std::string allocated = "  allocated  ", reserved = "  reserved   ", numbers = "             ", legend;
    std::size_t number = 0, hidden = 0;
    for (std::size_t i = 0; i < timeline.parts.size(); ++i) {
        const device::TimelinePart& part = timeline.parts[i];
        if (parted && i > 0) {
            allocated += "|";
            reserved += "|";
            numbers += " ";
        }
        Bytes highest_allocated = 0, highest_reserved = 0;
        for (const device::Point& point : sampled(timeline, part, widths[i])) {
            allocated += bar_of(point.allocated, full);
            reserved += bar_of(point.reserved, full);
            highest_allocated = std::max(highest_allocated, point.allocated);
            highest_reserved = std::max(highest_reserved, point.reserved);
        }
        if (part.phase.empty()) {
            numbers += std::string(widths[i], ' ');
            continue;
        }
        const std::string label = std::to_string(++number);
        if (parted) {
            numbers +=
                label.size() > widths[i] ? std::string(widths[i], ' ') : left(label, widths[i]).substr(0, widths[i]);
        } else if (part.phase != explained.moment.phase) {
            ++hidden;
            continue;
        }
        legend += "  " + label + " " + part.phase + ": up to " + vram::to_text(highest_allocated) + " allocated, " +
                  vram::to_text(highest_reserved) + " reserved\n";
    }
    numbers.resize(numbers.find_last_not_of(' ') + 1);
    if (hidden > 0) legend += "  and " + std::to_string(hidden) + " more phases, in their order\n";
    return "\nthe run; full height is " + vram::to_text(full) + "\n" + allocated + "\n" + reserved + "\n" +
           (parted ? numbers + "\n" : "") + legend;
}

std::string breakdown_text(const Moment& moment) {
    std::string out = "\nalive at the peak of " + moment.phase +
                      (moment.stage.empty() ? std::string() : ", in its " + moment.stage) + "\n";
    std::vector<report::Part> parts = moment.breakdown;
    std::stable_sort(parts.begin(), parts.end(),
                     [](const report::Part& a, const report::Part& b) { return a.high > b.high; });
    for (const report::Part& part : parts)
        out += left("  " + part.component + " " + report::words(shadow::to_text(part.category)), name_width) +
               report::range_text(part.low, part.high) + "\n";
    return out + left("  device", name_width) + report::range_text(moment.device_low, moment.device_high) + "\n";
}

/// "transformer weights, parameter single_transformer_blocks.*.proj_mlp.weight".
std::string what_of(const LiveBlocks& blocks) {
    std::string out = blocks.component + (blocks.component.empty() ? "" : " ") +
                      report::words(shadow::to_text(blocks.category)) + ", " + blocks.op;
    if (!blocks.module.empty())
        out +=
            blocks.class_name.empty() ? " " + blocks.module : " in " + blocks.module + " (" + blocks.class_name + ")";
    if (!blocks.line.empty())
        out += (blocks.backward ? ", backward of " : ", ") + blocks.line;
    else if (blocks.backward)
        out += ", backward";
    if (!blocks.phase.empty())
        out += "; born in " + blocks.phase + (blocks.stage.empty() ? std::string() : ", " + blocks.stage);
    return out;
}

std::string blocks_text(const Moment& moment) {
    std::string out = "\nthe largest blocks then\n";
    for (const LiveBlocks& blocks : moment.blocks) {
        const std::string sizes = blocks.count == 1
                                      ? std::string()
                                      : " = " + std::to_string(blocks.count) + " x " + vram::to_text(blocks.bytes);
        out += left("  " + vram::to_text(blocks.total) + sizes, 32) + what_of(blocks) + "\n";
    }
    if (moment.left_out_blocks > 0)
        out += left("  " + vram::to_text(moment.left_out), 32) + "in " + std::to_string(moment.left_out_blocks) +
               " smaller ones\n";
    return out;
}

std::string moves(Bytes difference) {
    if (difference == 0) return "nothing";
    return (difference < 0 ? "-" : "+") + vram::to_text(std::abs(difference));
}

std::string contributions_text(const Explained& explained) {
    if (explained.contributions.empty()) return "";
    std::string out = "\nwhat the job's options add, each beside the same job without it\n";
    for (const Contribution& one : explained.contributions) {
        out += "  " + one.option + ": " + one.value;
        if (!one.difference) {
            out += ": not compared: " + one.why_not + "\n";
            continue;
        }
        const Difference& difference = *one.difference;
        out += " (instead of " + one.instead.value + "): ";
        if (!difference.needs_high)
            out += moves(difference.device_high) + " at the highest; " + explained.report.peak->phase + " is gone then";
        else if (*difference.needs_high == difference.device_high)
            out += moves(difference.device_high);
        else
            out += moves(*difference.needs_high) + " in " + explained.report.peak->phase + ", " +
                   moves(difference.device_high) + " at the highest";
        if (difference.without != explained.report.verdict) out += "; without: " + report::words(difference.without);
        out += "\n";
    }
    return out;
}

}  // namespace

std::string to_text(const Explained& explained) {
    std::string out = report::words(explained.report.verdict) + ": " + explained.report.reason + "\n";
    if (explained.report.verdict == Verdict::cannot_say) return out;
    return out + timeline_text(explained) + breakdown_text(explained.moment) + blocks_text(explained.moment) +
           contributions_text(explained);
}

}  // namespace vram::advise
