// NetworkTrainer as train_network.py runs it: Stable Diffusion 1 and 2, with the UNet of library/original_unet.py
// (48d368fa).
#include <utility>

#include "shadow/ops.hpp"
#include "trainers/sd_scripts/unet_trainer.hpp"

namespace vram::trainers::sd_scripts {
namespace {

using shadow::AutocastScope;
using shadow::Category;
using shadow::ComponentScope;
using shadow::Op;
using shadow::StageScope;

class StableDiffusion final : public UnetTrainer {
  public:
    StableDiffusion(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : UnetTrainer(job_in, catalogue, run_in,
                      unet_network(std::get<job::Lora>(std::get<job::Training>(job_in.work).method))) {}

  private:
    /// SdTextEncodingStrategy.encode_tokens
    [[nodiscard]] Tensors encode_tokens(const Tensors& input_ids, std::int64_t batch) override {
        const Part& text_encoder = *text_encoders.front();
        const Tensor tokens = shadow::reshape(input_ids[0], {-1, input_ids[0].size(2)});
        Tensor encoder_hidden_states;
        const auto skip = job.pipeline.options.find("clip_skip");
        if (skip == job.pipeline.options.end()) {
            const models::Request request = text_request(tokens.size(0), false);
            encoder_hidden_states = call(text_encoder, {tokens}, request)[0];
        } else {
            const models::Request request = text_request(tokens.size(0), true);
            const Tensors enc_out = call(text_encoder, {tokens}, request);
            // {before the first layer, after each, last_hidden_state, pooled}
            const auto back = static_cast<std::size_t>(std::stoll(skip->second));
            encoder_hidden_states = enc_out[enc_out.size() - 2 - back];
            encoder_hidden_states = final_layer_norm(encoder_hidden_states);
        }
        return {joined(std::move(encoder_hidden_states), batch)};
    }

    [[nodiscard]] std::vector<models::Value> cached_text(std::int64_t) const override { return {}; }

    [[nodiscard]] Tensor call_unet(const Tensor& noisy_latents, const Tensor& timesteps, const Tensors& text_conds,
                                   const Batch& batch) override {
        return unet.prepared({noisy_latents, timesteps, text_conds[0]}, request_of(batch.sizes), amp(),
                             true)[0];  // a SampleOutput
    }

    /// StableDiffusionLongPromptWeightingPipeline.__call__
    void render(Loop& loop, const job::Batch& image) override {
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        const AutocastScope autocast(run, amp());
        Tensor text_embeddings;
        {
            const StageScope stage(run, "text");
            text_embeddings = encode_prompt();
            set_timesteps(loop);
        }
        const StageScope stage(run, "denoise");
        prepare_latents(loop, image, text_embeddings.dtype());
        job::Batch batch = image;
        batch.count = guides() ? 2 : 1;
        denoise(loop, [&](const Tensor& latent_model_input, const Tensor& t) {
            return unet.prepared({latent_model_input, t, text_embeddings}, request_of(batch), amp(), true)[0];
        });
        loop.end();
    }

    /// _encode_prompt, of prompts of up to 75 tokens.
    [[nodiscard]] Tensor encode_prompt() {
        Tensor prompt, uncond;
        {
            const Tensor tokens = run.empty({1, 77}, Dtype::i64, Op::to_device);
            const Tensor uncond_tokens = guides() ? run.empty({1, 77}, Dtype::i64, Op::to_device) : Tensor();
            prompt = encode_once(tokens);
            const Tensor weights = run.empty({1, 77}, prompt.dtype(), Op::to_device);
            Tensor uncond_weights;
            if (guides()) {
                uncond = encode_once(uncond_tokens);
                uncond_weights = run.empty({1, 77}, uncond.dtype(), Op::to_device);
            }
            const Tensor mean = keep_mean(prompt.dtype());
            const Tensor uncond_mean = guides() ? keep_mean(uncond.dtype()) : Tensor();
        }
        prompt = shadow::repeat(prompt, {1, 1, 1});
        if (!guides()) return prompt;
        uncond = shadow::repeat(uncond, {1, 1, 1});
        return shadow::cat({uncond, prompt}, 0);
    }

    /// Of get_weighted_text_embeddings: hidden states keep their mean while they are weighted in place.
    [[nodiscard]] Tensor keep_mean(Dtype dtype) {
        const Tensor previous_mean = run.empty({}, dtype, Op::mean);
        Tensor current_mean = run.empty({}, dtype, Op::mean);
        const Tensor ratio = run.empty({}, dtype, Op::div);
        return current_mean;
    }

    [[nodiscard]] Tensor encode_once(const Tensor& tokens) {
        return call(*text_encoders.front(), {tokens}, text_request(1, false))[0];
    }

    /// text_model.final_layer_norm: the last module of the class.
    [[nodiscard]] Tensor final_layer_norm(Tensor hidden_states) {
        std::deque<shadow::Parameter>& all = text_encoders.front()->weights.all_base();
        return shadow::layer_norm(std::move(hidden_states), all[all.size() - 2].value, all.back().value);
    }
};

}  // namespace

std::unique_ptr<NetworkTrainer> make_stable_diffusion(const job::Job& job, const profile::Catalogue& catalogue,
                                                      Run& run) {
    return std::make_unique<StableDiffusion>(job, catalogue, run);
}

}  // namespace vram::trainers::sd_scripts
