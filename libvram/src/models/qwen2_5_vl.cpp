// Mirrors Qwen2_5_VLForConditionalGeneration (transformers 5.24.0, models/qwen2_5_vl/modeling_qwen2_5_vl.py) as
// diffusers' Qwen-Image pipelines call it: with text, and for the edit models with pictures in it. They hand over no
// token types, so positions count up. Some trainers delete the vision tower (`model.visual = None`): a config
// without `vision_depth`.
#include <algorithm>
#include <stdexcept>

#include "models/families.hpp"
#include "models/text_decoder.hpp"
#include "shadow/memo.hpp"

namespace vram::models::qwen2_5_vl {
namespace {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Block;
using nn::Linear;

struct VisionSizes {
    std::int64_t hidden, intermediate, heads, depth, patch, temporal_patch, merge, window, out_hidden;
};

// x[index, ...] along the first dimension, as many rows as there were
Tensor permuted_rows(const Tensor& x) { return x.run().empty(x.sizes(), x.dtype(), Op::index); }

/// args: hidden_states [N, D], cos, sin [N, head] → hidden_states. Attention stays within pieces of the lengths given.
class VisionBlock : public Block {
  public:
    VisionBlock(const Builder& parent, const VisionSizes& sizes) : VisionBlock(parent.block(*this), sizes) {}

    [[nodiscard]] Tensors forward(const Tensors& args) const override { return forward(args, {args[0].size(0)}); }
    [[nodiscard]] Tensors forward(const Tensors& args, const std::vector<std::int64_t>& lengths) const {
        Tensor hidden_states = args[0];
        {
            Tensor attended = attn(norm1(hidden_states), args[1], args[2], lengths);
            hidden_states = add(hidden_states, std::move(attended));
        }
        {
            Tensor forwarded = mlp(norm2(hidden_states));
            hidden_states = add(hidden_states, std::move(forwarded));
        }
        return {hidden_states};
    }

  private:
    VisionBlock(const BlockBuilder& builder, const VisionSizes& sizes)
        : heads_(sizes.heads),
          norm1(builder, "norm1", sizes.hidden),
          norm2(builder, "norm2", sizes.hidden),
          qkv(builder["attn"].linear("qkv", sizes.hidden, 3 * sizes.hidden)),
          proj(builder["attn"].linear("proj", sizes.hidden, sizes.hidden)),
          mlp(builder["mlp"], sizes.hidden, sizes.intermediate, true, true) {
        builder.finish(*this, "Qwen2_5_VLVisionBlock", {sizes.heads});
    }

    [[nodiscard]] Tensor attn(Tensor argument, const Tensor& cosines, const Tensor& sines,
                              const std::vector<std::int64_t>& lengths) const {
        const Tensor hidden_states = std::move(argument);
        Run& run = hidden_states.run();
        const std::int64_t seq_length = hidden_states.size(0);
        Tensor query_states, key_states, value_states;
        {
            Tensor joined = reshape(qkv(hidden_states), {seq_length, 3, heads_, -1});
            const Tensors parts = unbind(permute(std::move(joined), {1, 0, 2, 3}), 0);
            query_states = parts[0];
            key_states = parts[1];
            value_states = parts[2];
        }
        {
            const Tensor q = to_float(query_states), k = to_float(key_states);
            const Tensor cos = unsqueeze(cosines, -2), sin = unsqueeze(sines, -2);
            Tensor q_embed = rotate_halves(q, cos, sin);
            Tensor k_embed = rotate_halves(k, cos, sin);
            q_embed = to(q_embed, query_states.dtype());
            k_embed = to(k_embed, key_states.dtype());
            query_states = q_embed;
            key_states = k_embed;
        }
        query_states = unsqueeze(transpose(query_states, 0, 1), 0);
        key_states = unsqueeze(transpose(key_states, 0, 1), 0);
        value_states = unsqueeze(transpose(value_states, 0, 1), 0);  // [1, H, N, head]
        const Tensor piece_lengths = run.empty({static_cast<std::int64_t>(lengths.size())}, Dtype::i32, Op::sub);
        std::vector<Tensor> attn_outputs;
        std::int64_t at = 0;
        for (const std::int64_t length : lengths) {
            attn_outputs.push_back(attend(slice(query_states, 2, at, at + length),
                                          slice(key_states, 2, at, at + length),
                                          slice(value_states, 2, at, at + length)));
            at += length;
        }
        Tensor attn_output = cat(attn_outputs, 1);
        attn_output = reshape(attn_output, {seq_length, -1});
        attn_output = proj(attn_output);
        return attn_output;
    }

