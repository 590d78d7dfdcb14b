#include <map>
#include <unordered_map>

#include "report/card.hpp"
#include "report/kernels.hpp"
#include "report/opened.hpp"
#include "shadow/op.hpp"
#include "vram/report/check.hpp"

namespace vram::report {
namespace {

using shadow::EventKind;
using shadow::MarkKind;
using shadow::Trace;

std::string quoted(std::string_view text) {
    static constexpr char hex[] = "0123456789abcdef";
    std::string out = "\"";
    for (const char c : text) {
        const auto code = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') out += '\\';
        if (code < 0x20) {
            out += "\\u00";
            out += hex[code >> 4U];
            out += hex[code & 15U];
        } else {
            out += c;
        }
    }
    return out + '"';
}

/// Texts by number, "" first.
class Texts {
  public:
    std::size_t operator()(const std::string& text) {
        const auto [it, is_new] = index_.emplace(text, texts_.size());
        if (is_new) texts_.push_back(text);
        return it->second;
    }
    [[nodiscard]] std::string json() const {
        std::string out = "[";
        for (const std::string& text : texts_) out += (out.size() > 1 ? "," : "") + quoted(text);
        return out + "]";
    }

  private:
    std::vector<std::string> texts_{""};
    std::unordered_map<std::string, std::size_t> index_{{"", 0}};
};

/// "begin step 1/forward"; keeps the phase that is open. Phases have no mark of their own in a recording: "".
std::string spelled(const shadow::Mark& mark, std::string& phase) {
    switch (mark.kind) {
        case MarkKind::phase_begin: phase = mark.name; return "";
        case MarkKind::phase_end: return "";
        case MarkKind::stage_begin: return "begin " + phase + "/" + mark.name;
        case MarkKind::stage_end: return "end " + phase + "/" + mark.name;
        case MarkKind::empty_cache: return "empty_cache";
    }
    return "";
}

std::string row(char kind, shadow::Slot slot, Bytes bytes, std::size_t op, std::size_t where) {
    return std::string("[\"") + kind + "\"," + std::to_string(slot) + "," + std::to_string(bytes) + "," +
           std::to_string(op) + "," + std::to_string(where) + "]";
}

/// `scratch` null: none is written.
std::string json_of(const Trace& trace, const std::map<std::string, std::string>& resolved,
                    const device::Scratch* scratch) {
    Texts texts;
    const std::vector<Bytes> convolutions = scratch == nullptr ? std::vector<Bytes>() : scratch->sizes(trace);
    std::string events, phase;
    std::vector<bool> hidden(static_cast<std::size_t>(trace.slots), false);
    const auto add = [&](const std::string& event) { events += (events.empty() ? "\n" : ",\n") + event; };
    for (const shadow::Event& event : trace.events) {
        switch (event.kind) {
            case EventKind::convolution:
            case EventKind::scratch:
            case EventKind::alloc: {
                const bool of_card = event.kind == EventKind::convolution && scratch != nullptr;
                const Bytes bytes = of_card ? convolutions[static_cast<std::size_t>(event.bytes)] : event.bytes;
                if (event.kind != EventKind::alloc && (scratch == nullptr || bytes == 0)) {
                    hidden[static_cast<std::size_t>(event.slot)] = true;
                    break;
                }
                const shadow::Tag& tag = trace.tags[event.tag];
                add(row('a', event.slot, bytes, texts(to_text(static_cast<shadow::Op>(event.op))),
                        texts(tag.component + " " + to_text(tag.category))));
                break;
            }
            case EventKind::free:
                if (!hidden[static_cast<std::size_t>(event.slot)]) add(row('f', event.slot, 0, 0, 0));
                break;
            case EventKind::retag: break;
            case EventKind::mark: {
                const std::string mark = spelled(trace.marks[static_cast<std::size_t>(event.slot)], phase);
                if (!mark.empty()) add(row('m', 0, 0, texts(mark), 0));
                break;
            }
        }
    }
    std::string job;
    for (const auto& [key, value] : resolved) job += (job.empty() ? "" : ", ") + quoted(key) + ": " + quoted(value);
    return "{\"format\": 1, \"made_by\": " + quoted("vramest " + std::string(library_version())) + ", \"case\": {" +
           job + "},\n\"texts\": " + texts.json() + ",\n\"events\": [" + events + "]}\n";
}

}  // namespace

expected<std::string> trace_json(std::string_view text, std::string file_name, const CheckOptions& options,
                                 const profile::Catalogue& catalogue, bool scratch) {
    Diagnostics notes;
    const expected<Opened> opened = open(text, file_name, options, catalogue, notes);
    if (!opened) return Unexpected{opened.error()};
    if (const auto* only = std::get_if<job::WeightsOnly>(&opened->job.work)) return Unexpected{{only->why}};
    if (std::optional<Diagnostic> complaint = complaint_of(options, catalogue.cards()))
        return Unexpected{{*std::move(complaint)}};
    const Card card = named_card(options, opened->job, catalogue.cards());
    shadow::Kernels kernels = kernels_of(opened->job.environment, card.profile);
    kernels.scratch = scratch;
    shadow::Run run(kernels);
    const expected<run::Facts> facts =
        guarded([&] { return opened->trainer->play(opened->job, catalogue, run, run::Asides::left_out); }, *opened);
    if (!facts) return Unexpected{facts.error()};
    const device::Scratch middle{library_of(opened->job.environment, card.profile)};
    return json_of(run.trace, opened->job.resolved, scratch ? &middle : nullptr);
}

}  // namespace vram::report
