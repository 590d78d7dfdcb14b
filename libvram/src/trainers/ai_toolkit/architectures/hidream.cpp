// `arch: hidream`: HidreamModel (extensions_built_in/diffusion_models/hidream/hidream_model.py, 27a03a91), and the
// HiDreamImagePipeline and FlowUniPCMultistepScheduler beside it.
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/pipeline.hpp"

namespace vram::trainers::ai_toolkit::hidream {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

/// Two by two latent pixels are a token.
constexpr std::int64_t patch_size = 2, pixels_a_token = 16;
/// All four encoders pad to it.
constexpr std::int64_t max_sequence_length = 128;
/// The pipeline renders as many pixels, whatever is asked.
constexpr double rendered_pixels = 1024 * 1024;
/// What an oblong picture is padded to: the published config's max_resolution, in tokens.
constexpr std::int64_t max_seq = 128 * 128 / (patch_size * patch_size);

/// Joined embeds are a longer list, of which the class looks at the first and the last.
const Tensor& t5_of(const PromptEmbeds& embeds) { return embeds.text_embeds[0]; }
const Tensor& llama_of(const PromptEmbeds& embeds) { return embeds.text_embeds[embeds.text_embeds.size() - 1]; }

/// FlowUniPCMultistepScheduler, of order 2 with "bh2": what lies on the GPU. Its sigmas are numbers on the host.
class Solver {
  public:
    Solver(Run& run, std::int64_t steps) : run_(run), steps_(steps) {
        timesteps_ = run.empty({steps}, Dtype::i64, Op::to_device);
    }

    [[nodiscard]] Tensor timestep() const { return shadow::slice(timesteps_, 0, 0, 1); }

    [[nodiscard]] Tensor step(const Tensor& model_output, Tensor sample) {
        if (step_index_ == 0) {  // index_for_timestep
            const Tensor is_it = run_.empty({steps_}, Dtype::boolean, Op::eq);
            const Tensor indices = run_.empty({1, 1}, Dtype::i64, Op::index);
        }
        Tensor model_output_convert;
        {
            Tensor away = shadow::mul_scalar(model_output);
            model_output_convert = shadow::sub(sample, std::move(away));
        }
        if (step_index_ > 0) sample = correct(model_output_convert, sample);
        model_outputs_[0] = model_outputs_[1];
        model_outputs_[1] = model_output_convert;
        order_ = std::min({std::int64_t{2}, steps_ - step_index_, step_index_ + 1});
        last_sample_ = sample;
        Tensor prev_sample = predict(sample);
        ++step_index_;
        return prev_sample;
    }

  private:
    /// rks, R and b of the update.
    struct Coefficients {
        Tensor rks, r, b;
    };
    [[nodiscard]] Coefficients coefficients() const {
        Coefficients out;
        out.rks = run_.empty({order_}, Dtype::f32, Op::to_device);
        std::vector<Tensor> powers;
        for (std::int64_t i = 0; i < order_; ++i) powers.push_back(shadow::pow_scalar(out.rks));
        out.r = shadow::stack(powers, 0);
        out.b = run_.empty({order_}, Dtype::f32, Op::to_device);
        return out;
    }
    /// torch.stack(D1s, dim=1) of the one output before; undefined in order 1.
    [[nodiscard]] Tensor differences(const Tensor& m0, const Tensor& mi) const {
        if (order_ == 1) return {};
        Tensor away = shadow::sub(mi, m0);
        const Tensor d1 = shadow::div_scalar(std::move(away));
        return shadow::stack(std::vector<Tensor>{d1}, 1);
    }
    /// x * number - m0 * number
    [[nodiscard]] static Tensor moved(const Tensor& x, const Tensor& m0) {
        const Tensor kept = shadow::mul_scalar(x);
        const Tensor away = shadow::mul_scalar(m0);
        return shadow::sub(kept, away);
    }

