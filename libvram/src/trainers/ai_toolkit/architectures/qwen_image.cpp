// `arch: qwen_image`, `qwen_image_edit` and `qwen_image_edit_plus`: QwenImageModel and the two classes that derive from
// it (extensions_built_in/diffusion_models/qwen_image/, 27a03a91), diffusers' QwenImagePipeline and
// QwenImageEditPipeline, and the trainer's own QwenImageEditPlusCustomPipeline (diffusers 0.42.1).
#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <numeric>
#include <string_view>
#include <vector>

#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/architectures/qwen_image_vae.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using job::PictureSize;
using shadow::Category;
using shadow::ComponentScope;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

/// Two by two latent pixels are a token.
constexpr std::int64_t pixels_a_token = 16;
/// get_bucket_divisibility, to which samples are floored, too.
constexpr std::int64_t bucket_step = 32;
/// QwenImagePipeline's tokenizer cuts prompts to it, and its call those of samples to the other.
constexpr std::int64_t tokenizer_max_length = 1024, max_sequence_length = 512;
/// What the templates leave behind the prompt: "<|im_end|>\n<|im_start|>assistant\n".
constexpr std::int64_t template_tokens = 5;
/// QwenImageEditPlusPipeline's areas of a control image: for the text encoder, and for the VAE.
constexpr std::int64_t condition_image_size = 384 * 384, vae_image_size = 1024 * 1024;
/// SDTrainer.get_blank_control_image
constexpr PictureSize blank_control_image{224, 224};
/// The tokenizer's of a patch grid: a token is 2 x 2 patches of 14 x 14 pixels, and a patch has two frames.
constexpr std::int64_t merged_patch = 28, patch_values = 3 * 2 * 14 * 14;

std::int64_t rounded(double side) { return static_cast<std::int64_t>(std::nearbyint(side / 32)) * 32; }

/// The size of `area` pixels in the picture's shape, as get_prompt_embeds and get_noise_prediction reckon it: from the
/// height on, sides rounded to 32.
PictureSize fitted(const PictureSize& picture, std::int64_t area) {
    const double ratio = static_cast<double>(picture[1]) / static_cast<double>(picture[0]);
    const double height = std::sqrt(static_cast<double>(area) * ratio), width = height / ratio;
    return {rounded(width), rounded(height)};
}

/// diffusers' calculate_dimensions: the same, from the width on.
PictureSize calculate_dimensions(const PictureSize& picture, std::int64_t area) {
    const double ratio = static_cast<double>(picture[0]) / static_cast<double>(picture[1]);
    const double width = std::sqrt(static_cast<double>(area) * ratio), height = width / ratio;
    return {rounded(width), rounded(height)};
}

/// Image tokens of a picture in the text encoder: smart_resize goes to the nearest multiple of a merged patch.
std::int64_t picture_tokens(const PictureSize& picture) {
    const auto side = [](std::int64_t pixels) {
        return static_cast<std::int64_t>(std::nearbyint(static_cast<double>(pixels) / merged_patch));
    };
    return side(picture[0]) * side(picture[1]);
}

/// [B, C, h, w] → [B, h / 2 · w / 2, 4 C]: a copy.
Tensor packed(const Tensor& latents) {
    const std::int64_t batch = latents.size(0), channels = latents.size(1);
    const std::int64_t height = latents.size(2) / 2, width = latents.size(3) / 2;
    Tensor out = shadow::view(latents, {batch, channels, height, 2, width, 2});
    out = shadow::permute(std::move(out), {0, 2, 4, 1, 3, 5});
    return shadow::reshape(std::move(out), {batch, height * width, channels * 4});
}

/// [B, S, 64] → [B, 16, 2 height, 2 width], sizes in tokens: a copy.
Tensor unpacked(Tensor noise_pred, std::int64_t height, std::int64_t width) {
    const std::int64_t batch = noise_pred.size(0), channels = noise_pred.size(2) / 4;
    Tensor out = shadow::view(std::move(noise_pred), {batch, height, width, channels, 2, 2});
    out = shadow::permute(std::move(out), {0, 3, 1, 4, 2, 5});
    return shadow::reshape(std::move(out), {batch, channels, 2 * height, 2 * width});
}

