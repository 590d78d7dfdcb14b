#include "trainers/torch/play.hpp"

#include "base/blocks.hpp"
#include "models/model.hpp"
#include "nn/adapter/peft.hpp"
#include "nn/adapter/targets.hpp"
#include "nn/quantize/formats.hpp"
#include "nn/quantize/loader.hpp"
#include "run/optimizer.hpp"
#include "shadow/ops.hpp"
#include "trainers/named_model.hpp"
#include "vram/profile/catalogue.hpp"

namespace vram::trainers::torch {
namespace {

using models::Model;
using models::Request;
using models::Value;
using shadow::Category;
using shadow::Run;
using shadow::Tensor;
using shadow::Tensors;

Request request_of(const job::Job& job, const job::Batch& batch) {
    Request request;
    request.batch = batch.count;
    request.width = batch.width;
    request.height = batch.height;
    request.frames = batch.frames;
    request.text_tokens = job.text_tokens;
    request.reference_images = job.reference_images;
    request.dtype = job.dtype;
    if (const auto* call = std::get_if<job::Call>(&job.work)) {
        using Operation = job::Call::Operation;
        request.operation = call->operation == Operation::encode   ? Request::Operation::encode
                            : call->operation == Operation::decode ? Request::Operation::decode
                                                                   : Request::Operation::forward;
        request.tiling = call->tiling;
        request.slicing = call->slicing;
        request.attention_mask = call->attention_mask;
        request.all_hidden_states = call->all_hidden_states;
        request.use_cache = call->use_cache;
    }
    return request;
}

nn::Rules rules_of(const job::Job& job, const profile::ModelProfile& profile) {
    nn::Rules rules;
    rules.dtype = job.dtype;
    // transformers keeps the list in fp32 where fp16 is asked for (modeling_utils.py, _get_dtype_plan), diffusers
    // always.
    if (profile.kind != profile::ModelKind::text_encoder || job.dtype == Dtype::f16)
        rules.keep_in_fp32 = profile.keep_in_fp32;
    rules.quantizer = nn::quantize::format_named(job::to_text(job.quantization));
    // transformers hands bitsandbytes no output embeddings (quantizers/base.py, get_keys_to_not_convert).
    if (profile.kind == profile::ModelKind::text_encoder && job::to_text(job.quantization).starts_with("bnb_"))
        rules.quantizes = [](std::string_view name) { return name != "lm_head"; };
    const auto* training = std::get_if<job::Training>(&job.work);
    if (training == nullptr) return rules;
    if (const auto* lora = std::get_if<job::Lora>(&training->method)) {
        rules.adapts = nn::adapter::peft_of(nn::adapter::targets(lora->targets), lora->rank);
        rules.adapter_dtype = lora->dtype;
    } else {
        rules.train_base = true;
    }
    return rules;
}

Tensors make(Run& run, const std::vector<Value>& values, shadow::Op op) {
    const shadow::ComponentScope scope(run, "inputs", Category::inputs);
    Tensors out;
    for (const Value& value : values) out.push_back(run.empty(value.shape, value.dtype, op));
    return out;
}

Bytes bytes_of(const Tensors& tensors) {
    Bytes total = 0;
    for (const Tensor& tensor : tensors) total = checked_add(total, in_blocks(tensor.layout()->bytes));
    return total;
}

/// One model and what is done with it.
class Loop {
  public:
    Loop(const job::Job& job, const profile::ModelProfile& profile, Run& run, run::Facts& facts, run::Asides asides)
        : job_(job),
          run_(run),
          facts_(facts),
          asides_(asides),
          component_(job.component ? job.model : "transformer"),
          weights_(run, component_, rules_of(job, profile)) {
        model_ = models::build(weights_, profile);
    }

