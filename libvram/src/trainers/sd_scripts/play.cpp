#include "trainers/sd_scripts/play.hpp"

#include <stdexcept>
#include <string>
#include <string_view>

#include "trainers/sd_scripts/network_trainer.hpp"

namespace vram::trainers::sd_scripts {
namespace {

using Make = std::unique_ptr<NetworkTrainer> (*)(const job::Job&, const profile::Catalogue&, Run&);
/// By Pipeline::architecture; the scripts that the classes stand in are train_network.py and those beside it.
struct Player {
    std::string_view architecture;
    Make make;
};
constexpr Player players[] = {
    {"sd1", make_stable_diffusion}, {"sd2", make_stable_diffusion}, {"sdxl", make_sdxl}, {"flux", make_flux}};

}  // namespace

run::Facts play(const job::Job& job, const profile::Catalogue& catalogue, Run& run, run::Asides asides) {
    for (const Player& player : players)
        if (player.architecture == job.pipeline.architecture) return player.make(job, catalogue, run)->train(asides);
    throw std::logic_error("sd-scripts has no script for " + job.pipeline.architecture);
}

}  // namespace vram::trainers::sd_scripts
