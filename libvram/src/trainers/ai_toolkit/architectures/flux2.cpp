// `arch: flux2`, `flux2_klein_4b` and `flux2_klein_9b`: Flux2Model and its heirs (extensions_built_in/diffusion_models/
// flux2/flux2_model.py, flux2_klein_model.py, 27a03a91), with their own Flux2Pipeline (src/pipeline.py,
// src/sampling.py). Sixteen by sixteen pixels are one latent pixel and one token. Control images come as they lie on
// the disk; their tokens stand behind the noisy ones.
#include <algorithm>
#include <cmath>

#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/pipeline.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::Node;
using shadow::NodeRef;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

constexpr std::int64_t channels = 128, pixels_a_token = 16, axes = 4;
/// encode_image_refs: a control image has at most as many pixels.
constexpr std::int64_t limit_pixels = 1024 * 1024;

/// sampling.py, cap_pixels: {width, height}
job::PictureSize capped(const job::PictureSize& image, std::int64_t limit) {
    const auto [width, height] = image;
    if (width * height <= limit) return image;
    const double scale = std::sqrt(static_cast<double>(limit) / static_cast<double>(width * height));
    return {static_cast<std::int64_t>(static_cast<double>(width) * scale),
            static_cast<std::int64_t>(static_cast<double>(height) * scale)};
}

/// sampling.py, center_crop_to_multiple_of_x
job::PictureSize cropped(const job::PictureSize& image) {
    return {image[0] / pixels_a_token * pixels_a_token, image[1] / pixels_a_token * pixels_a_token};
}

void scatter_backward(Run& run, Node& node, Tensors& grads, Tensors& out) {
    const Tensor index = run.unpack(node.saved[0]);
    out[0] = run.empty({index.size(0), grads[0].size(1)}, grads[0].dtype(), Op::gather);
}

class Flux2 : public Pipeline {
  public:
    Flux2(const Architecture& architecture, const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : Pipeline(architecture, job_in, catalogue, run_in), layers_(text_layers(job_in, catalogue)) {}

    void load_model(Loading& loading) override {
        const bool quantizes = job.quantization != job::Quantization::none;
        const bool quantizes_text = job.pipeline.text_encoder_quantization != job::Quantization::none;
        const bool low_vram = job.pipeline.low_vram;
        if (!quantizes) transformer.to_gpu();
        if (quantizes || quantizes_text) loading.quantizes();
        if (quantizes) {
            transformer.quantize_model();
            flush();
        }
        flush();
        transformer.attach_memory_manager();
        if (low_vram) transformer.to_cpu();
        load_te();
        text_encoders[0]->attach_memory_manager();
        flush();
        text_encoders[0]->move(!low_vram);
        transformer.move(!low_vram);
        flush();
        transformer.to_gpu();  // BaseSDTrainProcess.run
        flush();
    }

    /// src/pipeline.py, encode_prompt: three layers' hidden states, side by side.
    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override {
        Part& text_encoder = *text_encoders[0];
        text_encoder.to_gpu();
        models::Request request;
        request.batch = prompts.count;
        request.text_tokens = job.text_tokens;
        request.dtype = job.pipeline.text_encoder_dtype;
        request.attention_mask = request.all_hidden_states = true;
        Tensor prompt_embeds;
        {
            const Tensors args = on_device(run, text_encoder.model->inputs(request));
            // {logits, what went into the first layer, of each layer, …}
            const Tensors output = text_encoder.forward(args, request);
            const std::array<Tensor, 3> hidden_states{output[1 + layers_[0]], output[1 + layers_[1]],
                                                      output[1 + layers_[2]]};
            const Tensor out = shadow::stack(hidden_states, 1);
            // rearrange "b c l d -> b l (c d)"
            prompt_embeds = shadow::permute(out, {0, 2, 1, 3});
            prompt_embeds = shadow::reshape(std::move(prompt_embeds), {out.size(0), out.size(2), -1});
        }
        PromptEmbeds out;
        out.text_embeds = {shadow::repeat(prompt_embeds, {1, 1, 1})};
        return out;
    }

    [[nodiscard]] Dims latents(const job::Batch& batch) const override {
        return {batch.count, channels, batch.height / pixels_a_token, batch.width / pixels_a_token};
    }

    /// The mean, normed by the VAE itself.
    [[nodiscard]] Tensor encode_images(Tensor image_list_in, const job::Batch& batch) override {
        const Tensor image_list = std::move(image_list_in);
        vae->to_gpu();
        const Tensor images = run.empty_like(image_list, Op::stack);
        return vae->forward({images}, vae_request(batch, batch.count, models::Request::Operation::encode))[0];
    }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        const bool match_target_res = says("match_target_res");
        models::Request request = request_of(batch, text_embeddings);
        Batched txt, img;
        Controls controls;
        Tensor img_cond_seq, img_cond_seq_ids, img_input, img_input_ids, guidance_vec;
        References item;
        {
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            const NoGrad no_grad(run);
            txt = batched_prc(text_embeddings.text_embeds[0]);
            img = batched_prc_img(latent_model_input);
            for (std::int64_t b = 0; b < batch.count && !batch.references.empty(); ++b) {
                load_controls(controls, batch, match_target_res);
                vae->to_gpu();  // where it stays
                item = encode_image_refs(controls.images, match_target_res ? batch.width * batch.height : limit_pixels);
                if (!img_cond_seq.defined()) {
                    img_cond_seq = item.tokens;
                    img_cond_seq_ids = item.ids;
                } else {
                    img_cond_seq = shadow::cat({img_cond_seq, item.tokens}, 0);
                    img_cond_seq_ids = shadow::cat({img_cond_seq_ids, item.ids}, 0);
                }
            }
            img_input = img.x;
            img_input_ids = img.ids;
            if (img_cond_seq.defined()) {
                img_input = shadow::cat({img_input, img_cond_seq}, 1);
                img_input_ids = shadow::cat({img_input_ids, img_cond_seq_ids}, 1);
                request.reference_images = item.sizes;
            }
            guidance_vec = run.empty({batch.count}, img_input.dtype(), Op::full);
        }
        Tensor packed_noise_pred;
        {
            Tensors args{img_input, img_input_ids};
            {
                const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
                Tensor timesteps = shadow::to(timestep, job.dtype);
                args.push_back(shadow::div_scalar(std::move(timesteps)));
            }
            args.push_back(txt.x);
            args.push_back(txt.ids);
            args.push_back(guidance_vec);
            packed_noise_pred = transform(args, request);
        }
        if (img_cond_seq.defined())
            packed_noise_pred = shadow::slice(std::move(packed_noise_pred), 1, 0, img.x.size(1));
        const Tensors x_list = scatter_ids(packed_noise_pred, img.ids, batch);
        return shadow::squeeze(shadow::cat(x_list, 0), 2);
    }