/// QwenImageModel. The classes that derive from it say what they do with control images.
class QwenImage : public QwenImageVae {
  public:
    QwenImage(const Architecture& architecture, const job::Job& job_in, const profile::Catalogue& catalogue,
              Run& run_in)
        : QwenImageVae(architecture, job_in, catalogue, run_in),
          layers_(catalogue.model_of(job.pipeline.text_encoders[0]).config.integer("num_hidden_layers")) {}

    void load_model(Loading& loading) override { load_on_host(loading); }

    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override {
        constexpr std::int64_t prompt_template_encode_start_idx = 34;
        return encode_prompt(prompts, prompts.blank ? template_tokens : job.text_tokens,
                             prompt_template_encode_start_idx, {}, {});
    }

    [[nodiscard]] Dims latents(const job::Batch& batch) const override {
        return {batch.count, 16, batch.height / 8, batch.width / 8};
    }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input_in, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        Tensor latent_model_input;
        {
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            latent_model_input = packed(latent_model_input_in);
        }
        return predicted(latent_model_input, timestep, text_embeddings, batch, {});
    }

    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        const Call call{.max_sequence_length = max_sequence_length, .flushes = job.pipeline.low_vram};
        generate(conditional_embeds, unconditional_embeds, image, call);
    }

  protected:
    /// A pipeline's call, in what the three differ.
    struct Call {
        std::vector<PictureSize> vae_images{};  // that stand behind the noisy tokens
        std::int64_t max_sequence_length = 0;   // that embeds are cut to; 0: they are not
        bool cfg_norm = true;                   // the guided prediction is brought back to the length of the other
        bool flushes = false;                   // after each step
    };

    /// The pipelines' encode_prompt, and what get_prompt_embeds makes of it. `text` are the tokens behind the first
    /// `drop_idx`, without those of pictures; `pictures` are handed to the processor, for each prompt the same, and lie
    /// on the GPU in `images`, [count, 3, H, W] each, or wait on the host.
    [[nodiscard]] PromptEmbeds encode_prompt(const Prompts& prompts, std::int64_t text, std::int64_t drop_idx,
                                             const std::vector<PictureSize>& pictures, const Tensors& images) {
        text_encoders[0]->to_gpu();
        const std::int64_t of_pictures =
            std::accumulate(pictures.begin(), pictures.end(), std::int64_t{0},
                            [](std::int64_t sum, const PictureSize& one) { return sum + picture_tokens(one); });
        const std::int64_t tokens = text + of_pictures;
        PromptEmbeds out;
        Tensor prompt_embeds = hidden_states_of(prompts, text, tokens, drop_idx, pictures, images, out.attention_mask);
        prompt_embeds = shadow::clone(prompt_embeds);  // .repeat(1, num_images_per_prompt, 1)
        out.text_embeds = {prompt_embeds};
        out.attention_mask = shadow::clone(out.attention_mask);
        // A mask without padding becomes None, and get_prompt_embeds puts ones in its place.
        if (prompts.count == 1) out.attention_mask = run.empty({1, tokens}, Dtype::i64, Op::ones);
        return out;
    }

    /// transformer(…) of packed latents, cut to the noisy tokens and unpacked. `references` are pictures whose tokens
    /// stand behind.
    [[nodiscard]] Tensor predicted(const Tensor& latent_model_input, const Tensor& timestep,
                                   const PromptEmbeds& text_embeddings, const job::Batch& batch,
                                   const std::vector<PictureSize>& references) {
        const std::int64_t height = batch.height / pixels_a_token, width = batch.width / pixels_a_token;
        models::Request request = request_of(batch, text_embeddings);
        request.reference_images = references;
        request.attention_mask = true;
        Tensor prompt_embeds_mask;
        Tensors args{latent_model_input, text_embeddings.text_embeds[0]};
        {
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            prompt_embeds_mask = shadow::to(text_embeddings.attention_mask, Dtype::i64);
            args.push_back(prompt_embeds_mask);
            args.push_back(shadow::div_scalar(timestep));  // timestep / 1000
        }
        Tensor noise_pred = transform(args, request);
        args.clear();
        if (!references.empty()) noise_pred = shadow::slice(std::move(noise_pred), 1, 0, height * width);
        return unpacked(std::move(noise_pred), height, width);
    }

    /// The pipelines' __call__ with given embeds.
    void generate(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                  const job::Batch& image, const Call& call) {
        transformer.to_gpu();
        const bool tiling = job.pipeline.low_vram;
        const std::int64_t height = image.height / pixels_a_token, width = image.width / pixels_a_token;
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        Tensor latents, noise_pred, neg_noise_pred, comb_pred, cond_norm, noise_norm, image_latents;
        Tensor prompt_embeds, negative_prompt_embeds, timesteps, timestep, latent_model_input;
        // The callback's arguments are looked up in locals(): up to Python 3.12 the frame keeps what that returned, and
        // with it what the names stood for, until it is asked again.
        Tensors locals;
        // What generate_single_image hands over.
        const Tensor prompt_embeds_mask = shadow::to(conditional_embeds.attention_mask, Dtype::i64);
        const Tensor negative_prompt_embeds_mask = shadow::to(unconditional_embeds.attention_mask, Dtype::i64);
        {
            const StageScope stage(run, "denoise");
            const bool do_true_cfg = job.sampling.guidance > 1;
            prompt_embeds = given(conditional_embeds, call.max_sequence_length);
            if (do_true_cfg) negative_prompt_embeds = given(unconditional_embeds, call.max_sequence_length);
            latents = prepare_latents(image, call, tiling, image_latents);
            timesteps = run.empty({job.sampling.steps}, Dtype::f32, Op::to_device);
            const Tensor sigmas = run.empty({job.sampling.steps + 1}, Dtype::f32, Op::cat);
            models::Request request = request_of(image, conditional_embeds);
            request.reference_images = call.vae_images;
            const std::int64_t tokens = latents.size(1);
            const auto predict = [&](const Tensor& embeds) {
                request.text_tokens = embeds.size(1);
                Tensors args{latent_model_input, embeds};
                args.push_back(shadow::div_scalar(timestep));
                Tensor out = transform(args, request);
                return call.vae_images.empty() ? out : shadow::slice(std::move(out), 1, 0, tokens);
            };
            for (int i = 0; i < 2; ++i) {
                latent_model_input = image_latents.defined() ? shadow::cat({latents, image_latents}, 1) : latents;
                timestep = run.empty({1}, job.dtype, Op::to_copy);
                noise_pred = predict(prompt_embeds);
                if (do_true_cfg) {
                    neg_noise_pred = predict(negative_prompt_embeds);
                    {
                        Tensor apart = shadow::sub(noise_pred, neg_noise_pred);
                        apart = shadow::mul_scalar(std::move(apart));
                        comb_pred = shadow::add(neg_noise_pred, std::move(apart));
                    }
                    noise_pred = call.cfg_norm ? renormed(comb_pred, cond_norm, noise_norm) : comb_pred;
                }
                latents = step(latents, noise_pred);
                locals = {latents,   latent_model_input, timestep,  noise_pred,
                          comb_pred, neg_noise_pred,     cond_norm, noise_norm};
                if (call.flushes) flush();
            }
        }
        {
            const StageScope stage(run, "decode");
            latents = shadow::view(latents, {1, height, width, 16, 2, 2});
            latents = shadow::permute(std::move(latents), {0, 3, 1, 4, 2, 5});
            latents = shadow::reshape(std::move(latents), {1, 16, 1, 2 * height, 2 * width});
            const LatentStatistics statistics(*this);
            {
                Tensor scaled = shadow::div(latents, statistics.std);
                latents = shadow::add(std::move(scaled), statistics.mean);
            }
            decode(latents, image, tiling);
        }
    }

  private:
    /// The pipelines' _get_qwen_prompt_embeds: [B, tokens, D], and its mask.
    [[nodiscard]] Tensor hidden_states_of(const Prompts& prompts, std::int64_t text, std::int64_t tokens,
                                          std::int64_t drop_idx, const std::vector<PictureSize>& pictures,
                                          const Tensors& images, Tensor& encoder_attention_mask) {
        const std::int64_t count = prompts.count;
        const Tensor pixel_values = processed(count, pictures, images);
        const Tensor input_ids = run.empty({count, drop_idx + tokens}, Dtype::i64, Op::to_device);
        const Tensor attention_mask = run.empty({count, drop_idx + tokens}, Dtype::i64, Op::to_device);
        models::Request request;
        request.batch = count;
        request.text_tokens = drop_idx + text;
        request.reference_images = pictures;
        request.dtype = job.pipeline.text_encoder_dtype;
        request.all_hidden_states = request.use_cache = true;
        // Prompts are padded to the longest of them: one alone has no padding, and its mask is left away.
        request.attention_mask = count > 1;
        Tensors args{input_ids};
        if (request.attention_mask) args.push_back(attention_mask);
        if (pixel_values.defined()) {
            args.push_back(pixel_values);
            args.push_back(run.empty({count * static_cast<std::int64_t>(pictures.size()), 3}, Dtype::i64,
                                     Op::to_device));  // image_grid_thw
        }
        // {logits, what went into the first layer, of each layer, …}: hidden_states[-1]
        const Tensors outputs = text_encoders[0]->forward(args, request);
        const Tensor& hidden_states = outputs[static_cast<std::size_t>(layers_) + 1];
        const Dims embeds{count, tokens, hidden_states.size(2)};
        Tensor selected;
        {
            const Tensor bool_mask = shadow::to(attention_mask, Dtype::boolean);
            const Tensor valid_lengths = run.empty({count}, Dtype::i64, Op::sum);
            selected = run.empty({count * (drop_idx + tokens), embeds[2]}, hidden_states.dtype(), Op::index);
        }
        std::vector<Tensor> attn_mask_list;
        for (std::int64_t i = 0; i < count; ++i) attn_mask_list.push_back(run.empty({tokens}, Dtype::i64, Op::ones));
        Tensor prompt_embeds;
        {
            std::vector<Tensor> padded;
            for (std::int64_t i = 0; i < count; ++i)
                padded.push_back(run.empty({tokens, embeds[2]}, hidden_states.dtype(), Op::cat));
            prompt_embeds = shadow::stack(padded, 0);
        }
        {
            std::vector<Tensor> padded;
            for (std::int64_t i = 0; i < count; ++i) padded.push_back(run.empty({tokens}, Dtype::i64, Op::cat));
            encoder_attention_mask = shadow::stack(padded, 0);
        }
        return prompt_embeds;
    }

    /// Qwen2VLImageProcessor: pixel_values. What lies on the GPU is worked on there, an image after the other.
    [[nodiscard]] Tensor processed(std::int64_t count, const std::vector<PictureSize>& pictures,
                                   const Tensors& images) {
        std::vector<Tensor> flat;
        std::int64_t patches = 0;
        for (std::size_t i = 0; i < pictures.size(); ++i) {
            const std::int64_t tokens = picture_tokens(pictures[i]);
            patches += count * tokens * 4;
            if (images.empty()) continue;
            const Dims sizes{count, 3, tokens * merged_patch * merged_patch};
            Tensor stacked = run.empty_like(images[i], Op::stack);
            {
                const Tensor typed = shadow::to_float(stacked);
                const Tensor resized = run.empty(sizes, Dtype::f32, Op::upsample);
                stacked = shadow::to(resized, job.dtype);
            }
            Tensor normalized = shadow::to_float(stacked);
            normalized = shadow::sub(normalized, normalized);
            const Tensor both_frames = run.empty({count, 2, 3, sizes[2]}, Dtype::f32, Op::cat);
            flat.push_back(run.empty({count * tokens * 4, patch_values}, Dtype::f32, Op::clone));
        }
        if (patches == 0) return {};
        return run.empty({patches, patch_values}, Dtype::f32, images.empty() ? Op::to_device : Op::cat);
    }

    /// encode_prompt with given embeds: they are cut and repeated once; a mask without padding becomes None.
    [[nodiscard]] Tensor given(const PromptEmbeds& embeds, std::int64_t most) {
        const Tensor& whole = embeds.text_embeds[0];
        const std::int64_t tokens = most == 0 ? whole.size(1) : std::min(whole.size(1), most);
        const Tensor prompt_embeds = run.empty({1, tokens, whole.size(2)}, whole.dtype(), Op::repeat);
        const Tensor prompt_embeds_mask = run.empty({1, tokens}, Dtype::i64, Op::repeat);
        const Tensor all = run.empty({}, Dtype::boolean, Op::any);
        return prompt_embeds;
    }

    /// The pipelines' prepare_latents: [1, S, 64], and of control images those of all.
    [[nodiscard]] Tensor prepare_latents(const job::Batch& image, const Call& call, bool tiling,
                                         Tensor& image_latents) {
        Tensor picture, one;
        std::vector<Tensor> all_image_latents;
        for (const auto& [width, height] : call.vae_images) {
            picture = run.empty({1, 3, 1, height, width}, job.dtype, Op::to_device);
            one = encode_vae_image(picture, {width, height}, tiling);
            one = shadow::clone(one);  // torch.cat of the one
            one = shadow::squeeze(std::move(one), 2);
            one = packed(one);
            all_image_latents.push_back(one);
        }
        if (all_image_latents.size() == 1 && !use_raw_control_images)
            image_latents = one;
        else if (!all_image_latents.empty())
            image_latents = shadow::cat(all_image_latents, 1);
        Tensor latents = run.empty(this->latents(image), job.dtype, Op::to_device);
        latents = packed(latents);
        return latents;
    }

    /// _encode_vae_image: the distribution's mode.
    [[nodiscard]] Tensor encode_vae_image(const Tensor& picture, const PictureSize& size, bool tiling) {
        job::Batch batch;
        batch.width = size[0];
        batch.height = size[1];
        models::Request request = vae_request(batch, 1, models::Request::Operation::encode);
        request.tiling = tiling;
        Tensor latents;
        {
            const Tensors distribution = vae->forward({picture}, request);
            latents = distribution[1];
        }
        const LatentStatistics statistics(*this, false);
        latents = shadow::sub(latents, statistics.mean);
        return shadow::div(latents, statistics.std);
    }

    /// comb_pred * (cond_norm / noise_norm)
    static Tensor renormed(const Tensor& comb_pred, Tensor& cond_norm, Tensor& noise_norm) {
        const Dims sizes{comb_pred.size(0), comb_pred.size(1), 1};
        cond_norm = comb_pred.run().empty(sizes, comb_pred.dtype(), Op::norm);
        noise_norm = comb_pred.run().empty(sizes, comb_pred.dtype(), Op::norm);
        Tensor ratio = shadow::div(cond_norm, noise_norm);
        return shadow::mul(comb_pred, std::move(ratio));
    }

    /// FlowMatchEulerDiscreteScheduler.step: in fp32.
    [[nodiscard]] Tensor step(const Tensor& latents, const Tensor& noise_pred) {
        const Tensor sample = shadow::to_float(latents);
        Tensor prev_sample;
        {
            const Tensor moved = shadow::mul_scalar(noise_pred);
            prev_sample = run.empty(sample.sizes(), Dtype::f32, Op::add);
        }
        return shadow::to(prev_sample, job.dtype);
    }

    std::int64_t layers_;
};

