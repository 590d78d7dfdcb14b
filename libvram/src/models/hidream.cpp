// Mirrors HiDreamImageTransformer2DModel (diffusers 0.42.1, models/transformers/transformer_hidream_image.py):
// HiDream-I1 Full, Dev and Fast; and the class of that name that ai-toolkit brings (27a03a91,
// extensions_built_in/diffusion_models/hidream/src/models), which has the same modules. Which expert a token goes to is
// a value; here each expert gets its share of them, the first ones one more where that leaves a rest. train() goes with
// grad mode, eval() without, as in a plain loop.
#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <stdexcept>

#include "models/attention.hpp"
#include "models/embeddings.hpp"
#include "models/families.hpp"
#include "models/normalization.hpp"

namespace vram::models::hidream {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

struct Sizes {
    std::int64_t dim, heads, experts, activated;
    bool force_inference_output;  // experts without gradients, pictures instead of tokens, in training too
    bool trains_inference;        // tokens go to experts as in inference, with gradients
    [[nodiscard]] bool infers(const Run& run) const {
        return force_inference_output || trains_inference || !run.grad_enabled();
    }
};

/// HiDreamImageFeedForwardSwiGLU
class FeedForwardSwiGlu {
  public:
    FeedForwardSwiGlu(const Builder& builder, std::int64_t dim, std::int64_t hidden_dim) {
        constexpr std::int64_t multiple_of = 256;
        const std::int64_t inner = round_up(2 * hidden_dim / 3, multiple_of);
        w1 = builder.linear("w1", dim, inner, false);
        w2 = builder.linear("w2", inner, dim, false);
        w3 = builder.linear("w3", dim, inner, false);
    }

    Tensor operator()(Tensor x_in) const {
        const Tensor x = std::move(x_in);
        Tensor gate = silu(w1(x));
        Tensor up = w3(x);
        return w2(mul(std::move(gate), std::move(up)));
    }

  private:
    Linear w1, w2, w3;
};

/// MOEFeedForwardSwiGLU with its MoEGate.
class MoeFeedForward {
  public:
    MoeFeedForward(const Builder& builder, const Sizes& sizes)
        : sizes_(sizes), shared_experts(builder["shared_experts"], sizes.dim, 2 * sizes.dim) {
        for (std::int64_t i = 0; i < sizes.experts; ++i)
            experts.emplace_back(builder["experts"][i], sizes.dim, 4 * sizes.dim);
        gate_weight = &builder["gate"].parameter("weight", {sizes.experts, sizes.dim});
    }

    Tensor operator()(Tensor x_in) const {
        Tensor x = std::move(x_in);
        const Tensor identity = x;
        const Dtype wtype = x.dtype();
        Run& run = x.run();
        Tensors gated = gate(x);
        const Tensor topk_idx = gated[0], topk_weight = gated[1], aux_loss = gated[2];
        gated.clear();
        x = view(x, {-1, sizes_.dim});
        const Tensor flat_topk_idx = view(topk_idx, {-1});
        Tensor y;
        if (!sizes_.infers(run)) {
            x = repeat_interleave(x, sizes_.activated, 0);
            y = run.empty_like(x, wtype, Op::empty);
            for (std::int64_t i = 0; i < sizes_.experts; ++i) {
                Tensor chosen = index_mask(x, compare_scalar(flat_topk_idx), share(flat_topk_idx, i));
                Tensor out = experts[static_cast<std::size_t>(i)](std::move(chosen));
                out = to(std::move(out), wtype);
                index_put_mask_(y, compare_scalar(flat_topk_idx), std::move(out));
            }
            Tensor weighted = view(y, {-1, sizes_.activated, sizes_.dim});
            weighted = mul(std::move(weighted), unsqueeze(topk_weight, -1));
            y = sum(std::move(weighted), 1, false);
            y = to(view(y, identity.sizes()), wtype);
        } else {
            y = view(moe_infer(x, flat_topk_idx, view(topk_weight, {-1, 1})), identity.sizes());
        }
        y = add(y, shared_experts(identity));
        return y;
    }

  private:
    /// How many of the choices fall on an expert.
    [[nodiscard]] std::int64_t share(const Tensor& choices, std::int64_t expert) const {
        return choices.numel() / sizes_.experts + (expert < choices.numel() % sizes_.experts ? 1 : 0);
    }

    // MoEGate: {topk_idx, topk_weight, aux_loss}. Nobody adds the auxiliary loss to the loss, but its graph lives as
    // long as the caller.
    [[nodiscard]] Tensors gate(const Tensor& hidden_states_in) const {
        const Tensor hidden_states = view(hidden_states_in, {-1, sizes_.dim});
        Run& run = hidden_states.run();
        const Tensor logits = linear(hidden_states, gate_weight->value, {});
        const Tensor scores = softmax(logits);
        const Tensors top = topk(scores, sizes_.activated);
        Tensor aux_loss;
        if (!sizes_.infers(run)) {
            const Tensor mask_ce = run.empty({top[1].numel(), sizes_.experts}, Dtype::i64, Op::zeros);  // one_hot
            const Tensor ce = mean(to_float(mask_ce), 0, false);
            const Tensor pi = mean(scores, 0, false);
            const Tensor fi = mul_scalar(ce);
            aux_loss = sum_all(mul(pi, fi));
            aux_loss = mul_scalar(std::move(aux_loss));
        }
        return {top[1], top[0], aux_loss};
    }