    void call(const job::Call& call) {
        const Request request = request_of(job_, call.batch);
        Tensors inputs;
        {
            const shadow::PhaseScope load(run_, "load");
            facts_.phases.push_back({"load", "load", {}, 0, 0});
            load_weights();
            const shadow::StageScope stage(run_, "inputs");
            inputs = make(run_, model_->inputs(request), shadow::Op::input);
        }
        tell_inputs(request, inputs, {});
        const shadow::PhaseScope phase(run_, "call");
        facts_.phases.push_back(
            {"call", "call", {call.batch.width, call.batch.height, call.batch.frames}, call.batch.count, 0});
        const shadow::NoGrad no_grad(run_);
        const shadow::ComponentScope scope(run_, component_);
        Tensors outputs;
        {
            const shadow::StageScope stage(run_, "forward");
            outputs = model_->forward(inputs, request);
        }
        outputs.clear();
    }

    void train(const job::Training& training) {
        model_->gradient_checkpointing = training.gradient_checkpointing;
        std::vector<Tensor> ema;
        const Request first = request_of(job_, training.batches.front());
        Tensors inputs, targets;
        run::Optimizer optimizer(run_, training.optimizer, weights_.trainable());
        {
            const shadow::PhaseScope load(run_, "load");
            facts_.phases.push_back({"load", "load", {}, 0, 0});
            load_weights();
            optimizer.start();
            if (training.ema) {
                const shadow::StageScope stage(run_, "ema");
                const shadow::ComponentScope scope(run_, component_, Category::ema);
                for (const shadow::Parameter* parameter : optimizer.parameters())
                    ema.push_back(run_.empty_like(parameter->value, shadow::Op::clone));
            }
            const shadow::StageScope stage(run_, "inputs");
            inputs = make(run_, model_->inputs(first), shadow::Op::input);
            targets = make(run_, target_values(first), shadow::Op::target);
        }
        tell_inputs(first, inputs, targets);
        step("step 1", training, training.batches.front(), inputs, targets, optimizer);
        optimizer.settle();
        step("step 2", training, training.batches.front(), inputs, targets, optimizer);
        facts_.kept_for_backward = facts_.phases.back().kept_for_backward;
        facts_.checkpointing = training.gradient_checkpointing;
        facts_.kept_without_checkpointing = training.gradient_checkpointing && asides_ == run::Asides::played
                                                ? kept_by_plain_forward(training, first, inputs)
                                                : facts_.kept_for_backward;
        facts_.optimizer_state = optimizer.state_bytes();
        for (std::size_t i = 1; i < training.batches.size(); ++i) {
            const job::Batch& batch = training.batches[i];
            const Request request = request_of(job_, batch);
            inputs.clear();
            targets.clear();
            inputs = make(run_, model_->inputs(request), shadow::Op::input);
            targets = make(run_, target_values(request), shadow::Op::target);
            std::string name = "bucket " + std::to_string(batch.width) + "x" + std::to_string(batch.height);
            if (batch.frames > 1) name += "x" + std::to_string(batch.frames);
            step(std::move(name), training, batch, inputs, targets, optimizer);
        }
    }

  private:
    /// What a forward would keep without gradient checkpointing.
    Bytes kept_by_plain_forward(const job::Training& training, const Request& request, const Tensors& inputs) {
        const shadow::Aside aside(run_);
        model_->gradient_checkpointing = false;
        Tensors preds;
        {
            const shadow::ComponentScope scope(run_, component_);
            const shadow::AutocastScope autocast(run_, {training.autocast.enabled, training.autocast.dtype});
            preds = model_->forward(inputs, request);
        }
        model_->gradient_checkpointing = true;
        const Bytes kept = run_.live();
        run_.drop_recordings();
        return kept;
    }

    void load_weights() {
        const shadow::StageScope stage(run_, "weights");
        weights_.to_gpu();  // quantised on the CPU: what is stored comes
        nn::quantize::Loader(weights_).constants();
        tell_weights();
    }