/// The edit templates: what goes before the user's words.
constexpr std::int64_t edit_start_idx = 64;

/// QwenImageEditModel: one control image, in the size of its item.
class QwenImageEdit final : public QwenImage {
  public:
    using QwenImage::QwenImage;

    /// "<|vision_start|><|image_pad|><|vision_end|>" stands in the template. Without a picture, as blank prompts are
    /// encoded, the placeholder is a token like any other.
    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override {
        constexpr std::int64_t around = 2;
        const bool shown = !prompts.references.empty();
        std::vector<PictureSize> pictures;
        Tensors images;
        if (shown) {
            pictures = {fitted(prompts.references[0], vae_image_size)};
            if (prompts.control_images != nullptr) {
                const Tensor& control = (*prompts.control_images)[0];
                images = {run.empty({control.size(0), 3, pictures[0][1], pictures[0][0]}, job.dtype, Op::upsample)};
            }
        }
        const std::int64_t blank = template_tokens + around + (shown ? 0 : 1);
        return encode_prompt(prompts, prompts.blank ? blank : job.text_tokens, edit_start_idx, pictures, images);
    }

    [[nodiscard]] Tensor condition_noisy_latents(const Tensor& latents, const job::Batch& batch) override {
        if (batch.references.empty()) return latents;
        vae->to_gpu();
        const auto [width, height] = batch.references[0];
        Tensor control_tensor = run.empty({batch.count, 3, height, width}, job.dtype, Op::to_device);
        if (height != batch.height || width != batch.width)
            control_tensor = run.empty({batch.count, 3, batch.height, batch.width}, job.dtype, Op::upsample);
        Tensor control_latent = encode_images(control_tensor, batch);
        control_latent = shadow::to(control_latent, latents.dtype());
        return shadow::cat({latents, control_latent}, 1);
    }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input_in, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        Tensor control, latents, latent_model_input;
        {
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            const Tensors halves = shadow::chunk(latent_model_input_in, 2, 1);
            latents = packed(halves[0]);
            control = packed(halves[1]);
            latent_model_input = shadow::cat({latents, control}, 1);
        }
        return predicted(latent_model_input, timestep, text_embeddings, batch, {{batch.width, batch.height}});
    }

    /// The control image is scaled to the sample, and by the pipeline to 1 MP.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        const PictureSize calculated = calculate_dimensions({image.width, image.height}, vae_image_size);
        const Call call{.vae_images = {calculated}, .flushes = job.pipeline.low_vram};
        generate(conditional_embeds, unconditional_embeds, image, call);
    }
};