    [[nodiscard]] Tensor moe_infer(const Tensor& x, const Tensor& flat_expert_indices,
                                   const Tensor& flat_expert_weights) const {
        Run& run = x.run();
        std::optional<NoGrad> no_grad;
        if (!sizes_.trains_inference) no_grad.emplace(run);
        Tensor expert_cache = run.empty_like(x, Op::zeros);
        const Tensor idxs = argsort(flat_expert_indices);
        static_cast<void>(run.empty({sizes_.experts}, Dtype::i64, Op::zeros));  // bincount, read on the CPU
        const Tensor token_idxs = run.empty_like(idxs, Op::div);
        Tensor exp_token_idx, expert_tokens, expert_out;  // the last expert's stay
        std::int64_t start_idx = 0;
        for (std::int64_t i = 0; i < sizes_.experts; ++i) {
            const std::int64_t end_idx = start_idx + share(flat_expert_indices, i);
            if (start_idx == end_idx) continue;
            exp_token_idx = slice(token_idxs, 0, start_idx, end_idx);
            expert_tokens = index(x, 0, exp_token_idx);
            expert_out = experts[static_cast<std::size_t>(i)](expert_tokens);
            mul_(expert_out, index(flat_expert_weights, 0, slice(idxs, 0, start_idx, end_idx)));
            expert_cache = to(expert_cache, expert_out.dtype());
            scatter_reduce_(expert_cache, repeat(view(exp_token_idx, {-1, 1}), {1, sizes_.dim}), expert_out);
            start_idx = end_idx;
        }
        return expert_cache;
    }

    Sizes sizes_;
    FeedForwardSwiGlu shared_experts;
    std::vector<FeedForwardSwiGlu> experts;
    nn::Parameter* gate_weight = nullptr;
};

// query, key [B, S, H, D] with freqs_cis [B, S, 1, D / 2, 2, 2]
Tensors apply_rope(const Tensor& xq, const Tensor& xk, const Tensor& freqs_cis) {
    const auto pairs = [](const Tensor& x) {
        Tensor wide = to_float(x);
        return reshape(std::move(wide), {x.size(0), x.size(1), x.size(2), -1, 1, 2});
    };
    const auto turned = [&](const Tensor& x) {
        Tensor left = mul(select(freqs_cis, -1, 0), select(x, -1, 0));
        Tensor right = mul(select(freqs_cis, -1, 1), select(x, -1, 1));
        return add(std::move(left), std::move(right));
    };
    const Tensor xq_ = pairs(xq);
    const Tensor xk_ = pairs(xk);
    const Tensor xq_out = turned(xq_);
    const Tensor xk_out = turned(xk_);
    Tensor query = to(reshape(xq_out, xq.sizes()), xq.dtype());
    Tensor key = to(reshape(xk_out, xk.sizes()), xk.dtype());
    return {query, key};
}

/// HiDreamAttention with HiDreamAttnProcessor.
class HiDreamAttention {
  public:
    HiDreamAttention(const Builder& builder, const Sizes& sizes, bool single)
        : single_(single), heads_(sizes.heads), image(builder, sizes, "") {
        if (!single) text = Stream(builder, sizes, "_t");
    }

    /// norm_encoder_hidden_states undefined in single blocks; hidden_states_masks [B, S] or undefined →
    /// {hidden_states_i, hidden_states_t} or {hidden_states}
    Tensors operator()(Tensor norm_hidden_states_in, Tensor hidden_states_masks_in,
                       Tensor norm_encoder_hidden_states_in, const Tensor& image_rotary_emb) const {
        const Tensor norm_hidden_states = std::move(norm_hidden_states_in),
                     hidden_states_masks = std::move(hidden_states_masks_in),
                     encoder_hidden_states = std::move(norm_encoder_hidden_states_in);
        const Dtype dtype = norm_hidden_states.dtype();
        const std::int64_t batch_size = norm_hidden_states.size(0);

        Tensor query_i = image.q_rms_norm(image.to_q(norm_hidden_states));
        query_i = to(query_i, dtype);
        Tensor key_i = image.k_rms_norm(image.to_k(norm_hidden_states));
        key_i = to(key_i, dtype);
        Tensor value_i = image.to_v(norm_hidden_states);
        query_i = view(query_i, {batch_size, -1, heads_, image.head_dim});
        key_i = view(key_i, {batch_size, -1, heads_, image.head_dim});
        value_i = view(value_i, {batch_size, -1, heads_, image.head_dim});
        if (hidden_states_masks.defined()) key_i = mul(key_i, view(hidden_states_masks, {batch_size, -1, 1, 1}));

        Tensor query_t, key_t, value_t, query = query_i, key = key_i, value = value_i;
        if (!single_) {
            query_t = text.q_rms_norm(text.to_q(encoder_hidden_states));
            query_t = to(query_t, dtype);
            key_t = text.k_rms_norm(text.to_k(encoder_hidden_states));
            key_t = to(key_t, dtype);
            value_t = text.to_v(encoder_hidden_states);
            query_t = view(query_t, {batch_size, -1, heads_, text.head_dim});
            key_t = view(key_t, {batch_size, -1, heads_, text.head_dim});
            value_t = view(value_t, {batch_size, -1, heads_, text.head_dim});
            query = cat({query_i, query_t}, 1);
            key = cat({key_i, key_t}, 1);
            value = cat({value_i, value_t}, 1);
        }
        {
            Tensors turned = apply_rope(query, key, image_rotary_emb);
            query = std::move(turned[0]);
            key = std::move(turned[1]);
        }

        Tensor hidden_states = dispatch_attention(query, key, value);
        hidden_states = reshape(hidden_states, {batch_size, -1, heads_ * image.head_dim});
        hidden_states = to(hidden_states, query.dtype());
        if (single_) {
            hidden_states = image.to_out(hidden_states);
            return {hidden_states};
        }
        const Tensors parts = split(hidden_states, {query_i.size(1), query_t.size(1)}, 1);
        Tensor hidden_states_i = image.to_out(parts[0]);
        Tensor hidden_states_t = text.to_out(parts[1]);
        return {hidden_states_i, hidden_states_t};
    }

