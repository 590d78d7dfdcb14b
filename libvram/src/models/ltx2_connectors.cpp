// Mirrors LTX2TextConnectors (diffusers 0.42.1, pipelines/ltx2/connectors.py): what all layers of the text encoder give
// becomes one prompt for video and one for audio. It is called, not trained: its ops keep nothing for a backward.
#include <deque>
#include <optional>

#include "models/families.hpp"
#include "models/ltx2_attention.hpp"

namespace vram::models::ltx2_connectors {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using ltx2::Rotary;

/// One modality's LTX2ConnectorTransformer1d.
struct Sizes {
    std::int64_t heads, head_dim, layers, registers;
    bool gated, split, double_precision;
    [[nodiscard]] std::int64_t dim() const { return heads * head_dim; }
};

/// LTX2TransformerBlock1d. args: hidden_states, attention_mask, cos, sin → hidden_states
class TransformerBlock1d : public nn::Block {
  public:
    TransformerBlock1d(const Builder& parent, const Sizes& sizes) : TransformerBlock1d(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        const Rotary rotary_emb{args[2], args[3]};
        Tensor norm_hidden_states = norm1(hidden_states);
        const Tensor attn_hidden_states = attn1(norm_hidden_states, {}, rotary_emb, rotary_emb, args[1]);
        hidden_states = add(hidden_states, attn_hidden_states);
        norm_hidden_states = norm2(hidden_states);
        const Tensor ff_hidden_states = ff(norm_hidden_states);
        hidden_states = add(hidden_states, ff_hidden_states);
        return {hidden_states};
    }

  private:
    TransformerBlock1d(const BlockBuilder& builder, const Sizes& sizes)
        : norm1(builder.rms_norm("norm1", sizes.dim(), false)),
          attn1(builder["attn1"], {sizes.dim(), sizes.dim(), sizes.heads, sizes.head_dim, sizes.gated},
                {sizes.split, false}),
          norm2(builder.rms_norm("norm2", sizes.dim(), false)),
          ff(builder["ff"], sizes.dim(), 4 * sizes.dim(), FeedForward::Activation::gelu) {
        builder.finish(*this, "LTX2TransformerBlock1d", {sizes.heads, sizes.head_dim, sizes.split});
    }

    nn::RmsNorm norm1;
    ltx2::LTX2Attention attn1;
    nn::RmsNorm norm2;
    FeedForward ff;
};

/// LTX2ConnectorTransformer1d: {hidden_states, attention_mask}.
class ConnectorTransformer1d {
  public:
    ConnectorTransformer1d(const Builder& builder, const Sizes& sizes)
        : sizes_(sizes), learnable_registers(builder.parameter("learnable_registers", {sizes.registers, sizes.dim()})) {
        for (std::int64_t i = 0; i < sizes.layers; ++i)
            transformer_blocks.emplace_back(builder["transformer_blocks"][i], sizes);
        norm_out = builder.rms_norm("norm_out", sizes.dim(), false);
    }

    [[nodiscard]] Tensors operator()(const Tensor& held, const Tensor& held_mask) const {
        Run& run = held.run();
        Tensor hidden_states = held, attention_mask = held_mask;
        const std::int64_t batch_size = held.size(0), seq_len = held.size(1);

        // 1. Replace padding with learned registers
        const Tensor registers = reshape(
            expand(unsqueeze(learnable_registers.value, 0), {seq_len / sizes_.registers, -1, -1}), {seq_len, -1});
        const Tensor binary_attn_mask = to(compare_scalar(attention_mask), Dtype::i32);
        Tensor order;
        {
            const Tensor inverted = rsub_scalar(binary_attn_mask);
            const Tensor values = run.empty({batch_size, seq_len}, Dtype::i32, Op::index);  // torch.argsort sorts both
            order = run.empty({batch_size, seq_len}, Dtype::i64, Op::index);
        }
        const Tensor front_aligned = run.empty(hidden_states.sizes(), hidden_states.dtype(), Op::gather);
        const Tensor num_valid = run.empty({batch_size, 1}, Dtype::i64, Op::sum);
        const Tensor positions = unsqueeze(arange(run, seq_len, Dtype::i64), 0);
        const Tensor front_mask = unsqueeze(compare(positions, num_valid), -1);
        const Tensor registers_expanded = expand(unsqueeze(registers, 0), {batch_size, -1, -1});
        hidden_states = where(front_mask, front_aligned, to(registers_expanded, hidden_states.dtype()));
        attention_mask = run.empty(attention_mask.sizes(), attention_mask.dtype(), Op::zeros);

        // 2. Calculate 1D RoPE positional embeddings
        const Rotary rotary_emb = rope(run, batch_size, seq_len);

        // 3. Run 1D transformer blocks
        const Caller call(run, false);
        for (const TransformerBlock1d& block : transformer_blocks)
            hidden_states = call(block, {hidden_states, attention_mask, rotary_emb.cos, rotary_emb.sin})[0];
        hidden_states = norm_out(hidden_states);
        return {hidden_states, attention_mask};
    }

