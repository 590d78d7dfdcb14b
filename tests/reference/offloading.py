"""Which models are recorded with their layers in host memory (record_offloading.py), and how each is made.

A case is a denoiser (`model`) or a text encoder (`component`) of models.py, shrunken by `config`, to which ai-toolkit's own
MemoryManager is attached as the load_model of the architecture `attach` does, before it is quantised or behind
it (`quantize`, and `before`). The checkout that VRAMEST_AI_TOOLKIT names has the manager, the folder that
VRAMEST_QUANTIZERS names torchao 0.10.0.
"""

import importlib.util
import pathlib

import quantized

LTX2 = {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 64, "audio_num_attention_heads": 2,
        "audio_attention_head_dim": 32, "cross_attention_dim": 128, "audio_cross_attention_dim": 64}
PICTURES = {"batch": 1, "width": 128, "height": 96, "frames": 9, "text_tokens": 24}
ERNIE = {"hidden_size": 256, "num_attention_heads": 2, "num_layers": 2, "ffn_hidden_size": 384, "text_in_dim": 192}
GEMMA = {"text_config": {"hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 6, "num_attention_heads": 4,
                         "num_key_value_heads": 2, "head_dim": 32},
         "vision_config": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2}}
QWEN = {"hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 640}


def cases() -> list:
    out = []

    def add(id, **more):
        out.append({"id": id, "weights": "bf16", **more})

    ltx2 = PICTURES | {"model": "ltx2_19b_split", "attach": "ltx2", "config": LTX2 | {"caption_channels": 96}}
    ltx23 = PICTURES | {"model": "ltx23_22b", "attach": "ltx2.3", "config": {"num_layers": 1}}
    ernie = {"model": "ernie_image", "forward": "ai_toolkit", "attach": "ernie_image", "config": ERNIE, "batch": 2,
             "width": 128, "height": 96, "text_tokens": 24}
    for name, case in (("ltx2", ltx2), ("ltx23", ltx23), ("ernie_image", ernie)):
        add(name, **case)
        add(f"{name}-checkpointed", **case, checkpointing=True)
    add("ltx2-float8", **ltx2, quantize="float8")
    gemma = {"component": "gemma3_12b", "attach": "ltx2", "config": GEMMA, "batch": 1, "text_tokens": 24,
             "attention_mask": True, "all_hidden_states": True, "use_cache": True}
    add("gemma3", **gemma)
    add("gemma3-float8", **gemma, quantize="float8")
    add("gemma3-uint4", **gemma, quantize="uint4")
    qwen = {"component": "qwen3_4b", "profile": "qwen3_4b_causal", "cls": "Qwen3ForCausalLM", "attach": "zimage",
            "config": QWEN | {"tie_word_embeddings": True}, "batch": 1, "text_tokens": 24, "all_hidden_states": True,
            "attention_mask": True}
    add("qwen3", **qwen)
    for name in ("float8", "uint4"):
        add(f"qwen3-{name}", **qwen, quantize=name)
        add(f"qwen3-{name}-before", **qwen, quantize=name, before=True)
    # Not offloaded: the language head is quantised apart from the embedding that it shared a weight with.
    for name in ("qfloat8", "float8", "uint4"):
        add(f"qwen3-{name}-there", **qwen | {"attach": "none"}, quantize=name)
    return out


MISSING = quantized.MISSING


def is_there(case: dict) -> bool:
    return bool(quantized.AI_TOOLKIT and quantized.QUANTIZERS)


class _Table:
    """A parameter that `ignore_modules` names: fake tensors have no data to set, so that it is made anew as it moves."""

    def __init__(self, module, name):
        self.module, self.name = module, name

    def to(self, *args, **kwargs):
        import torch

        old = getattr(self.module, self.name)
        self.module._parameters[self.name] = torch.nn.Parameter(old.data.to(*args, **kwargs), old.requires_grad)


def _ltx2(model) -> list:
    names = ("scale_shift_table", "audio_scale_shift_table", "video_a2v_cross_attn_scale_shift_table",
             "audio_a2v_cross_attn_scale_shift_table")
    return [_Table(block, name) for block in model.transformer_blocks for name in names] + [
        _Table(model, name) for name in names[:2]]


def ignored(case: dict, model) -> list:
    """The modules that the load_model of an architecture has the manager ignore."""
    if "component" in case:
        return [model.model.language_model.base_model.embed_tokens] if case["attach"] == "ltx2" else []
    return [model.x_embedder] if case["attach"] == "ernie_image" else _ltx2(model)


def own_class(case: dict) -> type:
    """ai-toolkit's own copy of a denoiser's class, by its file: the package around it imports all of the trainer."""
    path = pathlib.Path(quantized.AI_TOOLKIT, "extensions_built_in", "diffusion_models", case["model"], "transformer.py")
    spec = importlib.util.spec_from_file_location(f"own_{case['model']}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, "ErnieImageTransformer2DModel")
