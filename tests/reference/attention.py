"""The attention kernel that a GPU would choose.

A CPU build has no chooser for CUDA and falls to the math path, whose memory grows with the square of the tokens.
`like_a_gpu` replaces `torch.nn.functional.scaled_dot_product_attention` by what torch 2.13 does on an Ada card (sm89):
aten/src/ATen/native/transformers/attention.cpp (padding, masks) and cuda/sdp_utils.cpp (the choice). Of
`sdpa_kernel(…, set_priority=True)` it knows whether cuDNN comes first, and that all kernels are allowed.
"""

import contextlib
import math

import torch
import torch.nn.attention
import torch.nn.functional as F

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
CUDNN = int(torch.nn.attention.SDPBackend.CUDNN_ATTENTION)


def choose(query, key, value, mask, dropout, gqa) -> str:
    """`flash`, `efficient` or `math`, in the order in which sm89 prefers them; `cudnn`, which comes last there, where a
    context puts it first."""
    if query.dim() != 4 or 0 in (query.shape[-2], key.shape[-2]):
        return "math"
    head, head_v = query.shape[-1], value.shape[-1]
    if (torch._C._get_sdp_priority_order()[0] == CUDNN and query.dtype in HALF and max(query.shape[:2]) <= 65535
            and key.shape[-2] > 1 and all(size <= 128 and size % 8 == 0 for size in (head, head_v))):
        return "cudnn"
    same_heads = query.shape[-3] == key.shape[-3] == value.shape[-3]
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if (query.dtype in HALF and mask is None and head == head_v == key.shape[-1] and head <= 256
            and (same_heads or gqa)
            # Cards with less shared memory lack some backward kernels of large heads.
            and not (needs_grad and (192 < head <= 224 or (head > 224 and dropout > 0)))):
        return "flash"
    alignment = 8 if query.dtype in HALF else 4
    if same_heads and query.dtype in (*HALF, torch.float32) and head % alignment == 0 and head_v % alignment == 0:
        return "efficient"
    return "math"


def _pad_to_8(tensor):
    last = tensor.shape[-1]
    return tensor if last % 8 == 0 else F.pad(tensor, (0, 8 - last % 8))


def _flash(query, key, value, dropout, causal, scale):
    head = query.shape[-1]
    scale = 1.0 / math.sqrt(head) if scale is None else scale
    out = aten._scaled_dot_product_flash_attention(
        _pad_to_8(query), _pad_to_8(key), _pad_to_8(value), dropout, causal, False, scale=scale)[0]
    return out if out.shape[-1] == head else out[..., :head]


def _mask_for_efficient(mask, query, key):
    """As convert_boolean_attn_mask and preprocess_mask: in the query's dtype, rows start at multiples of 8 elements,
    every head and batch has its own view. What was padded is let go before the kernel runs."""
    if mask.dtype == torch.bool:
        mask = torch.where(mask, torch.zeros((), dtype=query.dtype), torch.full((), -math.inf, dtype=query.dtype))
    if mask.stride(-1) != 1 or any(stride % 8 for stride in mask.stride()[:-1]):
        last = mask.shape[-1]
        mask = F.pad(mask, (0, 8 - last % 8))[..., :last]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _efficient(query, key, value, mask, dropout, causal, scale):
    keeps_statistics = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if mask is not None:
        mask = _mask_for_efficient(mask, query, key)
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, keeps_statistics, dropout, causal, scale=scale)[0]


def _cudnn(query, key, value, mask, dropout, causal, scale):
    """The meta kernel makes the statistics in any case, cuDNN's own where a backward will ask for them."""
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.where(mask, torch.zeros((), dtype=query.dtype), torch.full((), -math.inf, dtype=query.dtype))
    if torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value)):
        return aten._scaled_dot_product_cudnn_attention(query, key, value, mask, True, dropout, causal, False,
                                                        scale=scale)[0]
    out = torch.empty_like(query)
    seed, offset = (torch.empty((), dtype=torch.int64, device=query.device) for _ in range(2))
    return out


@contextlib.contextmanager
def like_a_gpu(count):
    """Within, fused attention runs as on a card; `count(kernel)` is called once a call."""
    plain = F.scaled_dot_product_attention

    def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                                     enable_gqa=False):
        if query.device.type != "cuda":
            return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if torch.is_autocast_enabled("cuda"):
            # The op is on autocast's list of lower-precision ops; autocast casts from the last argument to the first.
            dtype = torch.get_autocast_dtype("cuda")
            if attn_mask is not None and attn_mask.is_floating_point():
                attn_mask = attn_mask.to(dtype)
            value, key, query = value.to(dtype), key.to(dtype), query.to(dtype)
        kernel = choose(query, key, value, attn_mask, dropout_p, enable_gqa)
        count(kernel)
        if kernel == "flash":
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if kernel == "efficient":
            return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
        if kernel == "cudnn":
            return _cudnn(query, key, value, attn_mask, dropout_p, is_causal, scale)
        return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    F.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield
    finally:
        F.scaled_dot_product_attention = plain