    /// Flux2Pipeline.__call__ with given embeds. Guidance is a second call, but for dev, which is distilled.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        models::Request request = request_of(image, conditional_embeds);
        const bool do_guidance = job.sampling.guidance > 1 && !guidance_distilled();
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        Tensor prompt_embeds, negative_prompt_embeds, latents, guidance_vec, t_vec, img_input, img_input_ids, pred,
            pred_uncond;
        Batched txt, neg_txt, packed_latents;
        References img_cond_seq;
        {
            const StageScope stage(run, "denoise");
            prompt_embeds = shadow::repeat(conditional_embeds.text_embeds[0], {1, 1, 1});
            txt = batched_prc(prompt_embeds);
            if (do_guidance) {
                negative_prompt_embeds = shadow::repeat(unconditional_embeds.text_embeds[0], {1, 1, 1});
                neg_txt = batched_prc(negative_prompt_embeds);
            }
            latents = run.empty(this->latents(image), prompt_embeds.dtype(), Op::to_device);
            packed_latents = batched_prc_img(latents);
            guidance_vec = run.empty({1}, job.dtype, Op::full);
            if (!image.references.empty()) {
                img_cond_seq = encode_pictures(image.references);
                request.reference_images = img_cond_seq.sizes;
            }
            for (int i = 0; i < 2; ++i) {
                t_vec = run.empty({1}, job.dtype, Op::full);
                img_input = packed_latents.x;
                img_input_ids = packed_latents.ids;
                if (img_cond_seq.tokens.defined()) {
                    img_input = shadow::cat({img_input, img_cond_seq.tokens}, 1);
                    img_input_ids = shadow::cat({img_input_ids, img_cond_seq.ids}, 1);
                }
                pred = transform({img_input, img_input_ids, t_vec, txt.x, txt.ids, guidance_vec}, request);
                if (do_guidance) {
                    pred_uncond =
                        transform({img_input, img_input_ids, t_vec, neg_txt.x, neg_txt.ids, guidance_vec}, request);
                    Tensor away = shadow::sub(pred, pred_uncond);
                    away = shadow::mul_scalar(std::move(away));
                    pred = shadow::add(pred_uncond, std::move(away));
                }
                if (img_cond_seq.tokens.defined())
                    pred = shadow::slice(std::move(pred), 1, 0, packed_latents.x.size(1));
                Tensor moved = shadow::mul_scalar(pred);
                packed_latents.x = shadow::add(packed_latents.x, std::move(moved));
            }
        }
        const StageScope stage(run, "decode");
        {
            const Tensors x_list = scatter_ids(packed_latents.x, packed_latents.ids, image);
            latents = shadow::squeeze(shadow::cat(x_list, 0), 2);
        }
        Tensor decoded = vae->forward({latents}, vae_request(image, 1, models::Request::Operation::decode))[0];
        decoded = shadow::to_float(std::move(decoded));
        postprocess(decoded);
    }

  protected:
    /// Mistral arrives in full, and is quantised on the GPU.
    virtual void load_te() {
        load_text_encoder(*text_encoders[0], job.pipeline.text_encoder_quantization != job::Quantization::none);
    }
    [[nodiscard]] virtual bool guidance_distilled() const { return true; }

  private:
    /// A batch of tokens with their places, joined from its items.
    struct Batched {
        Tensor x, ids;  // [B, N, C], [B, N, 4] int64
    };
    struct References {
        Tensor tokens, ids;  // [1, N, C], [1, N, 4] int64
        std::vector<job::PictureSize> sizes;
    };
    /// Names of get_noise_prediction's frame: the last item's control images.
    struct Controls {
        Tensors images;      // each [1, 3, H, W]
        Tensor control_img;  // the last of them
    };

    /// OUTPUT_LAYERS_MISTRAL, OUTPUT_LAYERS_QWEN3
    static std::array<std::size_t, 3> text_layers(const job::Job& job, const profile::Catalogue& catalogue) {
        const profile::ModelProfile& profile = catalogue.model_of(job.pipeline.text_encoders.front());
        if (profile.config.text("model_type") == "mistral") return {10, 20, 30};
        return {9, 18, 27};
    }

    [[nodiscard]] bool says(const char* option) const {
        const auto found = job.pipeline.options.find(option);
        return found != job.pipeline.options.end() && found->second != "false";
    }

    // batched_prc_txt: x [B, N, C]
    [[nodiscard]] Batched batched_prc(const Tensor& x) {
        Tensors items, ids;
        for (Tensor& one : shadow::unbind(x, 0)) items.push_back(std::move(one));
        for (std::int64_t b = 0; b < x.size(0); ++b)
            ids.push_back(run.empty({x.size(1), axes}, Dtype::i64, Op::to_device));
        Batched out;
        out.x = shadow::stack(items, 0);
        out.ids = shadow::stack(ids, 0);
        return out;
    }
    // batched_prc_img: x [B, C, h, w] → [B, h w, C]
    [[nodiscard]] Batched batched_prc_img(const Tensor& x) {
        return batched_prc(shadow::transpose(shadow::flatten(x, 2, 3), 1, 2));
    }

    void load_controls(Controls& controls, const job::Batch& batch, bool match_target_res) {
        controls.images.clear();
        for (const auto& [width, height] : batch.references) {
            controls.control_img = run.empty({1, 3, height, width}, job.dtype, Op::to_device);
            if (match_target_res) {
                const double ratio = static_cast<double>(height) / static_cast<double>(width);
                const double c_height = std::sqrt(static_cast<double>(batch.width * batch.height) * ratio);
                const double c_width = c_height / ratio;
                controls.control_img = run.empty({1, 3, rounded(c_height), rounded(c_width)}, job.dtype, Op::upsample);
            }
            Tensor scaled = shadow::mul_scalar(controls.control_img);
            controls.control_img = shadow::add_scalar(std::move(scaled));
            controls.images.push_back(controls.control_img);
        }
    }
    // Python's round, of a number of 32 pixels
    static std::int64_t rounded(double pixels) { return static_cast<std::int64_t>(std::nearbyint(pixels / 32)) * 32; }

    [[nodiscard]] References encode_image_refs(const Tensors& img_ctx, std::int64_t limit) {
        Tensors capped_images, cropped_images;
        std::vector<job::PictureSize> sizes;
        for (const Tensor& image : img_ctx) {
            const job::PictureSize size{image.size(3), image.size(2)}, cap = capped(size, limit);
            capped_images.push_back(cap == size ? image
                                                : run.empty({1, 3, cap[1], cap[0]}, image.dtype(), Op::upsample));
        }
        for (const Tensor& image : capped_images) {
            const job::PictureSize size{image.size(3), image.size(2)}, crop = cropped(size);
            const std::int64_t left = (size[0] - crop[0]) / 2, top = (size[1] - crop[1]) / 2;
            Tensor cut = shadow::slice(image, 2, top, top + crop[1]);
            cropped_images.push_back(shadow::slice(std::move(cut), 3, left, left + crop[0]));
            sizes.push_back(crop);
        }
        Tensors encoded_refs;
        for (std::size_t i = 0; i < cropped_images.size(); ++i)
            encoded_refs.push_back(encode_reference(cropped_images[i], sizes[i]));
        return joined(encoded_refs, std::move(sizes));
    }

    /// The same of pictures on the host, which are scaled there.
    [[nodiscard]] References encode_pictures(const std::vector<job::PictureSize>& pictures) {
        Tensors encoded_refs;
        std::vector<job::PictureSize> sizes;
        for (const job::PictureSize& picture : pictures) {
            const job::PictureSize size = cropped(capped(picture, limit_pixels));
            sizes.push_back(size);
            const Tensor image = run.empty({1, 3, size[1], size[0]}, job.pipeline.vae_dtype, Op::to_device);
            encoded_refs.push_back(encode_reference(image, size));
        }
        return joined(encoded_refs, std::move(sizes));
    }

    [[nodiscard]] Tensor encode_reference(const Tensor& image, const job::PictureSize& size) {
        const job::Batch picture{size[0], size[1], 1, 1};
        return vae->forward({image}, vae_request(picture, 1, models::Request::Operation::encode))[0];
    }

    [[nodiscard]] References joined(const Tensors& encoded_refs, std::vector<job::PictureSize> sizes) {
        References out;
        Tensors ref_tokens, ref_ids;
        for (const Tensor& encoded : encoded_refs) {
            ref_ids.push_back(run.empty({encoded.size(2) * encoded.size(3), axes}, Dtype::i64, Op::to_device));
            Tensor tokens = shadow::flatten(shadow::select(encoded, 0, 0), 1, 2);
            ref_tokens.push_back(shadow::transpose(std::move(tokens), 0, 1));
        }
        const Tensor tokens = shadow::cat(ref_tokens, 0);
        const Tensor ids = shadow::cat(ref_ids, 0);
        out.tokens = shadow::unsqueeze(tokens, 0);
        out.ids = shadow::unsqueeze(ids, 0);
        out.sizes = std::move(sizes);
        return out;
    }

    // scatter_ids: x [B, N, C] → of each item [1, C, 1, h, w], a view
    [[nodiscard]] Tensors scatter_ids(const Tensor& x, const Tensor& x_ids, const job::Batch& batch) {
        Tensors x_list, t_coords;
        Tensor t_ids_cmpr, t, h, w, flat_ids, out;
        const Tensors items = shadow::unbind(x, 0);
        const std::int64_t tokens = x_ids.size(1);
        const auto integers = [&](Dims sizes, Op op) { return run.empty(std::move(sizes), Dtype::i64, op); };
        const auto largest = [&] {
            Tensor most = integers({}, Op::max);
            return shadow::add_scalar(std::move(most));
        };
        for (const Tensor& data : items) {
            {
                // compress_time: all are of one time
                const Tensor t_ids_max = integers({}, Op::max);
                Tensor t_remap;
                {
                    const Tensor count = shadow::add_scalar(t_ids_max);
                    t_remap = integers({1}, Op::zeros);
                }
                const Tensor t_unique_sorted_ids = integers({1}, Op::sort);
                { const Tensor numbers = integers({1}, Op::arange); }
                t_ids_cmpr = integers({tokens}, Op::index);
            }
            t = largest();
            h = largest();
            w = largest();
            Tensor places = integers({tokens}, Op::mul);
            places = integers({tokens}, Op::mul);
            {
                const Tensor rows = integers({tokens}, Op::mul);
                places = integers({tokens}, Op::add);
            }
            flat_ids = integers({tokens}, Op::add);
            places = Tensor();
            Tensor filled;
            {
                Tensor count = integers({}, Op::mul);
                count = integers({}, Op::mul);
                filled = run.empty({tokens, data.size(1)}, data.dtype(), Op::zeros);
            }
            const NodeRef node = run.record(Op::gather, scatter_backward, {&data});
            if (node) run.save(*node, flat_ids);
            out = filled;
            Run::attach(out, node);
            Tensor placed =
                shadow::view(out, {1, batch.height / pixels_a_token, batch.width / pixels_a_token, data.size(1)});
            placed = shadow::permute(std::move(placed), {0, 3, 1, 2});
            x_list.push_back(shadow::unsqueeze(std::move(placed), 2));
            t_coords.push_back(integers({1}, Op::sort));
        }
        return x_list;
    }

    std::array<std::size_t, 3> layers_;
};

