// Mirrors CogVideoXTransformer3DModel (diffusers 0.42.1, models/transformers/cogvideox_transformer_3d.py;
// CogVideoXPatchEmbed of models/embeddings.py): CogVideoX 2B, 5B and 1.5, from text and from a picture.
#include <algorithm>
#include <deque>

#include "models/embeddings.hpp"
#include "models/families.hpp"
#include "models/patch_embed.hpp"

namespace vram::models::cogvideox {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::LayerNorm;
using nn::Linear;

struct Sizes {
    std::int64_t dim, heads, head_dim, time_embed_dim;
    bool attention_bias;
};

/// CogVideoXLayerNormZero: {hidden_states, encoder_hidden_states, gate, enc_gate}.
class LayerNormZero {
  public:
    LayerNormZero(const Builder& builder, const Sizes& sizes)
        : linear(builder.linear("linear", sizes.time_embed_dim, 6 * sizes.dim)),
          norm(builder.layer_norm("norm", sizes.dim)) {}

    [[nodiscard]] Tensors operator()(const Tensor& held, const Tensor& encoder_held, const Tensor& temb) const {
        // shift, scale, gate, enc_shift, enc_scale, enc_gate
        const Tensors parts = chunk(linear(silu(temb)), 6, 1);
        const Tensor hidden_states = modulated(held, parts[1], parts[0]);
        const Tensor encoder_hidden_states = modulated(encoder_held, parts[4], parts[3]);
        return {hidden_states, encoder_hidden_states, unsqueeze(parts[2], 1), unsqueeze(parts[5], 1)};
    }

  private:
    // norm(x) * (1 + scale)[:, None, :] + shift[:, None, :]
    [[nodiscard]] Tensor modulated(const Tensor& x, const Tensor& scale, const Tensor& shift) const {
        Tensor out = norm(x);
        Tensor factor = unsqueeze(add_scalar(scale), 1);
        out = mul(std::move(out), std::move(factor));
        return add(std::move(out), unsqueeze(shift, 1));
    }

    Linear linear;
    LayerNorm norm;
};

/// Attention over text and video, CogVideoXAttnProcessor2_0: {hidden_states, encoder_hidden_states}.
class CogVideoXAttention {
  public:
    CogVideoXAttention(const Builder& builder, const Sizes& sizes)
        : heads_(sizes.heads),
          head_dim_(sizes.head_dim),
          norm_q(builder.layer_norm("norm_q", sizes.head_dim)),
          norm_k(builder.layer_norm("norm_k", sizes.head_dim)),
          to_q(builder.linear("to_q", sizes.dim, sizes.dim, sizes.attention_bias)),
          to_k(builder.linear("to_k", sizes.dim, sizes.dim, sizes.attention_bias)),
          to_v(builder.linear("to_v", sizes.dim, sizes.dim, sizes.attention_bias)),
          to_out(builder["to_out"].linear("0", sizes.dim, sizes.dim)) {}

    [[nodiscard]] Tensors operator()(const Tensor& hidden_states_in, const Tensor& encoder_hidden_states,
                                     const Tensor& cos, const Tensor& sin) const {
        const std::int64_t text_seq_length = encoder_hidden_states.size(1);
        Tensor hidden_states = cat({encoder_hidden_states, hidden_states_in}, 1);
        const std::int64_t batch_size = hidden_states.size(0);
        Tensor query = to_q(hidden_states);
        Tensor key = to_k(hidden_states);
        Tensor value = to_v(hidden_states);
        query = transpose(view(query, {batch_size, -1, heads_, head_dim_}), 1, 2);
        key = transpose(view(key, {batch_size, -1, heads_, head_dim_}), 1, 2);
        value = transpose(view(value, {batch_size, -1, heads_, head_dim_}), 1, 2);
        query = norm_q(query);
        key = norm_k(key);
        if (cos.defined()) {
            rotate(query, text_seq_length, cos, sin);
            rotate(key, text_seq_length, cos, sin);
        }
        hidden_states = scaled_dot_product_attention(query, key, value);
        hidden_states = reshape(transpose(hidden_states, 1, 2), {batch_size, -1, heads_ * head_dim_});
        hidden_states = to_out(hidden_states);
        const Tensors parts = split(hidden_states, Dims{text_seq_length, hidden_states.size(1) - text_seq_length}, 1);
        return {parts[1], parts[0]};
    }

