// Mirrors OmniGen2Transformer2DModel (github.com/VectorSpaceLab/OmniGen2, commit 0f72fa9, of July 2025;
// omnigen2/models/transformers/transformer_omnigen2.py), without triton's norm and without flash-attn. diffusers 0.42.1
// has no such class. The class reads each caption's length from its mask; here every caption is as long as the longest.
#include <algorithm>
#include <deque>

#include "models/embeddings.hpp"
#include "models/families.hpp"
#include "models/lumina.hpp"
#include "models/normalization.hpp"

namespace vram::models::omnigen2 {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Linear;

/// LuminaFeedForward with swiglu of components.py.
class FeedForward : public LuminaFeedForward {
  public:
    using LuminaFeedForward::LuminaFeedForward;

    Tensor operator()(Tensor x_in) const {
        const Tensor x = std::move(x_in);
        const Tensor h1 = linear_1(x);
        const Tensor h2 = linear_3(x);
        return linear_2(swiglu(h1, h2));
    }

  private:
    static Tensor swiglu(const Tensor& x, const Tensor& y) {
        Tensor gate = silu(to_float(x));
        gate = to(std::move(gate), x.dtype());
        return mul(std::move(gate), y);
    }
};

/// Attention with OmniGen2AttnProcessor.
class Attention : public LuminaAttention {
  public:
    using LuminaAttention::LuminaAttention;

    /// attention_mask [B, S], of numbers or bool; image_rotary_emb [B, S, head_dim / 2] complex128
    Tensor operator()(Tensor hidden_states_in, Tensor attention_mask_in, const Tensor& image_rotary_emb) const {
        const Tensor held = std::move(hidden_states_in);
        Tensor attention_mask = std::move(attention_mask_in);
        Tensors projected = rotated(held, image_rotary_emb);
        Tensor query = std::move(projected[0]), key = std::move(projected[1]), value = std::move(projected[2]);
        attention_mask = view(to(attention_mask, Dtype::boolean), {held.size(0), 1, 1, -1});
        query = transpose(query, 1, 2);
        key = transpose(key, 1, 2);
        value = transpose(value, 1, 2);
        // explicitly repeat key and value to match query length
        key = repeat_interleave(key, heads_ / kv_heads_, -3);
        value = repeat_interleave(value, heads_ / kv_heads_, -3);
        return attended(query, key, value, attention_mask);
    }
};

/// torch.nn.RMSNorm by name.
class Norm {
  public:
    Norm() = default;
    Norm(const Builder& builder, std::string_view name, std::int64_t size) : norm(builder.rms_norm(name, size)) {}
    Tensor operator()(Tensor x) const { return norm(std::move(x)); }

  private:
    nn::RmsNorm norm;
};

using TransformerBlock = LuminaTransformerBlock<Norm, Attention, FeedForward>;

class OmniGen2Transformer2DModel : public Model {
  public:
    OmniGen2Transformer2DModel(nn::Weights& weights, const profile::Config& config)
        : OmniGen2Transformer2DModel(Builder(weights), config) {}

