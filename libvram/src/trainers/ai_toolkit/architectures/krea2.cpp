// `arch: krea2`: Krea2Model (extensions_built_in/diffusion_models/krea2/krea2.py, 27a03a91), the Krea2Pipeline and the
// text encoding beside it.
#include <algorithm>
#include <charconv>
#include <vector>

#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/architectures/qwen_image_vae.hpp"

namespace vram::trainers::ai_toolkit::krea2 {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::Op;
using shadow::StageScope;

/// Two by two latent pixels are a token.
constexpr std::int64_t patch = 2, pixels_a_token = 16;
/// SELECT_LAYERS: a token has what went into these of the text encoder's layers.
constexpr std::int64_t select_layers[] = {2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35};
constexpr std::int64_t txtlayers = std::size(select_layers);
/// PROMPT_TEMPLATE_ENCODE_START_IDX and PROMPT_TEMPLATE_ENCODE_SUFFIX: tokens before a prompt, which are cut off again,
/// and those behind it.
constexpr std::int64_t prefix_tokens = 34, suffix_tokens = 5;
/// `max_text_length`, of prompts without the suffix.
constexpr std::int64_t max_text_length = 512;

/// A whole number above zero; 0: it is none.
std::int64_t whole(std::string_view text) {
    std::int64_t out = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc() && end == text.data() + text.size() && out > 0 ? out : 0;
}

class Krea2 final : public QwenImageVae {
  public:
    Krea2(const job::Job& job_in, const profile::Catalogue& catalogue, Run& run_in)
        : QwenImageVae(architecture, job_in, catalogue, run_in) {}

    void load_model(Loading& loading) override {
        const job::Pipeline& parts = job.pipeline;
        load_transformer_on_host(loading);
        transformer.move(!parts.low_vram);
        flush();
        Part& text_encoder = *text_encoders[0];
        if (quantizes_text()) {
            text_encoder.load_full();
            text_encoder.quantize();
            text_encoder.loaded();
            flush();
        }
        text_encoder.attach_memory_manager();
        text_encoder.move(!parts.low_vram);
        flush();
        vae->to_gpu();
        transformer.to_gpu();  // BaseSDTrainProcess.run
        vae->to_cpu();
        flush();
    }

    /// A prompt at a time, as long as it is: encode_krea_prompt.
    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override {
        text_encoders[0]->to_gpu();
        const std::int64_t tokens = prompts.blank ? suffix_tokens : std::min(job.text_tokens, most_tokens());
        PromptEmbeds out;
        out.is_list = true;
        Tensor features;
        for (std::int64_t i = 0; i < prompts.count; ++i) {
            features = encode_krea_prompt(prefix_tokens + tokens);
            features = shadow::reshape(std::move(features), {tokens, -1});
            out.text_embeds.push_back(features);
        }
        return out;
    }

    [[nodiscard]] Dims latents(const job::Batch& batch) const override {
        return {batch.count, 16, batch.height / 8, batch.width / 8};
    }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        Tensor t;
        {
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            t = shadow::div_scalar(timestep);
        }
        const Padded context = pad_text_features(text_embeddings);
        return predict_velocity(shadow::to(latent_model_input, job.dtype), t, context, batch);
    }

