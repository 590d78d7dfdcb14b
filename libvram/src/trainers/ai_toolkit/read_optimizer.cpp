// toolkit/optimizer.py, get_optimizer (27a03a9): which class a name means, and what `optimizer_params` hands it.
#include <algorithm>
#include <iterator>
#include <span>

#include "base/text.hpp"
#include "trainers/ai_toolkit/reading.hpp"
#include "trainers/truthy.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using io::Node;
using Algorithm = job::Bitsandbytes::Algorithm;
using Loop = job::AdamW::Loop;

/// Adafactor of the toolkit's own: gradients and parameters of 16 bits are rounded at random.
constexpr job::Adafactor adafactor{.clones = true, .stochastic_accumulation = true, .stochastic_rounding = true};

constexpr io::Choice<job::Optimizer> names[] = {
    {"adamw", job::AdamW{}},
    {"adamw8bit", job::Bitsandbytes{}},
    {"adam", job::AdamW{}},
    {"adam8bit", job::Bitsandbytes{}},
    {"ademamix8bit", job::Bitsandbytes{.algorithm = Algorithm::ademamix}},
    {"lion8bit", job::Bitsandbytes{.algorithm = Algorithm::lion}},
    {"lion", job::Lion{}},
    {"adagrad", job::Adagrad{}},
    {"adafactor", adafactor},
    {"prodigy", job::Prodigy{}},
    {"prodigyopt", job::Prodigy{}},
    {"prodigy8bit", job::Prodigy8bit{}},
    {"adam8", job::Adam8{}},
    {"adamw8", job::Adam8{}},
    {"automagic", job::Automagic{}},
    {"automagic2", job::Automagic2{}},
    {"automagic3", job::Automagic3{}},
    {"automagicexperiment", job::AutomagicExperiment{}},
    {"dadaptation", job::DAdapt{}},
};

/// Arguments of the classes that change numbers alone. An argument that a class does not take stops the trainer; all
/// take these, or stop at once.
constexpr std::string_view numbers[] = {"weight_decay",
                                        "betas",
                                        "eps",
                                        "lr",
                                        "decouple",
                                        "lr_decay",
                                        "alpha",
                                        "t_alpha",
                                        "t_beta3",
                                        "beta3",
                                        "d0",
                                        "d_coef",
                                        "log_every",
                                        "decoupled_weight_decay",
                                        "use_bias_correction",
                                        "safeguard_warmup",
                                        "growth_rate",
                                        "clip_threshold",
                                        "decay_rate",
                                        "min_lr",
                                        "max_lr",
                                        "lr_bump",
                                        "beta2",
                                        "agreement_threshold",
                                        "warmup_init",
                                        "paramiter_swapping_factor",
                                        "initial_accumulator_value"};

/// The arguments that move memory, by class. Each reads what it knows; what is left is refused by the caller.
class Arguments {
  public:
    Arguments(io::Fields& params, bool is_adam) : params_(params), is_adam_(is_adam) {}

    [[nodiscard]] bool knows(std::string_view key) const {
        return std::find(known_.begin(), known_.end(), key) != known_.end() ||
               std::find(std::begin(numbers), std::end(numbers), key) != std::end(numbers);
    }

    void operator()(job::AdamW& kind) {
        kind.amsgrad = truthy("amsgrad");
        kind.decays_gradient = is_adam_ && truthy("weight_decay");
        if (truthy("fused"))
            kind.loop = Loop::fused;
        else if (is_false("foreach"))
            kind.loop = Loop::one_by_one;
        if (kind.loop != Loop::one_by_one) kind.capturable = truthy("capturable");
    }
    void operator()(job::Adagrad& kind) { kind.weight_decay = truthy("weight_decay"); }
    void operator()(job::Bitsandbytes& kind) { kind.paged = truthy("is_paged"); }
    void operator()(job::Prodigy& kind) {
        kind.slice_p = integer("slice_p", {.min = 1}, 1);
        if (const Node* betas = node("betas"); betas != nullptr && betas->list() != nullptr)
            kind.momentum = betas->list()->empty() || trainers::truthy(betas->list()->front());
    }
    void operator()(job::Adafactor& kind) {
        const Node* beta1 = node("beta1");
        kind.momentum = beta1 != nullptr && !beta1->is(io::Kind::null);
        kind.scale_parameter = truthy("scale_parameter");
        kind.weight_decay = truthy("weight_decay");
        if (is_false("stochastic_accumulation")) kind.stochastic_accumulation = false;
        if (is_false("stochastic_rounding")) kind.stochastic_rounding = false;
        known_.emplace_back("relative_step");
    }
    void operator()(job::Automagic& kind) { kind.weight_decay = truthy("weight_decay"); }
    void operator()(job::Automagic3& kind) { votes(kind); }
    void operator()(job::AutomagicExperiment& kind) { votes(kind); }
    template <class Kind>
    void operator()(Kind&) {}

  private:
    template <class Kind>
    void votes(Kind& kind) {
        kind.polarity_history = std::clamp<std::int64_t>(integer("polarity_history", {}, 8), 2, 64);
        if (is_false("fused")) kind.fused = false;
    }
    const Node* node(std::string_view key) {
        known_.emplace_back(key);
        return params_.node(key);
    }
    std::int64_t integer(std::string_view key, io::IntegerRange range, std::int64_t fallback) {
        known_.emplace_back(key);
        return params_.integer(key, range, fallback);
    }
    bool truthy(std::string_view key) {
        const Node* value = node(key);
        return value != nullptr && trainers::truthy(*value);
    }
    bool is_false(std::string_view key) {
        const Node* value = node(key);
        return value != nullptr && !trainers::truthy(*value);
    }

    io::Fields& params_;
    bool is_adam_;
    std::vector<std::string> known_;
};

const job::Optimizer* named(std::string_view name) {
    if (name.starts_with("prodigy")) name = name.starts_with("prodigy8bit") ? "prodigy8bit" : "prodigy";
    for (const io::Choice<job::Optimizer>& known : names)
        if (known.word == name) return &known.value;
    return nullptr;
}

}  // namespace

std::span<const io::Choice<job::Optimizer>> optimizer_names() { return names; }

job::Optimizer read_optimizer(Section& train) {
    const std::string written = train.fields.text("optimizer", "adamw");
    const std::string name = lower(written);
    io::Fields params = train.fields.map("optimizer_params", io::Nulls::are_absent);
    if (const job::Optimizer* known = named(name)) {
        job::Optimizer kind = *known;
        if (params.is_absent() || train.value("optimizer_params") == nullptr || !train.reading.modelled) return kind;
        Arguments arguments(params, name == "adam");
        std::visit(arguments, kind);
        for (const io::Member& member : *train.value("optimizer_params")->map())
            if (!arguments.knows(member.key))
                train.reading.complain_at(member.value, params.path(member.key), Problem::unsupported,
                                          "the optimizer's option " + member.key + " is not modelled");
        return kind;
    }
    if (name == "dadaptationadam" || name == "dadaptationlion") {
        train.refuse("optimizer", "the trainer hands DAdaptLion an eps that it does not take, and stops");
    } else {
        std::vector<std::string_view> words;
        for (const io::Choice<job::Optimizer>& known : names) words.push_back(known.word);
        train.fields.complain("optimizer", Problem::bad_value, "the trainer knows no optimizer " + written,
                              nearest(name, words));
    }
    return job::AdamW{};
}

}  // namespace vram::trainers::ai_toolkit
