#include "models/hunyuan_blocks.hpp"

#include "models/attention.hpp"

namespace vram::models::hunyuan {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Builder;
using nn::Caller;
using nn::Run;
using nn::Tensor;
using nn::Tensors;

Attention::Attention(const Builder& builder, const Sizes& sizes, bool joint)
    : heads_(sizes.heads),
      joint_(joint),
      square_mask_(sizes.square_mask),
      norm_q(builder["norm_q"], sizes.head_dim),
      norm_k(builder["norm_k"], sizes.head_dim),
      to_q(builder.linear("to_q", sizes.dim, sizes.dim)),
      to_k(builder.linear("to_k", sizes.dim, sizes.dim)),
      to_v(builder.linear("to_v", sizes.dim, sizes.dim)) {
    if (!joint) return;
    add_k_proj = builder.linear("add_k_proj", sizes.dim, sizes.dim);
    add_v_proj = builder.linear("add_v_proj", sizes.dim, sizes.dim);
    add_q_proj = builder.linear("add_q_proj", sizes.dim, sizes.dim);
    to_out = builder["to_out"].linear("0", sizes.dim, sizes.dim);
    to_add_out = builder.linear("to_add_out", sizes.dim, sizes.dim);
    norm_added_q = PlainRmsNorm(builder["norm_added_q"], sizes.head_dim);
    norm_added_k = PlainRmsNorm(builder["norm_added_k"], sizes.head_dim);
}

namespace {

Tensor rotate_video(const Tensor& x, std::int64_t text, const Tensor& cos, const Tensor& sin) {
    const std::int64_t video = x.size(1) - text;
    const Tensor rotated = apply_rotary_emb(slice(x, 1, 0, video), cos, sin, 1);
    return cat({rotated, slice(x, 1, video, video + text)}, 1);
}

}  // namespace

Tensors Attention::operator()(Tensor hidden_states_in, Tensor encoder_hidden_states_in, const Tensor& attention_mask_in,
                              const Tensor& cos, const Tensor& sin) const {
    const Tensor held = std::move(hidden_states_in), held_encoder = std::move(encoder_hidden_states_in);
    Tensor hidden_states = held;
    const Tensor& encoder_hidden_states = held_encoder;
    const std::int64_t text = encoder_hidden_states.size(1);
    if (!joint_) hidden_states = cat({hidden_states, encoder_hidden_states}, 1);

    // 1. QKV projections
    Tensor query = to_q(hidden_states);
    Tensor key = to_k(hidden_states);
    Tensor value = to_v(hidden_states);
    query = unflatten(query, 2, {heads_, -1});
    key = unflatten(key, 2, {heads_, -1});
    value = unflatten(value, 2, {heads_, -1});

    // 2. QK normalization
    query = norm_q(query);
    key = norm_k(key);

    // 3. Rotational positional embeddings applied to latent stream
    Tensor encoder_query, encoder_key, encoder_value;
    if (joint_) {
        query = apply_rotary_emb(query, cos, sin, 1);
        key = apply_rotary_emb(key, cos, sin, 1);

        // 4. Encoder condition QKV projection and normalization
        encoder_query = add_q_proj(encoder_hidden_states);
        encoder_key = add_k_proj(encoder_hidden_states);
        encoder_value = add_v_proj(encoder_hidden_states);
        encoder_query = unflatten(encoder_query, 2, {heads_, -1});
        encoder_key = unflatten(encoder_key, 2, {heads_, -1});
        encoder_value = unflatten(encoder_value, 2, {heads_, -1});
        encoder_query = norm_added_q(encoder_query);
        encoder_key = norm_added_k(encoder_key);
        query = cat({query, encoder_query}, 1);
        key = cat({key, encoder_key}, 1);
        value = cat({value, encoder_value}, 1);
    } else {
        query = rotate_video(query, text, cos, sin);
        key = rotate_video(key, text, cos, sin);
    }

    // 5. Attention
    Tensor attention_mask = attention_mask_in, self_attn_mask_1, self_attn_mask_2;
    if (square_mask_) {
        const std::int64_t batch_size = query.size(0), seq_len = query.size(1);
        attention_mask = pad(attention_mask, {seq_len - attention_mask.size(1), 0});
        self_attn_mask_1 = repeat(view(attention_mask, {batch_size, 1, 1, seq_len}), {1, 1, seq_len, 1});
        self_attn_mask_2 = transpose(self_attn_mask_1, 2, 3);
        attention_mask = bitwise_and(self_attn_mask_1, self_attn_mask_2);
    }
    hidden_states = dispatch_attention(query, key, value, attention_mask);
    hidden_states = flatten(std::move(hidden_states), 2, 3);
    hidden_states = to(std::move(hidden_states), query.dtype());

    // 6. Output projection
    const std::int64_t video = hidden_states.size(1) - text;
    Tensor video_states = slice(hidden_states, 1, 0, video);
    Tensor text_states = slice(hidden_states, 1, video, video + text);
    hidden_states = Tensor();
    if (joint_) {
        video_states = to_out(video_states);
        text_states = to_add_out(text_states);
    }
    return {video_states, text_states};
}

Tensors TransformerBlock::forward(const Tensors& args) const {
    Tensor hidden_states = args[0], encoder_hidden_states = args[1];
    const Tensor& temb = args[2];
    // 1. Input normalization
    Tensors modulated = norm1(hidden_states, temb);
    Tensor norm_hidden_states = modulated[0];
    const Tensor gate_msa = modulated[1], shift_mlp = modulated[2], scale_mlp = modulated[3], gate_mlp = modulated[4];
    modulated = norm1_context(encoder_hidden_states, temb);
    Tensor norm_encoder_hidden_states = modulated[0];
    const Tensor c_gate_msa = modulated[1], c_shift_mlp = modulated[2], c_scale_mlp = modulated[3],
                 c_gate_mlp = modulated[4];
    modulated.clear();

    // 2. Joint attention
    const Tensors attn_outputs = attn(norm_hidden_states, norm_encoder_hidden_states, args[3], args[4], args[5]);

    // 3. Modulation and residual connection
    hidden_states = add(hidden_states, mul(attn_outputs[0], unsqueeze(gate_msa, 1)));
    encoder_hidden_states = add(encoder_hidden_states, mul(attn_outputs[1], unsqueeze(c_gate_msa, 1)));
    norm_hidden_states = norm2(hidden_states);
    norm_encoder_hidden_states = norm2_context(encoder_hidden_states);
    norm_hidden_states = scale_and_shift(norm_hidden_states, scale_mlp, shift_mlp);
    norm_encoder_hidden_states = scale_and_shift(norm_encoder_hidden_states, c_scale_mlp, c_shift_mlp);

    // 4. Feed-forward
    const Tensor ff_output = ff(norm_hidden_states);
    const Tensor context_ff_output = ff_context(norm_encoder_hidden_states);
    hidden_states = add(hidden_states, mul(unsqueeze(gate_mlp, 1), ff_output));
    encoder_hidden_states = add(encoder_hidden_states, mul(unsqueeze(c_gate_mlp, 1), context_ff_output));
    return {hidden_states, encoder_hidden_states};
}

TransformerBlock::TransformerBlock(const nn::BlockBuilder& builder, const Sizes& sizes)
    : norm1(builder["norm1"], sizes.dim),
      norm1_context(builder["norm1_context"], sizes.dim),
      attn(builder["attn"], sizes, true),
      norm2(builder.layer_norm("norm2", sizes.dim, false)),
      ff(builder["ff"], sizes.dim, sizes.mlp_dim, FeedForward::Activation::gelu),
      norm2_context(builder.layer_norm("norm2_context", sizes.dim, false)),
      ff_context(builder["ff_context"], sizes.dim, sizes.mlp_dim, FeedForward::Activation::gelu) {
    builder.finish(*this, "HunyuanVideoTransformerBlock", {sizes.heads, sizes.head_dim, sizes.square_mask});
}

Tensors TokenRefinerBlock::forward(const Tensors& args) const {
    Tensor hidden_states = args[0];
    const Tensor norm_hidden_states = norm1(hidden_states);
    const Tensor attn_output = attn(norm_hidden_states, {}, args[2]);
    const Tensors gates = chunk(norm_out(silu(args[1])), 2, 1);
    const Tensor gate_msa = unsqueeze(gates[0], 1), gate_mlp = unsqueeze(gates[1], 1);
    hidden_states = add(hidden_states, mul(attn_output, gate_msa));
    const Tensor ff_output = ff(norm2(hidden_states));
    hidden_states = add(hidden_states, mul(ff_output, gate_mlp));
    return {hidden_states};
}

TokenRefinerBlock::TokenRefinerBlock(const nn::BlockBuilder& builder, const Sizes& sizes)
    : norm1(builder.layer_norm("norm1", sizes.dim)),
      attn(builder["attn"], sizes.dim, sizes.dim, sizes.heads, true),
      norm2(builder.layer_norm("norm2", sizes.dim)),
      ff(builder["ff"], sizes.dim, 4 * sizes.dim, FeedForward::Activation::linear_silu),
      norm_out(builder["norm_out"].linear("linear", sizes.dim, 2 * sizes.dim)) {
    builder.finish(*this, "HunyuanVideoIndividualTokenRefinerBlock", {sizes.heads});
}

TokenRefiner::TokenRefiner(const Builder& builder, std::int64_t in, const Sizes& sizes, std::int64_t layers)
    : timestep_embedder(builder["time_text_embed"]["timestep_embedder"], 256, sizes.dim),
      text_embedder(builder["time_text_embed"]["text_embedder"], in, sizes.dim, TextProjection::Activation::silu),
      proj_in(builder.linear("proj_in", in, sizes.dim)) {
    for (std::int64_t i = 0; i < layers; ++i)
        refiner_blocks.emplace_back(builder["token_refiner"]["refiner_blocks"][i], sizes);
}

Tensor TokenRefiner::operator()(Tensor hidden_states, const Tensor& timestep, const Tensor& attention_mask) const {
    const Dtype original_dtype = hidden_states.dtype();
    const Tensor mask_float = unsqueeze(to_float(attention_mask), -1);
    Tensor pooled_projections = sum(mul(hidden_states, mask_float), 1, false);
    pooled_projections = div(std::move(pooled_projections), sum(mask_float, 1, false));
    pooled_projections = to(pooled_projections, original_dtype);
    const Tensor temb = time_text_embed(timestep, pooled_projections);
    hidden_states = proj_in(hidden_states);
    return refine(hidden_states, temb, attention_mask);
}

// CombinedTimestepTextProjEmbeddings
Tensor TokenRefiner::time_text_embed(const Tensor& timestep, const Tensor& pooled_projection) const {
    const Tensor timesteps_proj = timestep_embedding(timestep, 256, true);
    const Tensor timesteps_emb = timestep_embedder(to(timesteps_proj, pooled_projection.dtype()));
    const Tensor pooled_projections = text_embedder(pooled_projection);
    return add(timesteps_emb, pooled_projections);
}

// HunyuanVideoIndividualTokenRefiner
Tensor TokenRefiner::refine(Tensor hidden_states, const Tensor& temb, const Tensor& mask) const {
    Run& run = hidden_states.run();
    const Tensor attention_mask = to(mask, Dtype::boolean);
    const std::int64_t batch_size = attention_mask.size(0), seq_len = attention_mask.size(1);
    const Tensor self_attn_mask_1 = repeat(view(attention_mask, {batch_size, 1, 1, seq_len}), {1, 1, seq_len, 1});
    const Tensor self_attn_mask_2 = transpose(self_attn_mask_1, 2, 3);
    const Tensor self_attn_mask = bitwise_and(self_attn_mask_1, self_attn_mask_2);
    const Caller call(run, false);
    for (const TokenRefinerBlock& block : refiner_blocks)
        hidden_states = call(block, {hidden_states, temb, self_attn_mask})[0];
    return hidden_states;
}

Tensors rotary_pos_embed(Run& run, const std::array<std::int64_t, 3>& sizes,
                         const std::vector<std::int64_t>& axes_dim) {
    const auto [f, h, w] = sizes;
    const Tensors axes_grids{arange(run, f, Dtype::f32), arange(run, h, Dtype::f32), arange(run, w, Dtype::f32)};
    return rotary_of(stack(meshgrid(axes_grids[0], axes_grids[1], axes_grids[2]), 0), axes_dim);
}

Tensors rotary_of(Tensor grid_in, const std::vector<std::int64_t>& axes_dim) {
    const Tensor grid = std::move(grid_in);
    std::array<Tensors, 3> freqs;
    for (int i = 0; i < 3; ++i)
        freqs[static_cast<std::size_t>(i)] =
            rotary_pos_embed_1d(reshape(select(grid, 0, i), {-1}), axes_dim[static_cast<std::size_t>(i)], Dtype::f32);
    Tensor freqs_cos = cat({freqs[0][0], freqs[1][0], freqs[2][0]}, 1);
    Tensor freqs_sin = cat({freqs[0][1], freqs[1][1], freqs[2][1]}, 1);
    return {freqs_cos, freqs_sin};
}

Tensor pad_for_3d_conv(const Tensor& x, const Dims& kernel_size) {
    const auto missing = [&](int dim) {
        const std::int64_t kernel = kernel_size[dim - 2];
        return (kernel - x.size(dim) % kernel) % kernel;
    };
    return replication_pad(x, {0, missing(4), 0, missing(3), 0, missing(2)});
}

Tensor unpatchify(Tensor hidden_states, const std::array<std::int64_t, 3>& grid, std::int64_t p_t, std::int64_t p) {
    hidden_states = reshape(hidden_states, {hidden_states.size(0), grid[0], grid[1], grid[2], -1, p_t, p, p});
    hidden_states = permute(hidden_states, {0, 4, 1, 5, 2, 6, 3, 7});
    Tensor output = flatten(hidden_states, 6, 7);
    output = flatten(std::move(output), 4, 5);
    output = flatten(std::move(output), 2, 3);
    return output;
}

}  // namespace vram::models::hunyuan
