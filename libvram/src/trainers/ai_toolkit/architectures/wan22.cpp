// `arch: wan22_14b`, `wan22_14b_i2v` and `wan22_5b`: Wan2214bModel, Wan2214bI2VModel and Wan225bModel, with the
// trainer's Wan22Pipeline (extensions_built_in/diffusion_models/wan22/, 27a03a91).
#include <algorithm>
#include <optional>

#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/wan.hpp"
#include "trainers/named_model.hpp"

namespace vram::trainers::ai_toolkit {
namespace wan {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

/// What both sizes have: Wan22Pipeline.
class Wan22 : public Wan21 {
  public:
    using Wan21::Wan21;

  protected:
    /// One of the pipeline's two models; of one model both are the same.
    [[nodiscard]] virtual Part& transformer_of(bool high_noise) = 0;

    /// Wan22Pipeline.__call__ with given embeds. `given` are latents that were made before, with or without channels
    /// that stand beside them; `noise_mask` what of them is noise; each undefined where there is none.
    void run_pipeline(const PromptEmbeds& prompt_embeds, const PromptEmbeds& negative_prompt_embeds,
                      const job::Batch& image, const Tensor& given, const Tensor& noise_mask, bool tiling,
                      bool expand_timesteps) {
        const bool aggressive_offload = job.pipeline.low_vram;
        if (aggressive_offload) {
            vae->to_cpu();
            transformer_of(true).to_cpu();
            transformer_of(false).to_cpu();
            for (const std::unique_ptr<Part>& text_encoder : text_encoders) text_encoder->to_gpu();
            flush();
            for (const std::unique_ptr<Part>& text_encoder : text_encoders) text_encoder->to_cpu();
            transformer_of(true).to_gpu();
            flush();
        }
        Tensor latents, conditioning, mask, temp_ts, timestep, latent_model_input, pre_condition_latent_model_input;
        Predicted names;
        Tensors schedule;
        {
            const StageScope stage(run, "denoise");
            schedule = set_timesteps();
            if (given.defined()) {
                latents = given;
                if (const std::int64_t channels = given.size(1); channels > z_dim) {
                    conditioning = shadow::slice(given, 1, z_dim, channels);
                    latents = shadow::slice(given, 1, 0, z_dim);
                }
                latents = shadow::to_float(latents);
            } else {
                latents = prepare_latents(image, Dtype::f32);
            }
            mask = noise_mask.defined() ? noise_mask : run.empty(latents.sizes(), Dtype::f32, Op::ones);
            // The first step is of much noise; the last one, if there are more, of little: boundary_ratio.
            const std::int64_t last = std::min<std::int64_t>(job.sampling.steps, 2);
            for (std::int64_t i = 0; i < 2; ++i) {
                const bool high_noise = i == 0 || last == 1;
                if (!high_noise && aggressive_offload) {
                    transformer_of(true).to_cpu();
                    transformer_of(false).to_gpu();
                }
                latent_model_input = shadow::to(latents, job.dtype);
                if (expand_timesteps) {
                    temp_ts = of_tokens(mask);
                    timestep = shadow::unsqueeze(temp_ts, 0);
                } else {
                    timestep = shadow::slice(schedule[0], 0, 0, 1);  // t.expand
                }
                pre_condition_latent_model_input = shadow::clone(latent_model_input);
                if (conditioning.defined()) latent_model_input = shadow::cat({latent_model_input, conditioning}, 1);
                predict(transformer_of(high_noise), {latent_model_input, timestep}, prompt_embeds,
                        negative_prompt_embeds, image, names);
                latents = scheduler_step(names.noise_pred, latents);
                Tensor kept;
                {
                    Tensor rest = shadow::rsub_scalar(mask);
                    kept = shadow::mul(pre_condition_latent_model_input, std::move(rest));
                }
                Tensor moved = shadow::mul(latents, mask);
                latents = shadow::add(std::move(kept), std::move(moved));
            }
        }
        {
            const StageScope stage(run, "decode");
            if (aggressive_offload) {
                transformer_of(true).to_cpu();
                transformer_of(false).to_cpu();
                vae->to_gpu();
                flush();
            }
            decode_video(latents, image, tiling);
        }
        flush();
    }

    /// (mask[0][0][:, ::2, ::2] * t).flatten(): a timestep a token.
    [[nodiscard]] Tensor of_tokens(const Tensor& mask) {
        const Dims tokens{mask.size(2), (mask.size(3) + 1) / 2, (mask.size(4) + 1) / 2};
        return shadow::flatten(run.empty(tokens, Dtype::f32, Op::mul), 0, 2);
    }

