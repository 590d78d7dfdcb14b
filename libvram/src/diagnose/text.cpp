#include <algorithm>
#include <utility>

#include "vram/diagnose/diagnosis.hpp"

namespace vram::diagnosis {
namespace {

constexpr std::size_t label_width = 14;

std::string line(std::string label, const std::string& text) {
    label.resize(std::max(label_width, label.size() + 1), ' ');
    return label + text + "\n";
}

/// "in the first steps (step 1 of 2000)".
std::string where(const Diagnosis& d) {
    const auto words = [&]() -> std::string {
        switch (d.phase) {
            case Phase::model_load: return "while the model was loaded or moved to the card";
            case Phase::quantize: return "while the model was quantized";
            case Phase::cache_latents: return "while latents were cached";
            case Phase::cache_text: return "while text embeddings were cached";
            case Phase::first_steps: return "in the first training steps";
            case Phase::later_steps: return "in a later training step";
            case Phase::sampling: return "while a preview was sampled";
            case Phase::vae_decode: return "in the VAE decode of a preview";
            case Phase::save: return "while a checkpoint was saved";
            case Phase::unknown: return "where, the log does not show";
        }
        return {};
    };
    std::string text = words();
    if (d.step) {
        text += " (step " + std::to_string(*d.step);
        if (d.steps) text += " of " + std::to_string(*d.steps);
        text += ")";
    }
    return text;
}

std::string kind(const Diagnosis& d) {
    std::string text(to_text(d.kind));
    std::replace(text.begin(), text.end(), '_', ' ');
    return text + ": " + d.cause + " (confidence " + std::string(to_text(d.confidence)) + ")";
}

/// "3.19 GiB were asked for, 0.89 GiB of 31.35 GiB were free: at least 2.30 GiB too little".
std::string by_how_much(const Diagnosis& d) {
    const Numbers& n = d.numbers;
    std::string text;
    if (n.tried) text += vram::to_text(*n.tried) + " were asked for";
    if (n.free) {
        text += (text.empty() ? "" : ", ") + vram::to_text(*n.free);
        if (n.capacity) text += " of " + vram::to_text(*n.capacity);
        text += " were free";
    }
    if (d.short_by) text += ": at least " + vram::to_text(*d.short_by) + " too little";
    if (n.host_tried)
        text += (text.empty() ? "" : "; ") + vram::to_text(*n.host_tried) + " of host memory were asked for";
    if (n.host_process)
        text += (text.empty() ? "" : "; ") + std::string("the killed process held ") + vram::to_text(*n.host_process) +
                " of host memory";
    return text.empty() ? "the log has no numbers" : text;
}

std::string held(const Numbers& n) {
    std::string text;
    const auto add = [&](const std::optional<Bytes>& bytes, const char* what) {
        if (bytes) text += (text.empty() ? "" : ", ") + std::string(what) + " " + vram::to_text(*bytes);
    };
    add(n.process, "this process");
    add(n.allocated, "allocated by torch");
    add(n.reserved_unallocated, "reserved and idle");
    add(n.other_processes, "other processes");
    return text;
}

std::string predicted(const Prediction& p) {
    if (p.phase.empty()) return "cannot say: " + p.reason;
    const std::string first = p.breaks ? " is predicted to break first" : " is predicted to be tightest";
    const std::string needs = p.compared ? "; where it died needs " : ", and needs ";
    // The rest is for whoever reads it to find out: which of the two is not what ran.
    const std::string fits = p.verdict == "fits" ? "it is predicted to fit (is it the config that ran?), " : "";
    return std::string(!p.compared ? "cannot be compared"
                       : p.agrees  ? "agrees"
                                   : "does not agree") +
           ": " + fits + p.phase + first + needs + vram::to_text(p.needs_low) + " to " + vram::to_text(p.needs_high) +
           " of " + vram::to_text(p.capacity);
}

}  // namespace

std::string to_text(const Diagnosis& d) {
    if (!d.recognised) {
        std::string text = "nothing recognised" + std::string(d.source.empty() ? "" : " in " + d.source) + "\n";
        for (const std::string& note : d.notes) text += "note: " + note + "\n";
        if (!d.looked_for.empty()) text += "\nlooked for\n";
        for (const std::string& what : d.looked_for) text += "  " + what + "\n";
        return text;
    }
    std::string text = line("died", where(d)) + line("kind", kind(d)) + line("by how much", by_how_much(d)) +
                       line("change first", d.first_change);
    for (const std::string& change : d.then) text += line("then", change);
    if (const std::string what = held(d.numbers); !what.empty()) text += "\n" + line("held", what);
    if (d.prediction) {
        text += "\n" + line("the config", predicted(*d.prediction));
        const std::vector<std::string>& change = d.prediction->change;
        for (std::size_t i = 0; i < change.size(); ++i) text += line(i == 0 ? "would fit by" : "", change[i]);
    }
    if (!d.evidence.empty()) text += "\n";
    for (const Evidence& one : d.evidence)
        text += line(one.line > 0 ? "line " + std::to_string(one.line) : "seen",
                     one.says + (one.text.empty() ? "" : ": " + one.text));
    for (const std::string& note : d.notes) text += line("note", note);
    const std::string who = d.trainer + (d.trainer.empty() || d.wording.empty() ? "" : ", ") + d.wording;
    if (!who.empty()) text += line("written by", who);
    return text;
}

}  // namespace vram::diagnosis
