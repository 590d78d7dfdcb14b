"""The models and components that can be recorded: one table entry each.

An entry names the real class, its published config (no network: the values stand here) and what it is handed for a
case. To add a model, add an entry; a new family also needs a function that gives shapes. The ids are those of the
library's own profiles.

Inputs are dicts of name -> (shape, dtype), in the order in which they are made; `None` for the dtype means the dtype of
the weights.
"""

import dataclasses
from typing import Callable

import torch


@dataclasses.dataclass(frozen=True)
class Model:
    """A denoiser. `inputs(case, config)` and `targets(case, config)` give shapes; `layers` maps short names for a
    case's `"layers"` to config keys, so that a case can shrink the model to one block of each kind."""

    library: str
    cls: str
    config: dict
    inputs: Callable
    targets: Callable
    layers: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Vae:
    cls: str
    config: dict
    latent_channels: int
    spatial: int = 8                      # pixels per latent, each way
    temporal: Callable = lambda frames: None   # frames -> latent frames; None: images, no time axis


@dataclasses.dataclass(frozen=True)
class TextEncoder:
    cls: str
    config_cls: str
    config: dict


def _tokens(width: int, height: int) -> int:
    """Image tokens of the packed latents: 8 pixels per latent, 2 x 2 latents per token."""
    return (width // 16) * (height // 16)


# -- FLUX.1 ----------------------------------------------------------------------------------------------------------

def _flux_inputs(case, config):
    batch, text = case["batch"], case["text_tokens"]
    # Reference images (Kontext) stand behind the noisy tokens, with ids of their own; the model sees one sequence.
    image = _tokens(case["width"], case["height"]) + sum(_tokens(w, h) for w, h in case.get("reference_images", []))
    inputs = {
        "hidden_states": ((batch, image, config["in_channels"]), None),
        "encoder_hidden_states": ((batch, text, config["joint_attention_dim"]), None),
        "pooled_projections": ((batch, config["pooled_projection_dim"]), None),
        "timestep": ((batch,), None),
        "img_ids": ((image, 3), None),
        "txt_ids": ((text, 3), None),
    }
    if config["guidance_embeds"]:
        inputs["guidance"] = ((batch,), torch.float32)
    return inputs


def _flux_targets(case, config):
    batch, image, channels = _flux_inputs(case, config)["hidden_states"][0]
    return [(batch, image, config["out_channels"] or channels)]


def _flux(**changes):
    config = dict(patch_size=1, in_channels=64, out_channels=64, num_layers=19, num_single_layers=38,
                  attention_head_dim=128, num_attention_heads=24, joint_attention_dim=4096, pooled_projection_dim=768,
                  guidance_embeds=True, axes_dims_rope=(16, 56, 56)) | changes
    return Model("diffusers", "FluxTransformer2DModel", config, _flux_inputs, _flux_targets,
                 {"double": "num_layers", "single": "num_single_layers"})


# -- UNets -----------------------------------------------------------------------------------------------------------

def _unet_inputs(case, config):
    batch = case["batch"]
    return {
        "sample": ((batch, config["in_channels"], case["height"] // 8, case["width"] // 8), None),
        "timestep": ((batch,), torch.int64),
        "encoder_hidden_states": ((batch, case["text_tokens"], config["cross_attention_dim"]), None),
    }


def _unet_targets(case, config):
    return [(case["batch"], config["out_channels"], case["height"] // 8, case["width"] // 8)]


# -- Wan -------------------------------------------------------------------------------------------------------------

def _wan_latents(case):
    return (case["frames"] - 1) // 4 + 1, case["height"] // 8, case["width"] // 8


def _wan_inputs(case, config):
    batch = case["batch"]
    return {
        "hidden_states": ((batch, config["in_channels"], *_wan_latents(case)), None),
        "timestep": ((batch,), torch.int64),
        "encoder_hidden_states": ((batch, case["text_tokens"], config["text_dim"]), None),
    }


def _wan_targets(case, config):
    return [(case["batch"], config["out_channels"], *_wan_latents(case))]


def _wan(**changes):
    config = dict(patch_size=(1, 2, 2), num_attention_heads=12, attention_head_dim=128, in_channels=16, out_channels=16,
                  text_dim=4096, freq_dim=256, ffn_dim=8960, num_layers=30, cross_attn_norm=True,
                  qk_norm="rms_norm_across_heads", eps=1e-6, image_dim=None, added_kv_proj_dim=None,
                  rope_max_seq_len=1024) | changes
    return Model("diffusers", "WanTransformer3DModel", config, _wan_inputs, _wan_targets, {"blocks": "num_layers"})


MODELS = {
    "flux1_dev": _flux(),
    "flux1_schnell": _flux(guidance_embeds=False),
    "flux1_kontext": _flux(),
    "flex1": _flux(num_layers=8),
    "sd15": Model(
        "diffusers", "UNet2DConditionModel",
        dict(in_channels=4, out_channels=4, sample_size=64, block_out_channels=(320, 640, 1280, 1280),
             down_block_types=("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
             up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
             layers_per_block=2, cross_attention_dim=768, attention_head_dim=8),
        _unet_inputs, _unet_targets),
    "wan21_t2v_1_3b": _wan(),
}


# -- components ------------------------------------------------------------------------------------------------------

def _kl(**changes):
    config = dict(in_channels=3, out_channels=3, block_out_channels=(128, 256, 512, 512), layers_per_block=2,
                  down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
                  act_fn="silu", norm_num_groups=32) | changes
    return Vae("AutoencoderKL", config, config["latent_channels"])


VAES = {
    "vae_flux1": _kl(latent_channels=16, sample_size=1024, use_quant_conv=False, use_post_quant_conv=False),
    # SD 1.5 and SDXL share this layout. sample_size decides from where on tiling cuts: SDXL's value.
    "vae_sd_4ch": _kl(latent_channels=4, sample_size=1024),
}

TEXT_ENCODERS = {
    "t5_xxl": TextEncoder(
        "T5EncoderModel", "T5Config",
        dict(vocab_size=32128, d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64,
             feed_forward_proj="gated-gelu", dropout_rate=0.1, tie_word_embeddings=False)),
    "clip_l": TextEncoder(
        "CLIPTextModel", "CLIPTextConfig",
        dict(vocab_size=49408, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
             max_position_embeddings=77, hidden_act="quick_gelu", projection_dim=768)),
}