    /// The control image of a sample, on the GPU: values of 0 to 1 become those of -1 to 1.
    [[nodiscard]] Tensor first_frame_n1p1(const job::Batch& image) {
        Tensor loaded = run.empty({1, 3, image.height, image.width}, job.dtype, Op::to_device);
        Tensor doubled = shadow::mul_scalar(std::move(loaded));
        return shadow::add_scalar(std::move(doubled));
    }

    /// pipeline.prepare_latents(…).to(self.torch_dtype)
    [[nodiscard]] Tensor noise_of(const job::Batch& image) {
        const Tensor noise = prepare_latents(image, Dtype::f32);
        return shadow::to(noise, job.dtype);
    }
};

/// DualWanTransformer3DModel: two transformers, one for the timesteps above the boundary, one for those below.
class Wan2214b : public Wan22 {
  public:
    Wan2214b(const Architecture& architecture, const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : Wan22(architecture, job_in, catalogue, run_in),
          trains_high_(option("train_high_noise", true)),
          trains_low_(option("train_low_noise", true)),
          high_noise_(trains_high_),
          transformer_2_(run, "transformer_2", rules_of(architecture, trains_low_),
                         profile_of(job, catalogue, job.model),
                         recovery_rules(architecture, job, "transformer.transformer_2")) {
        transformer_2_.block_lists = transformer.block_lists;
    }

    /// get_model_to_train
    [[nodiscard]] std::vector<Part*> denoisers() override {
        std::vector<Part*> out;
        if (trains_high_) out.push_back(&transformer);
        if (trains_low_) out.push_back(&transformer_2_);
        return out;
    }

    [[nodiscard]] Part& active() override { return transformer_of(high_noise_); }

    // DualWanTransformer3DModel.to does nothing: only its forward and the pipeline move its parts.
    void transformer_to(bool) override {}

    bool next_batch(std::int64_t batch) override {
        const bool before = high_noise_;
        const std::int64_t switches = batch / std::get<job::Training>(job.work).switch_boundary_every;
        high_noise_ = trains_high_ && (!trains_low_ || switches % 2 == 0);
        return high_noise_ == before;
    }

    // Both stages get gradients and optimizer state in their own first step.
    [[nodiscard]] std::vector<std::int64_t> steps() const override {
        if (!trains_high_ || !trains_low_) return {1, 2};
        const auto& training = std::get<job::Training>(job.work);
        const std::int64_t first = training.switch_boundary_every / training.gradient_accumulation + 1;
        std::vector<std::int64_t> out{1, 2};
        for (const std::int64_t step : {first, first + 1})
            if (step > out.back()) out.push_back(step);
        return out;
    }

    [[nodiscard]] Tensors adjust_multistage_timesteps(const Tensor& timesteps) override {
        const Tensor asc_timesteps = run.empty_like(timesteps, Op::clone);  // flip
        Tensors out{asc_timesteps};
        for (int i = 0; i < 2; ++i) {
            const Tensor value = run.empty({}, Dtype::f32, Op::to_device);
            const Tensor found = run.empty({}, Dtype::i64, Op::index);
            out.push_back(run.empty({}, Dtype::i64, Op::sub));  // lo, hi
        }
        return out;
    }

    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        run_pipeline(conditional_embeds, unconditional_embeds, image, {}, {}, use_vae_tiling(), false);
    }

  protected:
    void load_wan_transformer(Loading& loading) override {
        // One accuracy recovery adapter stands beside both, and both are there before it.
        const bool recovers = transformer.recovery != nullptr;
        for (Part* part : {&transformer, &transformer_2_}) {
            arrive(*part);
            if (recovers) continue;
            quantize(*part, loading);
            part->move(!job.pipeline.low_vram);
        }
        if (recovers) {
            begin_quantizing(loading);
            transformer.attach_recovery();
            transformer_2_.attach_recovery(false);
            quantize(transformer, loading);
            quantize(transformer_2_, loading);
        }
        transformer.attach_memory_manager();
        transformer_2_.attach_memory_manager();
    }

    [[nodiscard]] Part& transformer_of(bool high_noise) override { return high_noise ? transformer : transformer_2_; }

    /// DualWanTransformer3DModel.forward
    [[nodiscard]] Tensor model(const Tensors& args, const models::Request& request) override {
        Part& wanted = active();
        if (!wanted.on_gpu()) {
            if (job.pipeline.low_vram) transformer_of(!high_noise_).to_cpu();
            wanted.to_gpu();
            flush();
        }
        return transform(args, request);
    }

  private:
    /// The network wraps what it trains, and nothing else.
    nn::Rules rules_of(const Architecture& architecture, bool trains) {
        nn::Rules rules = transformer_rules(architecture);
        if (trains) return rules;
        rules.adapts = nullptr;
        rules.train_base = false;
        return rules;
    }

