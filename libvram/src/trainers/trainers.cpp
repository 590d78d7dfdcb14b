#include "trainers/ai_toolkit/changes.hpp"
#include "trainers/ai_toolkit/config.hpp"
#include "trainers/ai_toolkit/play.hpp"
#include "trainers/ai_toolkit/resolve.hpp"
#include "trainers/job_changes.hpp"
#include "trainers/sd_scripts/arguments.hpp"
#include "trainers/sd_scripts/changes.hpp"
#include "trainers/sd_scripts/play.hpp"
#include "trainers/sd_scripts/resolve.hpp"
#include "trainers/torch/play.hpp"
#include "trainers/torch/resolve.hpp"
#include "trainers/trainer.hpp"
#include "vram/io/document.hpp"

namespace vram::trainers {

std::span<const Trainer> trainers() {
    constexpr auto in_job_keys = [](const io::Document& document, const profile::Catalogue&, const job::Job& job) {
        return job_changes(document, job);
    };
    static constexpr Trainer all[] = {
        {"torch", "a plain loop in PyTorch 2.13, diffusers 0.42.1 and PEFT 0.21.2 (job-file.md §2)", is_job_file,
         torch::resolve, torch::play, in_job_keys},
        {"ai-toolkit", "ai-toolkit 0.12.26 (27a03a91, 2026-08-21)", ai_toolkit::recognises, ai_toolkit::resolve,
         ai_toolkit::play, ai_toolkit::changes},
        {"sd-scripts", "kohya-ss sd-scripts 0.10.1 (48d368fa, 2026-02-16), and files of kohya_ss 26.0.0 (45088f04)",
         sd_scripts::recognises, sd_scripts::resolve, sd_scripts::play, sd_scripts::changes},
    };
    return all;
}

bool is_job_file(const io::Document& document) {
    const io::Node* version = document.root.find("vramest");
    if (version != nullptr && !version->is(io::Kind::map)) return true;
    const io::Node* trainer = document.root.find("trainer");
    return trainer != nullptr && trainer->text() != nullptr &&
           (document.root.find("model") != nullptr || document.root.find("component") != nullptr);
}

}  // namespace vram::trainers