  private:
    struct Stream {
        Stream() = default;
        Stream(const Builder& builder, const Sizes& sizes, const std::string& end)
            : head_dim(sizes.dim / sizes.heads),
              to_q(builder.linear("to_q" + end, sizes.dim, sizes.dim)),
              to_k(builder.linear("to_k" + end, sizes.dim, sizes.dim)),
              to_v(builder.linear("to_v" + end, sizes.dim, sizes.dim)),
              to_out(builder.linear("to_out" + end, sizes.dim, sizes.dim)),
              q_rms_norm(builder.rms_norm("q_rms_norm" + end, sizes.dim)),
              k_rms_norm(builder.rms_norm("k_rms_norm" + end, sizes.dim)) {}

        std::int64_t head_dim = 0;
        Linear to_q, to_k, to_v, to_out;
        nn::RmsNorm q_rms_norm, k_rms_norm;
    };

    bool single_;
    std::int64_t heads_;
    Stream image, text;
};

/// HiDreamImageTransformerBlock in its HiDreamBlock; args: hidden_states, hidden_states_masks or undefined,
/// encoder_hidden_states, temb, image_rotary_emb → hidden_states, encoder_hidden_states
class DoubleBlock : public Block {
  public:
    DoubleBlock(const Builder& parent, const Sizes& sizes) : DoubleBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0], encoder_hidden_states = args[2];
        const Dtype wtype = hidden_states.dtype();
        Tensor modulation = adaLN_modulation(silu(args[3]));
        // shift, scale, gate of attention and of the MLP: those of the picture, then those of the text
        const Tensors parts = chunk(unsqueeze(std::move(modulation), 1), 12, -1);

        // 1. MM-Attention
        Tensor norm_hidden_states = to(norm1_i(hidden_states), wtype);
        norm_hidden_states = modulate(norm_hidden_states, parts[1], parts[0]);
        Tensor norm_encoder_hidden_states = to(norm1_t(encoder_hidden_states), wtype);
        norm_encoder_hidden_states = modulate(norm_encoder_hidden_states, parts[7], parts[6]);
        const Tensors attn_output = attn1(norm_hidden_states, args[1], norm_encoder_hidden_states, args[4]);
        hidden_states = add(mul(parts[2], attn_output[0]), hidden_states);
        encoder_hidden_states = add(mul(parts[8], attn_output[1]), encoder_hidden_states);

        // 2. Feed-forward
        norm_hidden_states = to(norm3_i(hidden_states), wtype);
        norm_hidden_states = modulate(norm_hidden_states, parts[4], parts[3]);
        norm_encoder_hidden_states = to(norm3_t(encoder_hidden_states), wtype);
        norm_encoder_hidden_states = modulate(norm_encoder_hidden_states, parts[10], parts[9]);
        const Tensor ff_output_i = mul(parts[5], ff_i(norm_hidden_states));
        const Tensor ff_output_t = mul(parts[11], ff_t(norm_encoder_hidden_states));
        hidden_states = add(ff_output_i, hidden_states);
        encoder_hidden_states = add(ff_output_t, encoder_hidden_states);
        return {hidden_states, encoder_hidden_states};
    }

  private:
    DoubleBlock(const BlockBuilder& builder, const Sizes& sizes)
        : adaLN_modulation(builder["adaLN_modulation"].linear("1", sizes.dim, 12 * sizes.dim)),
          norm1_i(builder.layer_norm("norm1_i", sizes.dim, false)),
          norm1_t(builder.layer_norm("norm1_t", sizes.dim, false)),
          attn1(builder["attn1"], sizes, false),
          norm3_i(builder.layer_norm("norm3_i", sizes.dim, false)),
          ff_i(builder["ff_i"], sizes),
          norm3_t(builder.layer_norm("norm3_t", sizes.dim, false)),
          ff_t(builder["ff_t"], sizes.dim, 4 * sizes.dim) {
        builder.finish(*this, "HiDreamImageTransformerBlock",
                       {sizes.heads, sizes.activated, sizes.force_inference_output, sizes.trains_inference});
    }

    Linear adaLN_modulation;
    nn::LayerNorm norm1_i, norm1_t;
    HiDreamAttention attn1;
    nn::LayerNorm norm3_i;
    MoeFeedForward ff_i;
    nn::LayerNorm norm3_t;
    FeedForwardSwiGlu ff_t;
};

