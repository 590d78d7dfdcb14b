// SdxlNetworkTrainer (sdxl_train_network.py, 48d368fa).
#include <utility>

#include "shadow/ops.hpp"
#include "trainers/sd_scripts/unet_trainer.hpp"

namespace vram::trainers::sd_scripts {
namespace {

using shadow::AutocastScope;
using shadow::Category;
using shadow::ComponentScope;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

constexpr std::int64_t clip_l = 768, openclip_bigg = 1280, size_embedding = 256;

class Sdxl final : public UnetTrainer {
  public:
    Sdxl(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : UnetTrainer(job_in, catalogue, run_in,
                      unet_network(std::get<job::Lora>(std::get<job::Training>(job_in.work).method))) {
        text_encoders[1]->pooled_first = true;
    }

  private:
    /// SdxlTextEncodingStrategy._get_hidden_states_sdxl
    [[nodiscard]] Tensors encode_tokens(const Tensors& input_ids, std::int64_t batch) override {
        const Tensor input_ids1 = shadow::reshape(input_ids[0], {-1, input_ids[0].size(2)});
        const Tensor input_ids2 = shadow::reshape(input_ids[1], {-1, input_ids[1].size(2)});
        const models::Request request = text_request(input_ids1.size(0), true);
        // {before the first layer, after each, last_hidden_state, pooled}
        Tensors enc_out = call(*text_encoders[0], {input_ids1}, request);
        Tensor hidden_states1 = enc_out[11];
        {
            Tensors second = call(*text_encoders[1], {input_ids2}, request);
            enc_out = std::move(second);
        }
        Tensor hidden_states2 = enc_out[enc_out.size() - 4];
        Tensor pool2 = pool_workaround(enc_out[enc_out.size() - 2], input_ids2);
        hidden_states1 = joined(std::move(hidden_states1), batch);
        hidden_states2 = joined(std::move(hidden_states2), batch);
        if (chunks() > 1) pool2 = shadow::slice(std::move(pool2), 0, 0, pool2.size(0), chunks());
        return {hidden_states1, hidden_states2, pool2};
    }

    /// _pool_workaround, over the encoder as it was before it was prepared.
    [[nodiscard]] Tensor pool_workaround(const Tensor& last_hidden_state, const Tensor& input_ids) {
        Tensor eos_token_mask = shadow::compare_scalar(input_ids);
        eos_token_mask = shadow::to(std::move(eos_token_mask), Dtype::i32);
        const Tensor eos_token_index = run.empty({input_ids.size(0)}, Dtype::i64, Op::index);  // argmax
        Tensor pooled_output;
        {
            const Tensor rows = shadow::arange(run, last_hidden_state.size(0), Dtype::i64);
            pooled_output = shadow::index_pairs(last_hidden_state, rows, eos_token_index);
        }
        // CLIPTextModelWithProjection makes it last.
        const Tensor& text_projection = text_encoders[1]->weights.all_base().back().value;
        {
            Tensor cast = shadow::to(pooled_output, text_projection.dtype());
            pooled_output = shadow::linear(std::move(cast), text_projection, {});
        }
        return shadow::to(pooled_output, last_hidden_state.dtype());
    }

    [[nodiscard]] std::vector<models::Value> cached_text(std::int64_t batch) const override {
        return {{"hidden_states1", {batch, job.text_tokens, clip_l}, Dtype::f32},
                {"hidden_states2", {batch, job.text_tokens, openclip_bigg}, Dtype::f32},
                {"pool2", {batch, openclip_bigg}, Dtype::f32}};
    }

    /// sdxl_train_util.get_timestep_embedding: the sines of two numbers an item.
    [[nodiscard]] Tensor get_timestep_embedding(const Tensor& x) {
        const std::int64_t batch = x.size(0), dims = x.size(1);
        const Tensor freqs = run.empty({size_embedding / 2}, Dtype::f32, Op::to_device);
        Tensor args;
        {
            const Tensor timesteps = run.empty({batch * dims, 1}, Dtype::f32, Op::copy_);
            args = run.empty({batch * dims, size_embedding / 2}, Dtype::f32, Op::mul);
        }
        Tensor embedding;
        {
            const Tensor cos = shadow::cos(args);
            const Tensor sin = shadow::sin(args);
            embedding = shadow::cat({cos, sin}, -1);
        }
        return shadow::reshape(embedding, {batch, dims * size_embedding});
    }

    [[nodiscard]] Tensor get_size_embeddings(const Batch& batch) {
        const Tensor emb1 = get_timestep_embedding(batch.original_sizes_hw);
        const Tensor emb2 = get_timestep_embedding(batch.crop_top_lefts);
        const Tensor emb3 = get_timestep_embedding(batch.target_sizes_hw);
        return shadow::cat({emb1, emb2, emb3}, 1);
    }

    [[nodiscard]] Tensor call_unet(const Tensor& noisy_latents_in, const Tensor& timesteps, const Tensors& text_conds,
                                   const Batch& batch) override {
        const Tensor noisy_latents = shadow::to(noisy_latents_in, job.dtype);
        Tensor embs = get_size_embeddings(batch);
        embs = shadow::to(std::move(embs), job.dtype);
        const Tensor &encoder_hidden_states1 = text_conds[0], &encoder_hidden_states2 = text_conds[1];
        const Tensor& pool2 = text_conds[2];
        Tensor vector_embedding = shadow::cat({pool2, embs}, 1);
        vector_embedding = shadow::to(std::move(vector_embedding), job.dtype);
        Tensor text_embedding = shadow::cat({encoder_hidden_states1, encoder_hidden_states2}, 2);
        text_embedding = shadow::to(std::move(text_embedding), job.dtype);
        return unet.prepared({noisy_latents, timesteps, text_embedding, vector_embedding}, request_of(batch.sizes),
                             amp())[0];
    }

    /// cache_text_encoder_outputs_if_needed: captions of a batch at a time.
    void cache_text_encoder_outputs() override {
        for (const auto& text_encoder : text_encoders) text_encoder->to_gpu();
        {
            const NoGrad no_grad(run);
            const AutocastScope autocast(run, amp());
            const std::int64_t batch = training.batches.front().count;
            const Tensors outputs = encode_tokens(token_ids(batch), batch);
            Tensors floats;
            for (const Tensor& output : outputs)
                if (output.dtype() == Dtype::bf16) floats.push_back(shadow::to_float(output));
        }
        for (const auto& text_encoder : text_encoders) text_encoder->to_cpu();
        clean_memory_on_device();
    }

    /// input_ids.to(device), of both encoders.
    [[nodiscard]] Tensors token_ids(std::int64_t batch) {
        Tensors ids;
        for (const Dims& sizes : token_sizes(batch)) ids.push_back(run.empty(sizes, Dtype::i64, Op::to_device));
        return ids;
    }

    /// A prompt's hidden states side by side and its pooled output; where they were cached the encoders run on the
    /// host.
    struct Prompt {
        Tensor text_embeddings, pooled;
    };
    /// `names`: the pipeline's for the hidden states of a prompt, until it encodes the next one.
    [[nodiscard]] Prompt encode_prompt(Tensors& names) {
        Prompt out;
        const Dtype wide = training.autocast.enabled ? Dtype::f32 : job.dtype;
        if (job.pipeline.cache_text) {
            out.text_embeddings = run.on_cpu({1, clip_tokens, clip_l + openclip_bigg}, Dtype::f32);
            out.pooled = run.on_cpu({1, openclip_bigg}, Dtype::f32);
            return out;
        }
        Tensor ids1 = run.empty({1, 1, clip_tokens}, Dtype::i64, Op::to_device);
        Tensor ids2 = run.empty({1, 1, clip_tokens}, Dtype::i64, Op::to_device);
        Tensors encoded = encode_tokens({std::move(ids1), std::move(ids2)}, 1);
        {
            const Tensor weights1 = run.empty({1, 1, clip_tokens}, Dtype::f32, Op::to_device);
            const Tensor weights2 = run.empty({1, 1, clip_tokens}, Dtype::f32, Op::to_device);
            encoded[0] = run.empty(encoded[0].sizes(), wide, Op::mul);
            encoded[1] = run.empty(encoded[1].sizes(), wide, Op::mul);
        }
        out.pooled = std::move(encoded[2]);
        names = {std::move(encoded[0]), std::move(encoded[1])};
        out.text_embeddings = shadow::cat(names, 2);
        return out;
    }

    /// x.to(device, dtype=unet_dtype), of the host or not.
    [[nodiscard]] Tensor to_gpu(const Tensor& x) {
        return x.storage()->slot < 0 ? run.empty(x.sizes(), job.dtype, Op::to_device) : shadow::to(x, job.dtype);
    }

    /// Both prompts' hidden states in one tensor, where they are.
    [[nodiscard]] Tensor side_by_side(const Prompt& prompt, const Prompt& uncond) {
        if (!guides()) return prompt.text_embeddings;
        if (prompt.text_embeddings.storage()->slot < 0)
            return run.on_cpu({2, clip_tokens, clip_l + openclip_bigg}, Dtype::f32);
        return shadow::cat({uncond.text_embeddings, prompt.text_embeddings}, 0);
    }

    /// SdxlStableDiffusionLongPromptWeightingPipeline.__call__
    void render(Loop& loop, const job::Batch& image) override {
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        const AutocastScope autocast(run, amp());
        Prompt prompt, uncond;
        Tensors names;  // hidden_states_1, hidden_states_2: of the last prompt, until the call returns
        {
            const StageScope stage(run, "text");
            prompt = encode_prompt(names);
            if (guides()) uncond = encode_prompt(names);
            set_timesteps(loop);
        }
        const StageScope stage(run, "denoise");
        prepare_latents(loop, image, job.dtype);
        // The call has names for all of these until it returns.
        Batch sizes;
        sizes.original_sizes_hw = sizes.target_sizes_hw = run.empty({1, 2}, job.dtype, Op::to_device);
        sizes.crop_top_lefts = run.empty({1, 2}, job.dtype, Op::zeros);
        Tensor embs = get_size_embeddings(sizes);
        embs = shadow::to(std::move(embs), job.dtype);
        const Tensor pooled = to_gpu(prompt.pooled);
        prompt.pooled = Tensor();
        const Tensor text_embedding = to_gpu(side_by_side(prompt, uncond));
        Tensor vector_embedding, uncond_pooled, with_sizes, uncond_with_sizes;
        if (guides()) {
            uncond_pooled = to_gpu(uncond.pooled);
            uncond.pooled = Tensor();
            with_sizes = shadow::cat({pooled, embs}, 1);
            uncond_with_sizes = shadow::cat({uncond_pooled, embs}, 1);
            vector_embedding = shadow::cat({uncond_with_sizes, with_sizes}, 0);
        } else {
            vector_embedding = shadow::cat({pooled, embs}, 1);
        }
        job::Batch batch = image;
        batch.count = guides() ? 2 : 1;
        denoise(loop, [&](const Tensor& latent_model_input, const Tensor& t) {
            Tensor noise_pred =
                unet.prepared({latent_model_input, t, text_embedding, vector_embedding}, request_of(batch), amp())[0];
            return shadow::to(std::move(noise_pred), job.dtype);
        });
        loop.end();
    }
};

}  // namespace

std::unique_ptr<NetworkTrainer> make_sdxl(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<Sdxl>(job, catalogue, run);
}

}  // namespace vram::trainers::sd_scripts