    /// Every sample has the same reference images; a tensor each.
    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        std::vector<Value> out{
            {"hidden_states", latents(request, in_channels_), request.dtype},
            {"timestep", {request.batch}, request.dtype},
            {"text_hidden_states", {request.batch, request.text_tokens, text_feat_dim_}, request.dtype},
            {"text_attention_mask", {request.batch, request.text_tokens}, Dtype::i64}};
        for (std::int64_t i = 0; i < request.batch; ++i)
            for (std::size_t j = 0; j < request.reference_images.size(); ++j) {
                const auto& [width, height] = request.reference_images[j];
                out.push_back({"ref_image_hidden_states." + std::to_string(i) + "." + std::to_string(j),
                               {in_channels_, height / 8, width / 8},
                               request.dtype});
            }
        return out;
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {latents(request, out_channels_)};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const override {
        // 1. Condition, positional & patch embedding
        Run& run = args[0].run();
        if (request.reference_images.size() > max_references)
            throw Refused("the class tells " + std::to_string(max_references) + " reference images apart; here are " +
                          std::to_string(request.reference_images.size()));
        const Dtype dtype = args[0].dtype();
        const Tensor& text_attention_mask = args[3];
        const std::int64_t batch_size = args[0].size(0);
        Tensor temb, text_hidden_states;
        time_caption_embed(args[1], args[2], dtype, temb, text_hidden_states);
        Tensor hidden_states, ref_image_hidden_states, img_mask, ref_img_mask;
        flat_and_pad_to_seq(args, request, hidden_states, ref_image_hidden_states, img_mask, ref_img_mask);
        Tensor context_rotary_emb, ref_img_rotary_emb, noise_rotary_emb, rotary_emb;
        rope_embedder(args, request, context_rotary_emb, ref_img_rotary_emb, noise_rotary_emb, rotary_emb);

        // 2. Context refinement
        const Caller plain(run, false), call(run, gradient_checkpointing);
        for (const TransformerBlock& layer : context_refiner)
            text_hidden_states = plain(layer, {text_hidden_states, text_attention_mask, context_rotary_emb})[0];
        const Tensor combined_img_hidden_states = img_patch_embed_and_refine(
            request, hidden_states, ref_image_hidden_states, img_mask, noise_rotary_emb, ref_img_rotary_emb, temb);

        // 3. Joint Transformer blocks
        const std::int64_t encoder_seq_len = text_hidden_states.size(1),
                           seq_len = encoder_seq_len + combined_img_hidden_states.size(1);
        const Tensor attention_mask = run.empty({batch_size, seq_len}, Dtype::boolean, Op::zeros);
        Tensor joint_hidden_states = run.empty({batch_size, seq_len, dim_}, dtype, Op::zeros);
        for (std::int64_t i = 0; i < batch_size; ++i) {
            put(joint_hidden_states, i, 0, encoder_seq_len, select(text_hidden_states, 0, i));
            put(joint_hidden_states, i, encoder_seq_len, seq_len, select(combined_img_hidden_states, 0, i));
        }
        hidden_states = joint_hidden_states;
        for (const TransformerBlock& layer : layers)
            hidden_states = call(layer, {hidden_states, attention_mask, rotary_emb, temb})[0];

        // 4. Output norm & projection
        hidden_states = norm_out(hidden_states, temb);
        const std::int64_t p = patch_size_, height = args[0].size(2) / p, width = args[0].size(3) / p;
        Tensors output;
        for (std::int64_t i = 0; i < batch_size; ++i) {
            Tensor sample = rows(hidden_states, i, seq_len - height * width, seq_len);
            sample = reshape(std::move(sample), {height, width, p, p, out_channels_});
            sample = permute(std::move(sample), {4, 0, 2, 1, 3});
            output.push_back(reshape(std::move(sample), {out_channels_, height * p, width * p}));
        }
        return {stack(output, 0)};
    }

  private:
    OmniGen2Transformer2DModel(const Builder& builder, const profile::Config& config)
        : dim_(config.integer("hidden_size")),
          in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels", in_channels_)),
          patch_size_(config.integer("patch_size")),
          text_feat_dim_(config.integer("text_feat_dim")),
          axes_dim_(config.integers("axes_dim_rope")),
          axes_lens_(config.integers("axes_lens")) {
        const std::int64_t refiners = config.integer("num_refiner_layers"), patch = patch_size_ * patch_size_;
        const std::int64_t time_embed_dim = std::min<std::int64_t>(dim_, 1024);
        const LuminaSizes sizes{dim_, config.integer("num_attention_heads"), config.integer("num_kv_heads"),
                                round_up(4 * dim_, config.integer("multiple_of"))};
        constexpr std::string_view block = "OmniGen2TransformerBlock";
        image_index_embedding = &builder.parameter("image_index_embedding", {max_references, dim_});
        x_embedder = builder.linear("x_embedder", patch * in_channels_, dim_);
        ref_image_patch_embedder = builder.linear("ref_image_patch_embedder", patch * in_channels_, dim_);
        const Builder embed = builder["time_caption_embed"];
        timestep_embedder = TimestepEmbedding(embed["timestep_embedder"], frequency_embedding_size, time_embed_dim);
        caption_norm = embed["caption_embedder"].rms_norm("0", text_feat_dim_);
        caption_linear = embed["caption_embedder"].linear("1", text_feat_dim_, dim_);
        for (std::int64_t i = 0; i < refiners; ++i)
            noise_refiner.emplace_back(builder["noise_refiner"][i], block, sizes, true);
        for (std::int64_t i = 0; i < refiners; ++i)
            ref_image_refiner.emplace_back(builder["ref_image_refiner"][i], block, sizes, true);
        for (std::int64_t i = 0; i < refiners; ++i)
            context_refiner.emplace_back(builder["context_refiner"][i], block, sizes, false);
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            layers.emplace_back(builder["layers"][i], block, sizes, true);
        norm_out = LuminaLayerNormContinuous(builder["norm_out"], dim_, time_embed_dim, patch * out_channels_);
    }

