// Mirrors QwenImageTransformer2DModel (diffusers 0.42.1, models/transformers/transformer_qwenimage.py): Qwen-Image, the
// Edit models and Qwen-Image-Layered. Reference images stand behind the noisy tokens of the sequence, each with a grid
// of its own, as QwenImageEditPipeline and QwenImageEditPlusPipeline put them; behind the layers the picture that they
// are made of, in the same size, as QwenImageLayeredPipeline does. What it calls layers are frames here: the whole,
// then each.
//
// And musubi-tuner's class of the same name (30c658c, src/musubi_tuner/qwen_image/qwen_image_model.py): its modules are
// these, its forward lets go of tensors earlier, joins the image first, adds gates by addcmul and hands a mask on.
// Attention is as with --sdpa.
#include <algorithm>
#include <deque>
#include <vector>

#include "models/attention.hpp"
#include "models/embeddings.hpp"
#include "models/families.hpp"
#include "models/normalization.hpp"

namespace vram::models::qwen_image {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

struct Sizes {
    std::int64_t dim, heads, head_dim;
    bool zero_cond_t;  // image modulation is computed for the timestep and for 0, and chosen by token
    bool musubi;       // the forward of musubi-tuner
};

// apply_rotary_emb_qwen(use_real=False): x [B, S, H, D] with freqs_cis [S, D/2] complex64
Tensor apply_rotary_emb_qwen(const Tensor& x, const Tensor& freqs) {
    const Tensor x_rotated =
        view_as_complex(reshape(to_float(x), {x.size(0), x.size(1), x.size(2), -1, 2}));  // [B, S, H, D/2]
    const Tensor freqs_cis = unsqueeze(freqs, 1);
    Tensor x_out = view_as_real(mul(x_rotated, freqs_cis));
    x_out = flatten(std::move(x_out), 3, 4);
    return to(x_out, x.dtype());
}

class Attention {
  public:
    Attention(const Builder& builder, const Sizes& sizes)
        : head_dim_(sizes.head_dim),
          norm_q(builder["norm_q"], sizes.head_dim),
          norm_k(builder["norm_k"], sizes.head_dim),
          to_q(builder.linear("to_q", sizes.dim, sizes.dim)),
          to_k(builder.linear("to_k", sizes.dim, sizes.dim)),
          to_v(builder.linear("to_v", sizes.dim, sizes.dim)),
          add_k_proj(builder.linear("add_k_proj", sizes.dim, sizes.dim)),
          add_v_proj(builder.linear("add_v_proj", sizes.dim, sizes.dim)),
          add_q_proj(builder.linear("add_q_proj", sizes.dim, sizes.dim)),
          to_out(builder["to_out"].linear("0", sizes.dim, sizes.dim)),
          to_add_out(builder.linear("to_add_out", sizes.dim, sizes.dim)),
          norm_added_q(builder["norm_added_q"], sizes.head_dim),
          norm_added_k(builder["norm_added_k"], sizes.head_dim) {}

