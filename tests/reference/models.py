"""The models and components that can be recorded: one table entry each.

An entry names the real class, its published config (no network: the values stand here) and what it is handed for a
case. To add a model, add an entry; a new family also needs a function that gives shapes. The ids are those of the
library's own profiles.

Inputs are dicts of name -> (shape, dtype), in the order in which they are made; `None` for the dtype means the dtype of
the weights. A dotted name stands inside an argument: `added_cond_kwargs.text_embeds` in a dict, `x.0` in a list.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import os
import sys
import unittest.mock
from typing import Callable

import torch

import denoiser_values
import text_values


@dataclasses.dataclass(frozen=True)
class Model:
    """A denoiser. `inputs(case, config)` and `targets(case, config)` give shapes, `arguments(case)` what else its
    forward wants; `layers` maps short names for a case's `"layers"` to config keys, so that a case can shrink the
    model to one block of each kind. Its steps run inside of `values(case)`, which hands in what a forward reads from
    tensors: fake ones have no values. `checkout` names an environment variable and the repository that it is to lead to,
    for a class that no package has; `folder` is where its packages lie there, `absent` what they import and nothing that
    is recorded needs. `make(cls, config)` builds it, `always` is what every call hands over."""

    library: str
    cls: str
    config: dict
    inputs: Callable
    targets: Callable
    layers: dict = dataclasses.field(default_factory=dict)
    arguments: Callable = lambda case: {}
    values: Callable = lambda case: contextlib.nullcontext()
    checkout: tuple = ()
    folder: str = ""
    absent: tuple = ()
    make: Callable = lambda cls, config: cls(**config)
    always: dict = dataclasses.field(default_factory=lambda: {"return_dict": False})

    def load(self) -> type:
        """The real class. Raises NotHere where its checkout is missing."""
        if self.checkout:
            variable, repository = self.checkout
            folder = os.environ.get(variable)
            if not folder:
                raise NotHere(f"{self.cls} is in no package: let {variable} be the folder of a checkout of {repository}")
            folder = os.path.join(folder, self.folder)
            if folder not in sys.path:
                sys.path.insert(0, folder)
        with _stand_ins(self.absent):
            return getattr(importlib.import_module(self.library), self.cls)


@contextlib.contextmanager
def _stand_ins(names):
    """For packages that a module imports and nothing that is recorded needs, where they are not installed."""
    import diffusers  # noqa: F401  looks which packages there are, and must not find these
    import transformers  # noqa: F401

    absent = [name for name in names if name not in sys.modules and importlib.util.find_spec(name) is None]
    sys.modules.update((name, unittest.mock.MagicMock()) for name in absent)
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


class NotHere(Exception):
    """A class that cannot be recorded on this machine; the text says what it needs."""


@dataclasses.dataclass(frozen=True)
class Vae:
    cls: str
    config: dict
    latent_channels: int
    spatial: int = 8                      # pixels per latent, each way
    temporal: Callable = lambda frames: None   # frames -> latent frames; None: images, no time axis
    shapes: Callable = None  # case -> what is encoded and what is decoded, where they are no pictures
    channels: int = 3                     # of a picture


@dataclasses.dataclass(frozen=True)
class TextEncoder:
    """`config` may hold the configs of parts (`text_config`, `vision_config`). `pictures` takes a case with
    `reference_images`: the tokens of a sample's pictures, what else forward is handed, and the numbers that forward
    reads out of tensors; it is called inside of `values()`. `options` are its class's constructor's; `positions`: it is handed them, as its tokenizer
    makes them beside the ids."""

    cls: str
    config_cls: str
    config: dict
    attention: str = "sdpa"
    pictures: Callable = None
    library: str = "transformers"
    options: dict = dataclasses.field(default_factory=dict)
    positions: bool = False
    values: Callable = contextlib.nullcontext
    inputs: Callable = None  # case, config -> what forward is handed, where these are no tokens


def _tokens(width: int, height: int) -> int:
    """Image tokens of the packed latents: 8 pixels per latent, 2 x 2 latents per token."""
    return (width // 16) * (height // 16)


# -- FLUX.1, FLUX.2, Chroma: packed tokens with position ids -----------------------------------------------------------

def _flux_inputs(case, config):
    batch, text = case["batch"], case["text_tokens"]
    # Reference images (Kontext) stand behind the noisy tokens, with ids of their own; the model sees one sequence.
    image = _tokens(case["width"], case["height"]) + sum(_tokens(w, h) for w, h in case.get("reference_images", []))
    axes = len(config["axes_dims_rope"])
    inputs = {"hidden_states": ((batch, image, config["in_channels"]), None),
              "encoder_hidden_states": ((batch, text, config["joint_attention_dim"]), None)}
    if "pooled_projection_dim" in config:
        inputs["pooled_projections"] = ((batch, config["pooled_projection_dim"]), None)
    inputs |= {"timestep": ((batch,), None), "img_ids": ((image, axes), None), "txt_ids": ((text, axes), None)}
    if config.get("guidance_embeds"):
        inputs["guidance"] = ((batch,), torch.float32)
    return inputs


def _flux_targets(case, config):
    batch, tokens, channels = _flux_inputs(case, config)["hidden_states"][0]
    return [(batch, tokens, config.get("out_channels") or channels)]  # Fill and Flex.2 take more than they give


_DOUBLE_SINGLE = {"double": "num_layers", "single": "num_single_layers"}


def _flux(**changes):
    config = dict(patch_size=1, in_channels=64, out_channels=64, num_layers=19, num_single_layers=38,
                  attention_head_dim=128, num_attention_heads=24, joint_attention_dim=4096, pooled_projection_dim=768,
                  guidance_embeds=True, axes_dims_rope=(16, 56, 56)) | changes
    return Model("diffusers", "FluxTransformer2DModel", config, _flux_inputs, _flux_targets, _DOUBLE_SINGLE)


def _flux2(**changes):
    config = dict(patch_size=1, in_channels=128, num_layers=8, num_single_layers=48, attention_head_dim=128,
                  num_attention_heads=48, joint_attention_dim=15360, mlp_ratio=3.0, axes_dims_rope=(32, 32, 32, 32),
                  rope_theta=2000, guidance_embeds=True) | changes
    return Model("diffusers", "Flux2Transformer2DModel", config, _flux_inputs, _flux_targets, _DOUBLE_SINGLE)


def _chroma():
    config = dict(patch_size=1, in_channels=64, num_layers=19, num_single_layers=38, attention_head_dim=128,
                  num_attention_heads=24, joint_attention_dim=4096, axes_dims_rope=(16, 56, 56),
                  approximator_num_channels=64, approximator_hidden_dim=5120, approximator_layers=5)
    return Model("diffusers", "ChromaTransformer2DModel", config, _flux_inputs, _flux_targets, _DOUBLE_SINGLE)


# -- Qwen-Image --------------------------------------------------------------------------------------------------------

def _qwen_image(**changes):
    config = dict(patch_size=2, in_channels=64, out_channels=16, num_layers=60, attention_head_dim=128,
                  num_attention_heads=24, joint_attention_dim=3584, guidance_embeds=False,
                  axes_dims_rope=(16, 56, 56)) | changes
    layered = config.get("use_layer3d_rope")

    def grids(case):
        # Reference images stand behind the noisy tokens, each with a grid of its own; the model sees one sequence.
        # Behind layers, which a case calls frames (the whole, then each), the picture that they are made of.
        noisy = [(case["width"], case["height"])] * (case["frames"] + 1 if layered else 1)
        return [(1, height // 16, width // 16) for width, height in noisy + case.get("reference_images", [])]

    def inputs(case, config):
        batch, tokens = case["batch"], sum(height * width for _, height, width in grids(case))
        inputs = {"hidden_states": ((batch, tokens, config["in_channels"]), None),
                  "encoder_hidden_states": ((batch, case["text_tokens"], config["joint_attention_dim"]), None),
                  "timestep": ((batch,), None)}
        if config.get("use_additional_t_cond"):
            inputs["additional_t_cond"] = ((batch,), torch.int64)
        return inputs

    return Model("diffusers", "QwenImageTransformer2DModel", config, inputs,
                 lambda case, config: [inputs(case, config)["hidden_states"][0]], {"blocks": "num_layers"},
                 lambda case: {"img_shapes": [grids(case)] * case["batch"]})


# -- Stable Diffusion 3, PixArt-Sigma, AuraFlow: patches of a picture --------------------------------------------------

def _latent_picture(case, channels):
    return case["batch"], channels, case["height"] // 8, case["width"] // 8


def _sd3(**changes):
    config = dict(sample_size=128, patch_size=2, in_channels=16, out_channels=16, attention_head_dim=64,
                  joint_attention_dim=4096, pooled_projection_dim=2048, qk_norm="rms_norm") | changes

    def latents(case, config):
        return _latent_picture(case, config["in_channels"])

    def inputs(case, config):
        batch = case["batch"]
        return {"hidden_states": (latents(case, config), None),
                "encoder_hidden_states": ((batch, case["text_tokens"], config["joint_attention_dim"]), None),
                "pooled_projections": ((batch, config["pooled_projection_dim"]), None),
                "timestep": ((batch,), None)}

    return Model("diffusers", "SD3Transformer2DModel", config, inputs,
                 lambda case, config: [latents(case, config)], {"blocks": "num_layers"})


def _pixart():
    config = dict(sample_size=128, patch_size=2, in_channels=4, out_channels=8, num_layers=28, attention_head_dim=72,
                  num_attention_heads=16, cross_attention_dim=1152, caption_channels=4096,
                  use_additional_conditions=False)

    def inputs(case, config):
        batch, text = case["batch"], case["text_tokens"]
        return {"hidden_states": (_latent_picture(case, config["in_channels"]), None),
                "encoder_hidden_states": ((batch, text, config["caption_channels"]), None),
                "encoder_attention_mask": ((batch, text), None),
                "timestep": ((batch,), torch.int64)}

    return Model("diffusers", "PixArtTransformer2DModel", config, inputs,
                 lambda case, config: [_latent_picture(case, config["out_channels"])], {"blocks": "num_layers"})


def _auraflow(**changes):
    config = dict(sample_size=64, patch_size=2, in_channels=4, out_channels=4, num_mmdit_layers=4,
                  num_single_dit_layers=32, attention_head_dim=256, num_attention_heads=12, joint_attention_dim=2048,
                  caption_projection_dim=3072, pos_embed_max_size=9216) | changes

    def inputs(case, config):
        batch = case["batch"]
        return {"hidden_states": (_latent_picture(case, config["in_channels"]), None),
                "encoder_hidden_states": ((batch, case["text_tokens"], config["joint_attention_dim"]), None),
                "timestep": ((batch,), None)}

    return Model("diffusers", "AuraFlowTransformer2DModel", config, inputs,
                 lambda case, config: [_latent_picture(case, config["out_channels"])],
                 {"double": "num_mmdit_layers", "single": "num_single_dit_layers"})


# -- Sana: linear attention over latents of 32 pixels ------------------------------------------------------------------

def _sana(**changes):
    config = dict(in_channels=32, out_channels=32, num_attention_heads=70, attention_head_dim=32, num_layers=20,
                  num_cross_attention_heads=20, cross_attention_head_dim=112, cross_attention_dim=2240,
                  caption_channels=2304, mlp_ratio=2.5, attention_bias=False, sample_size=32, patch_size=1,
                  norm_elementwise_affine=False) | changes

    def latents(case, config):
        return case["batch"], config["in_channels"], case["height"] // 32, case["width"] // 32

    def inputs(case, config):
        batch, text = case["batch"], case["text_tokens"]
        inputs = {"hidden_states": (latents(case, config), None),
                  "encoder_hidden_states": ((batch, text, config["caption_channels"]), None),
                  "encoder_attention_mask": ((batch, text), torch.int64),
                  "timestep": ((batch,), None)}
        if config.get("guidance_embeds"):
            inputs["guidance"] = ((batch,), None)
        return inputs

    return Model("diffusers", "SanaTransformer2DModel", config, inputs,
                 lambda case, config: [latents(case, config)], {"blocks": "num_layers"})


# -- Z-Image: lists of samples -----------------------------------------------------------------------------------------

def _z_image():
    config = dict(in_channels=16, dim=3840, n_layers=30, n_refiner_layers=2, n_heads=30, n_kv_heads=30, qk_norm=True,
                  cap_feat_dim=2560)

    def sample(case, config):
        return config["in_channels"], 1, case["height"] // 8, case["width"] // 8

    def inputs(case, config):
        each = range(case["batch"])
        return ({f"x.{i}": (sample(case, config), None) for i in each} | {"t": ((case["batch"],), None)}
                | {f"cap_feats.{i}": ((case["text_tokens"], config["cap_feat_dim"]), None) for i in each})

    return Model("diffusers", "ZImageTransformer2DModel", config, inputs,
                 lambda case, config: [sample(case, config)] * case["batch"],
                 {"blocks": "n_layers", "refiners": "n_refiner_layers"})


@contextlib.contextmanager
def _full_captions(case):
    """Every caption is as long as the longest: the sums of the attention mask, which the forward reads."""
    from torch._subclasses.fake_tensor import FakeTensor

    plain_list = FakeTensor.tolist
    FakeTensor.tolist = lambda tensor: [case["text_tokens"]] * case["batch"]
    try:
        yield
    finally:
        FakeTensor.tolist = plain_list


# -- Lumina 2, OmniGen2: captions and pictures of their own lengths ----------------------------------------------------

def _lumina2():
    config = dict(sample_size=128, patch_size=2, in_channels=16, hidden_size=2304, num_layers=26, num_refiner_layers=2,
                  num_attention_heads=24, num_kv_heads=8, multiple_of=256, norm_eps=1e-5, scaling_factor=1.0,
                  axes_dim_rope=(32, 32, 32), axes_lens=(300, 512, 512), cap_feat_dim=2304)

    def latents(case, config):
        return case["batch"], config["in_channels"], case["height"] // 8, case["width"] // 8

    def inputs(case, config):
        batch, text = case["batch"], case["text_tokens"]
        return {"hidden_states": (latents(case, config), None),
                "encoder_hidden_states": ((batch, text, config["cap_feat_dim"]), None),
                "encoder_attention_mask": ((batch, text), torch.bool),
                "timestep": ((batch,), None)}

    @contextlib.contextmanager
    def values(case):
        """The tables of the rotary embedding, plain tensors of the module, are on the GPU from the first call on."""
        from diffusers.models.transformers.transformer_lumina2 import Lumina2RotaryPosEmbed as Embed

        plain_freqs = Embed._get_freqs_cis

        def get_freqs_cis(embed, ids):
            embed.freqs_cis = [table.to(ids.device) for table in embed.freqs_cis]
            return plain_freqs(embed, ids)

        Embed._get_freqs_cis = get_freqs_cis
        try:
            with _full_captions(case):
                yield
        finally:
            Embed._get_freqs_cis = plain_freqs

    return Model("diffusers", "Lumina2Transformer2DModel", config, inputs,
                 lambda case, config: [latents(case, config)],
                 {"blocks": "num_layers", "refiners": "num_refiner_layers"}, values=values)


def _omnigen2():
    """Reference pictures are refined apart and stand between the caption and the noisy tokens. The tables of the rotary
    embedding are an argument, on the CPU. Recorded as the class runs without triton and flash-attn."""
    config = dict(patch_size=2, in_channels=16, hidden_size=2520, num_layers=32, num_refiner_layers=2,
                  num_attention_heads=21, num_kv_heads=7, multiple_of=256, norm_eps=1e-5, axes_dim_rope=(40, 40, 40),
                  axes_lens=(10000, 10000, 10000), text_feat_dim=2048, timestep_scale=1000.0)

    def inputs(case, config):
        batch, text, channels = case["batch"], case["text_tokens"], config["in_channels"]
        inputs = {"hidden_states": (_latent_picture(case, channels), None),
                  "timestep": ((batch,), None),
                  "text_hidden_states": ((batch, text, config["text_feat_dim"]), None),
                  "text_attention_mask": ((batch, text), torch.int64)}
        return inputs | {f"ref_image_hidden_states.{i}.{j}": ((channels, height // 8, width // 8), None)
                         for i in range(batch) for j, (width, height) in enumerate(case.get("reference_images", []))}

    def arguments(case):
        return {"freqs_cis": [torch.empty((length, dim // 2), dtype=torch.complex128, device="cpu")
                              for length, dim in zip(config["axes_lens"], config["axes_dim_rope"])]}

    return Model("omnigen2.models.transformers.transformer_omnigen2", "OmniGen2Transformer2DModel", config, inputs,
                 lambda case, config: [_latent_picture(case, config["in_channels"])],
                 {"blocks": "num_layers", "refiners": "num_refiner_layers"}, arguments, _full_captions,
                 ("VRAMEST_OMNIGEN2", "https://github.com/VectorSpaceLab/OmniGen2 (0f72fa9), with einops installed"))


# -- HiDream-I1: experts -----------------------------------------------------------------------------------------------

def _hidream(**changes):
    """Llama's hidden states come stacked, one of each layer. In training the class hands the tokens back as they are,
    those that pad an oblong picture among them, unless `force_inference_output`."""
    config = dict(patch_size=2, in_channels=16, out_channels=16, num_layers=16, num_single_layers=32,
                  attention_head_dim=128, num_attention_heads=20, caption_channels=(4096, 4096), text_emb_dim=2048,
                  num_routed_experts=4, num_activated_experts=2, axes_dims_rope=(64, 32, 32),
                  max_resolution=(128, 128), llama_layers=(*range(32), *[31] * 16)) | changes

    def inputs(case, config):
        batch, text = case["batch"], case["text_tokens"]
        t5, llama = config["caption_channels"]
        return {"hidden_states": (_latent_picture(case, config["in_channels"]), None),
                "timesteps": ((batch,), torch.float32),
                "encoder_hidden_states_t5": ((batch, text, t5), None),
                "encoder_hidden_states_llama3": ((32, batch, text, llama), None),
                "pooled_embeds": ((batch, config["text_emb_dim"]), None)}

    def targets(case, config):
        batch, channels, height, width = _latent_picture(case, config["out_channels"])
        if config.get("force_inference_output"):
            return [(batch, channels, height, width)]
        tokens = height * width if height == width else config["max_resolution"][0] * config["max_resolution"][1]
        return [(batch, channels, tokens // 4, 4)]

    return Model("diffusers", "HiDreamImageTransformer2DModel", config, inputs, targets, _DOUBLE_SINGLE,
                 values=lambda case: denoiser_values.evenly_spread(config["num_routed_experts"]))


# -- ERNIE-Image, Krea 2: text and picture in one stream --------------------------------------------------------------

def _ernie_image():
    config = dict(hidden_size=4096, num_attention_heads=32, num_layers=36, ffn_hidden_size=12288, in_channels=128,
                  out_channels=128, patch_size=1, text_in_dim=3072, rope_theta=256, rope_axes_dim=(32, 48, 48),
                  eps=1e-6, qk_layernorm=True)

    def latents(case, config):
        return case["batch"], config["in_channels"], case["height"] // 16, case["width"] // 16

    def inputs(case, config):
        batch = case["batch"]
        return {"hidden_states": (latents(case, config), None),
                "timestep": ((batch,), None),
                "text_bth": ((batch, case["text_tokens"], config["text_in_dim"]), None),
                "text_lens": ((batch,), torch.int64)}

    return Model("diffusers", "ErnieImageTransformer2DModel", config, inputs,
                 lambda case, config: [latents(case, config)], {"blocks": "num_layers"})


def _krea2():
    """Twelve layers of the text encoder for each token, and a mask of its padding, as the pipeline hands them over."""
    config = dict(in_channels=64, num_layers=28, attention_head_dim=128, num_attention_heads=48, num_key_value_heads=12,
                  intermediate_size=16384, timestep_embed_dim=256, text_hidden_dim=2560, num_text_layers=12,
                  text_num_attention_heads=20, text_num_key_value_heads=20, text_intermediate_size=6912,
                  num_layerwise_text_blocks=2, num_refiner_text_blocks=2, axes_dims_rope=(32, 48, 48),
                  rope_theta=1000.0, norm_eps=1e-5)

    def inputs(case, config):
        batch, text, image = case["batch"], case["text_tokens"], _tokens(case["width"], case["height"])
        return {"hidden_states": ((batch, image, config["in_channels"]), None),
                "encoder_hidden_states": ((batch, text, config["num_text_layers"], config["text_hidden_dim"]), None),
                "timestep": ((batch,), None),
                "position_ids": ((text + image, 3), torch.float32),
                "encoder_attention_mask": ((batch, text), torch.bool)}

    return Model("diffusers", "Krea2Transformer2DModel", config, inputs,
                 lambda case, config: [inputs(case, config)["hidden_states"][0]],
                 {"blocks": "num_layers", "layerwise": "num_layerwise_text_blocks",
                  "refiners": "num_refiner_text_blocks"})


# -- UNets -----------------------------------------------------------------------------------------------------------

def _unet_inputs(case, config):
    batch = case["batch"]
    inputs = {
        "sample": ((batch, config["in_channels"], case["height"] // 8, case["width"] // 8), None),
        "timestep": ((batch,), torch.int64),
        "encoder_hidden_states": (
            (batch, case["text_tokens"], config.get("encoder_hid_dim") or config["cross_attention_dim"]), None),
    }
    if config.get("addition_embed_type") == "text_time":  # SDXL: pooled text, and six sizes of the image
        ids = 6 * config["addition_time_embed_dim"]
        pooled = config["projection_class_embeddings_input_dim"] - ids
        inputs |= {"added_cond_kwargs.text_embeds": ((batch, pooled), None),
                   "added_cond_kwargs.time_ids": ((batch, 6), None)}
    return inputs


def _unet(**changes):
    config = dict(in_channels=4, out_channels=4, block_out_channels=(320, 640, 1280, 1280),
                  down_block_types=("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
                  up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3, layers_per_block=2) | changes
    return Model("diffusers", "UNet2DConditionModel", config, _unet_inputs,
                 lambda case, config: [_latent_picture(case, config["out_channels"])],
                 {"resnets": "layers_per_block", "transformers": "transformer_layers_per_block"})


def _sdxl(**changes):
    return _unet(**dict(
        block_out_channels=(320, 640, 1280), down_block_types=("DownBlock2D",) + ("CrossAttnDownBlock2D",) * 2,
        up_block_types=("CrossAttnUpBlock2D",) * 2 + ("UpBlock2D",), cross_attention_dim=2048,
        attention_head_dim=(5, 10, 20), transformer_layers_per_block=(1, 2, 10), use_linear_projection=True,
        addition_embed_type="text_time", addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816)
        | changes)


# -- video -----------------------------------------------------------------------------------------------------------

def _latents(case, spatial=8, temporal=4):
    """Latent frames, height and width: the first frame stands alone."""
    return (case["frames"] - 1) // temporal + 1, case["height"] // spatial, case["width"] // spatial


def _wan(spatial=8, **changes):
    config = dict(patch_size=(1, 2, 2), num_attention_heads=12, attention_head_dim=128, in_channels=16, out_channels=16,
                  text_dim=4096, freq_dim=256, ffn_dim=8960, num_layers=30, cross_attn_norm=True,
                  qk_norm="rms_norm_across_heads", eps=1e-6, image_dim=None, added_kv_proj_dim=None,
                  rope_max_seq_len=1024) | changes

    def inputs(case, config):
        batch = case["batch"]
        inputs = {"hidden_states": ((batch, config["in_channels"], *_latents(case, spatial)), None),
                  "timestep": ((batch,), torch.int64),
                  "encoder_hidden_states": ((batch, case["text_tokens"], config["text_dim"]), None)}
        if config["image_dim"]:  # the tokens of CLIP's image encoder
            inputs["encoder_hidden_states_image"] = ((batch, 257, config["image_dim"]), None)
        return inputs

    return Model("diffusers", "WanTransformer3DModel", config, inputs,
                 lambda case, config: [(case["batch"], config["out_channels"], *_latents(case, spatial))],
                 {"blocks": "num_layers"})


def _hunyuan_video(**changes):
    config = dict(in_channels=16, out_channels=16, num_attention_heads=24, attention_head_dim=128, num_layers=20,
                  num_single_layers=40, num_refiner_layers=2, text_embed_dim=4096, pooled_projection_dim=768,
                  guidance_embeds=True) | changes

    def inputs(case, config):
        batch, text = case["batch"], case["text_tokens"]
        inputs = {"hidden_states": ((batch, config["in_channels"], *_latents(case)), None),
                  "timestep": ((batch,), torch.int64),
                  "encoder_hidden_states": ((batch, text, config["text_embed_dim"]), None),
                  "encoder_attention_mask": ((batch, text), torch.bool),
                  "pooled_projections": ((batch, config["pooled_projection_dim"]), None)}
        if config["guidance_embeds"]:
            inputs["guidance"] = ((batch,), None)
        return inputs

    return Model("diffusers", "HunyuanVideoTransformer3DModel", config, inputs,
                 lambda case, config: [(case["batch"], config["out_channels"], *_latents(case))],
                 _DOUBLE_SINGLE | {"refiners": "num_refiner_layers"})


def _framepack(**changes):
    """The history that the pipeline keeps: a picture and the last frame as they are, two and sixteen older ones, which
    are embedded more coarsely; SigLIP's 729 tokens of the picture."""
    plain = _hunyuan_video(has_image_proj=True, image_proj_dim=1152, has_clean_x_embedder=True, **changes)
    history = {"latents_clean": 2, "latents_history_2x": 2, "latents_history_4x": 16}

    def inputs(case, config):
        inputs = plain.inputs(case, config)
        guidance = inputs.pop("guidance")
        batch, channels, frames, height, width = inputs["hidden_states"][0]
        inputs |= {"image_embeds": ((batch, 729, config["image_proj_dim"]), None),
                   "indices_latents": ((frames,), torch.int64)}
        for name, count in history.items():
            inputs |= {name: ((batch, channels, count, height, width), None),
                       f"indices_{name}": ((count,), torch.int64)}
        return inputs | {"guidance": guidance}

    @contextlib.contextmanager
    def values(case):
        """Every caption is as long as the longest: the lengths that the forward cuts a text and fills a mask by."""
        from torch._subclasses.fake_tensor import FakeTensor

        # Either length, the text's or the whole sequence's: a slice ends where the tensor ends.
        FakeTensor.__index__ = lambda tensor: 1 << 40
        try:
            yield
        finally:
            del FakeTensor.__index__

    return dataclasses.replace(plain, cls="HunyuanVideoFramepackTransformer3DModel", inputs=inputs, values=values)