    [[nodiscard]] static Dims latents(const Request& request, std::int64_t channels) {
        return {request.batch, channels, request.height / 8, request.width / 8};
    }
    /// Tokens of each reference image; of none one with no tokens, as the class counts.
    [[nodiscard]] std::vector<std::int64_t> reference_lengths(const Request& request) const {
        std::vector<std::int64_t> out;
        for (const auto& [width, height] : request.reference_images)
            out.push_back(checked_mul(height / (8 * patch_size_), width / (8 * patch_size_)));
        if (out.empty()) out.push_back(0);
        return out;
    }

    // whole[i, start:end] = value
    static void put(Tensor& whole, std::int64_t i, std::int64_t start, std::int64_t end, Tensor value) {
        copy_into_view(whole, slice(select(whole.detach(), 0, i), 0, start, end), std::move(value));
    }

    // whole[i, start:end]: a slice of all is left away
    static Tensor rows(const Tensor& whole, std::int64_t i, std::int64_t start, std::int64_t end) {
        Tensor sample = select(whole, 0, i);
        return start == 0 && end == sample.size(0) ? sample : slice(std::move(sample), 0, start, end);
    }

    // Lumina2CombinedTimestepCaptionEmbedding
    void time_caption_embed(const Tensor& timestep, const Tensor& text, Dtype dtype, Tensor& time_embed,
                            Tensor& caption_embed) const {
        const Tensor timestep_proj = to(timestep_embedding(timestep, frequency_embedding_size, true), dtype);
        time_embed = timestep_embedder(timestep_proj);
        caption_embed = caption_linear(caption_norm(text));
    }

    // '(c (h p1) (w p2) -> (h w) (p1 p2 c)'
    [[nodiscard]] Tensor patches(const Tensor& picture) const {
        const std::int64_t p = patch_size_, height = picture.size(1) / p, width = picture.size(2) / p;
        Tensor out = reshape(picture, {picture.size(0), height, p, width, p});
        out = permute(std::move(out), {1, 3, 2, 4, 0});
        return reshape(std::move(out), {height * width, -1});
    }

    void flat_and_pad_to_seq(const Tensors& args, const Request& request, Tensor& hidden_states,
                             Tensor& ref_image_hidden_states, Tensor& img_mask, Tensor& ref_img_mask) const {
        Run& run = args[0].run();
        const std::int64_t batch_size = args[0].size(0);
        const std::size_t references = request.reference_images.size();
        Tensors flat_ref_img_hidden_states, flat_hidden_states, imgs;
        Tensor ref_img;
        for (std::int64_t i = 0; i < batch_size && references > 0; ++i) {
            imgs.clear();
            for (std::size_t j = 0; j < references; ++j) {
                ref_img = args[4 + static_cast<std::size_t>(i) * references + j];
                ref_img = patches(ref_img);
                imgs.push_back(ref_img);
            }
            flat_ref_img_hidden_states.push_back(cat(imgs, 0));
        }
        for (std::int64_t i = 0; i < batch_size; ++i) flat_hidden_states.push_back(patches(select(args[0], 0, i)));
        const std::int64_t width = flat_hidden_states[0].size(1), img_len = flat_hidden_states[0].size(0);
        std::int64_t ref_len = 0;
        for (const std::int64_t length : reference_lengths(request)) ref_len = checked_add(ref_len, length);
        ref_image_hidden_states = run.empty({batch_size, ref_len, width}, args[0].dtype(), Op::zeros);
        ref_img_mask = run.empty({batch_size, ref_len}, Dtype::boolean, Op::zeros);
        hidden_states = run.empty({batch_size, img_len, width}, args[0].dtype(), Op::zeros);
        img_mask = run.empty({batch_size, img_len}, Dtype::boolean, Op::zeros);
    }

