#include "vram/report/trainer_list.hpp"

#include "trainers/trainer.hpp"

namespace vram::report {

std::vector<TrainerLine> trainer_list() {
    std::vector<TrainerLine> out;
    for (const trainers::Trainer& trainer : trainers::trainers())
        out.push_back({std::string(trainer.id), std::string(trainer.described)});
    return out;
}

}  // namespace vram::report