    /// Krea2Pipeline.__call__ with given embeds.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        transformer.to_gpu();
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        const bool do_cfg = job.sampling.guidance > 1;
        Tensor latents, t, v_cond, v_uncond, v;
        Padded cond, uncond;
        {
            const StageScope stage(run, "denoise");
            latents = run.empty(this->latents(image), Dtype::f32, Op::to_device);
            cond = pad_text_features(conditional_embeds);
            if (do_cfg) uncond = pad_text_features(unconditional_embeds);
            const auto predict = [&](const Padded& context) {
                return predict_velocity(shadow::to(latents, job.dtype), t, context, image);
            };
            for (int i = 0; i < 2; ++i) {
                t = run.empty({1}, job.dtype, Op::full);
                v_cond = predict(cond);
                v = v_cond;
                if (do_cfg) {
                    v_uncond = predict(uncond);
                    Tensor apart = shadow::sub(v_cond, v_uncond);
                    apart = shadow::mul_scalar(std::move(apart));
                    v = shadow::add(v_cond, std::move(apart));
                }
                Tensor change = shadow::to_float(v);
                change = shadow::mul_scalar(std::move(change));
                latents = shadow::add(latents, std::move(change));
            }
        }
        const StageScope stage(run, "decode");
        Tensor images = decode_latents(latents, image);
        images = shadow::clamp(shadow::to_float(images));
        Tensor pixels = shadow::add_scalar(images);
        pixels = shadow::mul_scalar(std::move(pixels));
        pixels = run.empty_like(pixels, Op::round);
        pixels = shadow::to(std::move(pixels), Dtype::u8);
    }

  private:
    [[nodiscard]] std::int64_t most_tokens() const {
        const auto said = job.pipeline.options.find("max_text_length");
        return (said != job.pipeline.options.end() ? whole(said->second) : max_text_length) + suffix_tokens;
    }

    /// [tokens behind the prefix, layers, D], a view of what all of them have.
    [[nodiscard]] Tensor encode_krea_prompt(std::int64_t tokens) {
        const auto on_gpu = [&](std::int64_t count) { return run.empty({1, count}, Dtype::i64, Op::to_device); };
        const Tensor suffix_ids = on_gpu(suffix_tokens), suffix_attention_mask = on_gpu(suffix_tokens);
        const Tensor suffix_mask = shadow::to(suffix_attention_mask, Dtype::boolean);
        const Tensor prompt_ids = on_gpu(tokens - suffix_tokens), attention_mask = on_gpu(tokens - suffix_tokens);
        const Tensor input_ids = shadow::cat({prompt_ids, suffix_ids}, 1);
        const Tensor mask = shadow::cat({shadow::to(attention_mask, Dtype::boolean), suffix_mask}, 1);
        models::Request request;
        request.text_tokens = tokens;
        request.dtype = job.pipeline.text_encoder_dtype;
        request.all_hidden_states = request.use_cache = true;
        // {logits, what went into the first layer, of each layer, …}; a mask without padding is left away
        const Tensors states = text_encoders[0]->forward({input_ids}, request);
        std::vector<Tensor> selected;
        for (const std::int64_t layer : select_layers) selected.push_back(states[static_cast<std::size_t>(layer) + 1]);
        const Tensor hiddens = shadow::stack(selected, 2);
        return shadow::select(shadow::slice(hiddens, 1, prefix_tokens, tokens), 0, 0);
    }

    /// Embeds of several prompts, as long as the longest, [B, T, layers · D]; and of each token whether it is one.
    struct Padded {
        Tensor features, mask;
    };
    [[nodiscard]] Padded pad_text_features(const PromptEmbeds& embeds) {
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        const std::int64_t count = embeds.count(), tokens = embeds.tokens();
        Padded out;
        out.features = run.empty({count, tokens, embeds.text_embeds[0].size(1)}, job.dtype, Op::zeros);
        out.mask = run.empty({count, tokens}, Dtype::i64, Op::zeros);
        return out;
    }

    /// prepare: {img, pos, mask}
    [[nodiscard]] Tensors prepare(const Tensor& latents, const Padded& context) {
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        const std::int64_t b = latents.size(0), c = latents.size(1), h = latents.size(2) / patch,
                           w = latents.size(3) / patch, txtlen = context.mask.size(1);
        const Tensor imgids = run.empty({h, w, 3}, Dtype::f32, Op::zeros);
        for (const std::int64_t count : {h, w}) static_cast<void>(shadow::arange(run, count, Dtype::i64));
        const Tensor imgpos = shadow::expand(shadow::view(imgids, {1, h * w, 3}), {b, -1, -1});
        const Tensor imgmask = run.empty({b, h * w}, Dtype::boolean, Op::ones);
        Tensor img = shadow::view(latents, {b, c, h, patch, w, patch});
        img = shadow::permute(std::move(img), {0, 2, 4, 1, 3, 5});
        img = shadow::reshape(std::move(img), {b, h * w, c * patch * patch});
        const Tensor txtpos = run.empty({b, txtlen, 3}, Dtype::f32, Op::zeros);
        const Tensor mask = shadow::cat({shadow::to(context.mask, Dtype::boolean), imgmask}, 1);
        const Tensor pos = shadow::cat({txtpos, imgpos}, 1);
        return {img, pos, mask};
    }

    [[nodiscard]] Tensor predict_velocity(Tensor latents_in, const Tensor& t, const Padded& padded,
                                          const job::Batch& batch) {
        const Tensor latents = std::move(latents_in);
        const std::int64_t b = latents.size(0), c = latents.size(1), h = latents.size(2) / patch,
                           w = latents.size(3) / patch, txtlen = padded.mask.size(1);
        const Tensor context = shadow::view(padded.features, {b, txtlen, txtlayers, -1});
        const Tensors packed = prepare(latents, padded);
        models::Request request;
        request.batch = b;
        request.width = batch.width;
        request.height = batch.height;
        request.text_tokens = txtlen;
        request.dtype = job.dtype;
        const Tensor out = transform({packed[0], context, t, packed[1], packed[2]}, request);
        Tensor velocity = shadow::view(out, {b, h, w, c, patch, patch});
        velocity = shadow::permute(std::move(velocity), {0, 3, 1, 4, 2, 5});
        return shadow::reshape(std::move(velocity), {b, c, h * patch, w * patch});
    }

    [[nodiscard]] Tensor decode_latents(const Tensor& noise_free, const job::Batch& image) {
        Tensor latents = shadow::to(noise_free, job.pipeline.vae_dtype);
        latents = shadow::unsqueeze(std::move(latents), 2);
        const LatentStatistics statistics(*this, false);
        {
            Tensor scaled = shadow::mul(latents, statistics.std);
            latents = shadow::add(std::move(scaled), statistics.mean);
        }
        models::Request request = vae_request(image, 1, models::Request::Operation::decode);
        request.tiling = job.pipeline.low_vram;
        return shadow::squeeze(vae->forward({latents}, request)[0], 2);
    }
};