    // sdpa_attention_forward: [1, H, L, head] → [1, L, H, head]
    static Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value) {
        Tensor attn_output = scaled_dot_product_attention(query, key, value);
        return contiguous(transpose(attn_output, 1, 2));
    }

    std::int64_t heads_;
    DecoderNorm norm1, norm2;
    Linear qkv, proj;
    DecoderMlp mlp;
};

/// How a picture falls into patches: their grid, and the lengths of the windows in the order of
/// get_vision_window_index.
struct Grid {
    std::int64_t height, width;
};
/// In merged patches.
std::int64_t window_side(const VisionSizes& sizes) { return sizes.window / sizes.merge / sizes.patch; }
void add_windows(std::vector<std::int64_t>& lengths, const Grid& grid, const VisionSizes& sizes) {
    const std::int64_t rows = grid.height / sizes.merge, columns = grid.width / sizes.merge;
    const std::int64_t side = window_side(sizes);
    for (std::int64_t y = 0; y < rows; y += side)
        for (std::int64_t x = 0; x < columns; x += side)
            lengths.push_back(std::min(side, rows - y) * std::min(side, columns - x) * sizes.merge * sizes.merge);
}

/// Qwen2_5_VisionTransformerPretrainedModel
class VisionTransformer {
  public:
    VisionTransformer(const Builder& builder, const profile::Config& config)
        : sizes_{config.integer("vision_hidden_size"),
                 config.integer("vision_intermediate_size"),
                 config.integer("vision_num_heads"),
                 config.integer("vision_depth"),
                 config.integer("vision_patch_size"),
                 config.integer("vision_temporal_patch_size"),
                 config.integer("vision_spatial_merge_size"),
                 config.integer("vision_window_size"),
                 config.integer("hidden_size")},
          fullatt_block_indexes_(config.integers("vision_fullatt_block_indexes")) {
        if (window_side(sizes_) == 0) throw std::logic_error("window_size is less than a merged patch");
        const Dims patch{sizes_.temporal_patch, sizes_.patch, sizes_.patch};
        proj = builder["patch_embed"].conv("proj", 3, sizes_.hidden, patch, patch, {0, 0, 0}, false);
        const std::int64_t frequencies = sizes_.hidden / sizes_.heads / 4;
        inv_freq = &builder["rotary_pos_emb"].buffer("inv_freq", {frequencies}, Dtype::f32);
        (void)builder["rotary_pos_emb"].buffer("original_inv_freq", {frequencies}, Dtype::f32);
        for (std::int64_t i = 0; i < sizes_.depth; ++i)
            blocks.push_back(std::make_unique<VisionBlock>(builder["blocks"][i], sizes_));
        const std::int64_t merged = sizes_.hidden * unit();
        ln_q = DecoderNorm(builder["merger"], "ln_q", sizes_.hidden);
        mlp_0 = builder["merger"]["mlp"].linear("0", merged, merged);
        mlp_2 = builder["merger"]["mlp"].linear("2", merged, sizes_.out_hidden);
    }