/// HiDreamImageSingleTransformerBlock in its HiDreamBlock; args: hidden_states, hidden_states_masks or undefined, temb,
/// image_rotary_emb → hidden_states
class SingleBlock : public Block {
  public:
    SingleBlock(const Builder& parent, const Sizes& sizes) : SingleBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override {
        Tensor hidden_states = args[0];
        const Dtype wtype = hidden_states.dtype();
        Tensor modulation = adaLN_modulation(silu(args[2]));
        const Tensors parts = chunk(unsqueeze(std::move(modulation), 1), 6, -1);  // shift, scale, gate, twice

        // 1. MM-Attention
        Tensor norm_hidden_states = to(norm1_i(hidden_states), wtype);
        norm_hidden_states = modulate(norm_hidden_states, parts[1], parts[0]);
        const Tensor attn_output_i = attn1(norm_hidden_states, args[1], {}, args[3])[0];
        hidden_states = add(mul(parts[2], attn_output_i), hidden_states);

        // 2. Feed-forward
        norm_hidden_states = to(norm3_i(hidden_states), wtype);
        norm_hidden_states = modulate(norm_hidden_states, parts[4], parts[3]);
        const Tensor ff_output_i = mul(parts[5], ff_i(to(norm_hidden_states, wtype)));
        hidden_states = add(ff_output_i, hidden_states);
        return {hidden_states};
    }

  private:
    SingleBlock(const BlockBuilder& builder, const Sizes& sizes)
        : adaLN_modulation(builder["adaLN_modulation"].linear("1", sizes.dim, 6 * sizes.dim)),
          norm1_i(builder.layer_norm("norm1_i", sizes.dim, false)),
          attn1(builder["attn1"], sizes, true),
          norm3_i(builder.layer_norm("norm3_i", sizes.dim, false)),
          ff_i(builder["ff_i"], sizes) {
        builder.finish(*this, "HiDreamImageSingleTransformerBlock",
                       {sizes.heads, sizes.activated, sizes.force_inference_output, sizes.trains_inference});
    }

    Linear adaLN_modulation;
    nn::LayerNorm norm1_i;
    HiDreamAttention attn1;
    nn::LayerNorm norm3_i;
    MoeFeedForward ff_i;
};

class HiDreamImageTransformer2DModel : public Model {
  public:
    HiDreamImageTransformer2DModel(nn::Weights& weights, const profile::Config& config, bool trains_inference = false)
        : HiDreamImageTransformer2DModel(Builder(weights), config, trains_inference) {}