    // OmniGen2RotaryPosEmbed
    void rope_embedder(const Tensors& args, const Request& request, Tensor& cap_freqs_cis, Tensor& ref_img_freqs_cis,
                       Tensor& img_freqs_cis, Tensor& freqs_cis) const {
        Run& run = args[0].run();
        const std::int64_t batch_size = args[0].size(0), encoder_seq_len = args[3].size(1), side = 8 * patch_size_;
        const std::int64_t img_len = (request.height / side) * (request.width / side);
        std::int64_t ref_len = 0;
        for (const std::int64_t length : reference_lengths(request)) ref_len += length;
        static_cast<void>(run.empty({batch_size}, Dtype::i64, Op::sum));  // l_effective_cap_len, read on the CPU
        const Tensor position_ids =
            run.empty({batch_size, encoder_seq_len + ref_len + img_len, 3}, Dtype::i32, Op::zeros);
        Tensor row_ids, col_ids;
        const auto picture = [&](std::int64_t height, std::int64_t width) {
            row_ids = flatten(expand(view(arange(run, height, Dtype::i32), {height, 1}), {height, width}), 0, 1);
            col_ids = flatten(expand(view(arange(run, width, Dtype::i32), {1, width}), {height, width}), 0, 1);
        };
        for (std::int64_t i = 0; i < batch_size; ++i) {
            static_cast<void>(arange(run, encoder_seq_len, Dtype::i32));  // copied into the caption's positions
            for (const auto& [width, height] : request.reference_images) picture(height / side, width / side);
            picture(request.height / side, request.width / side);
        }
        freqs_cis = get_freqs_cis(position_ids);
        const auto rotary = [&](std::int64_t length) {
            return run.empty({batch_size, length, freqs_cis.size(2)}, freqs_cis.dtype(), Op::zeros);
        };
        cap_freqs_cis = rotary(encoder_seq_len);
        ref_img_freqs_cis = rotary(ref_len);
        img_freqs_cis = rotary(img_len);
    }

    // _get_freqs_cis: the caller's tables are on the CPU, so each is copied anew.
    [[nodiscard]] Tensor get_freqs_cis(const Tensor& ids) const {
        Run& run = ids.run();
        Tensors result;
        Tensor freqs, index;
        for (std::size_t i = 0; i < axes_dim_.size(); ++i) {
            freqs = run.empty({axes_lens_[i], axes_dim_[i] / 2}, Dtype::complex128, Op::to_copy);
            Tensor axis = slice(ids, 2, 0, 1);
            index = to(repeat(std::move(axis), {1, 1, freqs.size(1)}), Dtype::i64);
            const Tensor repeated = repeat(unsqueeze(freqs, 0), {index.size(0), 1, 1});
            result.push_back(run.empty(index.sizes(), freqs.dtype(), Op::gather));
        }
        return cat(result, -1);
    }