    // multistep_uni_c_bh_update
    [[nodiscard]] Tensor correct(const Tensor& model_t, Tensor x_t) const {
        const Tensor &m0 = model_outputs_[1], &x = last_sample_;
        const Coefficients known = coefficients();
        const Tensor d1s = differences(m0, model_outputs_[0]);
        const Tensor rhos_c = run_.empty({order_}, x.dtype(), Op::to_device);
        const Tensor x_t_ = moved(x, m0);
        Tensor corr_res;
        if (d1s.defined()) corr_res = run_.empty(x.sizes(), x.dtype(), Op::sum);
        const Tensor d1_t = shadow::sub(model_t, m0);
        Tensor wanted = shadow::mul_scalar(d1_t);
        wanted = corr_res.defined() ? shadow::add(corr_res, std::move(wanted)) : shadow::add_scalar(std::move(wanted));
        wanted = shadow::mul_scalar(std::move(wanted));
        x_t = shadow::sub(x_t_, std::move(wanted));
        return x_t;
    }
    // multistep_uni_p_bh_update
    [[nodiscard]] Tensor predict(const Tensor& x) const {
        const Tensor& m0 = model_outputs_[1];
        const Coefficients known = coefficients();
        const Tensor d1s = differences(m0, model_outputs_[0]);
        Tensor rhos_p, pred_res;
        if (d1s.defined()) rhos_p = run_.empty({1}, x.dtype(), Op::to_device);
        const Tensor x_t_ = moved(x, m0);
        if (!d1s.defined()) return shadow::sub(x_t_, run_.on_cpu(Dims{}, Dtype::f32));
        pred_res = run_.empty(x.sizes(), x.dtype(), Op::sum);
        Tensor away = shadow::mul_scalar(pred_res);
        return shadow::sub(x_t_, std::move(away));
    }

    Run& run_;
    std::int64_t steps_, step_index_ = 0, order_ = 1;
    Tensor timesteps_, last_sample_;
    Tensor model_outputs_[2];
};

class HiDream final : public Pipeline {
  public:
    HiDream(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : Pipeline(architecture, job_in, catalogue, run_in),
          llama_layers_(catalogue.model_of(job_in.pipeline.text_encoders[3]).config.integer("num_hidden_layers")) {}

    void load_model(Loading& loading) override {
        const job::Pipeline& parts = job.pipeline;
        const bool quantizes = job.quantization != job::Quantization::none;
        const bool quantizes_text = parts.text_encoder_quantization != job::Quantization::none;
        const auto text_encoder_to_gpu = [&](Part& text_encoder) {
            if (!quantizes_text) {
                text_encoder.to_gpu();
                return;
            }
            text_encoder.load_full();
            text_encoder.quantize();
            text_encoder.loaded();
        };
        if (quantizes || quantizes_text) loading.quantizes();
        Part& text_encoder_4 = *text_encoders[3];
        text_encoder_to_gpu(text_encoder_4);
        if (parts.low_vram) text_encoder_4.to_cpu();
        flush();
        if (!quantizes) {
            if (!parts.low_vram) transformer.to_gpu();
        } else if (parts.low_vram) {
            transformer.quantize_blocks_first();
            transformer.to_cpu();
        } else {
            transformer.load_full();
            transformer.quantize();
            transformer.loaded();
        }
        flush();
        vae->to_gpu();
        text_encoders[0]->to_gpu();
        text_encoders[1]->to_gpu();
        flush();
        text_encoder_to_gpu(*text_encoders[2]);
        flush();
        transformer.to_gpu();
        text_encoder_4.to_gpu();
        flush();
        vae->to_cpu();  // BaseSDTrainProcess.run
        flush();
    }

    /// HiDreamImagePipeline._encode_prompt: {T5's [B, T, D], Llama's of each layer [L, B, T, D]}
    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override {
        for (const std::unique_ptr<Part>& text_encoder : text_encoders) text_encoder->to_gpu();
        PromptEmbeds out;
        out.is_list = true;
        const Tensor pooled_prompt_embeds_1 = get_clip_prompt_embeds(*text_encoders[0], prompts.count);
        const Tensor pooled_prompt_embeds_2 = get_clip_prompt_embeds(*text_encoders[1], prompts.count);
        out.pooled_embeds = shadow::cat({pooled_prompt_embeds_1, pooled_prompt_embeds_2}, -1);
        out.text_embeds.push_back(get_t5_prompt_embeds(prompts.count));
        out.text_embeds.push_back(get_llama3_prompt_embeds(prompts.count));
        return out;
    }

    [[nodiscard]] Dims latents(const job::Batch& batch) const override {
        return {batch.count, 16, batch.height / 8, batch.width / 8};
    }

    [[nodiscard]] Tensor encode_images(Tensor image_list, const job::Batch& batch) override {
        return encode_kl(std::move(image_list), batch);
    }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input_in, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        Tensor latent_model_input = latent_model_input_in;
        Tensors args{latent_model_input, timestep, t5_of(text_embeddings), llama_of(text_embeddings),
                     text_embeddings.pooled_embeds};
        Tensor img_sizes, img_ids, out;
        if (is_oblong(batch)) {
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            img_sizes = run.empty({1, 2}, Dtype::i64, Op::to_device);
            img_sizes = shadow::cat(copies(img_sizes, batch.count), 0);
            img_ids = run.empty({1, max_seq, 3}, Dtype::f32, Op::to_device);
            img_ids = shadow::cat(copies(img_ids, batch.count), 0);
            args[0] = Tensor();
            pack(latent_model_input, out);
            args[0] = latent_model_input;
            args.push_back(img_sizes);
            args.push_back(img_ids);
        }
        Tensor noise_pred = transform(args, request_of(batch));
        return shadow::neg(std::move(noise_pred));
    }