    /// Llama's hidden states are a stack, one of each of its layers, as HiDreamImagePipeline makes it.
    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        const std::int64_t batch = request.batch, text = request.text_tokens;
        std::int64_t llama_layers = 0;
        for (const std::int64_t layer : llama_layers_) llama_layers = std::max(llama_layers, layer + 1);
        return {{"hidden_states", {batch, in_channels_, request.height / 8, request.width / 8}, request.dtype},
                {"timesteps", {batch}, Dtype::f32},
                {"encoder_hidden_states_t5", {batch, text, caption_channels_[0]}, request.dtype},
                {"encoder_hidden_states_llama3", {llama_layers, batch, text, caption_channels_[1]}, request.dtype},
                {"pooled_embeds", {batch, text_emb_dim_}, request.dtype}};
    }

    /// In training the tokens, those that pad an oblong picture too; in the order of [B, C, S, patch * patch].
    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        const std::int64_t height = request.height / 8, width = request.width / 8, patch = patch_size_ * patch_size_;
        if (force_inference_output_) return {{request.batch, out_channels_, height, width}};
        const std::int64_t tokens = height == width ? checked_mul(height, width) / patch : max_seq_;
        return {{request.batch, out_channels_, tokens, patch}};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request&) const override {
        Run& run = args[0].run();
        const std::int64_t batch_size = args[0].size(0), post_patch_height = args[0].size(2) / patch_size_,
                           post_patch_width = args[0].size(3) / patch_size_;
        const Dtype hidden_states_type = args[0].dtype();

        // Patchify the input
        Tensor hidden_states_masks, img_sizes, img_ids;
        Tensor hidden_states = patchify(args[0], hidden_states_masks, img_sizes, img_ids);

        // Embed the hidden states
        hidden_states = x_embedder(hidden_states);

        // 0. time
        Tensor timesteps = to(timestep_embedding(args[1], frequency_embedding_size, true), hidden_states_type);
        timesteps = timestep_embedder(timesteps);
        const Tensor pooled = pooled_embedder(args[4]);
        const Tensor temb = add(timesteps, pooled);

        Tensors encoder_hidden_states;
        for (std::size_t i = 0; i < llama_layers_.size(); ++i)
            encoder_hidden_states.push_back(projected(caption_projection[i], select(args[3], 0, llama_layers_[i])));
        encoder_hidden_states.push_back(projected(caption_projection.back(), args[2]));
        const Tensor &t5 = encoder_hidden_states.back(),
                     &llama = encoder_hidden_states[encoder_hidden_states.size() - 2];

        const Tensor txt_ids = run.empty({batch_size, t5.size(1) + 2 * llama.size(1), 3}, img_ids.dtype(), Op::zeros);
        const Tensor ids = cat({img_ids, txt_ids}, 1);
        const Tensor image_rotary_emb = pe_embedder(ids);

        // 2. Blocks
        const Caller call(run, gradient_checkpointing);
        std::size_t block_id = 0;
        Tensor initial_encoder_hidden_states = cat({t5, llama}, 1), cur_encoder_hidden_states;
        const std::int64_t initial_encoder_hidden_states_seq_len = initial_encoder_hidden_states.size(1);
        for (const DoubleBlock& block : double_stream_blocks) {
            cur_encoder_hidden_states = cat({initial_encoder_hidden_states, encoder_hidden_states[block_id++]}, 1);
            Tensors out =
                call(block, {hidden_states, hidden_states_masks, cur_encoder_hidden_states, temb, image_rotary_emb});
            hidden_states = std::move(out[0]);
            initial_encoder_hidden_states = std::move(out[1]);
            initial_encoder_hidden_states =
                slice(initial_encoder_hidden_states, 1, 0, initial_encoder_hidden_states_seq_len);
        }

        const std::int64_t image_tokens_seq_len = hidden_states.size(1);
        hidden_states = cat({hidden_states, initial_encoder_hidden_states}, 1);
        const std::int64_t hidden_states_seq_len = hidden_states.size(1);
        Tensor encoder_attention_mask_ones;
        if (hidden_states_masks.defined()) {
            encoder_attention_mask_ones = run.empty({batch_size, initial_encoder_hidden_states.size(1) + llama.size(1)},
                                                    hidden_states_masks.dtype(), Op::ones);
            hidden_states_masks = cat({hidden_states_masks, encoder_attention_mask_ones}, 1);
        }
        for (const SingleBlock& block : single_stream_blocks) {
            hidden_states = cat({hidden_states, encoder_hidden_states[block_id++]}, 1);
            hidden_states = call(block, {hidden_states, hidden_states_masks, temb, image_rotary_emb})[0];
            hidden_states = slice(hidden_states, 1, 0, hidden_states_seq_len);
        }

        hidden_states = slice(hidden_states, 1, 0, image_tokens_seq_len);
        Tensor output = final_layer(hidden_states, temb);
        output = unpatchify(output, post_patch_height, post_patch_width);
        return {output};
    }

  protected:
    HiDreamImageTransformer2DModel(const Builder& builder, const profile::Config& config, bool trains_inference)
        : patch_size_(config.integer("patch_size")),
          in_channels_(config.integer("in_channels")),
          out_channels_(config.integer("out_channels", in_channels_)),
          text_emb_dim_(config.integer("text_emb_dim")),
          force_inference_output_(config.boolean("force_inference_output", false)),
          caption_channels_(config.integers("caption_channels")),
          axes_dims_rope_(config.integers("axes_dims_rope")),
          llama_layers_(config.integers("llama_layers")) {
        const std::vector<std::int64_t>& max_resolution = config.integers("max_resolution");
        max_seq_ = max_resolution[0] * max_resolution[1] / (patch_size_ * patch_size_);
        const std::int64_t heads = config.integer("num_attention_heads"), patch = patch_size_ * patch_size_;
        const Sizes sizes{heads * config.integer("attention_head_dim"),
                          heads,
                          config.integer("num_routed_experts"),
                          config.integer("num_activated_experts"),
                          force_inference_output_,
                          trains_inference};
        timestep_embedder =
            TimestepEmbedding(builder["t_embedder"]["timestep_embedder"], frequency_embedding_size, sizes.dim);
        pooled_embedder = TimestepEmbedding(builder["p_embedder"]["pooled_embedder"], text_emb_dim_, sizes.dim);
        x_embedder = builder["x_embedder"].linear("proj", in_channels_ * patch, sizes.dim);
        for (std::int64_t i = 0; i < config.integer("num_layers"); ++i)
            double_stream_blocks.emplace_back(builder["double_stream_blocks"][i]["block"], sizes);
        for (std::int64_t i = 0; i < config.integer("num_single_layers"); ++i)
            single_stream_blocks.emplace_back(builder["single_stream_blocks"][i]["block"], sizes);
        final_linear = builder["final_layer"].linear("linear", sizes.dim, patch * out_channels_);
        final_modulation = builder["final_layer"]["adaLN_modulation"].linear("1", sizes.dim, 2 * sizes.dim);
        final_norm = builder["final_layer"].layer_norm("norm_final", sizes.dim, false);
        const auto count = static_cast<std::int64_t>(llama_layers_.size());
        const std::int64_t blocks = config.integer("num_layers") + config.integer("num_single_layers");
        if (blocks > count + 1)
            throw std::logic_error("there are more blocks than llama_layers and one");  // each takes a text of its own
        if (count > blocks + 1)
            throw std::logic_error(
                "there are more llama_layers than blocks and one");  // each has a projection of its own
        if (sizes.activated > sizes.experts)
            throw std::logic_error("num_activated_experts is more than num_routed_experts");
        for (std::int64_t i = 0; i <= blocks; ++i)
            caption_projection.push_back(builder["caption_projection"][i].linear(
                "linear", caption_channels_[i < blocks ? 1 : 0], sizes.dim, false));
    }

    static Tensor projected(const Linear& projection, const Tensor& caption) {
        Tensor out = projection(caption);
        return view(std::move(out), {out.size(0), -1, out.size(2)});
    }

    // An oblong picture is padded to max_seq tokens, and masked.
    Tensor patchify(const Tensor& latents, Tensor& hidden_states_masks, Tensor& img_sizes, Tensor& img_ids) const {
        Run& run = latents.run();
        const std::int64_t batch_size = latents.size(0), channels = latents.size(1), p = patch_size_;
        const std::int64_t patch_height = latents.size(2) / p, patch_width = latents.size(3) / p,
                           tokens = patch_height * patch_width;
        const bool oblong = latents.size(2) != latents.size(3);
        if (oblong && tokens > max_seq_)
            throw Refused("an oblong picture is padded to " + std::to_string(max_seq_) + " tokens; this one has " +
                          std::to_string(tokens));
        // create img_sizes
        img_sizes = run.empty({2}, Dtype::i64, Op::to_copy);
        img_sizes = repeat(unsqueeze(img_sizes, 0), {batch_size, 1});
        // create hidden_states_masks
        if (oblong) hidden_states_masks = run.empty({batch_size, max_seq_}, latents.dtype(), Op::zeros);
        // create img_ids
        img_ids = run.empty({patch_height, patch_width, 3}, Dtype::f32, Op::zeros);
        const Tensor row_indices = unsqueeze(arange(run, patch_height, Dtype::i64), 1);
        const Tensor col_indices = unsqueeze(arange(run, patch_width, Dtype::i64), 0);
        static_cast<void>(add(select(img_ids, 2, 1), row_indices));
        static_cast<void>(add(select(img_ids, 2, 2), col_indices));
        img_ids = view(img_ids, {tokens, 3});
        Tensor img_ids_pad;
        if (oblong) {
            img_ids_pad = run.empty({max_seq_, 3}, Dtype::f32, Op::zeros);
            img_ids = repeat(unsqueeze(img_ids_pad, 0), {batch_size, 1, 1});
        } else {
            img_ids = repeat(unsqueeze(img_ids, 0), {batch_size, 1, 1});
        }
        // patchify hidden_states
        Tensor hidden_states = latents, out;
        if (oblong) {
            out = run.empty({batch_size, channels, max_seq_, p * p}, latents.dtype(), Op::zeros);
            hidden_states = reshape(hidden_states, {batch_size, channels, patch_height, p, patch_width, p});
            hidden_states = permute(hidden_states, {0, 1, 2, 4, 3, 5});
            hidden_states = reshape(hidden_states, {batch_size, channels, tokens, p * p});
            hidden_states = out;
            hidden_states = reshape(permute(hidden_states, {0, 2, 3, 1}), {batch_size, max_seq_, p * p * channels});
        } else {
            hidden_states = reshape(hidden_states, {batch_size, channels, patch_height, p, patch_width, p});
            hidden_states = permute(hidden_states, {0, 2, 4, 3, 5, 1});
            hidden_states = reshape(hidden_states, {batch_size, tokens, p * p * channels});
        }
        return hidden_states;
    }

    // HiDreamImageEmbedND: ids [B, S, axes] → [B, S, 1, D / 2, 2, 2] fp32
    [[nodiscard]] Tensor pe_embedder(const Tensor& ids) const {
        Tensors parts;
        for (std::size_t i = 0; i < axes_dims_rope_.size(); ++i)
            parts.push_back(rope(select(ids, -1, static_cast<std::int64_t>(i)), axes_dims_rope_[i]));
        const Tensor emb = cat(parts, -3);
        return unsqueeze(emb, 2);
    }
    static Tensor rope(const Tensor& pos, std::int64_t dim) {
        const Tensor scale = div_scalar(arange(pos.run(), dim / 2, Dtype::f64));
        const Tensor omega = rdiv_scalar(scalar_pow(scale));
        Tensor out;
        {
            const Tensor lower = autocast_lower(pos);  // einsum is on autocast's list
            out = mul(unsqueeze(lower, -1), omega);
        }
        const Tensor cos_out = cos(out);
        const Tensor sin_out = sin(out);
        Tensor stacked_out;
        {
            const std::array<Tensor, 4> turned{cos_out, neg(sin_out), sin_out, cos_out};
            stacked_out = stack(turned, -1);
        }
        out = view(stacked_out, {pos.size(0), -1, dim / 2, 2, 2});
        return to_float(out);
    }

    // HiDreamImageOutEmbed
    [[nodiscard]] Tensor final_layer(const Tensor& x, const Tensor& temb) const {
        const Tensors parts = chunk(final_modulation(silu(temb)), 2, 1);  // shift, scale
        Tensor hidden_states = final_norm(x);
        hidden_states = mul(std::move(hidden_states), add_scalar(unsqueeze(parts[1], 1)));
        hidden_states = add(std::move(hidden_states), unsqueeze(parts[0], 1));
        hidden_states = final_linear(hidden_states);
        return hidden_states;
    }

    [[nodiscard]] Tensor unpatchify(const Tensor& x, std::int64_t height, std::int64_t width) const {
        Run& run = x.run();
        const std::int64_t batch = x.size(0), tokens = x.size(1), p = patch_size_, channels = x.size(2) / (p * p);
        if (run.grad_enabled() && !force_inference_output_) {
            Tensor out = permute(reshape(x, {batch, tokens, p, p, channels}), {0, 4, 1, 2, 3});
            return reshape(std::move(out), {batch, channels, tokens, p * p});
        }
        Tensors x_arr;
        const auto size = [&] { return run.empty({}, Dtype::i64, Op::mul); };  // a size is a number on the GPU
        Tensor t;
        for (std::int64_t i = 0; i < batch; ++i) {
            static_cast<void>(size());
            t = slice(select(x, 0, i), 0, 0, height * width);
            t = reshape(t, {1, height, width, p, p, channels});
            t = permute(t, {0, 5, 1, 3, 2, 4});
            const Tensor out_height = size(), out_width = size();
            t = reshape(t, {1, channels, height * p, width * p});
            x_arr.push_back(t);
        }
        return cat(x_arr, 0);
    }

    static constexpr std::int64_t frequency_embedding_size = 256;
    std::int64_t patch_size_, in_channels_, out_channels_, text_emb_dim_, max_seq_ = 0;
    bool force_inference_output_;
    std::vector<std::int64_t> caption_channels_, axes_dims_rope_, llama_layers_;
    TimestepEmbedding timestep_embedder, pooled_embedder;
    Linear x_embedder, final_linear, final_modulation;
    nn::LayerNorm final_norm;
    std::deque<DoubleBlock> double_stream_blocks;
    std::deque<SingleBlock> single_stream_blocks;
    std::vector<Linear> caption_projection;
};

