"""Which steps of ai-toolkit's sliders are recorded (record_sliders.py), and on which models.

A case is a denoiser, shrunken by keys of its class's config, and what the config says of the slider:

    {"id": ..., "arch": as in the trainer's config, "config": {...}, "batch": items, "checkpointing": bool, "rank": of the LoRA,
     "width", "height", "prompts": tokens of the positive, the target class's, the negative and, if there is one, the anchor's}

ai-toolkit's own modules come from a checkout that VRAMEST_AI_TOOLKIT names.
"""

import networks

FLUX = {"num_layers": 1, "num_single_layers": 1}
Z_IMAGE = {"n_layers": 1, "n_refiner_layers": 1}
UNET = {"block_out_channels": [320, 640], "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"], "layers_per_block": 1}


def cases() -> list:
    out = []
    for arch, config, length in (("flux", FLUX, 512), ("zimage", Z_IMAGE, 64), ("sd1", UNET, 77)):
        for name, batch, checkpointing, anchor in (("plain", 1, True, False), ("anchored", 1, True, True),
                                                   ("two", 2, False, False), ("two-anchored", 2, False, True)):
            prompts = [length] * 3
            if anchor:
                prompts.append(8 if arch == "zimage" else length)  # "", which Z-Image's template alone is
            out.append({"id": f"{arch}-{name}", "arch": arch, "config": config, "batch": batch,
                        "checkpointing": checkpointing, "rank": 16, "width": 512, "height": 384, "prompts": prompts})
    return out


MISSING = networks.MISSING


def is_there(case: dict) -> bool:
    return networks.is_there(case)


#: What the trainers' modules import beside what a network's do, and a step does not use.
UNUSED = {"k_diffusion", "controlnet_aux", "lycoris", "timm", "open_clip", "dotenv", "kornia", "omegaconf", "scipy", "matplotlib",
          "soundfile", "librosa", "sentencepiece", "prodigyopt", "optimum"}


def pretend() -> None:
    networks._Missing.NAMES |= UNUSED
    networks.pretend()


def denoiser_of(case: dict):
    import diffusers

    if case["arch"] == "flux":
        return diffusers.FluxTransformer2DModel(guidance_embeds=True, **case["config"])
    if case["arch"] == "zimage":
        return diffusers.ZImageTransformer2DModel(qk_norm=True, **case["config"])
    return diffusers.UNet2DConditionModel(sample_size=64, cross_attention_dim=768, attention_head_dim=8, **case["config"])


#: Module classes that the network looks into, channels of the latents, the width of the text and of what is pooled.
FACTS = {"flux": (["FluxTransformer2DModel"], 16, 4096, 768),
         "zimage": (["ZImageTransformer2DModel"], 16, 2560, 0),
         "sd1": (["UNet2DConditionModel"], 4, 768, 0)}


def class_of(case: dict):
    """Outside of the fake mode: modules make tensors of their own as they are read."""
    if case["arch"] == "zimage":
        # Not by the package, which reads every model there is.
        import sys
        import types

        package = types.ModuleType("extensions_built_in.diffusion_models")
        package.__path__ = [f"{networks.AI_TOOLKIT}/extensions_built_in/diffusion_models"]
        sys.modules.setdefault(package.__name__, package)
        from extensions_built_in.diffusion_models.z_image.z_image import ZImageModel

        return ZImageModel
    from toolkit.stable_diffusion_model import StableDiffusion

    return StableDiffusion


def model_of(case: dict, denoiser, dtype):
    """The trainer's class for the architecture, with what a prediction asks it for."""
    import types

    import torch
    from toolkit.config_modules import ModelConfig
    from toolkit.samplers.custom_flowmatch_sampler import CustomFlowMatchEulerDiscreteScheduler

    scheduler = CustomFlowMatchEulerDiscreteScheduler()
    if case["arch"] == "sd1":
        from toolkit.sampler import get_sampler
        scheduler = get_sampler("ddpm")
    sd = object.__new__(type("Model", (class_of(case),), {"unet_unwrapped": property(lambda self: denoiser)}))
    off = types.SimpleNamespace(dtype=dtype, config=types.SimpleNamespace(latent_channels=FACTS[case["arch"]][1]))
    attributes = {"model": denoiser, "unet": denoiser, "vae": off, "text_encoder": off, "noise_scheduler": scheduler,
                  "device": "cuda:0", "device_torch": torch.device("cuda:0"), "torch_dtype": dtype,
                  "vae_torch_dtype": dtype, "te_torch_dtype": dtype, "arch": case["arch"],
                  "model_config": ModelConfig(name_or_path="none", arch=case["arch"]),
                  **{flag: False for flag in ("is_xl", "is_v3", "is_pixart", "is_auraflow", "is_lumina2", "is_ssd", "is_vega",
                                              "is_v2")},
                  "is_flux": case["arch"] == "flux", "adapter": None, "network": None, "is_multistage": False,
                  "do_masked_loss": True, "use_old_lokr_format": False, "encode_control_in_text_embeddings": False}
    for name, value in attributes.items():
        try:
            setattr(sd, name, value)
        except AttributeError:  # a property of the class
            pass
    return sd
