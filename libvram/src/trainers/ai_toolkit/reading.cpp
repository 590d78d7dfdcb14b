#include "trainers/ai_toolkit/reading.hpp"

#include <algorithm>
#include <array>

#include "trainers/ai_toolkit/architectures/architecture.hpp"

namespace vram::trainers::ai_toolkit {

// The trainer replaces in the whole file before it reads it: toolkit/config.py, preprocess_config.
std::string path_of(Section& section, std::string_view key, const std::string& text) {
    constexpr std::string_view tag = "[name]";
    const std::string& name = section.reading.job_name;
    if (text.find('\0') != std::string::npos) {
        section.fields.complain(key, Problem::bad_value, section.fields.path(key) + " holds a NUL, which no path does");
        return {};
    }
    std::size_t tags = 0;
    for (std::size_t at = text.find(tag); at != std::string::npos; at = text.find(tag, at + tag.size())) ++tags;
    // Both are far below 2^31: a file has at most Limits::bytes.
    const std::size_t size = text.size() - tags * tag.size() + tags * name.size();
    if (size > static_cast<std::size_t>(most_path)) {
        section.fields.complain(key, Problem::out_of_range,
                                section.fields.path(key) + " must be at most " + std::to_string(most_path) +
                                    " bytes long, not " + std::to_string(size));
        return {};
    }
    std::string out;
    out.reserve(size);
    std::size_t from = 0;
    for (std::size_t at = text.find(tag); at != std::string::npos; at = text.find(tag, from)) {
        out.append(text, from, at - from).append(name);
        from = at + tag.size();
    }
    return out.append(text, from);
}

std::string read_scheduler(Section& section, std::string_view key) {
    // toolkit/sampler.py, get_sampler; what it calls DDPM and DDIM add noise alike.
    constexpr std::array<std::string_view, 17> known{
        "ddpm",      "flowmatch",   "ddim",        "pndm",          "lms",       "k_lms", "euler", "k_euler", "euler_a",
        "dpmsolver", "dpmsolver++", "k_dpmsolver", "k_dpmsolver++", "dpmsingle", "heun",  "dpm_2", "dpm_2_a"};
    constexpr std::array<std::string_view, 3> others{"lcm", "custom_lcm", "mean_flow"};
    const bool training = key == "noise_scheduler";
    std::string name = section.value(key) != nullptr ? section.fields.word(key, "ddpm") : "ddpm";
    const Architecture* architecture = section.reading.architecture;
    if (!section.reading.modelled || architecture == nullptr) return name;
    if (!architecture->any_scheduler) {
        if (training && name != "flowmatch")
            section.fields.complain(
                key, Problem::unsupported,
                "noise_scheduler is played as flowmatch, which " + std::string(architecture->title) + " needs",
                "flowmatch", Severity::warning);
        return "flowmatch";
    }
    if (name == "ddpm" || name == "flowmatch" || (training && name == "ddim")) return name;
    const auto is = [&](const auto& names) { return std::find(names.begin(), names.end(), name) != names.end(); };
    if (!is(known) && !is(others) && (training || !name.starts_with("sample_")))
        section.fields.complain(key, Problem::bad_value, "the trainer knows no scheduler " + name,
                                nearest(name, known));
    else if (training && name == "mean_flow")
        section.refuse(key, "it is for a loss that predicts more than once");
    else
        section.fields.complain(key, Problem::unsupported,
                                std::string(key) + " " + name + " is played as ddpm; the difference is a few latents",
                                {}, Severity::note);
    return "ddpm";
}

}  // namespace vram::trainers::ai_toolkit