    /// QwenDoubleStreamAttnProcessor2_0: {img_attn_output, txt_attn_output}. encoder_hidden_states_mask [B, T] bool or
    /// undefined
    Tensors operator()(Tensor hidden_states_in, Tensor encoder_hidden_states_in,
                       const Tensor& encoder_hidden_states_mask, const Tensor& img_freqs,
                       const Tensor& txt_freqs) const {
        const Tensor hidden_states = std::move(hidden_states_in),
                     encoder_hidden_states = std::move(encoder_hidden_states_in);
        Tensor image_mask, attention_mask;
        if (encoder_hidden_states_mask.defined()) {
            image_mask =
                hidden_states.run().empty({hidden_states.size(0), hidden_states.size(1)}, Dtype::boolean, Op::ones);
            attention_mask = cat({encoder_hidden_states_mask, image_mask}, 1);
            attention_mask = unsqueeze(unsqueeze(std::move(attention_mask), 1), 1);  // [B, 1, 1, T + S]
        }
        const std::int64_t seq_txt = encoder_hidden_states.size(1);

        Tensor img_query = to_q(hidden_states);
        Tensor img_key = to_k(hidden_states);
        Tensor img_value = to_v(hidden_states);
        Tensor txt_query = add_q_proj(encoder_hidden_states);
        Tensor txt_key = add_k_proj(encoder_hidden_states);
        Tensor txt_value = add_v_proj(encoder_hidden_states);

        img_query = unflatten(img_query, -1, {-1, head_dim_});
        img_key = unflatten(img_key, -1, {-1, head_dim_});
        img_value = unflatten(img_value, -1, {-1, head_dim_});
        txt_query = unflatten(txt_query, -1, {-1, head_dim_});
        txt_key = unflatten(txt_key, -1, {-1, head_dim_});
        txt_value = unflatten(txt_value, -1, {-1, head_dim_});

        img_query = norm_q(img_query);
        img_key = norm_k(img_key);
        txt_query = norm_added_q(txt_query);
        txt_key = norm_added_k(txt_key);

        img_query = apply_rotary_emb_qwen(img_query, img_freqs);
        img_key = apply_rotary_emb_qwen(img_key, img_freqs);
        txt_query = apply_rotary_emb_qwen(txt_query, txt_freqs);
        txt_key = apply_rotary_emb_qwen(txt_key, txt_freqs);

        // Order: [text, image]
        const Tensor joint_query = cat({txt_query, img_query}, 1);
        const Tensor joint_key = cat({txt_key, img_key}, 1);
        const Tensor joint_value = cat({txt_value, img_value}, 1);

        Tensor joint_hidden_states = dispatch_attention(joint_query, joint_key, joint_value, attention_mask);
        joint_hidden_states = flatten(std::move(joint_hidden_states), 2, 3);
        joint_hidden_states = to(std::move(joint_hidden_states), joint_query.dtype());

        Tensor txt_attn_output = slice(joint_hidden_states, 1, 0, seq_txt);
        Tensor img_attn_output = slice(joint_hidden_states, 1, seq_txt, joint_hidden_states.size(1));
        img_attn_output = to_out(contiguous(img_attn_output));
        txt_attn_output = to_add_out(contiguous(txt_attn_output));
        return {img_attn_output, txt_attn_output};
    }

    /// The same in musubi: `mask` [B, T] bool or undefined; `txt_seq_lens` [B] int64.
    Tensors musubi(Tensor hidden_states_in, Tensor encoder_hidden_states_in, const Tensor& mask,
                   const Tensor& img_freqs, const Tensor& txt_freqs, const Tensor& txt_seq_lens) const {
        const Tensor hidden_states = std::move(hidden_states_in),
                     encoder_hidden_states = std::move(encoder_hidden_states_in);
        const auto split_heads = [&](Tensor x) { return unflatten(std::move(x), -1, {-1, head_dim_}); };
        Tensor img_query = split_heads(to_q(hidden_states));
        Tensor img_key = split_heads(to_k(hidden_states));
        Tensor img_value = split_heads(to_v(hidden_states));
        Tensor txt_query = split_heads(add_q_proj(encoder_hidden_states));
        Tensor txt_key = split_heads(add_k_proj(encoder_hidden_states));
        Tensor txt_value = split_heads(add_v_proj(encoder_hidden_states));

        img_query = norm_q(img_query);
        img_key = norm_k(img_key);
        txt_query = norm_added_q(txt_query);
        txt_key = norm_added_k(txt_key);

        img_query = apply_rotary_emb_qwen(img_query, img_freqs);
        img_key = apply_rotary_emb_qwen(img_key, img_freqs);
        txt_query = apply_rotary_emb_qwen(txt_query, txt_freqs);
        txt_key = apply_rotary_emb_qwen(txt_key, txt_freqs);
        const std::int64_t seq_img = img_query.size(1);

        // Order: [image, text]
        Tensor joint_query = cat({std::move(img_query), std::move(txt_query)}, 1);
        Tensor joint_key = cat({std::move(img_key), std::move(txt_key)}, 1);
        Tensor joint_value = cat({std::move(img_value), std::move(txt_value)}, 1);
        Tensor attention_mask;
        if (mask.defined()) {
            Tensor ones = mask.run().empty({mask.size(0), seq_img}, Dtype::boolean, Op::ones);
            attention_mask = cat({std::move(ones), mask}, 1);
            attention_mask = unsqueeze(unsqueeze(std::move(attention_mask), 1), 1);  // [B, 1, 1, S]
        }
        const Tensor total_len = add_scalar(txt_seq_lens);
        Tensor joint_hidden_states;
        {
            Tensor q = transpose(std::move(joint_query), 1, 2);
            Tensor k = transpose(std::move(joint_key), 1, 2);
            Tensor v = transpose(std::move(joint_value), 1, 2);
            joint_hidden_states =
                scaled_dot_product_attention(std::move(q), std::move(k), std::move(v), attention_mask);
        }
        joint_hidden_states = flatten(transpose(std::move(joint_hidden_states), 1, 2), 2, 3);

        Tensor img_attn_output = slice(joint_hidden_states, 1, 0, seq_img);
        Tensor txt_attn_output = slice(joint_hidden_states, 1, seq_img, joint_hidden_states.size(1));
        joint_hidden_states = Tensor();
        img_attn_output = to_out(img_attn_output);
        txt_attn_output = to_add_out(txt_attn_output);
        return {img_attn_output, txt_attn_output};
    }