/// QwenImageEditPlusModel: control images as they are, each scaled for the text encoder and for the VAE.
class QwenImageEditPlus final : public QwenImage {
  public:
    using QwenImage::QwenImage;

    /// "Picture 1: <|vision_start|><|image_pad|><|vision_end|>" of each goes before the words. Without a picture the
    /// class raises, and the trainer shows it noise.
    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override {
        constexpr std::int64_t around = 7;
        const bool shown = !prompts.references.empty();
        Tensors noise;
        if (!shown) noise = {run.empty({1, 3, blank_control_image[1], blank_control_image[0]}, job.dtype, Op::noise)};
        Tensors* control_images = shown ? prompts.control_images : &noise;
        std::vector<PictureSize> pictures;
        for (const PictureSize& one : shown ? prompts.references : std::vector{blank_control_image})
            pictures.push_back(fitted(one, condition_image_size));
        for (std::size_t i = 0; control_images != nullptr && i < pictures.size(); ++i) {
            Tensor& control = (*control_images)[i];
            control = run.empty({control.size(0), 3, pictures[i][1], pictures[i][0]}, job.dtype, Op::upsample);
        }
        const auto blank = template_tokens + around * static_cast<std::int64_t>(pictures.size());
        return encode_prompt(prompts, prompts.blank ? blank : job.text_tokens, edit_start_idx, pictures,
                             control_images != nullptr ? *control_images : Tensors{});
    }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input_in, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        vae->to_gpu();
        Controls controls;
        Tensor raw_packed_latents, latent_model_input;
        std::vector<Tensor> packed_latents_with_controls_list;
        std::vector<PictureSize> references;
        for (const PictureSize& one : batch.references) references.push_back(fitted(one, control_image_res(batch)));
        {
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            const NoGrad no_grad(run);
            raw_packed_latents = packed(latent_model_input_in);
            latent_model_input = raw_packed_latents;
            for (std::int64_t b = 0; b < batch.count && !references.empty(); ++b) {
                encode(batch.references, references, controls);
                packed_latents_with_controls_list.push_back(
                    shadow::cat({shadow::slice(raw_packed_latents, 0, b, b + 1), controls.control}, 1));
            }
            if (!references.empty()) latent_model_input = shadow::cat(packed_latents_with_controls_list, 0);
        }
        return predicted(latent_model_input, timestep, text_embeddings, batch, references);
    }

    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        Call call{.cfg_norm = job.pipeline.options.contains("do_cfg_norm")};
        for (const PictureSize& one : image.references)
            call.vae_images.push_back(calculate_dimensions(one, vae_image_size));
        generate(conditional_embeds, unconditional_embeds, image, call);
    }

  private:
    /// Names of get_noise_prediction's loop, which live until it returns.
    struct Controls {
        std::vector<Tensor> controls;
        Tensor control_img, control_latent, control;
    };

    /// The pixels that a control image is brought to.
    [[nodiscard]] std::int64_t control_image_res(const job::Batch& batch) const {
        const auto match_target_res = job.pipeline.options.find("match_target_res");
        const bool matches = match_target_res != job.pipeline.options.end() && match_target_res->second == "true";
        return matches ? batch.height * batch.width : vae_image_size;
    }

    /// Of one item: each control image through the VAE, packed, and all behind one another.
    void encode(const std::vector<PictureSize>& raw, const std::vector<PictureSize>& references, Controls& out) {
        out.controls.clear();
        for (std::size_t i = 0; i < raw.size(); ++i) {
            out.control_img = run.empty({3, raw[i][1], raw[i][0]}, job.dtype, Op::to_device);
            job::Batch batch;
            batch.width = references[i][0];
            batch.height = references[i][1];
            out.control_img = run.empty({1, 3, batch.height, batch.width}, job.dtype, Op::upsample);
            out.control_img = shadow::add_scalar(shadow::mul_scalar(out.control_img));  // * 2 - 1
            out.control_latent = encode_images(out.control_img, batch);
            out.control = packed(out.control_latent);
            out.controls.push_back(out.control);
        }
        out.control = shadow::cat(out.controls, 1);
    }
};

