// library/train_util.py, get_optimizer (48d368fa): which class a name means, and what optimizer_args hand it.
#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <span>
#include <variant>

#include "base/text.hpp"
#include "trainers/sd_scripts/reading.hpp"

namespace vram::trainers::sd_scripts {
namespace {

using Algorithm = job::Bitsandbytes::Algorithm;
using Loop = job::AdamW::Loop;

struct Known {
    std::string_view name;
    job::Optimizer kind;
};

// transformers' Adafactor scales by the parameter where nothing is said.
constexpr Known in_any_case[] = {
    {"AdamW", job::AdamW{}},
    {"AdamW8bit", job::Bitsandbytes{}},
    {"Adafactor", job::Adafactor{.scale_parameter = true}},
    {"Lion", job::Lion{}},
    {"Lion8bit", job::Bitsandbytes{.algorithm = Algorithm::lion}},
    {"PagedLion8bit", job::Bitsandbytes{.algorithm = Algorithm::lion, .paged = true}},
    {"PagedAdamW8bit", job::Bitsandbytes{.paged = true}},
    {"PagedAdamW", job::Bitsandbytes{.bits = 32, .paged = true}},
    {"PagedAdamW32bit", job::Bitsandbytes{.bits = 32, .paged = true}},
    {"SGDNesterov", job::Sgd{.momentum = true, .nesterov = true}},
    {"SGDNesterov8bit", job::Bitsandbytes{.algorithm = Algorithm::sgd}},
    {"Prodigy", job::Prodigy{}},
    {"DAdaptAdam", job::DAdapt{}},
    {"DAdaptLion", job::DAdapt{.algorithm = job::DAdapt::Algorithm::lion}},
    {"AdamWScheduleFree", job::AdamWScheduleFree{}},
};
/// Classes of torch.optim, or of the module that is named: their case counts.
constexpr Known classes[] = {
    {"Adam", job::AdamW{}},
    {"SGD", job::Sgd{}},
    {"Adagrad", job::Adagrad{}},
    {"torch.optim.AdamW", job::AdamW{}},
    {"torch.optim.Adam", job::AdamW{}},
    {"torch.optim.SGD", job::Sgd{}},
    {"torch.optim.Adagrad", job::Adagrad{}},
    {"bitsandbytes.optim.AdamW8bit", job::Bitsandbytes{}},
    {"bitsandbytes.optim.Adam8bit", job::Bitsandbytes{}},
    {"bitsandbytes.optim.PagedAdamW8bit", job::Bitsandbytes{.paged = true}},
    {"bitsandbytes.optim.Lion8bit", job::Bitsandbytes{.algorithm = Algorithm::lion}},
    {"bitsandbytes.optim.PagedLion8bit", job::Bitsandbytes{.algorithm = Algorithm::lion, .paged = true}},
    {"bitsandbytes.optim.AdEMAMix8bit", job::Bitsandbytes{.algorithm = Algorithm::ademamix}},
    {"bitsandbytes.optim.PagedAdEMAMix8bit", job::Bitsandbytes{.algorithm = Algorithm::ademamix, .paged = true}},
    {"lion_pytorch.Lion", job::Lion{}},
    {"prodigyopt.Prodigy", job::Prodigy{}},
    {"schedulefree.AdamWScheduleFree", job::AdamWScheduleFree{}},
    {"transformers.Adafactor", job::Adafactor{.scale_parameter = true}},
    {"came_pytorch.CAME", job::Came{}},
};

/// Names that the trainer takes, and that are not modelled.
constexpr std::string_view other_names[] = {
    "DAdaptation", "DAdaptAdamPreprint", "DAdaptAdaGrad",   "DAdaptAdan", "DAdaptAdanIP",
    "DAdaptSGD",   "RAdamScheduleFree",  "SGDScheduleFree", "NAdam",      "RAdam",
    "Adamax",      "Adadelta",           "RMSprop",         "Rprop",      "ASGD"};

/// Arguments of the classes that change numbers alone.
constexpr std::string_view numbers[] = {"weight_decay",
                                        "betas",
                                        "eps",
                                        "lr",
                                        "decouple",
                                        "d0",
                                        "d_coef",
                                        "growth_rate",
                                        "use_bias_correction",
                                        "safeguard_warmup",
                                        "clip_threshold",
                                        "decay_rate",
                                        "warmup_init",
                                        "relative_step",
                                        "momentum",
                                        "nesterov",
                                        "dampening",
                                        "beta3",
                                        "beta2",
                                        "alpha",
                                        "t_alpha",
                                        "t_beta3",
                                        "warmup_steps",
                                        "r",
                                        "weight_lr_power",
                                        "log_every",
                                        "percentile_clipping"};

/// Python's literals, as far as truth goes.
bool is_true(const std::string& value) { return value != "False" && value != "None" && number_of(value) != 0.0; }

using Args = std::map<std::string, std::string>;

/// The arguments that move memory, by class. Each takes what it knows out of them.
class Options {
  public:
    Options(Args& args, bool is_adam) : args_(args), is_adam_(is_adam) {}