    /// The image processor's: sides go to the nearest multiple of a merged patch.
    [[nodiscard]] Grid grid_of(const std::array<std::int64_t, 2>& picture) const {
        const std::int64_t step = sizes_.patch * sizes_.merge;
        const auto patches = [&](std::int64_t side) {
            return std::max<std::int64_t>(1, (side + step / 2) / step) * sizes_.merge;
        };
        return {patches(picture[1]), patches(picture[0])};
    }
    [[nodiscard]] std::int64_t patch_values() const { return 3 * sizes_.temporal_patch * sizes_.patch * sizes_.patch; }
    /// Patches that become one token.
    [[nodiscard]] std::int64_t unit() const { return sizes_.merge * sizes_.merge; }

    struct Output {
        Tensor last_hidden_state, pooler_output;
        Tensors hidden_states;
    };
    /// pixel_values [N, values of a patch]
    [[nodiscard]] Output forward(const Tensor& pixel_values, const std::vector<Grid>& grids,
                                 bool output_hidden_states) const {
        Run& run = pixel_values.run();
        const std::int64_t seq_len = pixel_values.size(0), pictures = static_cast<std::int64_t>(grids.size());
        std::vector<std::int64_t> lengths, window_lengths;
        for (const Grid& grid : grids) {
            lengths.push_back(grid.height * grid.width);
            add_windows(window_lengths, grid, sizes_);
        }
        // What they leave; what they take in passing is of the same small size. The index of the windows is on the CPU.
        const Tensor position_ids = run.empty({seq_len, 2}, Dtype::i64, Op::cat);
        const Tensor cu_seqlens = run.empty({pictures + 1}, Dtype::i32, Op::pad);
        const Tensor cu_window_seqlens =
            run.empty({static_cast<std::int64_t>(window_lengths.size()) + 1}, Dtype::i32, Op::index);

        Tensor hidden_states = patch_embed(pixel_values);
        hidden_states = permute_input_for_window_attn(hidden_states);
        Tensor cos, sin;
        rotary_pos_emb(position_ids, cos, sin);
        {
            const Tensor cos_windows = permute_input_for_window_attn(cos);
            const Tensor sin_windows = permute_input_for_window_attn(sin);
            cos = cos_windows;
            sin = sin_windows;
        }

        Output output;
        if (output_hidden_states) output.hidden_states.push_back(hidden_states);
        for (std::int64_t i = 0; i < sizes_.depth; ++i) {
            const bool full = std::find(fullatt_block_indexes_.begin(), fullatt_block_indexes_.end(), i) !=
                              fullatt_block_indexes_.end();
            hidden_states =
                call(*blocks[static_cast<std::size_t>(i)], {hidden_states, cos, sin}, full ? lengths : window_lengths);
            if (output_hidden_states) output.hidden_states.push_back(hidden_states);
        }
        Tensor merged_hidden_states = merger(hidden_states);
        merged_hidden_states = permuted_rows(merged_hidden_states);  // back in order
        output.last_hidden_state = hidden_states;
        output.pooler_output = merged_hidden_states;
        return output;
    }

  private:
    // A call depends on the lengths, too: they are part of what is remembered of it.
    static Tensor call(const VisionBlock& block, Tensors args, const std::vector<std::int64_t>& lengths) {
        Run& run = args[0].run();
        std::vector<std::int64_t> facts{block.spec};
        facts.insert(facts.end(), lengths.begin(), lengths.end());
        // Blocks whose calls are not alike are not so in pieces either.
        const std::int32_t spec = block.spec < 0 ? -1 : spec_id(run, "Qwen2_5_VLVisionBlock of pieces", facts);
        return shadow::call(run, {spec, 0, &block.trainable}, std::move(args),
                            [&block, lengths](const Tensors& inputs) { return block.forward(inputs, lengths); })[0];
    }

    [[nodiscard]] Tensor patch_embed(const Tensor& argument) const {
        const Tensor hidden_states = view(argument, {-1, 3, sizes_.temporal_patch, sizes_.patch, sizes_.patch});
        return view(proj(to(hidden_states, proj.weight->value.dtype())), {-1, sizes_.hidden});
    }