    Tensor img_patch_embed_and_refine(const Request& request, const Tensor& padded, const Tensor& padded_ref,
                                      const Tensor& padded_img_mask, const Tensor& noise_rotary_emb,
                                      const Tensor& ref_img_rotary_emb, const Tensor& temb) const {
        Run& run = padded.run();
        const std::int64_t batch_size = padded.size(0);
        const std::vector<std::int64_t> lengths = reference_lengths(request);
        const auto references = static_cast<std::int64_t>(lengths.size()), num_ref_images = batch_size * references;
        const std::int64_t ref_len = padded_ref.size(1), img_len = padded.size(1);
        const Caller plain(run, false);

        Tensor hidden_states = x_embedder(padded);
        Tensor ref_image_hidden_states = ref_image_patch_embedder(padded_ref);
        for (std::int64_t i = 0; i < batch_size; ++i) {
            std::int64_t shift = 0;
            for (std::int64_t j = 0; j < references; ++j) {
                const std::int64_t end = shift + lengths[static_cast<std::size_t>(j)];
                Tensor part = rows(ref_image_hidden_states, i, shift, end);
                part = add(std::move(part), select(image_index_embedding->value, 0, j));
                put(ref_image_hidden_states, i, shift, end, std::move(part));
                shift = end;
            }
        }
        for (const TransformerBlock& layer : noise_refiner)
            hidden_states = plain(layer, {hidden_states, padded_img_mask, noise_rotary_emb, temb})[0];

        const std::int64_t max_ref_img_len = *std::max_element(lengths.begin(), lengths.end());
        const Tensor batch_ref_img_mask = run.empty({num_ref_images, max_ref_img_len}, Dtype::boolean, Op::zeros);
        Tensor batch_ref_image_hidden_states =
            run.empty({num_ref_images, max_ref_img_len, dim_}, ref_image_hidden_states.dtype(), Op::zeros);
        const Tensor batch_ref_img_rotary_emb = run.empty({num_ref_images, max_ref_img_len, ref_img_rotary_emb.size(2)},
                                                          ref_img_rotary_emb.dtype(), Op::zeros);
        Tensor batch_temb = run.empty({num_ref_images, temb.size(1)}, temb.dtype(), Op::zeros);

        // sequence of ref imgs to batch
        std::int64_t idx = 0;
        for (std::int64_t i = 0; i < batch_size; ++i) {
            std::int64_t shift = 0;
            for (const std::int64_t length : lengths) {
                put(batch_ref_image_hidden_states, idx, 0, length,
                    rows(ref_image_hidden_states, i, shift, shift + length));
                copy_into_view(batch_temb, select(batch_temb.detach(), 0, idx), select(temb, 0, i));
                shift += length;
                ++idx;
            }
        }
        // refine ref imgs separately
        for (const TransformerBlock& layer : ref_image_refiner)
            batch_ref_image_hidden_states = plain(
                layer, {batch_ref_image_hidden_states, batch_ref_img_mask, batch_ref_img_rotary_emb, batch_temb})[0];
        // batch of ref imgs to sequence
        idx = 0;
        for (std::int64_t i = 0; i < batch_size; ++i) {
            std::int64_t shift = 0;
            for (const std::int64_t length : lengths) {
                put(ref_image_hidden_states, i, shift, shift + length,
                    rows(batch_ref_image_hidden_states, idx++, 0, length));
                shift += length;
            }
        }

        Tensor combined_img_hidden_states =
            run.empty({batch_size, ref_len + img_len, dim_}, hidden_states.dtype(), Op::zeros);
        for (std::int64_t i = 0; i < batch_size; ++i) {
            put(combined_img_hidden_states, i, 0, ref_len, select(ref_image_hidden_states, 0, i));
            put(combined_img_hidden_states, i, ref_len, ref_len + img_len, select(hidden_states, 0, i));
        }
        return combined_img_hidden_states;
    }

    static constexpr std::int64_t frequency_embedding_size = 256, max_references = 5;
    std::int64_t dim_, in_channels_, out_channels_, patch_size_, text_feat_dim_;
    std::vector<std::int64_t> axes_dim_, axes_lens_;
    nn::Parameter* image_index_embedding = nullptr;
    Linear x_embedder, ref_image_patch_embedder, caption_linear;
    TimestepEmbedding timestep_embedder;
    nn::RmsNorm caption_norm;
    LuminaLayerNormContinuous norm_out;
    std::deque<TransformerBlock> noise_refiner, ref_image_refiner, context_refiner, layers;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<OmniGen2Transformer2DModel>(weights, profile.config);
}

}  // namespace vram::models::omnigen2
