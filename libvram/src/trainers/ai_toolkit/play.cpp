#include "trainers/ai_toolkit/play.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/sampling.hpp"
#include "trainers/ai_toolkit/training.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::NoGrad;
using shadow::Op;
using shadow::PhaseScope;

/// A BaseSDTrainProcess: what it does before, in and after the loop.
class Process {
  public:
    Process(const job::Job& job, const profile::Catalogue& catalogue, Run& run, run::Facts& facts, run::Asides asides)
        : job_(job),
          parts_(job.pipeline),
          training_(std::get<job::Training>(job.work)),
          run_(run),
          facts_(facts),
          asides_(asides),
          made_(architecture_named(job.pipeline.architecture)->make(job, catalogue, run)),
          pipeline_(*made_),
          made_loop_(make_training(pipeline_, resident_, facts)),
          loop_(*made_loop_) {
        const bool checkpoints = training_.gradient_checkpointing;
        for (Part* part : pipeline_.denoisers()) part->model->gradient_checkpointing = checkpoints;
        for (const std::unique_ptr<Part>& part : pipeline_.text_encoders)
            part->model->gradient_checkpointing = checkpoints;
        // Until the loop the network is not active, which prompts alone are encoded without.
        for (Part* part : pipeline_.trained_text_encoders()) part->weights.set_adapters(false, true);
    }

    void play() {
        load();
        if (!training_.validation.batches.empty()) setup_validation();
        if (parts_.cache_latents) cache_latents();
        cache_text();
        if (job_.sampling.baseline) sample("baseline_sample", true);
        steps();
        if (job_.sampling.periodic) sample("sample", false);
        {
            const PhaseScope phase(run_, "save");
            tell("save", "save");
            save(pipeline_, resident_, loop_.optimizer);
        }
        for (const Part* part : pipeline_.denoisers()) {
            const nn::Weights& weights = part->weights;
            facts_.weights += weights.base_bytes();
            if (part->recovery != nullptr) facts_.weights += part->recovery->adapter_bytes();
            facts_.counts.parameters += weights.base_parameters();
        }
        for (const Part* part : pipeline_.trained()) {
            const nn::Weights& weights = part->weights;
            facts_.adapter += weights.adapter_bytes();
            facts_.counts.adapted_modules += weights.adapted_modules;
            facts_.counts.adapter_parameters += weights.adapter_parameters();
        }
        facts_.optimizer_state = loop_.optimizer.state_bytes();
    }

  private:
    void tell(std::string name, std::string kind) {
        facts_.phases.push_back({std::move(name), std::move(kind), {}, 0, 0});
    }

    /// train_device_state_preset
    [[nodiscard]] Pipeline::Placement while_training() const {
        return {!parts_.cache_latents, true, !parts_.cache_text && !parts_.unload_text};
    }

    PromptEmbeds encode(const Prompts& prompts) {
        const NoGrad no_grad(run_);
        const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
        return pipeline_.get_prompt_embeds(prompts);
    }

    /// load_model, and the rest of BaseSDTrainProcess.run up to the datasets.
    void load() {
        Loading loading(run_, facts_);
        pipeline_.load_model(loading);
        for (Part* part : pipeline_.trained()) part->weights.adapter_to_gpu();
        {
            const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
            resident_.torch_multiplier = run_.empty({training_.batches.front().count}, Dtype::f32, Op::to_device);
        }
        pipeline_.flush();
        loop_.optimizer.start();
        if (!training_.ema) return;
        const ComponentScope scope(run_, "ema", Category::ema);
        for (const shadow::Parameter* parameter : loop_.optimizer.parameters())
            resident_.shadow_params.push_back(shadow::clone(parameter->value.detach()));
    }

    /// BaseSDTrainProcess.setup_validation: prompts and pictures are encoded, and wait in host memory.
    void setup_validation() {
        const PhaseScope phase(run_, "cache_validation");
        tell("cache_validation", "cache");
        const NoGrad no_grad(run_);
        const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
        const Pipeline::Placement before = pipeline_.placement();
        for (const std::unique_ptr<Part>& text_encoder : pipeline_.text_encoders) text_encoder->to_gpu();
        resident_.validation_embeds = HostEmbeds(pipeline_.get_prompt_embeds({}));
        for (const std::unique_ptr<Part>& text_encoder : pipeline_.text_encoders)
            text_encoder->move(before.text_encoder);
        for (job::Batch item : training_.validation.batches) {
            item.count = 1;
            const Tensor image = run_.empty(pipeline_.pixels(item), job_.dtype, Op::to_device);
            static_cast<void>(pipeline_.encode_images(image, item));
        }
        pipeline_.vae->move(before.vae);
        pipeline_.flush();
    }

    /// LatentCachingMixin: the VAE alone on the GPU, one item at a time, then everything back.
    void cache_latents() {
        const PhaseScope phase(run_, "cache_latents");
        tell("cache_latents", "cache");
        const NoGrad no_grad(run_);
        const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
        const Pipeline::Placement before = pipeline_.placement();
        pipeline_.set_device_state_preset({true, false, false});
        std::vector<job::Batch> seen;
        for (job::Batch item : training_.batches) {
            item.count = 1;
            if (std::find(seen.begin(), seen.end(), item) != seen.end()) continue;
            seen.push_back(item);
            const Tensor imgs = run_.empty(pipeline_.pixels(item), job_.dtype, Op::to_device);
            const Tensor latent = pipeline_.encode_images(imgs, item);
            static_cast<void>(shadow::clone(latent));  // on its way to the host
            if (item.frames == 1) continue;
            Tensor frames, first_frame_latent;
            if (item.first_frame) {
                frames = run_.empty(pipeline_.pixels(item), job_.dtype, Op::to_device);
                job::Batch still = item;
                still.frames = 1;
                first_frame_latent = pipeline_.encode_images(shadow::select(frames, 1, 0), still);
                static_cast<void>(shadow::clone(first_frame_latent));
            }
            if (item.audio) pipeline_.encode_audio(item);
        }
        pipeline_.place(before);
    }

