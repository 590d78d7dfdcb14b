#pragma once

#include "nn/module.hpp"

/// transformers' masks for its text models (transformers 5.24.0, masking_utils.py). A mask that is handed in has
/// padding in it, as a prompt's nearly always has: one without would be left away.
namespace vram::models {

/// create_causal_mask and create_bidirectional_mask with attention "sdpa", no cache: attention_mask [B, T] → [B, 1, T,
/// T] bool.
[[nodiscard]] nn::Tensor sdpa_mask(const nn::Tensor& attention_mask, bool causal);

/// What a decoder's mask depends on beside the tokens' own.
struct CausalMask {
    std::int64_t sliding_window = 0;  // 0: none
    bool eager = false;  // attention "eager" adds its mask: in the dtype of the embeddings, never left away
    bool cache = false;  // a cache is filled: no look for packed sequences
};
/// create_causal_mask and create_sliding_window_causal_mask: attention_mask [B, T] or undefined, position_ids [1, T] or
/// undefined → [B, 1, T, T], or undefined where the kernel's own causal order does.
[[nodiscard]] nn::Tensor causal_mask(const nn::Tensor& inputs_embeds, const nn::Tensor& attention_mask,
                                     const nn::Tensor& position_ids, const CausalMask& how);

}  // namespace vram::models