    bool trains_high_, trains_low_;
    bool high_noise_;  // which of the two trains now
    Part transformer_2_;
};

class Wan2214bI2V final : public Wan2214b {
  public:
    using Wan2214b::Wan2214b;

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        Tensor conditioned_latent;
        {
            const NoGrad no_grad(run);
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            conditioned_latent = add_first_frame_conditioning(latent_model_input, {});
        }
        return model({conditioned_latent, timestep, text_embeddings.text_embeds[0]},
                     request_of(batch, text_embeddings));
    }

    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        Tensor latents, first_frame, given;
        {
            const StageScope stage(run, "denoise");
            latents = noise_of(image);
            first_frame = first_frame_n1p1(image);
            given = add_first_frame_conditioning(latents, first_frame);
        }
        run_pipeline(conditional_embeds, unconditional_embeds, image, given, {}, false, false);
    }
};

class Wan225b final : public Wan22 {
  public:
    using Wan22::Wan22;

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep_in,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        i2v_loss_mask_ = Tensor();
        const models::Request request = request_of(batch, text_embeddings);
        if (!batch.first_frame)
            return model({latent_model_input, timestep_in, text_embeddings.text_embeds[0]}, request);
        Tensor conditioned_latent = latent_model_input, noise_mask, timestep;
        std::vector<Tensor> out_t_chunks;
        {
            const NoGrad no_grad(run);
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            if (batch.frames > 1) {
                const Tensors both = add_first_frame_conditioning_v22(latent_model_input, first_frame_of(batch),
                                                                      job.pipeline.cache_latents);
                conditioned_latent = both[0];
                noise_mask = both[1];
                i2v_loss_mask_ = noise_mask;
            } else {
                noise_mask = run.empty(conditioned_latent.sizes(), conditioned_latent.dtype(), Op::ones);
            }
            for (std::int64_t i = 0; i < batch.count; ++i)
                out_t_chunks.push_back(shadow::unsqueeze(of_tokens(noise_mask), 0));
            timestep = shadow::cat(out_t_chunks, 0);
        }
        return model({conditioned_latent, timestep, text_embeddings.text_embeds[0]}, request);
    }

    // Without the tokens of the first frame, and as large as with them.
    [[nodiscard]] Tensor scale_loss(Tensor loss) override {
        if (!i2v_loss_mask_.defined()) return loss;
        loss = masked_loss(std::move(loss), i2v_loss_mask_);
        i2v_loss_mask_ = Tensor();
        return loss;
    }

    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        Tensor latents, first_frame, given, noise_mask;
        if (!image.references.empty()) {
            const StageScope stage(run, "denoise");
            latents = noise_of(image);
            first_frame = first_frame_n1p1(image);
            const Tensors both = add_first_frame_conditioning_v22(latents, first_frame, false);
            given = both[0];
            noise_mask = both[1];
        }
        run_pipeline(conditional_embeds, unconditional_embeds, image, given, noise_mask, use_vae_tiling(), true);
    }

  protected:
    [[nodiscard]] Part& transformer_of(bool) override { return transformer; }

  private:
    /// What a batch brings along: the first frame's latents where they are cached, else its pixels.
    [[nodiscard]] Tensor first_frame_of(const job::Batch& batch) {
        job::Batch still = batch;
        still.frames = 1;
        return run.empty(job.pipeline.cache_latents ? latents(still) : pixels(still), job.dtype, Op::to_device);
    }

    /// {latents that begin with the first frame's, mask of what is noise [B, 1, T, H, W]} (wan_utils.py)
    [[nodiscard]] Tensors add_first_frame_conditioning_v22(const Tensor& latent_model_input, const Tensor& first_frame,
                                                           bool encoded_already) {
        const Tensors mean_and_std = statistics(latent_model_input.dtype());
        Tensor encoded, first_frame_up;
        if (encoded_already) {
            encoded = first_frame;
        } else {
            first_frame_up = run.empty_like(first_frame, Op::upsample);  // bilinear
            first_frame_up = shadow::unsqueeze(std::move(first_frame_up), 2);
            {
                const ComponentScope scope(run, "vae");
                encoded = encode_video(first_frame_up);
            }
            Tensor centred = shadow::sub(encoded, mean_and_std[0]);
            encoded = shadow::mul(std::move(centred), mean_and_std[1]);
        }
        const Tensor latent = shadow::clone(latent_model_input);  // and written into
        const Dims sizes = latent_model_input.sizes();
        const Tensor mask =
            run.empty({sizes[0], 1, sizes[2], sizes[3], sizes[4]}, latent_model_input.dtype(), Op::ones);
        return {latent, mask};
    }

    [[nodiscard]] std::vector<Tensor*> left_by_steps() override { return {&i2v_loss_mask_}; }

    Tensor i2v_loss_mask_;
};

template <class Class, const Architecture* architecture>
std::unique_ptr<Pipeline> made(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<Class>(*architecture, job, catalogue, run);
}

