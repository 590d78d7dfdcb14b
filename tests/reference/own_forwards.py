"""Denoisers as trainers have them, whose forward is their own: the classes of sd-scripts and of musubi-tuner.

`FORWARDS[forward][model]` is an entry like those of models.py, its config the class's own. They are in no package: let
VRAMEST_SD_SCRIPTS and VRAMEST_MUSUBI_TUNER be the folders of checkouts.
"""

import contextlib

import torch

from models import Model, _latent_picture, _latents, _tokens

SD_SCRIPTS = dict(checkout=("VRAMEST_SD_SCRIPTS", "github.com/kohya-ss/sd-scripts at 48d368f"),
                  absent=("cv2", "torchvision"), always={})
MUSUBI = dict(checkout=("VRAMEST_MUSUBI_TUNER", "github.com/kohya-ss/musubi-tuner at 30c658c"), folder="src",
              absent=("ftfy",), always={})


# -- FLUX.1 ------------------------------------------------------------------------------------------------------------

def _flux(**changes):
    config = dict(in_channels=64, vec_in_dim=768, context_in_dim=4096, hidden_size=3072, mlp_ratio=4.0, num_heads=24,
                  depth=19, depth_single_blocks=38, axes_dim=[16, 56, 56], theta=10_000, qkv_bias=True,
                  guidance_embed=True) | changes

    def inputs(case, config):
        batch, text = case["batch"], case["text_tokens"]
        image = _tokens(case["width"], case["height"])
        inputs = {"img": ((batch, image, config["in_channels"]), None),
                  "img_ids": ((batch, image, 3), torch.float32),  # as the trainer makes them
                  "txt": ((batch, text, config["context_in_dim"]), None),
                  "txt_ids": ((batch, text, 3), torch.float32),
                  "timesteps": ((batch,), None),
                  "y": ((batch, config["vec_in_dim"]), None)}
        if config["guidance_embed"]:
            inputs["guidance"] = ((batch,), None)
        return inputs

    def make(cls, config):
        from library.flux_models import FluxParams

        return cls(FluxParams(**config))

    return Model("library.flux_models", "Flux", config, inputs, lambda case, config: [inputs(case, config)["img"][0]],
                 {"double": "depth", "single": "depth_single_blocks"}, make=make, **SD_SCRIPTS)


def _with_sdpa(cls, config):
    unet = cls(**config)
    unet.set_use_sdpa(True)  # the trainer's --sdpa
    return unet


# -- Stable Diffusion 1.5 and 2.1 --------------------------------------------------------------------------------------

def _sd(**changes):
    config = dict(sample_size=64, attention_head_dim=8, cross_attention_dim=768, use_linear_projection=False) | changes

    def inputs(case, config):
        return {"sample": (_latent_picture(case, 4), None),
                "timestep": ((case["batch"],), torch.int64),
                "encoder_hidden_states": ((case["batch"], case["text_tokens"], config["cross_attention_dim"]), None)}

    return Model("library.original_unet", "UNet2DConditionModel", config, inputs,
                 lambda case, config: [_latent_picture(case, 4)], make=_with_sdpa,
                 **SD_SCRIPTS | {"always": {"return_dict": False}})


# -- Stable Diffusion 3 and 3.5 ----------------------------------------------------------------------------------------

def _sd3(depth, side, **changes):
    config = dict(input_size=None, pos_embed_max_size=side, num_patches=side ** 2, patch_size=2, in_channels=16,
                  adm_in_channels=2048, context_embedder_in_features=4096, context_embedder_out_features=64 * depth,
                  depth=depth, mlp_ratio=4, qk_norm="rms", x_block_self_attn_layers=[], attn_mode="torch") | changes

    def inputs(case, config):
        batch = case["batch"]
        return {"x": (_latent_picture(case, 16), None),
                "t": ((batch,), None),
                "y": ((batch, config["adm_in_channels"]), None),
                "context": ((batch, case["text_tokens"], config["context_embedder_in_features"]), None)}

    return Model("library.sd3_models", "MMDiT", config, inputs, lambda case, config: [_latent_picture(case, 16)],
                 **SD_SCRIPTS)


# -- SDXL --------------------------------------------------------------------------------------------------------------