  private:
    std::int64_t head_dim_;
    PlainRmsNorm norm_q, norm_k;
    Linear to_q, to_k, to_v, add_k_proj, add_v_proj, add_q_proj, to_out, to_add_out;
    PlainRmsNorm norm_added_q, norm_added_k;
};

/// args: hidden_states, encoder_hidden_states, encoder_hidden_states_mask or undefined, temb, img_freqs, txt_freqs,
/// then modulate_index or undefined; in musubi txt_seq_lens and, with zero_cond_t, [N, 0] of the noisy picture's N
/// tokens → encoder_hidden_states, hidden_states
class QwenImageTransformerBlock : public Block {
  public:
    QwenImageTransformerBlock(const Builder& parent, const Sizes& sizes)
        : QwenImageTransformerBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        if (musubi_) return musubi(args);
        Tensor hidden_states = args[0], encoder_hidden_states = args[1], temb = args[3];
        const Tensor& modulate_index = args[6];
        const Tensor img_mod_params = img_mod(silu(temb));  // [B, 6 D]
        if (zero_cond_t_) temb = chunk(temb, 2, 0)[0];
        const Tensor txt_mod_params = txt_mod(silu(temb));
        const Tensors img_mods = chunk(img_mod_params, 2, -1);  // [B, 3 D] each: norm1, norm2
        const Tensors txt_mods = chunk(txt_mod_params, 2, -1);

        const Tensor img_normed = img_norm1(hidden_states);
        const Tensors img_modulated = modulate(img_normed, img_mods[0], modulate_index);  // with its gate
        const Tensor txt_normed = txt_norm1(encoder_hidden_states);
        const Tensors txt_modulated = modulate(txt_normed, txt_mods[0], {});

        const Tensors attn_output = attn(img_modulated[0], txt_modulated[0], args[2], args[4], args[5]);
        hidden_states = add(hidden_states, mul(img_modulated[1], attn_output[0]));
        encoder_hidden_states = add(encoder_hidden_states, mul(txt_modulated[1], attn_output[1]));

        const Tensor img_normed2 = img_norm2(hidden_states);
        const Tensors img_modulated2 = modulate(img_normed2, img_mods[1], modulate_index);
        const Tensor img_mlp_output = img_mlp(img_modulated2[0]);
        hidden_states = add(hidden_states, mul(img_modulated2[1], img_mlp_output));

        const Tensor txt_normed2 = txt_norm2(encoder_hidden_states);
        const Tensors txt_modulated2 = modulate(txt_normed2, txt_mods[1], {});
        const Tensor txt_mlp_output = txt_mlp(txt_modulated2[0]);
        encoder_hidden_states = add(encoder_hidden_states, mul(txt_modulated2[1], txt_mlp_output));