    [[nodiscard]] Tensor permute_input_for_window_attn(const Tensor& argument) const {
        const std::int64_t seq_len = argument.size(0);
        Tensor input_tensor = reshape(argument, {seq_len / unit(), unit(), -1});
        input_tensor = permuted_rows(input_tensor);
        return reshape(input_tensor, {seq_len, -1});
    }

    void rotary_pos_emb(const Tensor& position_ids, Tensor& cos_out, Tensor& sin_out) const {
        Tensor freqs;
        {
            Tensor positions = to_float(unsqueeze(position_ids, -1));
            Tensor frequencies = to_float(inv_freq->value);
            freqs = mul(std::move(positions), std::move(frequencies));  // [N, 2, head / 4]
        }
        Tensor cosines = cos(freqs);
        cosines = mul_scalar(std::move(cosines));
        Tensor sines = sin(freqs);
        sines = mul_scalar(std::move(sines));
        cosines = recomposition_frequencies(cosines);
        sines = recomposition_frequencies(sines);
        cos_out = cosines;
        sin_out = sines;
    }
    static Tensor recomposition_frequencies(const Tensor& freq) {
        const Tensor freq_h = select(freq, 1, 0), freq_w = select(freq, 1, 1);
        const Tensor freq_hw = cat({freq_h, freq_w}, -1);
        return cat({freq_hw, freq_hw}, -1);
    }

    [[nodiscard]] Tensor merger(const Tensor& x) const {
        const Tensor input = view(ln_q(x), {-1, sizes_.hidden * unit()});
        Tensor hidden = mlp_0(input);
        hidden = gelu(std::move(hidden));
        return mlp_2(std::move(hidden));
    }

    VisionSizes sizes_;
    std::vector<std::int64_t> fullatt_block_indexes_;
    nn::Conv proj;
    nn::Parameter* inv_freq = nullptr;
    std::vector<std::unique_ptr<VisionBlock>> blocks;
    DecoderNorm ln_q;
    Linear mlp_0, mlp_2;
};

class Qwen2_5_VLForConditionalGeneration : public Model {  // NOLINT: the class's name
  public:
    Qwen2_5_VLForConditionalGeneration(const Builder& builder, const profile::Config& config)
        : visual(config.has("vision_depth") ? std::make_unique<VisionTransformer>(builder["model"]["visual"], config)
                                            : nullptr),
          language_model(builder["model"]["language_model"], config) {
        lm_head = config.boolean("tie_word_embeddings")
                      ? builder.tied_linear("lm_head", language_model.embedding())
                      : builder.linear("lm_head", language_model.hidden_size(), config.integer("vocab_size"), false);
    }

    /// Every sample has all reference pictures; their tokens stand in the text.
    [[nodiscard]] std::vector<Value> inputs(const Request& request) const override {
        std::int64_t patches = 0;
        for (const Grid& grid : grids(request)) patches += grid.height * grid.width;
        const std::int64_t picture_tokens = patches > 0 ? patches / request.batch / visual->unit() : 0;
        const std::int64_t tokens = request.text_tokens + picture_tokens;
        std::vector<Value> out{{"input_ids", {request.batch, tokens}, Dtype::i64}};
        if (request.attention_mask) out.push_back({"attention_mask", {request.batch, tokens}, Dtype::i64});
        if (patches > 0) {
            out.push_back({"pixel_values", {patches, visual->patch_values()}, Dtype::f32});
            out.push_back({"image_grid_thw", {static_cast<std::int64_t>(grids(request).size()), 3}, Dtype::i64});
        }
        return out;
    }
    [[nodiscard]] std::vector<Dims> outputs(const Request& request) const override {
        const Dims ids = inputs(request).front().shape;
        return {{ids[0], ids[1], language_model.embedding().weight->value.size(0)}};
    }