    /// TextEmbeddingCachingMixin where the datasets cache, then SDTrainer.hook_before_train_loop.
    void cache_text() {
        const PhaseScope phase(run_, "cache_text");
        tell("cache_text", "cache");
        if (parts_.cache_text) {
            pipeline_.set_device_state_preset({false, false, true});
            cache_captions();
        }
        pipeline_.flush();
        loop_.encode_static_prompts();
        // prepare_accelerator
        pipeline_.vae->to_gpu();
        pipeline_.transformer_to(true);
        if (parts_.cache_text) pipeline_.transformer_to(false);
        const Prompts blank{.count = 1, .blank = true};
        {
            const PromptEmbeds encoded = to(encode(blank), job_.dtype);
            const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
            resident_.unconditional_embeds = clone(encoded);  // .detach()
        }
        if (parts_.cache_latents) pipeline_.vae->to_cpu();
        pipeline_.flush();
        pipeline_.add_all_snr();
        if (parts_.cache_text || parts_.unload_text) {
            resident_.cached_blank_embeds = encode(blank);
            if (training_.objective.preservation == job::Objective::Preservation::class_prompt)
                resident_.cached_dop_class_embeds = encode({});
            if (job_.sampling.baseline || job_.sampling.periodic) cache_sample_prompts();
            if (parts_.cache_text) {
                pipeline_.free_text_encoders();
            } else {
                pipeline_.park_text_encoders();
            }
        }
        if (!job_.sampling.baseline) pipeline_.place(while_training());
    }

    /// TextEmbeddingCachingMixin: of each set of control images one caption.
    void cache_captions() {
        Tensors names, ctrl_img;
        for (const job::Batch& batch : training_.batches) {
            const auto& known = resident_.caption_embeds;
            if (std::any_of(known.begin(), known.end(),
                            [&](const Resident::Caption& one) { return one.references == batch.references; }))
                continue;
            Tensors ctrl_img_list = load_control_images(batch.references, names);
            ctrl_img = std::move(ctrl_img_list);
            const HostEmbeds embeds(encode({1, false, batch.references, ctrl_img.empty() ? nullptr : &ctrl_img}));
            resident_.caption_embeds.push_back({batch.references, embeds});
        }
    }

    void cache_sample_prompts() {
        Tensors names, ctrl_img;
        for (const job::Batch& image : job_.sampling.images) {
            Tensors ctrl_img_list = load_control_images(image.references, names);
            ctrl_img = std::move(ctrl_img_list);
            Tensors* control_images = ctrl_img.empty() ? nullptr : &ctrl_img;
            const HostEmbeds positive(encode({1, false, image.references, control_images}));
            const HostEmbeds negative(encode({1, true, image.references, control_images}));
            resident_.sample_prompts_cache.push_back({positive, negative});
        }
    }

    Tensors load_control_images(const std::vector<job::PictureSize>& references, Tensors& names) {
        const ComponentScope scope(run_, "batch", Category::latents_and_embeddings);
        return pipeline_.load_control_images(references, names);
    }

    void sample(const std::string& name, bool baseline) {
        const PhaseScope phase(run_, name);
        tell(name, "sample");
        ai_toolkit::sample(pipeline_, resident_, loop_.optimizer, baseline);
        pipeline_.place(while_training());
    }

    void steps() {
        const std::vector<job::Batch>& batches = training_.batches;
        const std::vector<std::int64_t> numbers = pipeline_.steps();
        for (Part* part : pipeline_.trained_text_encoders()) part->weights.set_adapters(true, true);
        for (const std::int64_t number : numbers) {
            loop_.step("step " + std::to_string(number), number, batches.front());
            if (number != 1) continue;
            pipeline_.flush();  // did_first_flush
            loop_.optimizer.settle();
        }
        facts_.kept_for_backward = facts_.phases.back().kept_for_backward;
        facts_.checkpointing = training_.gradient_checkpointing;
        facts_.kept_without_checkpointing = training_.gradient_checkpointing && asides_ == run::Asides::played
                                                ? loop_.kept_without_checkpointing(batches.front())
                                                : facts_.kept_for_backward;
        loop_.validate("validation");
        for (std::size_t i = 1; i < batches.size(); ++i)
            loop_.step(bucket_name(batches[i]), numbers.back(), batches[i]);
        loop_.cleanup();
    }

    static std::string bucket_name(const job::Batch& batch) {
        std::string name = "bucket " + std::to_string(batch.width) + "x" + std::to_string(batch.height);
        if (batch.frames > 1) name += "x" + std::to_string(batch.frames);
        return name;
    }

    const job::Job& job_;
    const job::Pipeline& parts_;
    const job::Training& training_;
    Run& run_;
    run::Facts& facts_;
    const run::Asides asides_;
    const std::unique_ptr<Pipeline> made_;
    Pipeline& pipeline_;
    Resident resident_;
    const std::unique_ptr<Training> made_loop_;
    Training& loop_;
};

}  // namespace

run::Facts play(const job::Job& job, const profile::Catalogue& catalogue, Run& run, run::Asides asides) {
    run::Facts facts;
    Process process(job, catalogue, run, facts, asides);
    process.play();
    return facts;
}

}  // namespace vram::trainers::ai_toolkit