        if (encoder_hidden_states.dtype() == Dtype::f16) encoder_hidden_states = clamp(encoder_hidden_states);
        if (hidden_states.dtype() == Dtype::f16) hidden_states = clamp(hidden_states);
        return {encoder_hidden_states, hidden_states};
    }

  private:
    QwenImageTransformerBlock(const BlockBuilder& builder, const Sizes& sizes)
        : img_mod(builder["img_mod"].linear("1", sizes.dim, 6 * sizes.dim)),
          img_norm1(builder.layer_norm("img_norm1", sizes.dim, false)),
          attn(builder["attn"], sizes),
          img_norm2(builder.layer_norm("img_norm2", sizes.dim, false)),
          img_mlp(builder["img_mlp"], sizes.dim, 4 * sizes.dim, FeedForward::Activation::gelu),
          txt_mod(builder["txt_mod"].linear("1", sizes.dim, 6 * sizes.dim)),
          txt_norm1(builder.layer_norm("txt_norm1", sizes.dim, false)),
          txt_norm2(builder.layer_norm("txt_norm2", sizes.dim, false)),
          txt_mlp(builder["txt_mlp"], sizes.dim, 4 * sizes.dim, FeedForward::Activation::gelu),
          zero_cond_t_(sizes.zero_cond_t),
          musubi_(sizes.musubi) {
        builder.finish(*this, "QwenImageTransformerBlock",
                       {sizes.heads, sizes.head_dim, sizes.zero_cond_t, sizes.musubi});
    }

    [[nodiscard]] Tensors musubi(const Tensors& args) const {
        Tensor hidden_states = args[0], encoder_hidden_states = args[1], temb = args[3];
        const std::int64_t boundary = zero_cond_t_ ? args[7].size(0) : 0;
        Tensor img_mod1, img_mod2, txt_mod1, txt_mod2;
        {
            const Tensor img_mod_params = img_mod(silu(temb));
            if (zero_cond_t_) temb = chunk(temb, 2, 0)[0];
            const Tensor txt_mod_params = txt_mod(silu(temb));
            Tensors halves = chunk(img_mod_params, 2, -1);
            img_mod1 = halves[0];
            img_mod2 = halves[1];
            halves = chunk(txt_mod_params, 2, -1);
            txt_mod1 = halves[0];
            txt_mod2 = halves[1];
        }
        Tensors img = musubi_modulate(img_norm1(hidden_states), std::move(img_mod1), boundary);
        Tensors txt = musubi_modulate(txt_norm1(encoder_hidden_states), std::move(txt_mod1), 0);
        Tensors output = attn.musubi(std::move(img[0]), std::move(txt[0]), args[2], args[4], args[5], args[6]);
        hidden_states = addcmul(hidden_states, std::move(img[1]), std::move(output[0]));
        encoder_hidden_states = addcmul(encoder_hidden_states, std::move(txt[1]), std::move(output[1]));

        img = musubi_modulate(img_norm2(hidden_states), std::move(img_mod2), boundary);
        Tensor change = img_mlp(std::move(img[0]));
        hidden_states = addcmul(hidden_states, std::move(img[1]), std::move(change));

        txt = musubi_modulate(txt_norm2(encoder_hidden_states), std::move(txt_mod2), 0);
        change = txt_mlp(std::move(txt[0]));
        encoder_hidden_states = addcmul(encoder_hidden_states, std::move(txt[1]), std::move(change));

        if (encoder_hidden_states.dtype() == Dtype::f16) encoder_hidden_states = clamp(encoder_hidden_states);
        if (hidden_states.dtype() == Dtype::f16) hidden_states = clamp(hidden_states);
        return {encoder_hidden_states, hidden_states};
    }