  private:
    // x[:, :, text:] = apply_rotary_emb(x[:, :, text:], image_rotary_emb)
    static void rotate(Tensor& x, std::int64_t text, const Tensor& cos, const Tensor& sin) {
        const Tensor rotated = apply_rotary_emb(slice(x, 2, text, x.size(2)), cos, sin, 2);
        copy_into_slice(x, 2, text, x.size(2), 1, rotated);
    }

    std::int64_t heads_, head_dim_;
    LayerNorm norm_q, norm_k;
    Linear to_q, to_k, to_v, to_out;
};

/// args: hidden_states, encoder_hidden_states, temb, and cos, sin where positions rotate → hidden_states,
/// encoder_hidden_states
class CogVideoXBlock : public Block {
  public:
    CogVideoXBlock(const Builder& parent, const Sizes& sizes) : CogVideoXBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0], encoder_hidden_states = args[1];
        const Tensor& temb = args[2];
        const Tensor cos = args.size() > 3 ? args[3] : Tensor(), sin = args.size() > 3 ? args[4] : Tensor();
        const std::int64_t text_seq_length = encoder_hidden_states.size(1);

        // norm & modulate
        Tensors modulated = norm1(hidden_states, encoder_hidden_states, temb);
        Tensor norm_hidden_states = modulated[0], norm_encoder_hidden_states = modulated[1];
        const Tensor gate_msa = modulated[2], enc_gate_msa = modulated[3];
        modulated.clear();

        // attention
        const Tensors attn = attn1(norm_hidden_states, norm_encoder_hidden_states, cos, sin);
        hidden_states = add(hidden_states, mul(gate_msa, attn[0]));
        encoder_hidden_states = add(encoder_hidden_states, mul(enc_gate_msa, attn[1]));

        // norm & modulate
        modulated = norm2(hidden_states, encoder_hidden_states, temb);
        norm_hidden_states = modulated[0];
        norm_encoder_hidden_states = modulated[1];
        const Tensor gate_ff = modulated[2], enc_gate_ff = modulated[3];
        modulated.clear();

        // feed-forward
        norm_hidden_states = cat({norm_encoder_hidden_states, norm_hidden_states}, 1);
        const Tensor ff_output = ff(norm_hidden_states);
        hidden_states = add(hidden_states, mul(gate_ff, slice(ff_output, 1, text_seq_length, ff_output.size(1))));
        encoder_hidden_states = add(encoder_hidden_states, mul(enc_gate_ff, slice(ff_output, 1, 0, text_seq_length)));
        return {hidden_states, encoder_hidden_states};
    }

  private:
    CogVideoXBlock(const BlockBuilder& builder, const Sizes& sizes)
        : norm1(builder["norm1"], sizes),
          attn1(builder["attn1"], sizes),
          norm2(builder["norm2"], sizes),
          ff(builder["ff"], sizes.dim, 4 * sizes.dim, FeedForward::Activation::gelu) {
        builder.finish(*this, "CogVideoXBlock", {sizes.heads, sizes.head_dim});
    }

    LayerNormZero norm1;
    CogVideoXAttention attn1;
    LayerNormZero norm2;
    FeedForward ff;
};