    [[nodiscard]] std::int64_t dim() const { return sizes_.dim(); }

  private:
    // LTX2RotaryPosEmbed1d
    [[nodiscard]] Rotary rope(Run& run, std::int64_t batch_size, std::int64_t pos) const {
        Tensor grid_1d = arange(run, pos, Dtype::f32);
        grid_1d = div_scalar(grid_1d);
        const Tensor grid = repeat(unsqueeze(grid_1d, 0), {batch_size, 1});
        Tensor pow_indices;
        {
            const Dtype dtype = sizes_.double_precision ? Dtype::f64 : Dtype::f32;
            pow_indices = scalar_pow(run.empty({sizes_.dim() / 2}, dtype, Op::linspace));
        }
        Tensor freqs = mul_scalar(pow_indices);
        freqs = div_scalar(std::move(freqs));
        freqs = to_float(std::move(freqs));
        {
            Tensor places = mul_scalar(unsqueeze(grid, -1));
            places = add_scalar(std::move(places));
            freqs = mul(std::move(places), freqs);
        }
        if (!sizes_.split) {
            Tensor cos_freqs = repeat_interleave(cos(freqs), 2, -1);
            Tensor sin_freqs = repeat_interleave(sin(freqs), 2, -1);
            return {cos_freqs, sin_freqs};
        }
        Tensor cos_freq = cos(freqs);
        Tensor sin_freq = sin(freqs);
        cos_freq = transpose(reshape(cos_freq, {batch_size, pos, sizes_.heads, -1}), 1, 2);
        sin_freq = transpose(reshape(sin_freq, {batch_size, pos, sizes_.heads, -1}), 1, 2);
        return {cos_freq, sin_freq};
    }