    /// HiDreamImagePipeline.__call__ with given embeds: rendered at 1 MP.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        const job::Batch picture = rendered(image);
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        const bool guides = job.sampling.guidance > 1;
        Tensor t5 = t5_of(conditional_embeds), llama = llama_of(conditional_embeds),
               pooled_prompt_embeds = conditional_embeds.pooled_embeds;
        Tensor latents, img_sizes, img_ids, latent_model_input, out, noise_pred, noise_pred_uncond, noise_pred_text;
        std::optional<Solver> scheduler;
        {
            const StageScope stage(run, "denoise");
            job::Batch batch = picture;
            if (guides) {
                batch.count = 2;
                t5 = shadow::cat({t5_of(unconditional_embeds), t5}, 0);
                llama = shadow::cat({llama_of(unconditional_embeds), llama}, 1);
                pooled_prompt_embeds = shadow::cat({unconditional_embeds.pooled_embeds, pooled_prompt_embeds}, 0);
            }
            latents = run.empty(this->latents(picture), pooled_prompt_embeds.dtype(), Op::to_device);
            if (is_oblong(picture)) {
                img_sizes = run.empty({1, 2}, Dtype::i64, Op::to_device);
                img_ids = run.empty({1, max_seq, 3}, Dtype::f32, Op::to_device);
                if (guides) {
                    img_sizes = shadow::repeat(img_sizes, {2, 1});
                    img_ids = shadow::repeat(img_ids, {2, 1, 1});
                }
            }
            scheduler.emplace(run, job.sampling.steps);
            const models::Request request = request_of(batch);
            // From the third on a step finds what the one before found: two outputs and a corrected sample.
            for (std::int64_t i = 0; i < std::min<std::int64_t>(job.sampling.steps, 3); ++i) {
                latent_model_input = guides ? shadow::cat({latents, latents}, 0) : latents;
                const Tensor timestep = shadow::expand(scheduler->timestep(), {batch.count});
                if (is_oblong(picture)) pack(latent_model_input, out);
                Tensors args{latent_model_input, timestep, t5, llama, pooled_prompt_embeds};
                if (is_oblong(picture)) {
                    args.push_back(img_sizes);
                    args.push_back(img_ids);
                }
                noise_pred = transform(args, request);
                noise_pred = shadow::neg(noise_pred);
                if (guides) {
                    const Tensors halves = shadow::chunk(noise_pred, 2, 0);
                    noise_pred_uncond = halves[0];
                    noise_pred_text = halves[1];
                    Tensor away = shadow::sub(noise_pred_text, noise_pred_uncond);
                    away = shadow::mul_scalar(std::move(away));
                    noise_pred = shadow::add(noise_pred_uncond, std::move(away));
                }
                latents = scheduler->step(noise_pred, latents);
            }
        }
        const StageScope stage(run, "decode");
        Tensor scaled = shadow::div_scalar(latents);
        latents = shadow::add_scalar(std::move(scaled));
        decode(latents, picture);
    }

  private:
    [[nodiscard]] static bool is_oblong(const job::Batch& batch) { return batch.width != batch.height; }

    [[nodiscard]] static std::vector<Tensor> copies(const Tensor& one, std::int64_t count) {
        return std::vector<Tensor>(static_cast<std::size_t>(count), one);
    }

    [[nodiscard]] models::Request request_of(const job::Batch& batch) const {
        models::Request request;
        request.batch = batch.count;
        request.width = batch.width;
        request.height = batch.height;
        request.text_tokens = max_sequence_length;
        request.dtype = job.dtype;
        return request;
    }

    [[nodiscard]] static job::Batch rendered(job::Batch image) {
        const double scale =
            std::sqrt(rendered_pixels / static_cast<double>(image.width) / static_cast<double>(image.height));
        const auto side = [&](std::int64_t length) {
            const double tokens = std::floor(static_cast<double>(length) * scale / static_cast<double>(pixels_a_token));
            return static_cast<std::int64_t>(tokens) * pixels_a_token;
        };
        image.width = side(image.width);
        image.height = side(image.height);
        return image;
    }

