// SdxlNetworkTrainer (sdxl_train_network.py, 48d368fa).
#include <utility>

#include "shadow/ops.hpp"
#include "trainers/sd_scripts/network_trainer.hpp"

namespace vram::trainers::sd_scripts {
namespace {

using shadow::AutocastScope;
using shadow::Op;
using shadow::StageScope;

constexpr std::int64_t clip_l = 768, openclip_bigg = 1280, size_embedding = 256;

class Sdxl final : public NetworkTrainer {
  public:
    Sdxl(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : NetworkTrainer(job_in, catalogue, run_in,
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
                                   const Batch& batch) {
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

    [[nodiscard]] Prediction get_noise_pred_and_target(const Batch& batch, const Tensor& latents,
                                                       Tensors& text_encoder_conds) override {
        const Noisy noisy = prepare(latents, text_encoder_conds);
        Prediction out;
        {
            const StageScope stage(run, "forward");
            const AutocastScope autocast(run, amp());
            out.noise_pred = call_unet(noisy.noisy_latents, noisy.timesteps, text_encoder_conds, batch);
        }
        forward_ended();
        out.target = noisy.noise;
        out.timesteps = noisy.timesteps;
        return out;
    }

    void sample_image_inference(const job::Batch&) override {}
};

}  // namespace

std::unique_ptr<NetworkTrainer> make_sdxl(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<Sdxl>(job, catalogue, run);
}

}  // namespace vram::trainers::sd_scripts
