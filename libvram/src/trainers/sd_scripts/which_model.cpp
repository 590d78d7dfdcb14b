#include "trainers/sd_scripts/which_model.hpp"

#include <utility>

#include "base/text.hpp"
#include "trainers/named_model.hpp"
#include "trainers/sd_scripts/namespace.hpp"
#include "vram/profile/catalogue.hpp"

namespace vram::trainers::sd_scripts {
namespace {

constexpr std::string_view own_forward = "sd_scripts";
constexpr std::string_view argument = "pretrained_model_name_or_path";

void take(profile::ModelProfile profile, job::Job& job) {
    job.model = profile.id;
    job.described.push_back(profile::with_forward(std::move(profile), own_forward));
}

}  // namespace

void find_model(const io::Document& document, const Config& config, const profile::ModelProfile* said,
                const profile::Catalogue& catalogue, job::Job& job, Diagnostics& complaints, Diagnostics& notes) {
    const Script& script = *config.arguments.script;
    if (said != nullptr) {
        take(*said, job);
        return;
    }
    const std::string& name = config.arguments.pretrained_model_name_or_path;
    SaidAt at = config.at(document, argument);
    Diagnostic found{Severity::error, Problem::conflict, std::move(at.place), std::move(at.key), name, {}, {}};
    const auto plays = [&](const profile::ModelProfile& profile) {
        return script.plays(profile) && profile.forwards.contains(own_forward);
    };
    if (!name.empty() && is_there(name)) {
        found.problem = Problem::unsupported;
        NamedModel model = describe_model(name, false, found, catalogue, complaints, notes);
        if (model.weights_only) complaints.push_back(model.weights_only->why);
        if (!model.profile) return;
        if (!plays(*model.profile)) {
            found.problem = Problem::conflict;
            found.text =
                name + " is no " + std::string(script.title) + ", which " + std::string(script.file) + " trains";
            complaints.push_back(std::move(found));
            return;
        }
        job.stored = std::move(model.stored);
        take(*std::move(model.profile), job);
        return;
    }
    if (const profile::ModelProfile* known = name.empty() ? nullptr : catalogue.model(name)) {
        if (plays(*known)) {
            take(*known, job);
            return;
        }
        found.text = name + " is " + known->name + ", and " + std::string(script.file) +
                     (&script == &sd2 ? " with v2" : "") + " trains " + std::string(script.title);
        complaints.push_back(std::move(found));
        return;
    }
    found.severity = Severity::note;
    found.problem = Problem::unknown_model;
    const std::string low = lower(name);
    std::string_view id = script.model;
    if (&script == &flux && low.find("schnell") != std::string::npos) id = "flux1_schnell";
    found.text = (name.empty() ? found.key + " is not said: the model is taken for " : name + " is taken for ") +
                 std::string(id) + ", as this is for " + std::string(script.file) + (&script == &sd2 ? " with v2" : "");
    notes.push_back(std::move(found));
    take(catalogue.model_of(id), job);
}

}  // namespace vram::trainers::sd_scripts