/// Qwen-Image's net; QwenImageLayered is another class's.
bool is_net(const profile::ModelProfile& profile) {
    return profile.family == "qwen_image" && !profile.config.boolean("use_layer3d_rope", false);
}
/// Whether a class plays this net: one of the catalogue if it is one of `ids`, and any that was read from a disk, since
/// nothing in it tells the classes apart.
bool is_played(const profile::ModelProfile& profile, std::initializer_list<std::string_view> ids) {
    constexpr std::array known{"qwen_image", "qwen_image_edit", "qwen_image_edit_2509", "qwen_image_edit_2511"};
    if (!is_net(profile)) return false;
    return std::find(ids.begin(), ids.end(), profile.id) != ids.end() ||
           std::find(known.begin(), known.end(), profile.id) == known.end();
}

template <class Class, const Architecture& architecture>
std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<Class>(architecture, job, catalogue, run);
}

/// AdaLayerNormContinuous
constexpr std::string_view moved[] = {"norm_out.linear"};
constexpr Offloading offloading{.attaches = true, .text_encoder_first = true, .moved = moved};
/// get_transformer_block_names
constexpr std::string_view block_names[] = {"transformer_blocks"};
constexpr std::string_view text_encoders[] = {"qwen25_vl_7b"};

}  // namespace