    void operator()(job::AdamW& kind) {
        kind.amsgrad = take("amsgrad");
        kind.decays_gradient = is_adam_ && says("weight_decay");
        const bool one_by_one = is_off("foreach"), fused = take("fused");
        kind.loop = fused ? Loop::fused : one_by_one ? Loop::one_by_one : Loop::foreach;
        const bool capturable = take("capturable");
        if (kind.loop != Loop::one_by_one) kind.capturable = capturable;
    }
    void operator()(job::Sgd& kind) {
        if (says("momentum")) kind.momentum = true;
        if (says("nesterov")) kind.nesterov = true;
        kind.weight_decay = says("weight_decay");
    }
    void operator()(job::Adagrad& kind) { kind.weight_decay = says("weight_decay"); }
    void operator()(job::Bitsandbytes& kind) {
        if (take("is_paged")) kind.paged = true;
    }
    void operator()(job::Prodigy& kind) {
        if (const auto slice = args_.extract("slice_p"); !slice.empty())
            kind.slice_p = std::max<std::int64_t>(1, integer_of(slice.mapped()).value_or(1));
        if (const auto betas = args_.find("betas"); betas != args_.end()) {
            std::string first = betas->second.substr(0, betas->second.find(','));
            first.erase(std::remove_if(first.begin(), first.end(), [](char c) { return c == '(' || c == '['; }),
                        first.end());
            kind.momentum = is_true(first);
        }
    }
    void operator()(job::Adafactor& kind) {
        if (is_off("scale_parameter")) kind.scale_parameter = false;
        kind.momentum = take("beta1");
        kind.weight_decay = says("weight_decay");
    }
    void operator()(job::AdamWScheduleFree& kind) {
        if (is_off("foreach")) kind.foreach = false;
    }
    template <class Kind>
    void operator()(Kind&) {}

  private:
    /// Says it so; it stays for who looks at the numbers.
    [[nodiscard]] bool says(const std::string& name) const {
        const auto found = args_.find(name);
        return found != args_.end() && is_true(found->second);
    }
    bool take(const std::string& name) {
        const auto found = args_.extract(name);
        return !found.empty() && is_true(found.mapped());
    }
    bool is_off(const std::string& name) {
        const auto found = args_.extract(name);
        return !found.empty() && !is_true(found.mapped());
    }

    Args& args_;
    bool is_adam_;
};

}  // namespace

namespace {
/// The entry of this name, in any case; null: there is none.
const Known* known_as(std::string_view name) {
    const std::string written = lower(std::string(name));
    for (const std::span<const Known> all : {std::span<const Known>(in_any_case), std::span<const Known>(classes)})
        for (const Known& known : all)
            if (lower(std::string(known.name)) == written) return &known;
    return nullptr;
}
bool is_class(const Known& known) { return &known >= std::begin(classes) && &known < std::end(classes); }
}  // namespace

std::vector<std::string_view> optimizer_names() {
    std::vector<std::string_view> out;
    for (const std::span<const Known> all : {std::span<const Known>(in_any_case), std::span<const Known>(classes)})
        for (const Known& known : all) out.push_back(known.name);
    return out;
}

std::optional<job::Optimizer> optimizer_named(std::string_view name) {
    const Known* known = known_as(name);
    return known == nullptr ? std::nullopt : std::optional(known->kind);
}

job::Optimizer read_optimizer(Reading& reading) {
    std::string written = reading.text("optimizer_type"), at = "optimizer_type";
    const bool is_said = !written.empty();
    for (const auto& [flag, name] : {std::pair{"use_8bit_adam", "AdamW8bit"}, {"use_lion_optimizer", "Lion"}}) {
        if (reading.config.source == Source::gui || !reading.flag(flag)) continue;
        if (is_said)
            reading.complain(flag, Problem::conflict,
                             "the trainer stops: " + std::string(flag) + " and optimizer_type exclude each other");
        written = name;
        at = flag;
    }
    if (written.empty()) written = "AdamW";
    const std::string name = lower(written);
    if (reading.flag("fused_backward_pass")) {
        if (name != "adafactor")
            reading.complain("fused_backward_pass", Problem::conflict,
                             "the trainer stops: fused_backward_pass is for Adafactor, and this is " + written);
        if (reading.integer("gradient_accumulation_steps").value_or(1) > 1)
            reading.complain("fused_backward_pass", Problem::conflict,
                             "the trainer stops: fused_backward_pass does not go with gradient_accumulation_steps");
    }
    const Known* known = known_as(name);
    // torch.optim.adamw is a module, and bitsandbytes.optim.adamw8bit is nothing.
    if (known != nullptr && is_class(*known) && known->name != written) {
        reading.complain(at, Problem::bad_value, "the trainer knows no optimizer " + written, std::string(known->name));
        return job::AdamW{};
    }
    if (known == nullptr) {
        const bool has_module = name.find('.') != std::string::npos;
        const bool is_other = std::any_of(std::begin(other_names), std::end(other_names),
                                          [&](std::string_view other) { return lower(std::string(other)) == name; });
        if (has_module || is_other)
            reading.complain(at, Problem::unsupported, "the optimizer " + written + " is not modelled",
                             nearest(name, optimizer_names()));
        else
            reading.complain(at, Problem::bad_value, "the trainer knows no optimizer " + written,
                             nearest(name, optimizer_names()));
        return job::AdamW{};
    }
    job::Optimizer kind = known->kind;
    Args args;
    for (const std::string& word : reading.list("optimizer_args")) {
        const std::size_t equals = word.find('=');
        if (equals == std::string::npos) {
            reading.complain("optimizer_args", Problem::bad_value,
                             "the trainer stops: an argument of the optimizer is key=value, not " + word);
            continue;
        }
        args[word.substr(0, equals)] = word.substr(equals + 1);
    }
    std::visit(Options(args, name == "adam" || name == "torch.optim.adam"), kind);
    for (const auto& [key, value] : args)
        if (std::find(std::begin(numbers), std::end(numbers), key) == std::end(numbers))
            reading.complain("optimizer_args", Problem::unsupported,
                             "the optimizer's argument " + key + " is not modelled", nearest(key, numbers));
    return kind;
}

}  // namespace vram::trainers::sd_scripts