/// Wan2214bModel.get_quantization_exclude_modules, and Wan225bModel's
constexpr std::string_view quantization_exclude[] = {"condition_embedder*", "proj_out*"};
constexpr std::string_view stage_options[] = {"vae_tiling", "train_high_noise", "train_low_noise"};
constexpr std::string_view tiling_options[] = {"vae_tiling"};

std::string_view refuses(const std::map<std::string, std::string>& options) {
    if (is_true(options, "train_high_noise", true) || is_true(options, "train_low_noise", true)) return {};
    return "the trainer refuses model_kwargs without train_high_noise and train_low_noise: one of them has to train";
}

std::int64_t rounded(std::int64_t frames, bool) { return rounded_frames(frames); }
std::int64_t floored(std::int64_t frames, bool) { return floored_frames(frames); }

}  // namespace
}  // namespace wan

namespace wan22_14b {
namespace {

constexpr std::string_view names[] = {"wan22_14b"};

bool plays(const profile::ModelProfile& profile) {
    return wan::is_wan(profile, 16, 16) && !profile.id.starts_with("wan21");
}

std::string_view taken_for(std::string_view, std::string_view) { return "wan22_t2v_a14b"; }

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "Wan 2.2 14B",
    .models = "Wan 2.2 A14B",
    .vae = "vae_wan21",
    .text_encoders = wan::text_encoders,
    .text_tokens = wan::max_sequence_length,
    .bucket_step = 16,
    .divisible_by = 16,
    .frame_step = wan::temporal,
    .drops_frames = true,
    .denoiser = "transformer_1",
    .recovery_prefix = "transformer.transformer_1",
    .quantizes_blocks = true,
    .text_encoder_by_qtype = true,
    .quantization_exclude = wan::quantization_exclude,
    .options = wan::stage_options,
    .modules = {.block_names = wan::block_names},
    .offloading = {.attaches = true},
    .sample_frames = wan::rounded,
    .refuses = wan::refuses,
    .plays = plays,
    .taken_for = taken_for,
    .make = wan::made<wan::Wan2214b, &architecture>,
};

}  // namespace wan22_14b

namespace wan22_14b_i2v {
namespace {

constexpr std::string_view names[] = {"wan22_14b_i2v"};

bool plays(const profile::ModelProfile& profile) {
    return wan::is_wan(profile, 36, 16) && profile.config.integer("image_dim", 0) == 0;
}

std::string_view taken_for(std::string_view, std::string_view) { return "wan22_i2v_a14b"; }

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "Wan 2.2 14B I2V",
    .models = "Wan 2.2 I2V A14B",
    .vae = "vae_wan21",
    .text_encoders = wan::text_encoders,
    .text_tokens = wan::max_sequence_length,
    .bucket_step = 16,
    .divisible_by = 16,
    .frame_step = wan::temporal,
    .drops_frames = true,
    .most_references = 1,
    .needs_pixels = true,
    .samples_need_reference = true,
    .denoiser = "transformer_1",
    .recovery_prefix = "transformer.transformer_1",
    .quantizes_blocks = true,
    .text_encoder_by_qtype = true,
    .quantization_exclude = wan::quantization_exclude,
    .options = wan::stage_options,
    .modules = {.block_names = wan::block_names},
    .offloading = {.attaches = true},
    .sample_frames = wan::floored,
    .refuses = wan::refuses,
    .plays = plays,
    .taken_for = taken_for,
    .make = wan::made<wan::Wan2214bI2V, &architecture>,
};

}  // namespace wan22_14b_i2v

namespace wan22_5b {
namespace {

constexpr std::string_view names[] = {"wan22_5b"};

bool plays(const profile::ModelProfile& profile) { return wan::is_wan(profile, 48, 48); }

std::string_view taken_for(std::string_view, std::string_view) { return "wan22_ti2v_5b"; }

}  // namespace

const Architecture architecture{
    .names = names,
    .title = "Wan 2.2 5B",
    .models = "Wan 2.2 TI2V 5B",
    .vae = "vae_wan22",
    .text_encoders = wan::text_encoders,
    .text_tokens = wan::max_sequence_length,
    .bucket_step = 32,
    .divisible_by = 32,
    .frame_step = wan::temporal,
    .drops_frames = true,
    .most_references = 1,
    .quantizes_blocks = true,
    .text_encoder_by_qtype = true,
    .quantization_exclude = wan::quantization_exclude,
    .options = wan::tiling_options,
    .modules = {.block_names = wan::block_names},
    .offloading = {.attaches = true, .leaves_parameters = true},
    .sample_frames = wan::floored,
    .plays = plays,
    .taken_for = taken_for,
    .make = wan::made<wan::Wan225b, &architecture>,
};

}  // namespace wan22_5b
}  // namespace vram::trainers::ai_toolkit