def _sdxl():
    def inputs(case, config):
        batch = case["batch"]
        return {"x": (_latent_picture(case, 4), None),
                "timesteps": ((batch,), torch.int64),
                "context": ((batch, case["text_tokens"], 2048), None),
                "y": ((batch, 2816), None)}

    return Model("library.sdxl_original_unet", "SdxlUNet2DConditionModel", {}, inputs,
                 lambda case, config: [_latent_picture(case, 4)], make=_with_sdpa, **SD_SCRIPTS)


# -- Wan ---------------------------------------------------------------------------------------------------------------

def _wan(**changes):
    config = dict(model_type="t2v", dim=1536, ffn_dim=8960, freq_dim=256, in_dim=16, num_heads=12, num_layers=30,
                  out_dim=16, text_len=512, attn_mode="torch") | changes

    def inputs(case, config):
        batch, latents = case["batch"], _latents(case)
        inputs = {"x": ((batch, config["out_dim"], *latents), None), "t": ((batch,), torch.float32)}
        inputs |= {f"context.{i}": ((case["text_tokens"], 4096), None) for i in range(batch)}
        if config["model_type"] == "i2v" and config.get("model_version") != "2.2":
            inputs["clip_fea"] = ((batch, 257, 1280), None)
        if config["in_dim"] > config["out_dim"]:  # a mask and the picture's latents
            inputs["y"] = ((batch, config["in_dim"] - config["out_dim"], *latents), None)
        return inputs

    def grid(case):
        frames, height, width = _latents(case)
        return [frames, height // 2, width // 2]

    @contextlib.contextmanager
    def values(case):
        """Grids of samples, which tensors on the CPU tell; the table of frequencies is a plain tensor of the module's,
        on the CPU until the first call."""
        from musubi_tuner.wan.modules.model import WanModel
        from torch._subclasses.fake_tensor import FakeTensor

        freqs = [torch.empty((1024, config["dim"] // config["num_heads"] // 2), dtype=torch.complex128, device="cpu")]
        plain_list, plain_bool = FakeTensor.tolist, FakeTensor.__bool__
        FakeTensor.tolist = lambda tensor: [grid(case)] * case["batch"] if tensor.dim() == 2 else grid(case)
        FakeTensor.__bool__ = lambda tensor: True  # lengths are as they should be
        WanModel.freqs = property(lambda model: freqs[0], lambda model, table: freqs.__setitem__(0, table))
        try:
            yield
        finally:
            FakeTensor.tolist, FakeTensor.__bool__ = plain_list, plain_bool
            del WanModel.freqs

    def arguments(case):
        frames, height, width = grid(case)
        return {"seq_len": frames * height * width}

    def targets(case, config):
        return [(config["out_dim"], *_latents(case))] * case["batch"]

    return Model("musubi_tuner.wan.modules.model", "WanModel", config, inputs, targets, {"blocks": "num_layers"},
                 arguments, values, **MUSUBI)


_WAN_14B = dict(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40)


# -- HunyuanVideo ------------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def _whole_captions(case):
    """Every caption is as long as the longest: a slice of a mask ends where the tensor ends."""
    from torch._subclasses.fake_tensor import FakeTensor

    FakeTensor.__index__ = lambda tensor: 1 << 40
    try:
        yield
    finally:
        del FakeTensor.__index__


def _hunyuan_video(**changes):
    config = dict(text_states_dim=4096, text_states_dim_2=768, in_channels=16, out_channels=16, hidden_size=3072,
                  heads_num=24, mlp_width_ratio=4, mm_double_blocks_depth=20, mm_single_blocks_depth=40,
                  rope_dim_list=[16, 56, 56], guidance_embed=True, attn_mode="torch", split_attn=False) | changes

    def inputs(case, config):
        batch, text = case["batch"], case["text_tokens"]
        return {"x": ((batch, config["in_channels"], *_latents(case)), None),
                "t": ((batch,), torch.float32),
                "text_states": ((batch, text, config["text_states_dim"]), None),
                "text_mask": ((batch, text), torch.int64),
                "text_states_2": ((batch, config["text_states_dim_2"]), None),
                "guidance": ((batch,), torch.float32)}

    def arguments(case):  # as the trainer hands them over: on the CPU
        frames, height, width = _latents(case)
        table = frames * (height // 2) * (width // 2), sum(config["rope_dim_list"])
        return {name: torch.empty(table, device="cpu") for name in ("freqs_cos", "freqs_sin")}

    return Model("musubi_tuner.hunyuan_model.models", "HYVideoDiffusionTransformer", config, inputs,
                 lambda case, config: [(case["batch"], config["out_channels"], *_latents(case))],
                 {"double": "mm_double_blocks_depth", "single": "mm_single_blocks_depth"}, arguments, _whole_captions,
                 **MUSUBI | {"always": {"return_dict": False}})


# -- FramePack ---------------------------------------------------------------------------------------------------------

def _framepack(split_attn=False):
    """A picture and the last frame as they are, two and sixteen older ones, which are embedded more coarsely; 729 tokens
    of the picture. More than one sample is only possible with --split_attn."""
    config = dict(attention_head_dim=128, guidance_embeds=True, has_clean_x_embedder=True, has_image_proj=True,
                  image_proj_dim=1152, in_channels=16, mlp_ratio=4.0, num_attention_heads=24, num_layers=20,
                  num_refiner_layers=2, num_single_layers=40, out_channels=16, patch_size=2, patch_size_t=1,
                  pooled_projection_dim=768, qk_norm="rms_norm", rope_axes_dim=(16, 56, 56), rope_theta=256.0,
                  text_embed_dim=4096, attn_mode="torch", split_attn=split_attn)
    history = {"clean_latents": ("clean_latent_indices", 2), "clean_latents_2x": ("clean_latent_2x_indices", 2),
               "clean_latents_4x": ("clean_latent_4x_indices", 16)}

    def inputs(case, config):
        batch, text = case["batch"], case["text_tokens"]
        frames, height, width = _latents(case)
        inputs = {"hidden_states": ((batch, 16, frames, height, width), None),
                  "timestep": ((batch,), torch.float32),
                  "encoder_hidden_states": ((batch, text, config["text_embed_dim"]), None),
                  "encoder_attention_mask": ((batch, text), torch.bool),
                  "pooled_projections": ((batch, config["pooled_projection_dim"]), None),
                  "guidance": ((batch,), None),
                  "latent_indices": ((batch, frames), torch.int64)}
        for name, (indices, count) in history.items():
            inputs |= {name: ((batch, 16, count, height, width), None), indices: ((batch, count), torch.int64)}
        return inputs | {"image_embeddings": ((batch, 729, config["image_proj_dim"]), None)}

    @contextlib.contextmanager
    def values(case):
        """Captions are whole: no slice of them ends early, none is filled up. Of Module.to, which the forward calls for
        its last linear, what it does with real parameters: fake ones it would swap, and cannot."""
        from torch._subclasses.fake_tensor import FakeTensor

        def to(module, dtype):
            for parameter in module.parameters():
                parameter.data = parameter.detach().to(dtype)

        plain_item, plain_bool, plain_to = torch.Tensor.item, FakeTensor.__bool__, torch.nn.Module.to
        FakeTensor.item = lambda tensor: 1 << 40 if tensor.is_cuda and tensor.dtype == torch.int64 else plain_item(tensor)
        FakeTensor.__bool__ = lambda tensor: False if tensor.is_cuda else plain_bool(tensor)
        torch.nn.Module.to = to
        try:
            with _whole_captions(case):
                yield
        finally:
            torch.nn.Module.to, FakeTensor.__bool__ = plain_to, plain_bool
            del FakeTensor.item

    return Model("musubi_tuner.frame_pack.hunyuan_video_packed", "HunyuanVideoTransformer3DModelPacked", config, inputs,
                 lambda case, config: [(case["batch"], 16, *_latents(case))],
                 {"double": "num_layers", "single": "num_single_layers", "refiners": "num_refiner_layers"},
                 values=values, **MUSUBI | {"always": {"return_dict": False}})


# -- Qwen-Image --------------------------------------------------------------------------------------------------------

def _qwen_image(**changes):
    config = dict(patch_size=2, in_channels=64, out_channels=16, num_layers=60, attention_head_dim=128,
                  num_attention_heads=24, joint_attention_dim=3584, guidance_embeds=False,
                  axes_dims_rope=(16, 56, 56), attn_mode="torch", split_attn=False) | changes

    def grids(case):
        pictures = [(case["width"], case["height"])] + case.get("reference_images", [])
        return [(1, height // 16, width // 16) for width, height in pictures]

    def inputs(case, config):
        batch, text = case["batch"], case["text_tokens"]
        tokens = sum(height * width for _, height, width in grids(case))
        inputs = {"hidden_states": ((batch, tokens, config["in_channels"]), None),
                  "encoder_hidden_states": ((batch, text, config["joint_attention_dim"]), None)}
        if batch > 1:  # as the trainer hands it over
            inputs["encoder_hidden_states_mask"] = ((batch, text), torch.bool)
        return inputs | {"timestep": ((batch,), None)}

    @contextlib.contextmanager
    def values(case):
        """The tables of frequencies are plain tensors of the module's, on the CPU until the first call."""
        from musubi_tuner.qwen_image.qwen_image_model import QwenEmbedRope as Embed

        tables = {name: [torch.empty((4096, sum(config["axes_dims_rope"]) // 2), dtype=torch.complex64, device="cpu")]
                  for name in ("pos_freqs", "neg_freqs")}
        for name, holder in tables.items():
            setattr(Embed, name, property(lambda module, holder=holder: holder[0],
                                          lambda module, table, holder=holder: holder.__setitem__(0, table)))
        try:
            yield
        finally:
            for name in tables:
                delattr(Embed, name)

    def arguments(case):
        return {"img_shapes": [grids(case)], "txt_seq_lens": [case["text_tokens"]] * case["batch"]}

    return Model("musubi_tuner.qwen_image.qwen_image_model", "QwenImageTransformer2DModel", config, inputs,
                 lambda case, config: [inputs(case, config)["hidden_states"][0]], {"blocks": "num_layers"}, arguments,
                 values, **MUSUBI)


# -- Z-Image -----------------------------------------------------------------------------------------------------------

def _z_image():
    config = dict(in_channels=16, dim=3840, n_layers=30, n_refiner_layers=2, n_heads=30, n_kv_heads=30, qk_norm=True,
                  cap_feat_dim=2560, attn_mode="torch", use_16bit_for_attention=True)

    def latents(case):
        batch, channels, height, width = _latent_picture(case, 16)
        return batch, channels, 1, height, width

    def inputs(case, config):
        batch = case["batch"]
        return {"x": (latents(case), None), "t": ((batch,), None),
                "cap_feats": ((batch, case["text_tokens"], config["cap_feat_dim"]), None)}

    return Model("musubi_tuner.zimage.zimage_model", "ZImageTransformer2DModel", config, inputs,
                 lambda case, config: [latents(case)], {"blocks": "n_layers", "refiners": "n_refiner_layers"},
                 lambda case: {"cap_mask": None}, **MUSUBI)


FORWARDS = {
    "sd_scripts": {
        "flux1_dev": _flux(),
        "flux1_schnell": _flux(guidance_embed=False),
        "sd15": _sd(),
        "sd21": _sd(attention_head_dim=[5, 10, 20, 20], cross_attention_dim=1024, use_linear_projection=True),
        "sd3_medium": _sd3(24, 192, qk_norm=None),
        "sd35_large": _sd3(38, 192),
        "sd35_medium": _sd3(24, 384, x_block_self_attn_layers=list(range(13))),
        "sdxl": _sdxl(),
    },
    "musubi": {
        "wan21_t2v_1_3b": _wan(),
        "wan21_t2v_14b": _wan(**_WAN_14B),
        "wan21_i2v_14b": _wan(**_WAN_14B, model_type="i2v", in_dim=36),
        "wan22_t2v_a14b": _wan(**_WAN_14B, model_version="2.2"),
        "wan22_i2v_a14b": _wan(**_WAN_14B, model_version="2.2", model_type="i2v", in_dim=36),
        "framepack": _framepack(),
        "hunyuan_video": _hunyuan_video(),
        "qwen_image": _qwen_image(),
        "qwen_image_edit": _qwen_image(),
        "qwen_image_edit_2509": _qwen_image(),
        "qwen_image_edit_2511": _qwen_image(zero_cond_t=True),
        "z_image": _z_image(),
    },
    "musubi_split_attn": {
        "framepack": _framepack(split_attn=True),
    },
}