@contextlib.contextmanager
def _true_in_masks(true_in):
    """Masks that a forward picks tokens by: `true_in` says how many a mask keeps, `~mask` keeps the others."""
    from torch._subclasses import fake_impls
    from torch._subclasses.fake_tensor import FakeTensor

    table, nonzero = fake_impls.op_implementations_dict, torch.ops.aten.nonzero.default
    plain = table[nonzero]

    def inverted(mask):
        out = torch.bitwise_not(mask)
        out.keeps_the_others = True
        return out

    def positions(fake_mode, func, mask):
        count = true_in(mask)
        if getattr(mask, "keeps_the_others", False):
            count = mask.numel() - count
        return mask.new_empty((count, 1), dtype=torch.int64)

    table[nonzero], FakeTensor.__invert__ = positions, inverted
    try:
        yield
    finally:
        table[nonzero] = plain
        del FakeTensor.__invert__


def _hunyuan_video15(task_type):
    config = dict(num_layers=54, task_type=task_type)
    glyph_tokens, image_tokens = 256, 729  # of ByT5 and SigLIP, always that many

    def latents(case, channels):
        return case["batch"], channels, *_latents(case, spatial=16)

    def inputs(case, config):
        batch, text = case["batch"], case["text_tokens"]
        return {"hidden_states": (latents(case, 65), None),
                "timestep": ((batch,), None),
                "encoder_hidden_states": ((batch, text, 3584), None),
                "encoder_attention_mask": ((batch, text), None),
                "encoder_hidden_states_2": ((batch, glyph_tokens, 1472), None),
                "encoder_attention_mask_2": ((batch, glyph_tokens), None),
                "image_embeds": ((batch, image_tokens, 1152), None)}

    @contextlib.contextmanager
    def values(case):
        """Captions fill their tokens. Without a picture its tokens are zeros, which the forward looks for."""
        from torch._subclasses.fake_tensor import FakeTensor

        is_t2v, plain = task_type == "t2v", FakeTensor.__bool__
        FakeTensor.__bool__ = lambda tensor: is_t2v
        try:
            with _true_in_masks(lambda mask: 0 if is_t2v and mask.numel() == image_tokens else mask.numel()):
                yield
        finally:
            FakeTensor.__bool__ = plain

    return Model("diffusers", "HunyuanVideo15Transformer3DModel", config, inputs,
                 lambda case, config: [latents(case, 32)],
                 {"blocks": "num_layers", "refiners": "num_refiner_layers"}, values=values)