/// Qwen is quantised on the host, where it waits with low_vram.
class Klein final : public Flux2 {
  public:
    using Flux2::Flux2;

  protected:
    void load_te() override {
        if (job.pipeline.text_encoder_quantization != job::Quantization::none) {
            flush();
        } else if (!job.pipeline.low_vram) {
            text_encoders[0]->to_gpu();
            flush();
        }
    }
    [[nodiscard]] bool guidance_distilled() const override { return false; }
};

constexpr std::string_view options[] = {"match_target_res"};
constexpr std::string_view block_names[] = {"double_blocks", "single_blocks"};

bool plays_with(const profile::ModelProfile& profile, std::int64_t heads) {
    return profile.family == "flux2" && profile.config.integer("num_attention_heads") == heads;
}

/// What the three say alike, and what they are called.
constexpr Architecture make_architecture(std::span<const std::string_view> names, std::string_view title,
                                         std::span<const std::string_view> text_encoders) {
    Architecture out;
    out.names = names;
    out.title = out.models = title;
    out.vae = "vae_flux2";
    out.text_encoders = text_encoders;
    out.text_tokens = 512;
    out.bucket_step = 16;
    out.divisible_by = pixels_a_token;
    out.most_references = 16;
    out.use_raw_control_images = true;
    out.reference_size = [](const job::PictureSize& image, const job::PictureSize&) {
        return cropped(capped(image, limit_pixels));
    };
    out.own_denoiser = "flux2_ai_toolkit";
    out.own_vae = "autoencoder_flux2_ai_toolkit";
    out.quantizes_blocks = true;
    out.options = options;
    out.modules.block_names = block_names;
    out.offloading.attaches = true;
    return out;
}