    /// [B, C, H, W] → [B, C, max_seq, patch * patch], which `out` is a name of, too.
    void pack(Tensor& latent_model_input, Tensor& out) const {
        const Dims sizes = latent_model_input.sizes();
        const std::int64_t p = patch_size, height = sizes[2] / p, width = sizes[3] / p;
        if (height * width > max_seq)
            throw shadow::Refused("an oblong picture is padded to " + std::to_string(max_seq) +
                                  " tokens; this one has " + std::to_string(height * width));
        out = run.empty({sizes[0], sizes[1], max_seq, p * p}, latent_model_input.dtype(), Op::zeros);
        Tensor patches = shadow::reshape(latent_model_input, {sizes[0], sizes[1], height, p, width, p});
        patches = shadow::permute(std::move(patches), {0, 1, 2, 4, 3, 5});
        latent_model_input = shadow::reshape(std::move(patches), {sizes[0], sizes[1], height * width, p * p});
        latent_model_input = out;
    }

    [[nodiscard]] models::Request text_request(std::int64_t count) const {
        models::Request request;
        request.batch = count;
        request.text_tokens = max_sequence_length;
        request.dtype = job.pipeline.text_encoder_dtype;
        return request;
    }

    [[nodiscard]] Tensor get_clip_prompt_embeds(Part& text_encoder, std::int64_t count) {
        models::Request request = text_request(count);
        request.all_hidden_states = true;
        const Tensor prompt_embeds = text_embeds(text_encoder, request);
        return shadow::repeat(prompt_embeds, {1, 1});
    }
    /// The output of CLIPTextModelWithProjection dies but for its text_embeds.
    [[nodiscard]] Tensor text_embeds(Part& text_encoder, const models::Request& request) {
        const Tensors text_input_ids = on_device(run, text_encoder.model->inputs(request));
        const Tensors output = text_encoder.forward(text_input_ids, request);
        return output[output.size() - 1];
    }

    [[nodiscard]] Tensor get_t5_prompt_embeds(std::int64_t count) {
        models::Request request = text_request(count);
        request.attention_mask = true;
        Part& text_encoder_3 = *text_encoders[2];
        Tensor prompt_embeds;
        {
            const Tensors tokens = on_device(run, text_encoder_3.model->inputs(request));
            prompt_embeds = text_encoder_3.forward(tokens, request)[0];
        }
        return shadow::repeat(prompt_embeds, {1, 1, 1});
    }

    /// The output holds the logits, keys and values, attentions, until the call returns.
    [[nodiscard]] Tensor get_llama3_prompt_embeds(std::int64_t count) {
        models::Request request = text_request(count);
        request.attention_mask = request.all_hidden_states = request.use_cache = true;
        Part& text_encoder_4 = *text_encoders[3];
        Tensors outputs;
        {
            const Tensors tokens = on_device(run, text_encoder_4.model->inputs(request));
            outputs = text_encoder_4.forward(tokens, request);
        }
        // {logits, what went into the first layer, of each layer, …}
        const std::vector<Tensor> hidden_states(outputs.begin() + 2, outputs.begin() + 2 + llama_layers_);
        Tensor prompt_embeds = shadow::stack(hidden_states, 0);
        prompt_embeds = shadow::repeat(prompt_embeds, {1, 1, 1, 1});
        return prompt_embeds;
    }

    std::int64_t llama_layers_;
};

constexpr std::string_view names[] = {"hidream"};
constexpr std::string_view text_encoders[] = {"clip_l_long", "openclip_bigg_long", "t5_xxl", "llama31_8b_causal_eager"};
constexpr std::string_view block_names[] = {"double_stream_blocks", "single_stream_blocks"};

bool plays(const profile::ModelProfile& profile) { return profile.family == "hidream"; }

// Full, Dev and Fast are one net.
std::string_view taken_for(std::string_view, std::string_view) { return "hidream_i1"; }

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<HiDream>(job, catalogue, run);
}

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "HiDream",
    .models = "HiDream-I1",
    .vae = "vae_flux1",
    .text_encoders = text_encoders,
    .text_tokens = max_sequence_length,
    .bucket_step = 16,
    .divisible_by = pixels_a_token,
    .unplayed_guidance =
        "of the joined prompts the class takes the first's T5 and the last's Llama, and both pooled ones",
    .own_denoiser = "hidream_ai_toolkit",
    .quantized_text_encoders = 2,
    // predict_noise counts the items of a list by its first tensor (toolkit/models/base_model.py).
    .most_items_of_kept_text = 1,
    .fails_without_checkpointing =
        "experts write into one tensor in turn, which autograd refuses unless gradient "
        "checkpointing hides it",
    .modules = {.block_names = block_names},
    .plays = plays,
    .taken_for = taken_for,
    .make = make,
};

}  // namespace vram::trainers::ai_toolkit::hidream