// get_3d_sincos_pos_embed: [frames, height · width, size] fp64
Tensor sincos_3d(Run& run, std::int64_t size, std::int64_t height, std::int64_t width, std::int64_t frames) {
    const Tensor grid_h = div_scalar(arange(run, height, Dtype::f32));
    const Tensor grid_w = div_scalar(arange(run, width, Dtype::f32));
    const std::array<Tensor, 2> mesh{expand(view(grid_w, {1, width}), {height, width}),
                                     expand(view(grid_h, {height, 1}), {height, width})};
    const Tensor grid = reshape(stack(mesh, 0), {2, 1, height, width});
    Tensor pos_embed_spatial = sincos_pos_embed_2d(3 * size / 4, grid);
    const Tensor grid_t = div_scalar(arange(run, frames, Dtype::f32));
    Tensor pos_embed_temporal = sincos_pos_embed_1d(size / 4, grid_t);
    pos_embed_spatial = unsqueeze(pos_embed_spatial, 0);
    pos_embed_spatial = repeat_interleave(pos_embed_spatial, frames, 0);
    pos_embed_temporal = unsqueeze(pos_embed_temporal, 1);
    pos_embed_temporal = repeat_interleave(pos_embed_temporal, height * width, 1);
    return cat({pos_embed_temporal, pos_embed_spatial}, -1);
}