namespace qwen_image {
namespace {
constexpr std::string_view names[] = {"qwen_image"};
bool plays(const profile::ModelProfile& profile) { return is_played(profile, {"qwen_image"}); }
std::string_view taken_for(std::string_view, std::string_view) { return "qwen_image"; }
}  // namespace

// A caption is taken for as many tokens as a sample's prompt may have.
const Architecture architecture{
    .names = names,
    .title = "Qwen-Image",
    .models = "Qwen-Image",
    .vae = "vae_qwenimage",
    .text_encoders = text_encoders,
    .deleted_from_text_encoders = "vision_",  // text_encoder.model.visual = None
    .text_tokens = max_sequence_length,
    .most_text_tokens = tokenizer_max_length,
    .bucket_step = bucket_step,
    .divisible_by = pixels_a_token,
    .sample_step = bucket_step,
    .quantizes_blocks = true,
    .modules = {.block_names = block_names},
    .offloading = offloading,
    .plays = plays,
    .taken_for = taken_for,
    .make = make<QwenImage, architecture>,
};
}  // namespace qwen_image

namespace qwen_image_edit {
namespace {
constexpr std::string_view names[] = {"qwen_image_edit"};
bool plays(const profile::ModelProfile& profile) { return is_played(profile, {"qwen_image_edit"}); }
std::string_view taken_for(std::string_view, std::string_view) { return "qwen_image_edit"; }
}  // namespace

const Architecture architecture{
    .names = names,
    .title = "Qwen-Image-Edit",
    .models = "Qwen-Image-Edit",
    .vae = "vae_qwenimage",
    .text_encoders = text_encoders,
    .text_tokens = max_sequence_length,
    .most_text_tokens = tokenizer_max_length,
    .bucket_step = bucket_step,
    .divisible_by = pixels_a_token,
    .sample_step = bucket_step,
    .most_references = 1,
    .controls_in_latents = true,
    .fewest_references = 1,
    .encode_control_in_text_embeddings = true,
    .wants_conditioned_latents = true,
    .quantizes_blocks = true,
    .modules = {.block_names = block_names},
    .offloading = offloading,
    .plays = plays,
    .taken_for = taken_for,
    .make = make<QwenImageEdit, architecture>,
};
}  // namespace qwen_image_edit