    // _modulate: {x * (1 + scale) + shift, gate}; the tokens from `boundary` on, if it is not 0, by the second half of
    // the batch
    static Tensors musubi_modulate(Tensor x_in, Tensor mod_params, std::int64_t boundary) {
        const Tensor x = std::move(x_in);
        const Tensors params = chunk(std::move(mod_params), 3, -1);  // shift, scale, gate
        if (boundary == 0) {
            Tensor out = mul(x, add_scalar(unsqueeze(params[1], 1)));
            out = add(std::move(out), unsqueeze(params[0], 1));
            return {out, unsqueeze(params[2], 1)};
        }
        const Tensors halves = halves_of(params);  // of shift, of scale, of gate
        const auto part = [&](std::size_t second) {
            Tensor out = slice(x, 1, second == 0 ? 0 : boundary, second == 0 ? boundary : x.size(1));
            out = mul(std::move(out), add_scalar(halves[2 + second]));
            return add(std::move(out), halves[second]);
        };
        Tensor first = part(0);
        Tensor second = part(1);
        Tensor out = cat({std::move(first), std::move(second)}, 1);
        Tensor gate =
            cat({expand(halves[4], {-1, boundary, -1}), expand(halves[5], {-1, x.size(1) - boundary, -1})}, 1);
        return {out, gate};
    }

    // _modulate: {x * (1 + scale) + shift, gate}; with an index, each token's vectors are those of its half of the
    // batch
    static Tensors modulate(const Tensor& x, const Tensor& mod_params, const Tensor& index) {
        const Tensors params = chunk(mod_params, 3, -1);  // shift, scale, gate
        Tensors result;
        if (index.defined()) {
            result = by_token(params, index);
        } else {
            for (const Tensor& param : params) result.push_back(unsqueeze(param, 1));
        }
        Tensor out = mul(x, add_scalar(result[1]));
        out = add(std::move(out), result[0]);
        return {out, result[2]};
    }
    // The two halves of the batch [B, 1, D], of each.
    static Tensors halves_of(const Tensors& params) {
        const std::int64_t actual_batch = params[0].size(0) / 2;
        Tensors halves;
        for (const Tensor& param : params) {
            halves.push_back(slice(param, 0, 0, actual_batch));
            halves.push_back(slice(param, 0, actual_batch, 2 * actual_batch));
        }
        for (Tensor& half : halves) half = unsqueeze(half, 1);
        return halves;
    }
    // torch.where(index[..., None] == 0, first half [B, 1, D], second half) → [B, S, D], of each
    static Tensors by_token(const Tensors& params, const Tensor& index) {
        const Tensor index_expanded = unsqueeze(index, -1);  // [B, S, 1]
        const Tensors halves = halves_of(params);
        Tensors result;
        for (std::size_t i = 0; i < params.size(); ++i)
            result.push_back(where(compare_scalar(index_expanded), halves[2 * i], halves[2 * i + 1]));
        return result;
    }

    Linear img_mod;
    nn::LayerNorm img_norm1;
    Attention attn;
    nn::LayerNorm img_norm2;
    FeedForward img_mlp;
    Linear txt_mod;
    nn::LayerNorm txt_norm1, txt_norm2;
    FeedForward txt_mlp;
    bool zero_cond_t_, musubi_;
};

/// QwenEmbedRope with scale_rope, and QwenEmbedLayer3DRope. Its tables are plain attributes on the CPU: what it makes
/// of them on the GPU, the class keeps for good.
class QwenEmbedRope {
  public:
    QwenEmbedRope() = default;
    QwenEmbedRope(const std::vector<std::int64_t>& axes_dim, bool layers) : layers_(layers) {
        for (const std::int64_t axis : axes_dim) {
            axes_.push_back(axis / 2);
            dim_ += axis / 2;
        }
    }

    /// Height and width of a picture in tokens; one frame.
    struct Grid {
        std::int64_t height, width;
        bool operator==(const Grid&) const = default;
    };