    Sizes sizes_;
    Parameter& learnable_registers;
    std::deque<TransformerBlock1d> transformer_blocks;
    nn::RmsNorm norm_out;
};

class LTX2TextConnectors : public Model {
  public:
    LTX2TextConnectors(const Builder& builder, const profile::Config& config)
        : caption_channels_(config.integer("caption_channels")),
          text_proj_in_factor_(config.integer("text_proj_in_factor")),
          per_modality_projections_(config.boolean("per_modality_projections", false)) {
        const std::int64_t in = caption_channels_ * text_proj_in_factor_;
        const bool bias = config.boolean("proj_bias", false);
        if (per_modality_projections_) {
            video_text_proj_in = builder.linear("video_text_proj_in", in, config.integer("video_hidden_dim"), bias);
            audio_text_proj_in = builder.linear("audio_text_proj_in", in, config.integer("audio_hidden_dim"), bias);
        } else {
            text_proj_in = builder.linear("text_proj_in", in, caption_channels_, bias);
        }
        video_connector.emplace(builder["video_connector"], sizes_of(config, "video"));
        audio_connector.emplace(builder["audio_connector"], sizes_of(config, "audio"));
    }

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        return {{"text_encoder_hidden_states",
                 {request.batch, request.text_tokens, caption_channels_ * text_proj_in_factor_},
                 request.dtype},
                {"attention_mask", {request.batch, request.text_tokens}, Dtype::i64}};
    }
    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {{request.batch, request.text_tokens, video_connector->dim()},
                {request.batch, request.text_tokens, audio_connector->dim()}};
    }

    /// {video_text_embedding, audio_text_embedding, binary_attn_mask}
    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        const Tensor hidden_states = unflatten(args[0], 2, {caption_channels_, -1});  // [B, T, C, layers]
        Tensor attention_mask = args[1];
        Tensor norm_hidden_states, sequence_lengths, bool_mask, video_norm_text_emb, audio_norm_text_emb,
            video_text_emb_proj, audio_text_emb_proj;
        if (per_modality_projections_) {
            norm_hidden_states = per_token_rms_norm(hidden_states);
            norm_hidden_states = flatten(norm_hidden_states, 2, 3);
            bool_mask = unsqueeze(to(attention_mask, Dtype::boolean), -1);
            {
                Tensor zeros = norm_hidden_states.run().empty_like(norm_hidden_states, Op::zeros);
                norm_hidden_states = where(bool_mask, norm_hidden_states, std::move(zeros));
            }
            video_norm_text_emb = mul_scalar(norm_hidden_states);
            audio_norm_text_emb = mul_scalar(norm_hidden_states);
            video_text_emb_proj = video_text_proj_in(video_norm_text_emb);
            audio_text_emb_proj = audio_text_proj_in(audio_norm_text_emb);
        } else {
            sequence_lengths = sum(attention_mask, -1, false);
            norm_hidden_states = per_layer_masked_mean_norm(hidden_states, sequence_lengths);
            video_text_emb_proj = text_proj_in(norm_hidden_states);
            audio_text_emb_proj = video_text_emb_proj;
        }

        // Convert to additive attention mask for connectors
        {
            Tensor whole = to(attention_mask, Dtype::i64);
            Tensor negative = add_scalar(std::move(whole));
            attention_mask = to(std::move(negative), video_text_emb_proj.dtype());
        }
        attention_mask = reshape(attention_mask, {attention_mask.size(0), 1, -1, attention_mask.size(-1)});
        const Tensor add_attn_mask = mul_scalar(attention_mask);

        const Tensors video = (*video_connector)(video_text_emb_proj, add_attn_mask);
        Tensor video_text_embedding = video[0];
        Tensor binary_attn_mask = to(compare_scalar(video[1]), Dtype::i64);
        binary_attn_mask = reshape(binary_attn_mask, {video[0].size(0), video[0].size(1), 1});
        video_text_embedding = mul(video_text_embedding, binary_attn_mask);
        const Tensor audio_text_embedding = (*audio_connector)(audio_text_emb_proj, add_attn_mask)[0];
        return {video_text_embedding, audio_text_embedding, squeeze(binary_attn_mask, -1)};
    }

  private:
    static Sizes sizes_of(const profile::Config& config, const std::string& modality) {
        const std::string connector = modality + "_connector_";
        return {
            config.integer(connector + "num_attention_heads"), config.integer(connector + "attention_head_dim"),
            config.integer(connector + "num_layers"),          config.integer(connector + "num_learnable_registers"),
            config.boolean(modality + "_gated_attn", false),   config.text("rope_type", "interleaved") == "split",
            config.boolean("rope_double_precision", true)};
    }

    static Tensor per_token_rms_norm(const Tensor& hidden_states) {
        const Tensor variance = mean(pow_scalar(hidden_states), 2, true);
        return mul(hidden_states, rsqrt(add_scalar(variance, true)));
    }

    // With prompts that are padded on the left.
    static Tensor per_layer_masked_mean_norm(const Tensor& hidden_states, const Tensor& sequence_lengths) {
        Run& run = hidden_states.run();
        const std::int64_t batch_size = hidden_states.size(0), seq_len = hidden_states.size(1),
                           layers = hidden_states.size(3);
        const Dims statistics{batch_size, 1, 1, layers};
        const Tensor token_indices = unsqueeze(arange(run, seq_len, Dtype::i64), 0);
        const Tensor start_indices = rsub_scalar(unsqueeze(sequence_lengths, 1));
        Tensor mask = compare(token_indices, start_indices);
        mask = unsqueeze(unsqueeze(mask, -1), -1);  // [B, T, 1, 1]

        const Tensor masked = masked_fill(hidden_states, compare_scalar(mask));
        const Tensor num_valid_positions = view(mul_scalar(sequence_lengths, false), {batch_size, 1, 1, 1});
        Tensor masked_mean;
        {
            Tensor total = run.empty(statistics, hidden_states.dtype(), Op::sum);
            masked_mean = div(std::move(total), add_scalar(num_valid_positions, true));
        }
        const Tensor x_min = extreme(hidden_states, mask, statistics);
        const Tensor x_max = extreme(hidden_states, mask, statistics);

        Tensor normalized;
        {
            Tensor centered = sub(hidden_states, masked_mean);
            Tensor range = sub(x_max, x_min);
            range = add_scalar(std::move(range), true);
            normalized = div(std::move(centered), std::move(range));
        }
        normalized = mul_scalar(normalized);
        normalized = flatten(normalized, 2, 3);
        {
            // The mask of all channels, inverted, is written out.
            Tensor inverted = run.empty(normalized.sizes(), Dtype::boolean, Op::bitwise);
            normalized = masked_fill(normalized, std::move(inverted));
        }
        return to(std::move(normalized), hidden_states.dtype());
    }
    // masked_fill(~mask, inf).amin(dim=(1, 2)), or amax
    static Tensor extreme(const Tensor& hidden_states, const Tensor& mask, const Dims& statistics) {
        const Tensor filled = masked_fill(hidden_states, compare_scalar(mask));
        return hidden_states.run().empty(statistics, hidden_states.dtype(), Op::sum);
    }

    std::int64_t caption_channels_, text_proj_in_factor_;
    bool per_modality_projections_;
    nn::Linear text_proj_in, video_text_proj_in, audio_text_proj_in;
    std::optional<ConnectorTransformer1d> video_connector, audio_connector;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<LTX2TextConnectors>(Builder(weights), profile.config);
}

}  // namespace vram::models::ltx2_connectors