    /// {logits, hidden states of every layer, keys and values if asked, and the same of the vision tower}
    [[nodiscard]] Tensors forward(const Tensors& args, const Request& request) const override {
        VisionTransformer::Output image_outputs;
        TextDecoder::Output outputs = model(args, request, image_outputs);
        Tensor logits = lm_head(outputs.last_hidden_state);
        outputs.last_hidden_state = std::move(logits);
        Tensors all = outputs.tensors();
        if (image_outputs.last_hidden_state.defined()) {
            all.push_back(image_outputs.last_hidden_state);
            all.push_back(image_outputs.pooler_output);
            for (const Tensor& one : image_outputs.hidden_states) all.push_back(one);
        }
        return all;
    }

  private:
    [[nodiscard]] std::vector<Grid> grids(const Request& request) const {
        std::vector<Grid> out;
        for (std::int64_t i = 0; i < request.batch; ++i)
            for (const auto& picture : request.reference_images) out.push_back(visual->grid_of(picture));
        return out;
    }

    // Qwen2_5_VLModel
    [[nodiscard]] TextDecoder::Output model(const Tensors& args, const Request& request,
                                            VisionTransformer::Output& image_outputs) const {
        const Tensor& input_ids = args[0];
        const Tensor attention_mask = request.attention_mask ? args[1] : Tensor();
        Tensor inputs_embeds = language_model.embed_tokens(input_ids);
        Tensor image_embeds, image_mask, video_mask;
        if (!request.reference_images.empty()) {
            const Tensor& pixel_values = args[request.attention_mask ? 2 : 1];
            image_outputs = get_image_features(pixel_values, request, inputs_embeds.dtype());
            image_embeds = cat({image_outputs.pooler_output}, 0);
            get_placeholder_mask(input_ids, image_mask, video_mask);
            inputs_embeds = masked_scatter(inputs_embeds, image_mask, image_embeds);
        }
        return language_model.forward(inputs_embeds, attention_mask, request, gradient_checkpointing);
    }

    [[nodiscard]] VisionTransformer::Output get_image_features(const Tensor& argument, const Request& request,
                                                               Dtype dtype) const {
        const Tensor pixel_values = to(argument, dtype);
        const std::vector<Grid> image_grid_thw = grids(request);
        VisionTransformer::Output vision_outputs =
            visual->forward(pixel_values, image_grid_thw, request.all_hidden_states);
        // split_sizes: the product of each grid, divided
        Run& run = pixel_values.run();
        const Dims pictures{static_cast<std::int64_t>(image_grid_thw.size())};
        Tensor split_sizes = run.empty(pictures, Dtype::i64, Op::mul);
        split_sizes = run.empty(pictures, Dtype::i64, Op::div);
        return vision_outputs;
    }

    static void get_placeholder_mask(const Tensor& input_ids, Tensor& image_mask, Tensor& video_mask) {
        Run& run = input_ids.run();
        Tensor special_image_mask = compare_scalar(input_ids);
        Tensor special_video_mask = compare_scalar(input_ids);
        const Tensor n_image_tokens = run.empty({}, Dtype::i64, Op::sum);
        {
            // are there as many as features
            const Tensor values = run.empty({}, Dtype::i64, Op::mul);
            const Tensor equal = run.empty({}, Dtype::boolean, Op::eq);
        }
        const Tensor n_video_tokens = run.empty({}, Dtype::i64, Op::sum);
        image_mask = unsqueeze(std::move(special_image_mask), -1);
        video_mask = unsqueeze(std::move(special_video_mask), -1);
    }

    std::unique_ptr<VisionTransformer> visual;  // null: deleted
    TextDecoder language_model;
    Linear lm_head;
};

}  // namespace

std::unique_ptr<Model> build(nn::Weights& weights, const profile::ModelProfile& profile) {
    return std::make_unique<Qwen2_5_VLForConditionalGeneration>(Builder(weights), profile.config);
}

}  // namespace vram::models::qwen2_5_vl