template <class Class>
std::unique_ptr<Pipeline> made(const Architecture& architecture, const job::Job& job,
                               const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<Class>(architecture, job, catalogue, run);
}

}  // namespace

namespace flux2 {
namespace {
constexpr std::string_view names[] = {"flux2"};
constexpr std::string_view text_encoders[] = {"mistral3_24b"};
constexpr Architecture made_architecture() {
    Architecture out = make_architecture(names, "FLUX.2 dev", text_encoders);
    out.text_encoder_by_qtype = true;
    out.plays = [](const profile::ModelProfile& profile) { return plays_with(profile, 48); };
    out.taken_for = [](std::string_view, std::string_view) -> std::string_view { return "flux2_dev"; };
    out.make = [](const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
        return made<Flux2>(architecture, job, catalogue, run);
    };
    return out;
}
}  // namespace
const Architecture architecture = made_architecture();
}  // namespace flux2

namespace flux2_klein_4b {
namespace {
constexpr std::string_view names[] = {"flux2_klein_4b"};
constexpr std::string_view text_encoders[] = {"qwen3_4b_causal"};
constexpr Architecture made_architecture() {
    Architecture out = make_architecture(names, "FLUX.2 klein 4B", text_encoders);
    out.plays = [](const profile::ModelProfile& profile) { return plays_with(profile, 24); };
    out.taken_for = [](std::string_view, std::string_view) -> std::string_view { return "flux2_klein_4b"; };
    out.make = [](const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
        return made<Klein>(architecture, job, catalogue, run);
    };
    return out;
}
}  // namespace
const Architecture architecture = made_architecture();
}  // namespace flux2_klein_4b

namespace flux2_klein_9b {
namespace {
constexpr std::string_view names[] = {"flux2_klein_9b"};
constexpr std::string_view text_encoders[] = {"qwen3_8b_causal"};
constexpr Architecture made_architecture() {
    Architecture out = make_architecture(names, "FLUX.2 klein 9B", text_encoders);
    out.plays = [](const profile::ModelProfile& profile) { return plays_with(profile, 32); };
    out.taken_for = [](std::string_view, std::string_view) -> std::string_view { return "flux2_klein_9b"; };
    out.make = [](const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
        return made<Klein>(architecture, job, catalogue, run);
    };
    return out;
}
}  // namespace
const Architecture architecture = made_architecture();
}  // namespace flux2_klein_9b

}  // namespace vram::trainers::ai_toolkit