class CogVideoXTransformer3DModel : public Model {
  public:
    CogVideoXTransformer3DModel(const Builder& builder, const profile::Config& config)
        : in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels")),
          head_dim_(config.integer("attention_head_dim")),
          dim_(config.integer("num_attention_heads") * head_dim_),
          text_embed_dim_(config.integer("text_embed_dim")),
          patch_size_(config.integer("patch_size")),
          patch_size_t_(config.integer("patch_size_t", 0)),
          temporal_(config.integer("temporal_compression_ratio")),
          ofs_embed_dim_(config.integer("ofs_embed_dim", 0)),
          rotary_(config.boolean("use_rotary_positional_embeddings")),
          adds_positions_(!rotary_ || config.boolean("use_learned_positional_embeddings", false)) {
        const Sizes sizes{dim_, config.integer("num_attention_heads"), head_dim_, config.integer("time_embed_dim"),
                          config.boolean("attention_bias", true)};
        const Builder embed = builder["patch_embed"];
        const std::int64_t patch = patch_size_ * patch_size_ * std::max<std::int64_t>(patch_size_t_, 1);
        if (patch_size_t_ == 0)
            proj = embed.conv2d("proj", in_channels_, dim_, patch_size_, patch_size_);
        else
            linear_proj = embed.linear("proj", in_channels_ * patch, dim_);
        text_proj = embed.linear("text_proj", text_embed_dim_, dim_);
        if (adds_positions_) {
            sample_height_ = config.integer("sample_height");
            sample_width_ = config.integer("sample_width");
            sample_frames_ = config.integer("sample_frames");
            max_text_seq_length_ = config.integer("max_text_seq_length");
            pos_embedding = &embed.buffer(
                "pos_embedding", {1, positions(sample_height_, sample_width_, latent_frames(sample_frames_)), dim_},
                Dtype::f64);
        }
        time_embedding = TimestepEmbedding(builder["time_embedding"], dim_, sizes.time_embed_dim);
        if (ofs_embed_dim_ > 0)
            ofs_embedding = TimestepEmbedding(builder["ofs_embedding"], ofs_embed_dim_, ofs_embed_dim_);
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            blocks.emplace_back(builder["transformer_blocks"][i], sizes);
        // Nobody reads the text that the last block returns, so part of its graph dies with the forward: it is played,
        // never copied.
        if (!blocks.empty()) blocks.back().spec = -1;
        norm_final = builder.layer_norm("norm_final", dim_);
        norm_out_linear = builder["norm_out"].linear("linear", sizes.time_embed_dim, 2 * dim_);
        norm_out_norm = builder["norm_out"].layer_norm("norm", dim_);
        proj_out = builder.linear("proj_out", dim_, patch * out_channels_);
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        // Positions that are added count on the whole length of the text.
        const std::int64_t text = adds_positions_ ? max_text_seq_length_ : request.text_tokens;
        const Dims sample = latents(request, in_channels_);
        std::vector<Value> out{{"hidden_states", sample, request.dtype},
                               {"encoder_hidden_states", {request.batch, text, text_embed_dim_}, request.dtype},
                               {"timestep", {request.batch}, Dtype::i64}};
        if (ofs_embed_dim_ > 0) out.push_back({"ofs", {1}, request.dtype});
        if (rotary_) {
            const std::int64_t frames = sample[1] / std::max<std::int64_t>(patch_size_t_, 1);
            const Dims table{frames * (sample[3] / patch_size_) * (sample[4] / patch_size_), head_dim_};
            out.push_back({"image_rotary_emb.0", table, Dtype::f32});
            out.push_back({"image_rotary_emb.1", table, Dtype::f32});
        }
        return out;
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {latents(request, out_channels_)};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Tensor hidden_states = args[0], encoder_hidden_states = args[1];
        const std::int64_t batch_size = hidden_states.size(0), num_frames = hidden_states.size(1),
                           height = hidden_states.size(3), width = hidden_states.size(4);

        // 1. Time embedding
        Tensor t_emb = timestep_embedding(args[2], dim_, true);
        t_emb = to(t_emb, hidden_states.dtype());
        Tensor emb = time_embedding(t_emb);
        Tensor ofs_emb;
        if (ofs_embed_dim_ > 0) {
            ofs_emb = timestep_embedding(args[3], ofs_embed_dim_, true);
            ofs_emb = to(ofs_emb, hidden_states.dtype());
            ofs_emb = ofs_embedding(ofs_emb);
            emb = add(emb, ofs_emb);
        }

        // 2. Patch embedding
        hidden_states = patch_embed(encoder_hidden_states, hidden_states);
        const std::int64_t text_seq_length = encoder_hidden_states.size(1);
        encoder_hidden_states = slice(hidden_states, 1, 0, text_seq_length);
        hidden_states = slice(hidden_states, 1, text_seq_length, hidden_states.size(1));

        // 3. Transformer blocks
        const Caller call(hidden_states.run(), gradient_checkpointing);
        for (const CogVideoXBlock& block : blocks) {
            Tensors inputs{hidden_states, encoder_hidden_states, emb};
            if (rotary_) inputs.push_back(args[args.size() - 2]);
            if (rotary_) inputs.push_back(args[args.size() - 1]);
            const Tensors outputs = call(block, std::move(inputs));
            hidden_states = outputs[0];
            encoder_hidden_states = outputs[1];
        }
        hidden_states = norm_final(hidden_states);

        // 4. Final block
        hidden_states = norm_out(hidden_states, emb);
        hidden_states = proj_out(hidden_states);

        // 5. Unpatchify
        const std::int64_t p = patch_size_, p_t = patch_size_t_;
        if (p_t > 0) {
            Tensor output =
                reshape(hidden_states, {batch_size, num_frames / p_t, height / p, width / p, -1, p_t, p, p});
            output = flatten(permute(output, {0, 1, 5, 4, 2, 6, 3, 7}), 6, 7);
            output = flatten(output, 4, 5);
            return {flatten(output, 1, 2)};
        }
        Tensor output = reshape(hidden_states, {batch_size, num_frames, height / p, width / p, -1, p, p});
        output = flatten(permute(output, {0, 1, 4, 2, 5, 3, 6}), 5, 6);
        output = flatten(output, 3, 4);
        return {output};
    }