    /// vid_freqs [S, D/2], txt_freqs [T, D/2], complex64
    [[nodiscard]] Tensors operator()(Run& run, const std::vector<Grid>& img_shapes, std::int64_t text_tokens) const {
        std::vector<Tensor> freqs;
        std::int64_t max_vid_index = 0;
        for (std::size_t idx = 0; idx < img_shapes.size(); ++idx) {
            const auto [height, width] = img_shapes[idx];
            // Behind layers, the picture that they are made of is layer -1.
            const bool condition = layers_ && idx + 1 == img_shapes.size();
            freqs.push_back(compute_video_freqs(run, img_shapes[idx], condition ? -1 : static_cast<std::int64_t>(idx)));
            max_vid_index = std::max({height / 2, width / 2, max_vid_index});
        }
        const Tensor txt_freqs = slice(pos_freqs_, 0, max_vid_index, max_vid_index + text_tokens);
        const Tensor vid_freqs = cat(freqs, 0);
        return {vid_freqs, txt_freqs};
    }

  private:
    struct Cached {
        Grid grid;
        std::int64_t idx;
        Tensor freqs;
    };

    // _compute_video_freqs and _compute_condition_freqs, with lru_cache: maxsize=128, of layers None
    [[nodiscard]] const Tensor& compute_video_freqs(Run& run, const Grid& grid, std::int64_t idx) const {
        const auto found = std::find_if(cache_.begin(), cache_.end(),
                                        [&](const Cached& cached) { return cached.grid == grid && cached.idx == idx; });
        if (found != cache_.end()) {
            std::rotate(found, found + 1, cache_.end());
            return cache_.back().freqs;
        }
        device_freqs(run);
        const auto [height, width] = grid;
        const Tensors freqs_pos = split(pos_freqs_, axes_, 1);
        const Tensors freqs_neg = split(neg_freqs_, axes_, 1);
        const Tensor freqs_frame = expand(
            view(idx < 0 ? slice(freqs_neg[0], 0, -1, positions) : slice(freqs_pos[0], 0, idx, idx + 1), {1, 1, 1, -1}),
            {1, height, width, -1});
        const Tensor freqs_height =
            expand(view(centred(freqs_neg[1], freqs_pos[1], height), {1, height, 1, -1}), {1, height, width, -1});
        const Tensor freqs_width =
            expand(view(centred(freqs_neg[2], freqs_pos[2], width), {1, 1, width, -1}), {1, height, width, -1});
        const Tensor freqs = reshape(cat({freqs_frame, freqs_height, freqs_width}, -1), {height * width, -1});
        {
            const ComponentScope scope(run, run.trace.tags[run.activation_tag].component, Category::model_cache);
            cache_.push_back({grid, idx, clone(freqs)});
        }
        if (!layers_ && cache_.size() > 128) cache_.erase(cache_.begin());
        return cache_.back().freqs;
    }
    static Tensor centred(const Tensor& neg, const Tensor& pos, std::int64_t size) {
        return cat({slice(neg, 0, -(size - size / 2), positions), slice(pos, 0, 0, size / 2)}, 0);
    }
    // _get_device_freqs, with lru_cache
    void device_freqs(Run& run) const {
        if (pos_freqs_.defined()) return;
        const ComponentScope scope(run, run.trace.tags[run.activation_tag].component, Category::model_cache);
        pos_freqs_ = run.empty({positions, dim_}, Dtype::complex64, Op::to_device);
        neg_freqs_ = run.empty({positions, dim_}, Dtype::complex64, Op::to_device);
    }

    static constexpr std::int64_t positions = 4096;
    bool layers_ = false;
    Dims axes_;  // numbers a position, by axis: frame, height, width
    std::int64_t dim_ = 0;
    mutable Tensor pos_freqs_, neg_freqs_;
    mutable std::vector<Cached> cache_;  // the one that was asked for last stands last
};