/// As ai-toolkit has it. An oblong picture arrives padded and in patches, with its size and positions.
class AiToolkit final : public HiDreamImageTransformer2DModel {
  public:
    AiToolkit(nn::Weights& weights, const profile::Config& config)
        : HiDreamImageTransformer2DModel(weights, config, true) {}

    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        std::vector<Value> values = HiDreamImageTransformer2DModel::inputs(request);
        if (request.width == request.height) return values;
        values[0].shape = {request.batch, in_channels_, max_seq_, patch_size_ * patch_size_};
        values.push_back({"img_sizes", {request.batch, 2}, Dtype::i64});
        values.push_back({"img_ids", {request.batch, max_seq_, 3}, Dtype::f32});
        return values;
    }

    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        return {{request.batch, out_channels_, request.height / 8, request.width / 8}};
    }

    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const override {
        Run& run = args[0].run();
        const std::int64_t batch_size = args[0].size(0), p_height = request.height / 8 / patch_size_,
                           p_width = request.width / 8 / patch_size_;
        const bool padded = args.size() > 5;
        Tensor hidden_states = args[0];
        const Dtype hidden_states_type = hidden_states.dtype();

        // 0. time
        Tensor timesteps = expand(args[1], {batch_size});
        {
            Tensor t_emb = to(timestep_embedding(timesteps, frequency_embedding_size, true), hidden_states_type);
            timesteps = timestep_embedder(t_emb);
        }
        const Tensor p_embedder = pooled_embedder(args[4]);
        const Tensor adaln_input = add(timesteps, p_embedder);

        Tensor image_tokens_masks, img_ids;
        hidden_states = patchify(hidden_states, padded, image_tokens_masks);
        if (padded) {
            img_ids = args[6];
        } else {
            img_ids = run.empty({p_height, p_width, 3}, Dtype::f32, Op::zeros);
            static_cast<void>(add(select(img_ids, 2, 1), unsqueeze(arange(run, p_height, Dtype::i64), 1)));
            static_cast<void>(add(select(img_ids, 2, 2), unsqueeze(arange(run, p_width, Dtype::i64), 0)));
            img_ids = expand(unsqueeze(img_ids, 0), {batch_size, -1, -1, -1});
            img_ids = reshape(img_ids, {batch_size, p_height * p_width, 3});
        }
        hidden_states = x_embedder(hidden_states);

        Tensors encoder_hidden_states;
        const auto project = [&](const Linear& projection, const Tensor& caption) {
            Tensor projected = projection(caption);
            encoder_hidden_states.push_back(view(std::move(projected), {batch_size, -1, hidden_states.size(2)}));
        };
        for (std::size_t i = 0; i < llama_layers_.size(); ++i)
            project(caption_projection[i], select(args[3], 0, llama_layers_[i]));
        project(caption_projection.back(), args[2]);
        const Tensor &t5 = encoder_hidden_states.back(),
                     &llama = encoder_hidden_states[encoder_hidden_states.size() - 2];

        const Tensor txt_ids = run.empty({batch_size, t5.size(1) + 2 * llama.size(1), 3}, img_ids.dtype(), Op::zeros);
        const Tensor ids = cat({img_ids, txt_ids}, 1);
        const Tensor rope = pe_embedder(ids);

        // 2. Blocks
        const Caller call(run, gradient_checkpointing);
        // A checkpoint is handed copies.
        const auto handed = [&](const Tensor& x) {
            return run.grad_enabled() && gradient_checkpointing ? clone(x) : x;
        };
        std::size_t block_id = 0;
        Tensor initial_encoder_hidden_states = cat({t5, llama}, 1), cur_encoder_hidden_states;
        const std::int64_t initial_encoder_hidden_states_seq_len = initial_encoder_hidden_states.size(1);
        for (const DoubleBlock& block : double_stream_blocks) {
            cur_encoder_hidden_states =
                cat({initial_encoder_hidden_states, encoder_hidden_states[block_id++].detach()}, 1);
            Tensors block_args{hidden_states, image_tokens_masks, cur_encoder_hidden_states};
            block_args.push_back(handed(adaln_input));
            block_args.push_back(handed(rope));
            Tensors out = call(block, std::move(block_args));
            hidden_states = std::move(out[0]);
            initial_encoder_hidden_states = std::move(out[1]);
            initial_encoder_hidden_states =
                slice(initial_encoder_hidden_states, 1, 0, initial_encoder_hidden_states_seq_len);
        }

        const std::int64_t image_tokens_seq_len = hidden_states.size(1);
        hidden_states = cat({hidden_states, initial_encoder_hidden_states}, 1);
        const std::int64_t hidden_states_seq_len = hidden_states.size(1);
        Tensor encoder_attention_mask_ones;
        if (padded) {
            encoder_attention_mask_ones = run.empty({batch_size, initial_encoder_hidden_states.size(1) + llama.size(1)},
                                                    image_tokens_masks.dtype(), Op::ones);
            image_tokens_masks = cat({image_tokens_masks, encoder_attention_mask_ones}, 1);
        }
        for (const SingleBlock& block : single_stream_blocks) {
            hidden_states = cat({hidden_states, encoder_hidden_states[block_id++].detach()}, 1);
            Tensors block_args{hidden_states, image_tokens_masks};
            block_args.push_back(handed(adaln_input));
            block_args.push_back(handed(rope));
            hidden_states = call(block, std::move(block_args))[0];
            hidden_states = slice(hidden_states, 1, 0, hidden_states_seq_len);
        }

        hidden_states = slice(hidden_states, 1, 0, image_tokens_seq_len);
        Tensor output = final_layer(hidden_states, adaln_input);
        output = unpatchify(output, padded, p_height, p_width);
        return {output};
    }

  private:
    // x_masks is made in any case, and dropped where nothing is padded.
    [[nodiscard]] Tensor patchify(const Tensor& x, bool padded, Tensor& image_tokens_masks) const {
        Run& run = x.run();
        const std::int64_t batch = x.size(0), channels = x.size(1), p = patch_size_;
        const Tensor x_masks = run.empty({batch, max_seq_}, x.dtype(), Op::zeros);
        if (padded) {
            for (std::int64_t i = 0; i < batch; ++i) static_cast<void>(size(run));
            image_tokens_masks = x_masks;
            return reshape(permute(x, {0, 2, 3, 1}), {batch, x.size(2), p * p * channels});
        }
        const std::int64_t p_height = x.size(2) / p, p_width = x.size(3) / p;
        Tensor out = permute(reshape(x, {batch, channels, p_height, p, p_width, p}), {0, 2, 4, 3, 5, 1});
        return reshape(std::move(out), {batch, p_height * p_width, p * p * channels});
    }

    [[nodiscard]] Tensor unpatchify(const Tensor& x, bool padded, std::int64_t height, std::int64_t width) const {
        const std::int64_t p = patch_size_;
        Tensors x_arr;
        for (std::int64_t i = 0; i < x.size(0); ++i) {
            if (padded) static_cast<void>(size(x.run()));
            Tensor one = slice(select(x, 0, i), 0, 0, height * width);
            one = permute(reshape(std::move(one), {1, height, width, p, p, out_channels_}), {0, 5, 1, 3, 2, 4});
            x_arr.push_back(reshape(std::move(one), {1, out_channels_, height * p, width * p}));
        }
        return cat(x_arr, 0);
    }

    /// pH * pW of sizes that lie on the GPU.
    static Tensor size(Run& run) { return run.empty({}, Dtype::i64, Op::mul); }
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<HiDreamImageTransformer2DModel>(weights, profile.config);
}

}  // namespace vram::models::hidream

namespace vram::models::hidream_ai_toolkit {

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<hidream::AiToolkit>(weights, profile.config);
}

}  // namespace vram::models::hidream_ai_toolkit
