#pragma once

#include <cstdint>
#include <string_view>
#include <variant>

namespace vram::job {

// An optimizer is a class of some library with the options that move memory; what each allocates stands in
// run/optimizers. Numbers that only change values (learning rates, betas) are not here.

/// torch.optim.AdamW, and Adam.
struct AdamW {
    enum class Loop : std::uint8_t { foreach, one_by_one, fused } loop = Loop::foreach;
    bool amsgrad = false;
    bool capturable = false;       // with foreach: `step` and the bias corrections are on the GPU
    bool decays_gradient = false;  // Adam with weight_decay: the decay is added to the gradient, in a tensor of its own
    [[nodiscard]] static std::string_view name() { return "adamw"; }
    bool operator==(const AdamW&) const = default;
};
/// torch.optim.SGD, foreach.
struct Sgd {
    bool momentum = false, nesterov = false, weight_decay = false;
    [[nodiscard]] static std::string_view name() { return "sgd"; }
    bool operator==(const Sgd&) const = default;
};
/// torch.optim.Adagrad, foreach.
struct Adagrad {
    bool weight_decay = false;
    [[nodiscard]] static std::string_view name() { return "adagrad"; }
    bool operator==(const Adagrad&) const = default;
};
/// bitsandbytes.optim: 8-bit state with one absmax a block, or fp32 state; paged: large state in managed memory.
struct Bitsandbytes {
    enum class Algorithm : std::uint8_t { adam, ademamix, lion, sgd } algorithm = Algorithm::adam;
    std::int32_t bits = 8;
    bool paged = false;
    std::int64_t block = 256;
    [[nodiscard]] std::string_view name() const {
        switch (algorithm) {
            case Algorithm::adam:
                if (bits == 8) return paged ? "pagedadamw8bit" : "adamw8bit";
                return paged ? "pagedadamw" : "adamw32bit";
            case Algorithm::ademamix:
                if (bits == 8) return paged ? "pagedademamix8bit" : "ademamix8bit";
                return paged ? "pagedademamix" : "ademamix";
            case Algorithm::lion:
                if (bits == 8) return paged ? "pagedlion8bit" : "lion8bit";
                return paged ? "pagedlion" : "lion32bit";
            case Algorithm::sgd: return bits == 8 ? "sgd8bit" : "sgd32bit";
        }
        return {};
    }
    bool operator==(const Bitsandbytes&) const = default;
};
/// lion_pytorch.Lion.
struct Lion {
    [[nodiscard]] static std::string_view name() { return "lion"; }
    bool operator==(const Lion&) const = default;
};
/// prodigyopt.Prodigy.
struct Prodigy {
    std::int64_t slice_p = 1;  // of `s` and `p0` every slice_p-th element is kept
    bool momentum = true;      // betas[0] > 0
    [[nodiscard]] static std::string_view name() { return "prodigy"; }
    bool operator==(const Prodigy&) const = default;
};
/// dadaptation.DAdaptAdam and DAdaptLion.
struct DAdapt {
    enum class Algorithm : std::uint8_t { adam, lion } algorithm = Algorithm::adam;
    [[nodiscard]] std::string_view name() const { return algorithm == Algorithm::adam ? "dadaptation" : "dadaptlion"; }
    bool operator==(const DAdapt&) const = default;
};
/// transformers' Adafactor, and ai-toolkit's, which is made from it.
struct Adafactor {
    bool momentum = false;         // beta1 is given
    bool scale_parameter = false;  // the learning rate is a tensor
    bool weight_decay = false;
    bool clones = false;                   // a 16-bit parameter is cloned before it is cast
    bool stochastic_accumulation = false;  // 16-bit gradients leave the parameter as they come, for a copy
    bool stochastic_rounding = false;  // a 16-bit parameter is rounded at random; else copied, or with `clones` left
    [[nodiscard]] static std::string_view name() { return "adafactor"; }
    bool operator==(const Adafactor&) const = default;
};
/// came_pytorch.CAME.
struct Came {
    [[nodiscard]] static std::string_view name() { return "came"; }
    bool operator==(const Came&) const = default;
};
/// schedulefree.AdamWScheduleFree.
struct AdamWScheduleFree {
    bool foreach = true;
    [[nodiscard]] static std::string_view name() { return "adamwschedulefree"; }
    bool operator==(const AdamWScheduleFree&) const = default;
};
/// ai-toolkit's Adam8bit: int8 moments with one scale a tensor.
struct Adam8 {
    [[nodiscard]] static std::string_view name() { return "adamw8"; }
    bool operator==(const Adam8&) const = default;
};
/// ai-toolkit's Prodigy8bit.
struct Prodigy8bit {
    [[nodiscard]] static std::string_view name() { return "prodigy8bit"; }
    bool operator==(const Prodigy8bit&) const = default;
};
/// ai-toolkit's Automagic.
struct Automagic {
    bool weight_decay = false;
    [[nodiscard]] static std::string_view name() { return "automagic"; }
    bool operator==(const Automagic&) const = default;
};
/// ai-toolkit's Automagic2: steps inside backward.
struct Automagic2 {
    [[nodiscard]] static std::string_view name() { return "automagic2"; }
    bool operator==(const Automagic2&) const = default;
};
/// ai-toolkit's Automagic3.
struct Automagic3 {
    std::int64_t polarity_history = 8;
    bool fused = true;  // steps inside backward
    [[nodiscard]] static std::string_view name() { return "automagic3"; }
    bool operator==(const Automagic3&) const = default;
};
/// ai-toolkit's AutomagicEXPERIMENT: second moments as int8, turned by a Hadamard matrix.
struct AutomagicExperiment {
    std::int64_t polarity_history = 8;
    bool fused = true;
    [[nodiscard]] static std::string_view name() { return "automagicexperiment"; }
    bool operator==(const AutomagicExperiment&) const = default;
};

using Optimizer =
    std::variant<AdamW, Sgd, Adagrad, Bitsandbytes, Lion, Prodigy, DAdapt, Adafactor, Came, AdamWScheduleFree, Adam8,
                 Prodigy8bit, Automagic, Automagic2, Automagic3, AutomagicExperiment>;

/// As a job file spells it, of several spellings one.
[[nodiscard]] inline std::string_view name_of(const Optimizer& optimizer) {
    return std::visit([](const auto& kind) { return kind.name(); }, optimizer);
}

}  // namespace vram::job