  private:
    [[nodiscard]] std::int64_t latent_frames(std::int64_t frames) const { return (frames - 1) / temporal_ + 1; }
    /// Of text and video, height and width in latents.
    [[nodiscard]] std::int64_t positions(std::int64_t height, std::int64_t width, std::int64_t frames) const {
        return checked_add(max_text_seq_length_,
                           checked_mul(checked_mul(height / patch_size_, width / patch_size_), frames));
    }
    /// The pipelines fill the latent frames up to whole patches.
    [[nodiscard]] Dims latents(const Request& request, std::int64_t channels) const {
        std::int64_t frames = latent_frames(request.frames);
        if (patch_size_t_ > 0) frames = (frames + patch_size_t_ - 1) / patch_size_t_ * patch_size_t_;
        return {request.batch, frames, channels, request.height / 8, request.width / 8};
    }

    // CogVideoXPatchEmbed
    [[nodiscard]] Tensor patch_embed(const Tensor& text, const Tensor& image) const {
        const Tensor text_embeds = text_proj(text);
        const std::int64_t batch_size = image.size(0), num_frames = image.size(1), height = image.size(3),
                           width = image.size(4);
        Tensor image_embeds = image;
        if (patch_size_t_ == 0) {
            image_embeds = reshape(image_embeds, {-1, image.size(2), height, width});
            image_embeds = proj(image_embeds);
            image_embeds = view(image_embeds, {batch_size, num_frames, image_embeds.size(1), image_embeds.size(2),
                                               image_embeds.size(3)});
            image_embeds = transpose(flatten(image_embeds, 3, 4), 2, 3);
            image_embeds = flatten(image_embeds, 1, 2);
        } else {
            const std::int64_t p = patch_size_, p_t = patch_size_t_;
            image_embeds = permute(image_embeds, {0, 1, 3, 4, 2});
            image_embeds =
                reshape(image_embeds, {batch_size, num_frames / p_t, p_t, height / p, p, width / p, p, image.size(2)});
            image_embeds = flatten(permute(image_embeds, {0, 1, 3, 5, 7, 2, 4, 6}), 4, 7);
            image_embeds = flatten(image_embeds, 1, 3);
            image_embeds = linear_proj(image_embeds);
        }
        Tensor embeds = cat({text_embeds, image_embeds}, 1);
        if (!adds_positions_) return embeds;
        Tensor pos;
        if (sample_height_ != height || sample_width_ != width || sample_frames_ != (num_frames - 1) * temporal_ + 1) {
            Run& run = embeds.run();
            Tensor made = sincos_3d(run, dim_, height / patch_size_, width / patch_size_, num_frames);
            made = flatten(made, 0, 1);
            pos = run.empty({1, positions(height, width, num_frames), dim_}, made.dtype(), Op::zeros);
        } else {
            pos = pos_embedding->value;
        }
        pos = to(pos, embeds.dtype());
        embeds = add(embeds, pos);
        return embeds;
    }

    // AdaLayerNorm
    [[nodiscard]] Tensor norm_out(const Tensor& x, const Tensor& emb) const {
        const Tensor temb = norm_out_linear(silu(emb));
        const Tensors parts = chunk(temb, 2, 1);
        const Tensor shift = unsqueeze(parts[0], 1), scale = unsqueeze(parts[1], 1);
        Tensor out = norm_out_norm(x);
        Tensor factor = add_scalar(scale);
        out = mul(std::move(out), std::move(factor));
        return add(std::move(out), shift);
    }

    std::int64_t in_channels_, out_channels_, head_dim_, dim_, text_embed_dim_, patch_size_, patch_size_t_, temporal_,
        ofs_embed_dim_;
    bool rotary_, adds_positions_;
    std::int64_t sample_height_ = 0, sample_width_ = 0, sample_frames_ = 0, max_text_seq_length_ = 0;
    nn::Conv proj;
    Linear linear_proj, text_proj;
    Parameter* pos_embedding = nullptr;
    TimestepEmbedding time_embedding, ofs_embedding;
    std::deque<CogVideoXBlock> blocks;
    LayerNorm norm_final;
    Linear norm_out_linear;
    LayerNorm norm_out_norm;
    Linear proj_out;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<CogVideoXTransformer3DModel>(Builder(weights), profile.config);
}

}  // namespace vram::models::cogvideox