    /// As they are loaded: a forward may make some of another dtype.
    void tell_weights() {
        facts_.weights = weights_.base_bytes();
        facts_.adapter = weights_.adapter_bytes();
        facts_.counts.parameters = weights_.base_parameters();
        facts_.counts.adapted_modules = weights_.adapted_modules;
        facts_.counts.adapter_parameters = weights_.adapter_parameters();
    }

    std::vector<Value> target_values(const Request& request) const {
        std::vector<Value> out;
        for (const shadow::Dims& shape : model_->outputs(request)) out.push_back({"target", shape, job_.dtype});
        return out;
    }

    void tell_inputs(const Request& request, const Tensors& inputs, const Tensors& targets) {
        for (const Value& value : model_->inputs(request))
            facts_.input_tensors.push_back(
                {value.name, std::vector<std::int64_t>(value.shape.begin(), value.shape.end()), value.dtype});
        facts_.inputs = bytes_of(inputs);
        facts_.targets = bytes_of(targets);
    }

    void step(std::string name, const job::Training& training, const job::Batch& batch, const Tensors& inputs,
              const Tensors& targets, run::Optimizer& optimizer) {
        const Request request = request_of(job_, batch);
        const shadow::PhaseScope phase(run_, name);
        const shadow::ComponentScope scope(run_, component_);
        Tensor loss;
        Bytes kept = 0;
        // From the second round on every one is alike: gradients are there, and are added to in place.
        const std::int64_t rounds = std::min<std::int64_t>(training.gradient_accumulation, 3);
        for (std::int64_t i = 0; i < rounds; ++i) {
            Tensors preds;
            {
                const shadow::StageScope stage(run_, "forward");
                const Bytes start = run_.live();
                {
                    const shadow::AutocastScope autocast(run_, {training.autocast.enabled, training.autocast.dtype});
                    preds = model_->forward(inputs, request);
                }
                kept = run_.live() - start;
            }
            {
                const shadow::StageScope stage(run_, "loss");
                loss = loss_of(preds, targets);
                if (training.gradient_accumulation > 1) loss = shadow::div_scalar(std::move(loss));
                preds.clear();
            }
            {
                const shadow::StageScope stage(run_, "backward");
                run_.backward(loss);
                facts_.gradients = optimizer.gradient_bytes();
            }
        }
        {
            const shadow::StageScope stage(run_, "optimizer");
            loss = Tensor();
            optimizer.step();
            optimizer.zero_grad();
        }
        if (training.ema) const shadow::StageScope stage(run_, "ema");
        facts_.phases.push_back(
            {std::move(name), "train", {batch.width, batch.height, batch.frames}, batch.count, kept});
    }

    static Tensor loss_of(const Tensors& preds, const Tensors& targets) {
        Tensor loss;
        for (std::size_t i = 0; i < preds.size(); ++i) {
            Tensor prediction = shadow::to_float(preds[i]);
            Tensor target = shadow::to_float(targets[i]);
            Tensor term = shadow::mse_loss(std::move(prediction), std::move(target));
            loss = loss.defined() ? shadow::add(loss, std::move(term)) : std::move(term);
        }
        return loss;
    }

    const job::Job& job_;
    Run& run_;
    run::Facts& facts_;
    const run::Asides asides_;
    std::string component_;
    nn::Weights weights_;
    std::unique_ptr<Model> model_;
};

}  // namespace

run::Facts play(const job::Job& job, const profile::Catalogue& catalogue, Run& run, run::Asides asides) {
    run::Facts facts;
    const profile::ModelProfile& profile = profile_of(job, catalogue, job.model);
    Loop loop(job, profile, run, facts, asides);
    if (const auto* call = std::get_if<job::Call>(&job.work)) {
        loop.call(*call);
    } else {
        loop.train(std::get<job::Training>(job.work));
    }
    facts.counts.attention_flash = run.attention_calls.flash;
    facts.counts.attention_efficient = run.attention_calls.efficient;
    facts.counts.attention_cudnn = run.attention_calls.cudnn;
    facts.counts.attention_math = run.attention_calls.math;
    return facts;
}

}  // namespace vram::trainers::torch