class QwenImageTransformer2DModel : public Model {
  public:
    QwenImageTransformer2DModel(nn::Weights& weights, const profile::Config& config)
        : QwenImageTransformer2DModel(Builder(weights), config) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        std::vector<Value> out{
            {"hidden_states", {request.batch, image_tokens(request), in_channels_}, request.dtype},
            {"encoder_hidden_states", {request.batch, request.text_tokens, joint_attention_dim_}, request.dtype}};
        if (has_mask(request))
            out.push_back({"encoder_hidden_states_mask",
                           {request.batch, request.text_tokens},
                           musubi_ ? Dtype::boolean : Dtype::i64});
        out.push_back({"timestep", {request.batch}, request.dtype});
        if (use_additional_t_cond_) out.push_back({"additional_t_cond", {request.batch}, Dtype::i64});
        return out;
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {{request.batch, image_tokens(request), patch_size_ * patch_size_ * out_channels_}};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const override {
        Run& run = args[0].run();
        const std::vector<QwenEmbedRope::Grid> img_shapes = grids(request);
        const bool masked = has_mask(request);
        const std::size_t at = masked ? 3 : 2;   // of the timestep
        Tensor hidden_states = img_in(args[0]);  // [B, S, D]
        Tensor timestep = to(args[at], hidden_states.dtype());
        Tensor modulate_index;
        if (zero_cond_t_) {
            timestep = cat({timestep, mul_scalar(timestep)}, 0);
            // 0 for the noisy tokens, 1 for those of reference images
            if (!musubi_) modulate_index = run.empty({args[0].size(0), args[0].size(1)}, Dtype::i32, Op::to_device);
        }
        Tensor encoder_hidden_states = txt_norm(args[1]);
        encoder_hidden_states = txt_in(encoder_hidden_states);  // [B, T, D]
        Tensor per_sample_len, encoder_hidden_states_mask;
        if (masked)
            encoder_hidden_states_mask = musubi_ ? args[2] : compute_text_seq_len_from_mask(args[2], per_sample_len);
        Tensor temb = time_text_embed(timestep, hidden_states, use_additional_t_cond_ ? args[at + 1] : Tensor());
        const Tensors image_rotary_emb = pos_embed(run, img_shapes, encoder_hidden_states.size(1));

        Tensors others{modulate_index};
        if (musubi_) {
            others[0] = run.empty({args[0].size(0)}, Dtype::i64, Op::to_device);  // txt_seq_lens
            const auto [height, width] = img_shapes.front();
            if (zero_cond_t_) others.push_back(run.on_cpu({height * width, 0}, Dtype::i64));
        }

        const Caller call(run, gradient_checkpointing);
        for (const QwenImageTransformerBlock& block : transformer_blocks) {
            Tensors in{hidden_states, encoder_hidden_states, encoder_hidden_states_mask,
                       temb,          image_rotary_emb[0],   image_rotary_emb[1]};
            for (const Tensor& other : others) in.push_back(other);
            Tensors out = call(block, std::move(in));
            encoder_hidden_states = std::move(out[0]);
            hidden_states = std::move(out[1]);
        }
        if (zero_cond_t_) temb = chunk(temb, 2, 0)[0];
        hidden_states = norm_out(hidden_states, temb);
        return {proj_out(hidden_states)};
    }

  private:
    QwenImageTransformer2DModel(const Builder& builder, const profile::Config& config)
        : patch_size_(config.integer("patch_size")),
          in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels", in_channels_)),
          joint_attention_dim_(config.integer("joint_attention_dim")),
          zero_cond_t_(config.boolean("zero_cond_t", false)),
          use_additional_t_cond_(config.boolean("use_additional_t_cond", false)),
          use_layer3d_rope_(config.boolean("use_layer3d_rope", false)),
          musubi_(config.text("forward", "") == "musubi"),
          pos_embed(config.integers("axes_dims_rope"), use_layer3d_rope_) {
        const std::int64_t heads = config.integer("num_attention_heads"),
                           head_dim = config.integer("attention_head_dim");
        const Sizes sizes{heads * head_dim, heads, head_dim, zero_cond_t_, musubi_};
        timestep_embedder = TimestepEmbedding(builder["time_text_embed"]["timestep_embedder"], 256, sizes.dim);
        if (use_additional_t_cond_)
            addition_t_embedding = builder["time_text_embed"].embedding("addition_t_embedding", 2, sizes.dim);
        txt_norm = PlainRmsNorm(builder["txt_norm"], joint_attention_dim_);
        img_in = builder.linear("img_in", in_channels_, sizes.dim);
        txt_in = builder.linear("txt_in", joint_attention_dim_, sizes.dim);
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            transformer_blocks.emplace_back(builder["transformer_blocks"][i], sizes);
        // Nobody reads the text that the last block returns, so part of its graph dies with the forward: it is played,
        // never copied.
        if (!transformer_blocks.empty()) transformer_blocks.back().spec = -1;
        norm_out = AdaLayerNormContinuous(builder["norm_out"], sizes.dim, sizes.dim);
        proj_out = builder.linear("proj_out", sizes.dim, patch_size_ * patch_size_ * out_channels_);
    }

