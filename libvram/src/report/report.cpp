#include "vram/report/report.hpp"

namespace vram::report {

std::string_view to_text(Verdict verdict) {
    switch (verdict) {
        case Verdict::fits: return "fits";
        case Verdict::tight: return "tight";
        case Verdict::does_not_fit: return "does_not_fit";
        case Verdict::cannot_say: return "cannot_say";
    }
    return "?";
}
std::string_view to_text(Counter counter) {
    switch (counter) {
        case Counter::tensors: return "tensors";
        case Counter::allocated: return "allocated";
        case Counter::reserved: return "reserved";
        case Counter::device: return "device";
    }
    return "?";
}
std::string_view to_text(ChosenBy chosen_by) {
    switch (chosen_by) {
        case ChosenBy::flag: return "flag";
        case ChosenBy::job: return "job";
        case ChosenBy::driver: return "driver";
        case ChosenBy::smallest_that_holds: return "smallest_that_holds";
    }
    return "?";
}
std::string_view to_text(RiskLevel level) {
    switch (level) {
        case RiskLevel::low: return "low";
        case RiskLevel::medium: return "medium";
        case RiskLevel::high: return "high";
    }
    return "?";
}

const Phase* Report::phase(std::string_view name) const {
    for (const Phase& phase : phases)
        if (phase.name == name) return &phase;
    return nullptr;
}

int exit_code(const Report& report, bool strict) {
    switch (report.verdict) {
        case Verdict::fits: return 0;
        case Verdict::tight: return strict ? 1 : 0;
        case Verdict::does_not_fit: return 1;
        case Verdict::cannot_say: return 2;
    }
    return 2;
}

}  // namespace vram::report
