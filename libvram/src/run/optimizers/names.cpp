#include "run/optimizers/names.hpp"

namespace vram::run {
namespace {

using Algorithm = job::Bitsandbytes::Algorithm;
using Loop = job::AdamW::Loop;

constexpr io::Choice<job::Optimizer> names[] = {
    {"adamw", job::AdamW{}},
    {"adam", job::AdamW{}},
    {"adamw_fused", job::AdamW{.loop = Loop::fused}},
    {"adamw8bit", job::Bitsandbytes{}},
    {"adam8bit", job::Bitsandbytes{}},
    {"adamw32bit", job::Bitsandbytes{.bits = 32}},
    {"pagedadamw", job::Bitsandbytes{.bits = 32, .paged = true}},
    {"pagedadamw32bit", job::Bitsandbytes{.bits = 32, .paged = true}},
    {"pagedadamw8bit", job::Bitsandbytes{.paged = true}},
    {"pagedadam8bit", job::Bitsandbytes{.paged = true}},
    {"lion8bit", job::Bitsandbytes{.algorithm = Algorithm::lion}},
    {"lion32bit", job::Bitsandbytes{.algorithm = Algorithm::lion, .bits = 32}},
    {"pagedlion8bit", job::Bitsandbytes{.algorithm = Algorithm::lion, .paged = true}},
    {"ademamix", job::Bitsandbytes{.algorithm = Algorithm::ademamix, .bits = 32}},
    {"ademamix8bit", job::Bitsandbytes{.algorithm = Algorithm::ademamix}},
    {"pagedademamix8bit", job::Bitsandbytes{.algorithm = Algorithm::ademamix, .paged = true}},
    {"sgd8bit", job::Bitsandbytes{.algorithm = Algorithm::sgd}},
    {"sgd", job::Sgd{.momentum = true}},
    {"sgdnesterov", job::Sgd{.momentum = true, .nesterov = true}},
    {"adagrad", job::Adagrad{}},
    {"lion", job::Lion{}},
    {"prodigy", job::Prodigy{}},
    {"prodigy8bit", job::Prodigy8bit{}},
    {"dadaptation", job::DAdapt{}},
    {"dadaptadam", job::DAdapt{}},
    {"dadaptlion", job::DAdapt{.algorithm = job::DAdapt::Algorithm::lion}},
    {"adafactor", job::Adafactor{}},
    {"came", job::Came{}},
    {"schedulefree", job::AdamWScheduleFree{}},
    {"adamwschedulefree", job::AdamWScheduleFree{}},
    {"adam8", job::Adam8{}},
    {"adamw8", job::Adam8{}},
    {"automagic", job::Automagic{}},
    {"automagic2", job::Automagic2{}},
    {"automagic3", job::Automagic3{}},
    {"automagicexperiment", job::AutomagicExperiment{}},
};

constexpr std::string_view not_modelled[] = {"adopt", "muon", "prodigyplusschedulefree"};

}  // namespace

std::span<const io::Choice<job::Optimizer>> optimizer_names() { return names; }

std::span<const std::string_view> optimizers_not_modelled() { return not_modelled; }

}  // namespace vram::run