    /// Musubi masks what fills up shorter captions, wherever there may be any.
    [[nodiscard]] bool has_mask(const Request& request) const {
        return musubi_ ? request.batch > 1 : request.attention_mask;
    }

    // Of the noisy picture or its layers and of each reference image: 8 pixels a latent, patch_size latents a token,
    // each way.
    [[nodiscard]] std::vector<QwenEmbedRope::Grid> grids(const Request& request) const {
        const std::int64_t side = 8 * patch_size_;
        std::vector<QwenEmbedRope::Grid> out(static_cast<std::size_t>(use_layer3d_rope_ ? request.frames + 1 : 1),
                                             {request.height / side, request.width / side});
        for (const auto& [width, height] : request.reference_images) out.push_back({height / side, width / side});
        return out;
    }
    [[nodiscard]] std::int64_t image_tokens(const Request& request) const {
        std::int64_t tokens = 0;
        for (const auto& [height, width] : grids(request)) tokens = checked_add(tokens, checked_mul(height, width));
        return tokens;
    }

    // [B, T] i64 → bool. The lengths [B] stay in a name of forward's.
    static Tensor compute_text_seq_len_from_mask(const Tensor& mask, Tensor& per_sample_len) {
        Run& run = mask.run();
        const Dims batch{mask.size(0)};
        Tensor encoder_hidden_states_mask = to(mask, Dtype::boolean);
        const Tensor position_ids = run.empty({mask.size(1)}, Dtype::i64, Op::arange);
        Tensor active_positions;
        {
            const Tensor zero = run.empty({}, Dtype::i64, Op::zeros);
            active_positions = run.empty(mask.sizes(), Dtype::i64, Op::where);
        }
        const Tensor has_active = run.empty(batch, Dtype::boolean, Op::any);
        Tensor last;
        {
            const Tensor values = run.empty(batch, Dtype::i64, Op::max),
                         indices = run.empty(batch, Dtype::i64, Op::max);
            last = run.empty(batch, Dtype::i64, Op::add);
        }
        const Tensor text_seq_len = run.empty({}, Dtype::i64, Op::to_device);
        per_sample_len = run.empty(batch, Dtype::i64, Op::where);
        return encoder_hidden_states_mask;
    }

    // QwenTimestepProjEmbeddings
    [[nodiscard]] Tensor time_text_embed(const Tensor& timestep, const Tensor& hidden_states,
                                         const Tensor& addition_t_cond) const {
        const Tensor timesteps_proj = timestep_embedding(timestep, 256, true);
        const Tensor timesteps_emb = timestep_embedder(to(timesteps_proj, hidden_states.dtype()));
        if (!addition_t_cond.defined()) return timesteps_emb;
        const Tensor addition_t_emb = to(addition_t_embedding(addition_t_cond), hidden_states.dtype());
        return add(timesteps_emb, addition_t_emb);
    }

    std::int64_t patch_size_, in_channels_, out_channels_, joint_attention_dim_;
    bool zero_cond_t_, use_additional_t_cond_, use_layer3d_rope_, musubi_;
    QwenEmbedRope pos_embed;
    TimestepEmbedding timestep_embedder;
    nn::Embedding addition_t_embedding;
    PlainRmsNorm txt_norm;
    Linear img_in, txt_in, proj_out;
    std::deque<QwenImageTransformerBlock> transformer_blocks;
    AdaLayerNormContinuous norm_out;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<QwenImageTransformer2DModel>(weights, profile.config);
}

}  // namespace vram::models::qwen_image
