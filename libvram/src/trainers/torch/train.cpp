#include "trainers/torch/train.hpp"

#include <algorithm>

#include "nn/adapter/targets.hpp"
#include "run/optimizers/names.hpp"

namespace vram::trainers::torch {
namespace {

enum class MethodName : std::uint8_t { full, lora, other_adapter };
constexpr io::Choice<MethodName> methods[] = {{"full", MethodName::full},
                                              {"lora", MethodName::lora},
                                              {"lokr", MethodName::other_adapter},
                                              {"loha", MethodName::other_adapter},
                                              {"dora", MethodName::other_adapter}};

constexpr io::Choice<Dtype> adapter_dtypes[] = {{"bf16", Dtype::bf16}, {"fp16", Dtype::f16}, {"fp32", Dtype::f32}};
constexpr io::Choice<job::Autocast> autocasts[] = {
    {"none", {false, Dtype::bf16}}, {"bf16", {true, Dtype::bf16}}, {"fp16", {true, Dtype::f16}}};
constexpr std::string_view target_ids[] = {"attention", "blocks", "all"};
constexpr io::IntegerRange ranks{1, 65536}, accumulations{1, 4096};

std::vector<std::string> read_targets(io::Fields& train) {
    const io::Node* node = train.node("targets");
    if (node == nullptr) return {"attention"};
    if (const std::string* id = node->text()) {
        if (std::find(std::begin(target_ids), std::end(target_ids), *id) != std::end(target_ids)) return {*id};
        train.complain("targets", Problem::bad_value,
                       "train.targets must be attention, blocks, all, or a list of regular expressions, not " + *id,
                       nearest(*id, target_ids));
        return {};
    }
    std::vector<std::string> targets = train.texts("targets", {1, 64}).value_or(std::vector<std::string>{});
    for (const std::string& pattern : targets)
        if (!nn::adapter::is_pattern(pattern))
            train.complain("targets", Problem::bad_value,
                           "train.targets: " + pattern.substr(0, 60) + " is no regular expression");
    return targets;
}

constexpr std::string_view adapter_keys[] = {"rank", "alpha", "factor", "conv_rank", "targets", "adapter_dtype"};

job::Method read_method(io::Fields& train, Dtype dtype) {
    std::optional<MethodName> name = train.choice("method", methods);
    if (!train.has("method")) (void)train.require("method");
    if (!name) {  // complained about; then nothing is known about the keys that hang on it
        train.ignore(adapter_keys);
        return job::FullFinetune{};
    }
    if (name == MethodName::full) {
        for (std::string_view key : adapter_keys)
            if (train.has(key))
                train.complain(key, Problem::conflict, train.path(key) + " is for adapters, and train.method is full");
        return job::FullFinetune{};
    }
    if (name == MethodName::other_adapter)
        train.complain("method", Problem::unsupported,
                       "train.method: " + train.text("method", "") + " is not modelled with trainer torch", "lora");
    job::Lora lora;
    const std::optional<std::int64_t> rank = train.integer("rank", ranks);
    if (!train.has("rank") && name == MethodName::lora) (void)train.require("rank");
    lora.rank = rank.value_or(1);
    lora.alpha = train.number("alpha", {0, 1e9}, static_cast<double>(lora.rank));
    lora.dtype = train.choice("adapter_dtype", adapter_dtypes, dtype);
    lora.targets = read_targets(train);
    lora.said_at = "train.targets";
    for (std::string_view key : {"factor", "conv_rank"})
        if (train.integer(key, {-1, 65536}))
            train.complain(key, Problem::unsupported, train.path(key) + " is not modelled with trainer torch");
    return lora;
}

job::Optimizer read_optimizer(io::Fields& train) {
    const std::span<const std::string_view> refused = run::optimizers_not_modelled();
    const std::string written = train.word("optimizer", "adamw");
    if (std::find(refused.begin(), refused.end(), written) == refused.end())
        return train.choice("optimizer", run::optimizer_names()).value_or(job::AdamW{});
    train.complain("optimizer", Problem::unsupported,
                   "train.optimizer: " + written + " is not modelled with trainer torch", "adamw");
    return job::AdamW{};
}

}  // namespace

job::Training read_training(io::Fields& train, Dtype dtype) {
    job::Training training;
    training.method = read_method(train, dtype);
    training.optimizer = read_optimizer(train);
    training.gradient_checkpointing = train.boolean("gradient_checkpointing", false);
    training.gradient_accumulation = train.integer("gradient_accumulation", accumulations, 1);
    training.autocast = train.choice("autocast", autocasts, job::Autocast{});
    training.ema = train.boolean("ema", false);
    return training;
}

}  // namespace vram::trainers::torch