def _cogvideox(**changes):
    config = dict(num_attention_heads=48, attention_head_dim=64, in_channels=16, out_channels=16, num_layers=42,
                  text_embed_dim=4096, time_embed_dim=512, use_rotary_positional_embeddings=True) | changes

    def latents(case, config, channels):
        frames, height, width = _latents(case)
        patch = config.get("patch_size_t") or 1
        return case["batch"], -(-frames // patch) * patch, config[channels], height, width  # as the pipelines fill up

    def inputs(case, config):
        batch, frames, _, height, width = latents(case, config, "in_channels")
        patches = frames // (config.get("patch_size_t") or 1) * (height // 2) * (width // 2)
        rotary = ((patches, config["attention_head_dim"]), torch.float32)
        inputs = {"hidden_states": (latents(case, config, "in_channels"), None),
                  "encoder_hidden_states": ((batch, case["text_tokens"], config["text_embed_dim"]), None),
                  "timestep": ((batch,), torch.int64)}
        if config.get("ofs_embed_dim"):
            inputs["ofs"] = ((1,), None)
        if config["use_rotary_positional_embeddings"]:
            inputs |= {"image_rotary_emb.0": rotary, "image_rotary_emb.1": rotary}
        return inputs

    return Model("diffusers", "CogVideoXTransformer3DModel", config, inputs,
                 lambda case, config: [latents(case, config, "out_channels")], {"blocks": "num_layers"})


def _mochi(**changes):
    config = dict(num_layers=48) | changes

    def latents(case):
        return case["batch"], 12, *_latents(case, temporal=6)

    def inputs(case, config):
        batch, text = case["batch"], case["text_tokens"]
        return {"hidden_states": (latents(case), None),
                "encoder_hidden_states": ((batch, text, 4096), None),
                "timestep": ((batch,), torch.int64),
                "encoder_attention_mask": ((batch, text), torch.bool)}

    return Model("diffusers", "MochiTransformer3DModel", config, inputs, lambda case, config: [latents(case)],
                 {"blocks": "num_layers"}, values=lambda case: _true_in_masks(torch.Tensor.numel))


def _kandinsky5(**changes):
    config = dict(in_visual_dim=16, out_visual_dim=16, in_text_dim=3584, in_text_dim2=768, patch_size=(1, 2, 2),
                  time_dim=512, axes_dims=(32, 48, 48)) | changes

    def latents(case, channels):
        return case["batch"], *_latents(case), channels

    def inputs(case, config):
        batch, text = case["batch"], case["text_tokens"]
        frames, height, width = _latents(case)
        channels = config["in_visual_dim"]
        if config.get("visual_cond"):  # beside the noisy latents those of a picture or its frames, and a mask
            channels = 2 * channels + 1
        return {"hidden_states": (latents(case, channels), None),
                "encoder_hidden_states": ((batch, text, config["in_text_dim"]), None),
                "timestep": ((batch,), None),
                "pooled_projections": ((batch, config["in_text_dim2"]), None),
                **{f"visual_rope_pos.{axis}": ((count,), torch.int64)
                   for axis, count in enumerate((frames, height // 2, width // 2))},
                "text_rope_pos": ((text,), torch.int64)}

    @contextlib.contextmanager
    def values(case):
        """The frequencies of time are a plain tensor of the module's, on the CPU, which no materialising reaches."""
        from diffusers.models.transformers.transformer_kandinsky import Kandinsky5TimeEmbeddings as Embeddings

        Embeddings.freqs = property(lambda module: torch.empty(module.model_dim // 2, device="cpu"))
        try:
            yield
        finally:
            del Embeddings.freqs

    return Model("diffusers", "Kandinsky5Transformer3DModel", config, inputs,
                 lambda case, config: [latents(case, config["out_visual_dim"])],
                 {"text": "num_text_blocks", "visual": "num_visual_blocks"}, values=values)


def _ltx_grid(case):
    frames, height, width = _latents(case, spatial=32, temporal=8)
    return {"num_frames": frames, "height": height, "width": width}


def _ltx_tokens(case):
    frames, height, width = _latents(case, spatial=32, temporal=8)
    return frames * height * width


def _ltxv(**changes):
    config = dict(in_channels=128, out_channels=128, num_attention_heads=32, attention_head_dim=64,
                  cross_attention_dim=2048, num_layers=28, caption_channels=4096) | changes

    def inputs(case, config):
        batch, text = case["batch"], case["text_tokens"]
        return {"hidden_states": ((batch, _ltx_tokens(case), config["in_channels"]), None),
                "encoder_hidden_states": ((batch, text, config["caption_channels"]), None),
                "timestep": ((batch,), None),
                "encoder_attention_mask": ((batch, text), torch.bool)}

    return Model("diffusers", "LTXVideoTransformer3DModel", config, inputs,
                 lambda case, config: [(case["batch"], _ltx_tokens(case), config["out_channels"])],
                 {"blocks": "num_layers"}, _ltx_grid)


def _ltx2(**changes):
    config = dict(in_channels=128, out_channels=128, audio_in_channels=128, audio_out_channels=128, num_layers=48,
                  caption_channels=3840) | changes

    def audio_tokens(case):
        return round(case["frames"] / 24 * 25)  # 24 frames and 25 audio latents a second

    def inputs(case, config):
        batch, prompt = case["batch"], (case["batch"], case["text_tokens"])
        # LTX-2.3's connectors project the prompt for video and for audio; the class's own widths
        text, audio_text = ((config["caption_channels"],) * 2 if config.get("use_prompt_embeddings", True)
                            else (4096, 2048))
        inputs = {"hidden_states": ((batch, _ltx_tokens(case), config["in_channels"]), None),
                  "audio_hidden_states": ((batch, audio_tokens(case), config["audio_in_channels"]), None),
                  "encoder_hidden_states": ((*prompt, text), None),
                  "audio_encoder_hidden_states": ((*prompt, audio_text), None),
                  "timestep": ((batch,), None)}
        if config.get("cross_attn_mod"):
            inputs["sigma"] = ((batch,), None)
        return inputs

    return Model("diffusers", "LTX2VideoTransformer3DModel", config, inputs,
                 lambda case, config: [(case["batch"], _ltx_tokens(case), config["out_channels"]),
                                       (case["batch"], audio_tokens(case), config["audio_out_channels"])],
                 {"blocks": "num_layers"}, lambda case: _ltx_grid(case) | {"audio_num_frames": audio_tokens(case)})


MODELS = {
    "flux1_dev": _flux(),
    "flux1_schnell": _flux(guidance_embeds=False),
    "flux1_kontext": _flux(),
    # Beside the noisy latents: Fill the masked picture's and the mask in pixels, Flex.2 also a control picture's.
    "flux1_fill": _flux(in_channels=384),
    "flex1": _flux(num_layers=8),
    "flex2": _flux(num_layers=8, in_channels=196),
    "flux2_dev": _flux2(),
    "flux2_klein_4b": _flux2(num_layers=5, num_single_layers=20, num_attention_heads=24, joint_attention_dim=7680,
                             guidance_embeds=False),
    "flux2_klein_9b": _flux2(num_layers=8, num_single_layers=24, num_attention_heads=32, joint_attention_dim=12288,
                             guidance_embeds=False),
    "chroma1": _chroma(),
    "qwen_image": _qwen_image(),
    "qwen_image_edit": _qwen_image(),
    "qwen_image_edit_2509": _qwen_image(),
    "qwen_image_edit_2511": _qwen_image(zero_cond_t=True),
    "qwen_image_layered": _qwen_image(use_additional_t_cond=True, use_layer3d_rope=True),
    "z_image": _z_image(),
    "lumina2": _lumina2(),
    "omnigen2": _omnigen2(),
    "hidream_i1": _hidream(),
    "ernie_image": _ernie_image(),
    "krea2": _krea2(),
    "sd3_medium": _sd3(num_layers=24, num_attention_heads=24, caption_projection_dim=1536, pos_embed_max_size=192,
                       qk_norm=None),
    "sd35_medium": _sd3(num_layers=24, num_attention_heads=24, caption_projection_dim=1536, pos_embed_max_size=384,
                        dual_attention_layers=tuple(range(13))),
    "sd35_large": _sd3(num_layers=38, num_attention_heads=38, caption_projection_dim=2432, pos_embed_max_size=192),
    "pixart_sigma": _pixart(),
    "auraflow": _auraflow(),
    "sana_1600m": _sana(),
    "sana_600m": _sana(num_attention_heads=36, num_layers=28, num_cross_attention_heads=16, cross_attention_head_dim=72,
                       cross_attention_dim=1152),
    "sana15_1600m": _sana(qk_norm="rms_norm_across_heads"),
    "sana15_4800m": _sana(num_layers=60, qk_norm="rms_norm_across_heads"),
    "sana_sprint_1600m": _sana(qk_norm="rms_norm_across_heads", guidance_embeds=True),
    "sana_sprint_600m": _sana(num_attention_heads=36, num_layers=28, num_cross_attention_heads=16,
                              cross_attention_head_dim=72, cross_attention_dim=1152, qk_norm="rms_norm_across_heads",
                              guidance_embeds=True),
    "sd15": _unet(cross_attention_dim=768, attention_head_dim=8),
    "sd21": _unet(cross_attention_dim=1024, attention_head_dim=(5, 10, 20, 20), use_linear_projection=True),
    "sdxl": _sdxl(),
    "kolors": _sdxl(encoder_hid_dim=4096, encoder_hid_dim_type="text_proj", projection_class_embeddings_input_dim=5632),
    "wan21_t2v_1_3b": _wan(),
    "wan21_t2v_14b": _wan(num_attention_heads=40, ffn_dim=13824, num_layers=40),
    "wan21_i2v_14b": _wan(num_attention_heads=40, ffn_dim=13824, num_layers=40, in_channels=36, image_dim=1280,
                          added_kv_proj_dim=5120),
    "wan22_t2v_a14b": _wan(num_attention_heads=40, ffn_dim=13824, num_layers=40),
    "wan22_i2v_a14b": _wan(num_attention_heads=40, ffn_dim=13824, num_layers=40, in_channels=36),
    "wan22_ti2v_5b": _wan(num_attention_heads=24, ffn_dim=14336, in_channels=48, out_channels=48, spatial=16),
    "hunyuan_video": _hunyuan_video(),
    "hunyuan_video_i2v_33ch": _hunyuan_video(in_channels=33, guidance_embeds=False,
                                             image_condition_type="latent_concat"),
    "hunyuan_video_i2v": _hunyuan_video(image_condition_type="token_replace"),
    "framepack": _framepack(),
    "hunyuan_video15": _hunyuan_video15("t2v"),
    "hunyuan_video15_i2v": _hunyuan_video15("i2v"),
    "cogvideox_2b": _cogvideox(num_attention_heads=30, num_layers=30, use_rotary_positional_embeddings=False),
    "cogvideox_5b": _cogvideox(),
    "cogvideox_5b_i2v": _cogvideox(in_channels=32, use_learned_positional_embeddings=True),
    "cogvideox15_5b": _cogvideox(patch_size_t=2),
    "cogvideox15_5b_i2v": _cogvideox(patch_size_t=2, in_channels=32, ofs_embed_dim=512),
    "mochi1": _mochi(),
    "kandinsky5_lite_t2v_2b": _kandinsky5(model_dim=1792, ff_dim=7168, num_visual_blocks=32, axes_dims=(16, 24, 24),
                                          visual_cond=True, attention_type="flash"),
    "kandinsky5_pro_t2v_19b": _kandinsky5(model_dim=4096, ff_dim=16384, time_dim=1024, num_text_blocks=4,
                                          num_visual_blocks=60, visual_cond=True, attention_type="flash"),
    "kandinsky5_lite_t2i_6b": _kandinsky5(model_dim=2560, ff_dim=10240, num_visual_blocks=50),
    "kandinsky5_lite_i2i_6b": _kandinsky5(model_dim=2560, ff_dim=10240, num_visual_blocks=50, visual_cond=True),
    "ltxv_2b": _ltxv(),
    "ltxv_13b": _ltxv(attention_head_dim=128, cross_attention_dim=4096, num_layers=48),
    "ltx2_19b": _ltx2(),
    "ltx2_19b_split": _ltx2(rope_type="split"),
    "ltx23_22b": _ltx2(gated_attn=True, cross_attn_mod=True, audio_gated_attn=True, audio_cross_attn_mod=True,
                       rope_type="split", use_prompt_embeddings=False, perturbed_attn=True),
}


# -- components ------------------------------------------------------------------------------------------------------

def _kl(**changes):
    config = dict(in_channels=3, out_channels=3, block_out_channels=(128, 256, 512, 512), layers_per_block=2,
                  down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
                  act_fn="silu", norm_num_groups=32) | changes
    return Vae("AutoencoderKL", config, config["latent_channels"])


def _every(stride):
    """The first frame stands alone, then `stride` frames make a latent frame."""
    return lambda frames: (frames - 1) // stride + 1


def _spectrograms(case):
    """As long as a video of so many frames: 25 latents a second, four mel frames each but for the first."""
    length = round(case["frames"] / 24 * 25)
    return (case["batch"], 2, 4 * (length - 1) + 1, 64), (case["batch"], 8, length, 16)


VAES = {
    "vae_flux1": _kl(latent_channels=16, sample_size=1024, use_quant_conv=False, use_post_quant_conv=False),
    "vae_sd3_16ch": _kl(latent_channels=16, sample_size=1024, use_quant_conv=False, use_post_quant_conv=False),
    # SD 1.5 and SDXL share this layout. sample_size decides from where on tiling cuts: SDXL's value.
    "vae_sd_4ch": _kl(latent_channels=4, sample_size=1024),
    "vae_flux2": Vae("AutoencoderKLFlux2", dict(sample_size=1024), 32),
    "vae_qwenimage": Vae("AutoencoderKLQwenImage", dict(base_dim=96, z_dim=16), 16, temporal=_every(4)),
    "vae_qwenimage_layered": Vae("AutoencoderKLQwenImage", dict(base_dim=96, z_dim=16, input_channels=4), 16,
                                 temporal=_every(4), channels=4),
    "vae_wan21": Vae("AutoencoderKLWan", dict(base_dim=96, z_dim=16), 16, temporal=_every(4)),
    "vae_wan22": Vae("AutoencoderKLWan",
                     dict(base_dim=160, decoder_base_dim=256, z_dim=48, in_channels=12, out_channels=12, patch_size=2,
                          is_residual=True, scale_factor_spatial=16, scale_factor_temporal=4,
                          temperal_downsample=[False, True, True]),
                     48, spatial=16, temporal=_every(4)),
    "vae_ltxv_090": Vae("AutoencoderKLLTXVideo", {}, 128, spatial=32, temporal=_every(8)),
    "vae_ltxv_091": Vae("AutoencoderKLLTXVideo",
                        dict(decoder_block_out_channels=(256, 512, 1024), decoder_layers_per_block=(5, 6, 7, 8),
                             decoder_spatio_temporal_scaling=(True,) * 3,
                             decoder_inject_noise=(True, True, True, False), upsample_residual=(True,) * 3,
                             upsample_factor=(2, 2, 2), timestep_conditioning=True),
                        128, spatial=32, temporal=_every(8)),
    "vae_ltxv_095_097": Vae("AutoencoderKLLTXVideo",
                            dict(block_out_channels=(128, 256, 512, 1024, 2048),
                                 down_block_types=("LTXVideo095DownBlock3D",) * 4,
                                 decoder_block_out_channels=(256, 512, 1024), layers_per_block=(4, 6, 6, 2, 2),
                                 decoder_layers_per_block=(5, 5, 5, 5), spatio_temporal_scaling=(True,) * 4,
                                 decoder_spatio_temporal_scaling=(True,) * 3, decoder_inject_noise=(False,) * 4,
                                 downsample_type=("spatial", "temporal", "spatiotemporal", "spatiotemporal"),
                                 upsample_residual=(True,) * 3, upsample_factor=(2, 2, 2), timestep_conditioning=True,
                                 spatial_compression_ratio=32, temporal_compression_ratio=8),
                            128, spatial=32, temporal=_every(8)),
    "vae_ltx2_video_default": Vae("AutoencoderKLLTX2Video", {}, 128, spatial=32, temporal=_every(8)),
    "vae_ltx2_video": Vae("AutoencoderKLLTX2Video",
                          dict(decoder_causal=False, spatial_compression_ratio=32, temporal_compression_ratio=8),
                          128, spatial=32, temporal=_every(8)),
    "vae_ltx23_video": Vae("AutoencoderKLLTX2Video",
                           dict(block_out_channels=(256, 512, 1024, 1024),
                                decoder_block_out_channels=(256, 512, 512, 1024), layers_per_block=(4, 6, 4, 2, 2),
                                decoder_layers_per_block=(4, 6, 4, 2, 2), decoder_spatio_temporal_scaling=(True,) * 4,
                                decoder_inject_noise=(False,) * 5,
                                upsample_type=("spatiotemporal", "spatiotemporal", "temporal", "spatial"),
                                upsample_residual=(False,) * 4, upsample_factor=(2, 2, 1, 2), decoder_causal=False,
                                decoder_spatial_padding_mode="zeros", spatial_compression_ratio=32,
                                temporal_compression_ratio=8),
                           128, spatial=32, temporal=_every(8)),
    "vae_ltx2_audio": Vae("AutoencoderKLLTX2Audio", {}, 8, shapes=_spectrograms),
    "vae_hunyuan_video": Vae("AutoencoderKLHunyuanVideo", {}, 16, temporal=_every(4)),
    "vae_hunyuan_video15": Vae("AutoencoderKLHunyuanVideo15", {}, 32, spatial=16, temporal=_every(4)),
    "vae_cogvideox": Vae("AutoencoderKLCogVideoX",
                         dict(down_block_types=("CogVideoXDownBlock3D",) * 4,
                              up_block_types=("CogVideoXUpBlock3D",) * 4,
                              block_out_channels=(128, 256, 256, 512), latent_channels=16, layers_per_block=3),
                         16, temporal=_every(4)),
    "vae_mochi": Vae("AutoencoderKLMochi", {}, 12, temporal=_every(6)),
    "vae_dc_sana": Vae("AutoencoderDC",
                       dict(in_channels=3, latent_channels=32, attention_head_dim=32,
                            encoder_block_types=("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
                            decoder_block_types=("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
                            encoder_block_out_channels=(128, 256, 512, 512, 1024, 1024),
                            decoder_block_out_channels=(128, 256, 512, 512, 1024, 1024),
                            encoder_layers_per_block=(2, 2, 2, 3, 3, 3), decoder_layers_per_block=(3,) * 6,
                            encoder_qkv_multiscales=((), (), (), (5,), (5,), (5,)),
                            decoder_qkv_multiscales=((), (), (), (5,), (5,), (5,)),
                            upsample_block_type="interpolate", downsample_block_type="conv",
                            decoder_norm_types="rms_norm", decoder_act_fns="silu"),
                       32, spatial=32),
}


def _t5(cls, config_cls, **changes):
    return TextEncoder(cls, config_cls, dict(
        vocab_size=32128, d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64,
        feed_forward_proj="gated-gelu", dropout_rate=0.1, tie_word_embeddings=False) | changes)


def _clip(cls, **changes):
    return TextEncoder(cls, "CLIPTextConfig", dict(
        vocab_size=49408, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
        max_position_embeddings=77, hidden_act="quick_gelu", projection_dim=768) | changes)


def _bigg(**changes):
    return _clip("CLIPTextModelWithProjection", **dict(
        hidden_size=1280, intermediate_size=5120, num_hidden_layers=32, num_attention_heads=20, hidden_act="gelu",
        projection_dim=1280) | changes)


def _llama31(cls="LlamaModel", attention="sdpa", **changes):
    return TextEncoder(cls, "LlamaConfig", dict(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=131072) | changes, attention=attention)


def _qwen3(cls, **sizes):
    return TextEncoder(cls, "Qwen3Config", dict(
        vocab_size=151936, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
        max_position_embeddings=40960) | sizes)


_QWEN3_4B = dict(hidden_size=2560, intermediate_size=9728, tie_word_embeddings=True)
_QWEN3_8B = dict(hidden_size=4096, intermediate_size=12288, tie_word_embeddings=False)


def _patches(width: int, height: int) -> tuple:
    """Rows and columns of patches of 14 pixels: the image processor makes sides multiples of two patches."""
    return tuple(max(1, (side + 14) // 28) * 2 for side in (height, width))


def _qwen_pictures(case, config):
    grids = [_patches(*size) for size in case["reference_images"]] * case["batch"]
    patches = sum(rows * columns for rows, columns in grids)
    inputs = {"pixel_values": ((patches, 3 * 2 * 14 * 14), torch.float32),
              "image_grid_thw": ((len(grids), 3), torch.int64)}
    return patches // 4 // case["batch"], inputs, grids


def _qwen_vl(tie, **text):
    vision = dict(depth=32, hidden_size=1280, intermediate_size=3420, num_heads=16, out_hidden_size=text["hidden_size"],
                  patch_size=14, spatial_merge_size=2, temporal_patch_size=2, window_size=112,
                  fullatt_block_indexes=[7, 15, 23, 31])
    return TextEncoder("Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLConfig",
                       dict(text_config=text, vision_config=vision, tie_word_embeddings=tie), pictures=_qwen_pictures)


TEXT_ENCODERS = {
    "t5_xxl": _t5("T5EncoderModel", "T5Config"),
    "umt5_xxl": _t5("UMT5EncoderModel", "UMT5Config", vocab_size=256384),
    "pile_t5_xl": _t5("UMT5EncoderModel", "UMT5Config", d_model=2048, d_ff=5120, num_heads=32),
    "byt5_small_glyph": _t5("T5EncoderModel", "T5Config", vocab_size=1510, d_model=1472, d_ff=3584, num_layers=12,
                            num_heads=6),
    "clip_l": _clip("CLIPTextModel"),
    "clip_l_projection": _clip("CLIPTextModelWithProjection"),
    "clip_l_long": _clip("CLIPTextModelWithProjection", max_position_embeddings=248),
    "openclip_h": _clip("CLIPTextModel", hidden_size=1024, intermediate_size=4096, num_hidden_layers=23,
                        num_attention_heads=16, hidden_act="gelu"),
    "openclip_bigg": _bigg(),
    "openclip_bigg_long": _bigg(max_position_embeddings=248),
    # Looks at pictures, and is called as the others are.
    "clip_vision_h": TextEncoder("CLIPVisionModel", "CLIPVisionConfig", dict(
        hidden_size=1280, intermediate_size=5120, num_hidden_layers=32, num_attention_heads=16, image_size=224,
        patch_size=14, hidden_act="gelu", projection_dim=1024),
        inputs=lambda case, config: {"pixel_values": ((case["batch"], 3, config.image_size, config.image_size), None)}),
    "llama31_8b": _llama31(),
    # As from_pretrained(output_attentions=True) makes it: no kernel gives attentions back.
    "llama31_8b_causal_eager": _llama31("LlamaForCausalLM", "eager", output_attentions=True),
    "qwen3_4b": _qwen3("Qwen3Model", **_QWEN3_4B),
    "qwen3_4b_causal": _qwen3("Qwen3ForCausalLM", **_QWEN3_4B),
    "qwen3_8b": _qwen3("Qwen3Model", **_QWEN3_8B),
    "qwen3_8b_causal": _qwen3("Qwen3ForCausalLM", **_QWEN3_8B),
    "llava_llama3_8b": TextEncoder("LlamaModel", "LlamaConfig", dict(
        vocab_size=128320, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=8192)),
    # The class's default sliding window stays on, which makes each layer of a cache hold one more small tensor; the
    # published config switches it off.
    "mistral_small_3_24b": TextEncoder("MistralModel", "MistralConfig", dict(
        vocab_size=131072, hidden_size=5120, intermediate_size=32768, num_hidden_layers=40, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=131072)),
    "gemma2_2b": TextEncoder("Gemma2Model", "Gemma2Config", dict(
        vocab_size=256000, hidden_size=2304, intermediate_size=9216, num_hidden_layers=26, num_attention_heads=8,
        num_key_value_heads=4, head_dim=256), attention="eager"),  # its class chooses so: capped scores have no kernel
    # Its class asks for attention's kernels by itself; its constructor would make weights on the CPU.
    "chatglm3_6b": TextEncoder("ChatGLMModel", "ChatGLMConfig", dict(
        seq_length=32768, add_qkv_bias=True, multi_query_attention=True, multi_query_group_num=2, original_rope=True),
        attention="eager", library="diffusers.pipelines.kolors.text_encoder", options={"empty_init": False},
        positions=True, values=text_values.padded),
    # With vision towers and language heads, as pipelines load and call them.
    "gemma3_12b": TextEncoder("Gemma3ForConditionalGeneration", "Gemma3Config", dict(
        text_config=dict(hidden_size=3840, intermediate_size=15360, num_hidden_layers=48, num_attention_heads=16,
                         num_key_value_heads=8, head_dim=256, sliding_window=1024,
                         rope_scaling={"factor": 8.0, "rope_type": "linear"}),
        vision_config=dict(hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, num_attention_heads=16,
                           patch_size=14, image_size=896, vision_use_head=False))),
    "mistral3_24b": TextEncoder("Mistral3ForConditionalGeneration", "Mistral3Config", dict(
        text_config=dict(model_type="mistral", vocab_size=131072, hidden_size=5120, intermediate_size=32768,
                         num_hidden_layers=40, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
                         max_position_embeddings=131072, sliding_window=None),
        vision_config=dict(model_type="pixtral", hidden_size=1024, intermediate_size=4096, num_hidden_layers=24,
                           num_attention_heads=16, head_dim=64, patch_size=14, image_size=1540),
        tie_word_embeddings=False)),
    "ministral3_3b": TextEncoder("Mistral3Model", "Mistral3Config", dict(
        text_config=dict(model_type="ministral3", vocab_size=131072, hidden_size=3072, intermediate_size=9216,
                         num_hidden_layers=26, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
                         max_position_embeddings=262144, sliding_window=None),
        vision_config=dict(model_type="pixtral", hidden_size=1024, intermediate_size=4096, num_hidden_layers=24,
                           num_attention_heads=16, head_dim=64, patch_size=14, image_size=1540))),
    "qwen3_vl_4b": TextEncoder("Qwen3VLForConditionalGeneration", "Qwen3VLConfig", dict(
        text_config=dict(vocab_size=151936, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36,
                         num_attention_heads=32, num_key_value_heads=8, head_dim=128,
                         rope_parameters=dict(rope_type="default", rope_theta=5e6, mrope_section=[24, 20, 20])),
        vision_config=dict(depth=24, hidden_size=1024, intermediate_size=4096, num_heads=16, patch_size=16,
                           spatial_merge_size=2, temporal_patch_size=2, out_hidden_size=2560,
                           num_position_embeddings=2304, deepstack_visual_indexes=[5, 11, 17]),
        tie_word_embeddings=True)),
    "qwen25_vl_3b": _qwen_vl(True, vocab_size=151936, hidden_size=2048, intermediate_size=11008, num_hidden_layers=36,
                             num_attention_heads=16, num_key_value_heads=2),
    "qwen25_vl_7b": _qwen_vl(False, vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28,
                             num_attention_heads=28, num_key_value_heads=4),
}


def _connectors(**changes):
    """What LTX-2 puts between its text encoder's layers and its transformer: handed hidden states, not ids."""
    config = dict(rope_type="split") | changes

    def inputs(case, config):
        prompt = case["batch"], case["text_tokens"]
        width = config.get("caption_channels", 3840) * config.get("text_proj_in_factor", 49)
        return {"text_encoder_hidden_states": ((*prompt, width), None), "attention_mask": (prompt, torch.int64)}

    return Model("diffusers.pipelines.ltx2.connectors", "LTX2TextConnectors", config, inputs, lambda case, config: [])


def _vocoder(cls, argument):
    """What makes sound of LTX-2's spectrograms."""
    return Model("diffusers.pipelines.ltx2.vocoder", cls, {},
                 lambda case, config: {argument: (_spectrograms(case)[0], None)}, lambda case, config: [])


CONNECTORS = {
    "ltx2_connectors": _connectors(),
    "ltx23_connectors": _connectors(video_connector_num_attention_heads=32, video_connector_num_layers=8,
                                    video_gated_attn=True, audio_connector_num_attention_heads=32,
                                    audio_connector_attention_head_dim=64, audio_connector_num_layers=8,
                                    audio_gated_attn=True, per_modality_projections=True, proj_bias=True),
    "ltx2_vocoder": _vocoder("LTX2Vocoder", "hidden_states"),
    "ltx23_vocoder": _vocoder("LTX2VocoderWithBWE", "mel_spec"),
}