namespace qwen_image_edit_plus {
namespace {
constexpr std::string_view names[] = {"qwen_image_edit_plus"};
constexpr std::string_view options[] = {"match_target_res"};
bool plays(const profile::ModelProfile& profile) {
    return is_played(profile, {"qwen_image_edit_2509", "qwen_image_edit_2511"});
}
std::string_view taken_for(std::string_view, std::string_view name) {
    return name.find("2511") != std::string_view::npos ? "qwen_image_edit_2511" : "qwen_image_edit_2509";
}
PictureSize reference_size(const PictureSize& image, const PictureSize&) { return fitted(image, vae_image_size); }
}  // namespace

// Datasets may name any number of control folders; samples name three images.
const Architecture architecture{
    .names = names,
    .title = "Qwen-Image-Edit Plus",
    .models = "Qwen-Image-Edit 2509 and 2511",
    .vae = "vae_qwenimage",
    .text_encoders = text_encoders,
    .text_tokens = max_sequence_length,
    .most_text_tokens = tokenizer_max_length,
    .bucket_step = bucket_step,
    .divisible_by = pixels_a_token,
    .sample_step = bucket_step,
    .most_references = 16,
    .fewest_references = 1,
    .prompts_need_controls = true,
    .encode_control_in_text_embeddings = true,
    .use_raw_control_images = true,
    .quantizes_blocks = true,
    .options = options,
    .modules = {.block_names = block_names},
    .offloading = offloading,
    .reference_size = reference_size,
    .plays = plays,
    .taken_for = taken_for,
    .make = make<QwenImageEditPlus, architecture>,
};
}  // namespace qwen_image_edit_plus

}  // namespace vram::trainers::ai_toolkit
