// FluxNetworkTrainer (flux_train_network.py, 48d368fa), of FLUX.1.
#include <algorithm>
#include <utility>

#include "shadow/ops.hpp"
#include "trainers/sd_scripts/network_trainer.hpp"

namespace vram::trainers::sd_scripts {
namespace {

using shadow::AutocastScope;
using shadow::Category;
using shadow::ComponentScope;
using shadow::Dims;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

constexpr std::int64_t clip_l = 768, t5_xxl = 4096;

class Flux final : public NetworkTrainer {
  public:
    Flux(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : NetworkTrainer(job_in, catalogue, run_in,
                         flux_network(std::get<job::Lora>(std::get<job::Training>(job_in.work).method))) {}

  private:
    [[nodiscard]] std::int64_t latent_channels() const override { return 16; }
    /// AutoEncoder.encode, which draws, shifts and scales itself.
    [[nodiscard]] Tensor encode_images_to_latents(const Tensor& images, const job::Batch& sizes) override {
        models::Request request = request_of(sizes);
        request.batch = images.size(0);
        request.dtype = job.pipeline.vae_dtype;
        request.operation = models::Request::Operation::encode;
        return vae->forward({images}, request)[0];
    }
    [[nodiscard]] Tensor shift_scale_latents(const Tensor& latents) override { return latents; }
    void get_noise_scheduler() override {}  // its tables stay on the host

    /// FluxTextEncodingStrategy.encode_tokens: {l_pooled, t5_out, txt_ids}; of T5 nothing where it is cached.
    [[nodiscard]] Tensors encode_tokens(const Tensors& input_ids, std::int64_t batch) override {
        Tensor l_pooled = call(*text_encoders[0], {input_ids[0]}, text_request(batch, false))[1];
        if (job.pipeline.cache_text) return {std::move(l_pooled)};
        Tensors t5 = text_encoders[1]->forward({input_ids[1]}, t5_request(batch));
        const Tensor t5_out = t5[0];
        const Tensor txt_ids = run.empty({batch, job.text_tokens, 3}, Dtype::f32, Op::zeros);
        return {l_pooled, t5_out, txt_ids};
    }

    /// Of T5 with output_hidden_states.
    [[nodiscard]] models::Request t5_request(std::int64_t batch) const {
        models::Request request = text_request(batch, true);
        request.text_tokens = job.text_tokens;
        request.attention_mask = masks();
        return request;
    }

    /// FluxTokenizeStrategy.tokenize: of CLIP-L, of T5, and the latter's mask.
    [[nodiscard]] std::vector<Dims> token_sizes(std::int64_t batch) const override {
        return {{batch, clip_tokens}, {batch, job.text_tokens}, {batch, job.text_tokens}};
    }

    [[nodiscard]] std::vector<models::Value> cached_text(std::int64_t batch) const override {
        return {{"l_pooled", {batch, clip_l}, Dtype::f32},
                {"t5_out", {batch, job.text_tokens, t5_xxl}, Dtype::f32},
                {"txt_ids", {batch, job.text_tokens, 3}, Dtype::f32},
                {"t5_attn_mask", {batch, job.text_tokens}, Dtype::f32}};
    }

    /// flux_train_utils.get_noisy_model_input_and_timesteps, timestep_sampling shift.
    Tensor get_noisy_model_input(const Tensor& latents, const Tensor& noise, Tensor& timesteps, Tensor& sigmas) {
        const std::int64_t bsz = latents.size(0);
        sigmas = run.empty({bsz}, Dtype::f32, Op::noise);
        sigmas = shadow::mul_scalar(sigmas);
        sigmas = shadow::sigmoid(sigmas);
        {
            const Tensor shifted = shadow::mul_scalar(sigmas);
            Tensor rest = shadow::mul_scalar(sigmas);
            rest = shadow::add_scalar(std::move(rest));
            sigmas = shadow::div(shifted, std::move(rest));
        }
        Tensor counted = shadow::mul_scalar(sigmas);
        sigmas = shadow::view(sigmas, {-1, 1, 1, 1});
        Tensor noisy_model_input;
        {
            Tensor kept = shadow::rsub_scalar(sigmas);
            kept = shadow::mul(std::move(kept), latents);
            Tensor added = shadow::mul(sigmas, noise);
            noisy_model_input = shadow::add(std::move(kept), std::move(added));
        }
        Tensor out = shadow::to(noisy_model_input, job.dtype);
        timesteps = shadow::to(counted, job.dtype);
        return out;
    }

    /// [B, C, h, w] → [B, h w / 4, 4 C], a copy.
    [[nodiscard]] static Tensor pack_latents(Tensor x) {
        const std::int64_t b = x.size(0), c = x.size(1), h = x.size(2) / 2, w = x.size(3) / 2;
        x = shadow::view(std::move(x), {b, c, h, 2, w, 2});
        x = shadow::permute(std::move(x), {0, 2, 4, 1, 3, 5});
        return shadow::reshape(std::move(x), {b, h * w, 4 * c});
    }
    [[nodiscard]] static Tensor unpack_latents(Tensor x, std::int64_t h, std::int64_t w) {
        const std::int64_t b = x.size(0), c = x.size(2) / 4;
        x = shadow::view(std::move(x), {b, h, w, c, 2, 2});
        x = shadow::permute(std::move(x), {0, 3, 1, 4, 2, 5});
        return shadow::reshape(std::move(x), {b, c, 2 * h, 2 * w});
    }

    /// --apply_t5_attn_mask
    [[nodiscard]] bool masks() const { return job.pipeline.options.contains("apply_t5_attn_mask"); }

    /// --model_prediction_type, sigma_scaled where it is not said.
    [[nodiscard]] bool predicts(std::string_view type) const {
        const auto found = job.pipeline.options.find("model_prediction_type");
        return (found == job.pipeline.options.end() ? "sigma_scaled" : found->second) == type;
    }

    [[nodiscard]] Prediction get_noise_pred_and_target(const Batch& batch, const Tensor& latents,
                                                       Tensors& text_encoder_conds) override {
        const std::int64_t height = latents.size(2) / 2, width = latents.size(3) / 2;
        Prediction out;
        Tensor noise, timesteps, sigmas, noisy_model_input, packed_noisy_model_input, img_ids, guidance_vec;
        {
            const StageScope stage(run, "noise");
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            noise = run.empty_like(latents, Op::noise);
            noisy_model_input = get_noisy_model_input(latents, noise, timesteps, sigmas);
            packed_noisy_model_input = pack_latents(noisy_model_input);
            img_ids = run.empty({batch.sizes.count, height * width, 3}, Dtype::f32, Op::to_device);
            guidance_vec = run.empty({batch.sizes.count}, Dtype::f32, Op::full);
            const Tensor asked = shadow::div_scalar(timesteps);  // get_mod_vectors, which has none
        }
        if (training.gradient_checkpointing) {
            if (!predicts("raw")) requires_grad_(noisy_model_input);  // else it is in no graph
            // The mask asks for one, too, and is in no graph.
            for (std::size_t i = 0; i < 3; ++i) requires_grad_(text_encoder_conds[i]);
            requires_grad_(img_ids);
            requires_grad_(guidance_vec);
        }
        Tensor model_pred;
        {
            const StageScope stage(run, "forward");
            const AutocastScope autocast(run, amp());
            const Tensor t = shadow::div_scalar(timesteps);
            Tensors args{packed_noisy_model_input, img_ids,     text_encoder_conds[1], text_encoder_conds[2], t,
                         text_encoder_conds[0],    guidance_vec};
            if (masks()) args.push_back(text_encoder_conds[3]);
            model_pred = unet.prepared(args, request_of(batch.sizes), amp())[0];
        }
        forward_ended();
        const StageScope stage(run, "loss");
        model_pred = unpack_latents(model_pred, height, width);
        if (predicts("sigma_scaled")) {
            Tensor scaled;
            {
                const Tensor away = shadow::neg(sigmas);
                scaled = shadow::mul(model_pred, away);
            }
            model_pred = shadow::add(scaled, noisy_model_input);
            scaled = Tensor();
            out.weighting = run.empty(sigmas.sizes(), Dtype::f32, Op::ones);
        } else if (predicts("additive")) {
            model_pred = shadow::add(model_pred, noisy_model_input);
        }
        out.noise_pred = std::move(model_pred);
        out.target = shadow::sub(noise, latents);
        out.timesteps = timesteps;
        return out;
    }

    /// LoRANetwork.update_grad_norms: of each module what the gradient of its layer's weight would be, in fp16.
    void update_grad_norms() override {
        const StageScope stage(run, "grad_norms");
        const NoGrad no_grad(run);
        std::size_t index = 0;
        for (const auto& text_encoder : text_encoders)
            for (const nn::Adapter& lora : text_encoder->weights.adapters) update_grad_norms(lora, index++);
        for (const nn::Adapter& lora : unet.weights.adapters) update_grad_norms(lora, index++);
    }

    void update_grad_norms(const nn::Adapter& lora, std::size_t index) {
        const shadow::Parameter &lora_down = *lora.own[0], &lora_up = *lora.own[1];
        if (!lora_down.grad.defined() || !lora_up.grad.defined()) return;
        grad_norms_.resize(std::max(grad_norms_.size(), index + 1));
        Tensor approx_grad;
        const AutocastScope autocast(run, {true, Dtype::f16});
        {
            Tensor sum;
            {
                const Tensor by_down = shadow::matmul(lora_up.value, lora_down.grad);
                const Tensor by_up = shadow::matmul(lora_up.grad, lora_down.value);
                sum = shadow::add(by_down, by_up);
            }
            approx_grad = shadow::mul_scalar(sum);
        }
        grad_norms_[index] = shadow::vector_norm(approx_grad, 1);
    }

    /// LoRANetwork.grad_norms, and its mean: train() has a name for the former.
    void log_norms() override {
        const NoGrad no_grad(run);
        Tensors means;
        for (const Tensor& norm : grad_norms_)
            if (norm.defined()) means.push_back(shadow::mean(norm, 0, false));
        if (means.size() == 0) return;
        Tensor stacked = shadow::stack(means, 0);
        logged_ = std::move(stacked);
        means.clear();
        const Tensor mean = shadow::mean_all(logged_);
    }

    /// cache_text_encoder_outputs_if_needed: captions of a batch at a time, then the samples' prompts, whose outputs
    /// stay.
    void cache_text_encoder_outputs() override {
        for (const auto& text_encoder : text_encoders) text_encoder->to_gpu();
        {
            const NoGrad no_grad(run);
            const AutocastScope autocast(run, amp());
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            {
                const Tensors outputs = encode_both(training.batches.front().count);
                Tensors floats;
                for (const Tensor& output : outputs)
                    if (output.dtype() == Dtype::bf16) floats.push_back(shadow::to_float(output));
            }
            // Each prompt, and the empty one that stands for what is not wanted.
            const std::size_t prompts = job.sampling.images.empty() ? 0 : job.sampling.images.size() + 1;
            for (std::size_t i = 0; i < prompts; ++i) sample_prompts_te_outputs_.push_back(encode_both(1));
        }
        if (!trains_text()) text_encoders[0]->to_cpu();
        text_encoders[1]->to_cpu();
        clean_memory_on_device();
    }

    /// Both encoders, whatever trains: {l_pooled, t5_out, txt_ids}.
    [[nodiscard]] Tensors encode_both(std::int64_t batch) {
        const std::vector<Dims> sizes = token_sizes(batch);
        Tensor l_pooled, t5_out;
        {
            const Tensor l_tokens = run.empty(sizes[0], Dtype::i64, Op::to_device);
            l_pooled = text_encoders[0]->forward({l_tokens}, text_request(batch, false))[1];
        }
        const Tensor t5_tokens = run.empty(sizes[1], Dtype::i64, Op::to_device);
        Tensors tokens_and_mask{t5_tokens};
        if (masks()) tokens_and_mask.push_back(run.empty(sizes[2], Dtype::i64, Op::to_device));
        const Tensors t5 = text_encoders[1]->forward(tokens_and_mask, t5_request(batch));
        t5_out = t5[0];
        const Tensor txt_ids = run.empty({batch, job.text_tokens, 3}, Dtype::f32, Op::zeros);
        if (!masks()) return {l_pooled, t5_out, txt_ids};
        return {l_pooled, t5_out, txt_ids, tokens_and_mask[1]};
    }

    /// flux_train_utils.sample_images: what autocast casts of the adapter lives to the end.
    void sample_all() override {
        const AutocastScope autocast(run, amp());
        for (const job::Batch& image : job.sampling.images) {
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            Tensor noise, img_ids;
            Tensor x = denoise_image(image, noise, img_ids);
            const StageScope stage(run, "decode");
            x = unpack_latents(x, image.height / 16, image.width / 16);
            const bool ae_was_there = vae->on_gpu();
            vae->to_gpu();
            models::Request request = request_of(image);
            request.batch = 1;
            request.dtype = job.pipeline.vae_dtype;
            request.operation = models::Request::Operation::decode;
            x = vae->forward({x}, request)[0];
            vae->move(ae_was_there);
            x = shadow::clamp(x);
            Tensor pixels = shadow::add_scalar(x);
            pixels = shadow::mul_scalar(std::move(pixels));
        }
    }

    /// What sample_image_inference has names for until it returns: `noise`, `img_ids`.
    [[nodiscard]] Tensor denoise_image(const job::Batch& image, Tensor& noise, Tensor& img_ids) {
        const std::int64_t tokens = image.height / 16 * (image.width / 16);
        Tensors conds;
        {
            const StageScope stage(run, "text");
            if (job.pipeline.cache_text && trains_text()) {  // CLIP-L anew, in the list of what is cached
                const Tensor l_tokens = run.empty({1, clip_tokens}, Dtype::i64, Op::to_device);
                sample_prompts_te_outputs_.front()[0] = call(*text_encoders[0], {l_tokens}, text_request(1, false))[1];
            }
            conds = sample_prompts_te_outputs_.empty() ? encode_both(1) : sample_prompts_te_outputs_.front();
            noise = run.empty({1, tokens, 64}, job.pipeline.vae_dtype, Op::noise);
            img_ids = run.empty({1, tokens, 3}, job.pipeline.vae_dtype, Op::to_device);
        }
        const StageScope stage(run, "denoise");
        const Tensor guidance_vec = run.empty({1}, job.pipeline.vae_dtype, Op::full);
        Tensor x = noise, t_vec, pred;
        for (int i = 0; i < 2; ++i) {
            {
                Tensor now = run.empty({1}, x.dtype(), Op::full);
                t_vec = std::move(now);
            }
            {
                Tensors args{x, img_ids, conds[1], conds[2], t_vec, conds[0], guidance_vec};
                if (masks()) args.push_back(conds[3]);
                Tensor now = unet.prepared(args, request_of(image), amp())[0];
                pred = std::move(now);
            }
            Tensor moved = shadow::mul_scalar(pred);
            x = shadow::add(x, std::move(moved));
        }
        return x;
    }

    std::vector<Tensors> sample_prompts_te_outputs_;
    std::vector<Tensor> grad_norms_;  // of each module
    Tensor logged_;
};

}  // namespace

std::unique_ptr<NetworkTrainer> make_flux(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<Flux>(job, catalogue, run);
}

}  // namespace vram::trainers::sd_scripts