constexpr std::string_view names[] = {"krea2"};
constexpr std::string_view text_encoders[] = {"qwen3_vl_4b"};
/// get_transformer_block_names; the text fusion's lists hold the word, too.
constexpr std::string_view block_names[] = {"blocks"};
constexpr std::string_view quantization_exclude[] = {"first", "tmlp*", "tproj*", "txtmlp*", "txtfusion.projector",
                                                     "last*"};
/// `text_encoder_path` and `vae_path` name copies: the net takes no other widths.
constexpr std::string_view options[] = {"edit", "max_text_length", "mmdit_config"};

std::string_view refuses(const std::map<std::string, std::string>& said) {
    if (const auto edit = said.find("edit"); edit != said.end() && edit->second != "false")
        return "edit is not played: references pass through the text encoder's vision tower and stand behind the "
               "picture";
    if (said.contains("mmdit_config")) return "mmdit_config is not played: it is another net than the published ones";
    if (const auto most = said.find("max_text_length"); most != said.end() && whole(most->second) == 0)
        return "max_text_length must be a whole number above 0";
    return {};
}

bool plays(const profile::ModelProfile& profile) { return profile.family == "krea2"; }

// Raw and Turbo are the same net.
std::string_view taken_for(std::string_view, std::string_view) { return "krea2"; }

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    return std::make_unique<Krea2>(job, catalogue, run);
}

}  // namespace

// A caption is taken for as many tokens as max_text_length lets through.
const Architecture architecture{
    .names = names,
    .title = "Krea 2",
    .models = "Krea 2",
    .vae = "vae_qwenimage",
    .text_encoders = text_encoders,
    .deleted_from_text_encoders = "vision_",  // text_encoder.model.visual = None
    .text_tokens = max_text_length,
    .most_text_tokens = max_text_length + suffix_tokens,
    .bucket_step = pixels_a_token,
    .divisible_by = pixels_a_token,
    .own_denoiser = "krea2_ai_toolkit",
    .quantizes_blocks = true,
    .quantization_exclude = quantization_exclude,
    .assistant = {.merges = true, .rank_at = ".lora_A.weight", .blocks_only = true},
    .options = options,
    .modules = {.block_names = block_names},
    .offloading = {.attaches = true},
    .refuses = refuses,
    .plays = plays,
    .taken_for = taken_for,
    .make = make,
};

}  // namespace vram::trainers::ai_toolkit::krea2
