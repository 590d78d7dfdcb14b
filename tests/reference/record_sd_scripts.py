"""Records sd-scripts' trainers, train() whole, on a fake GPU.

    VRAMEST_SD_SCRIPTS=~/sd-scripts VRAMEST_SD_SCRIPTS_PINS=~/pins python record_sd_scripts.py --check [--only TEXT]

The options are those of record_optimizers.py; `--events ID FILE` writes a case's event list for compare.py. Pins is a folder
with what sd-scripts' requirements pin (README.md). A case is the command line of a trainer, without names of files. The
trainer's own train() runs: loading, caches, network, optimizer, accelerate's own Accelerator, two steps of the loop.
Stood in: the files of weights (models are made empty, in the dtype in which the loader leaves them), tokenizers (ids are
zeros), the data set's files and its workers (`Dataset` hands over what BaseDataset.__getitem__ would), saving, cv2,
torchvision and the like, bitsandbytes' kernels, and the values that a program reads from tensors. Rows of
truth/sd_scripts.jsonl:

    {"case": {"id", "script", "arguments", "width", "height"}, "result":
     {"phases": [[name, what lives as it begins, its peak, what lives as it ends], ...] of all that lies before and after
      the steps,
      "models": bytes that live of denoiser, text encoders and VAE as the loop begins,
      "adapted_modules", "adapter_bytes", "trained_parameters",
      "steps": [{"start": what lives, "kept_for_backward": what lives as the forward has ended, above that,
        "gradients", "<stage>_peak": above what lives as the step begins, "left": what lives as it ends, above the models,
        the adapter and the optimizer's states}], "optimizer_state",
      "samples": stages after the second step, as phases are, "attention_calls"}}

A step begins with its batch on the device. Its stages are prepare (latents, and noise where no text is encoded), text (the
encoders' autocast context), noise (up to the denoiser), forward (the denoiser's context), loss, backward, reduce
(accelerate's copy of each gradient), clip, grad_norms, optimizer with zero_grad and what scales norms, and logs.
"""

import fake_cuda

if __name__ == "__main__":
    fake_cuda.ensure()

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest.mock

import record_optimizers
from record_networks import _modules_moved_by_new_parameters

STORED = pathlib.Path(__file__).with_name("truth") / "sd_scripts.jsonl"
CHECKOUT = os.environ.get("VRAMEST_SD_SCRIPTS", "")
PINS = os.environ.get("VRAMEST_SD_SCRIPTS_PINS", "")
MISSING = "VRAMEST_SD_SCRIPTS names no checkout of sd-scripts, or VRAMEST_SD_SCRIPTS_PINS no folder of what it pins"

COMMON = "--sdpa --cache_latents --max_grad_norm=1.0 --network_dim=32 --network_alpha=16 --network_module=networks.lora"
FLUX = ("--cache_latents --cache_latents_to_disk --cache_text_encoder_outputs --network_module=networks.lora_flux --sdpa "
        "--network_dim=16 --network_alpha=16 --timestep_sampling=shift --model_prediction_type=raw --guidance_scale=1.0")


def cases() -> list:
    out = []

    def add(id: str, script: str, arguments: str, width=512, height=512, batch=1, optimizer="AdamW8bit", precision="bf16",
            **others):
        said = f"{arguments} --mixed_precision={precision} --optimizer_type={optimizer} --train_batch_size={batch}"
        out.append({"id": id, "script": script, "arguments": said, "width": width, "height": height, **others})

    def sd15(id, arguments="", batch=2, common=COMMON, **others):
        add("sd15-" + id, "train_network", f"{common} {arguments}", batch=batch, **others)

    def sdxl(id, arguments="", width=1024, height=1024, gc=True, **others):
        add("sdxl-" + id, "sdxl_train_network", f"{COMMON} {arguments}" + " --gradient_checkpointing" * gc, width, height,
            **others)

    def flux(id, arguments="", gc=True, common=FLUX, **others):
        add("flux-" + id, "flux_train_network", f"{common} {arguments}" + " --gradient_checkpointing" * gc, **others)

    unet = "--network_train_unet_only"
    sd15("te")
    sd15("unet", unet)
    sd15("te-gc", "--gradient_checkpointing")
    sd15("unet-gc", unet + " --gradient_checkpointing")
    sd15("te-b3-512x640", width=512, height=640, batch=3)
    sd15("te-locon", "--network_args conv_dim=16 conv_alpha=8")
    sd15("te-fp16", precision="fp16")
    sd15("te-no", precision="no")
    sd15("te-225", "--max_token_length=225")
    sd15("te-accumulate2", "--gradient_accumulation_steps=2")
    sd15("te-adamw", optimizer="AdamW")
    cached = f"{unet} --cache_text_encoder_outputs"
    sdxl("te")
    sdxl("unet", unet)
    sdxl("cached", cached)
    sdxl("te-fp16", "--no_half_vae", precision="fp16")
    fixed = "--optimizer_args scale_parameter=False relative_step=False warmup_init=False"
    sdxl("te-adafactor", fixed, optimizer="Adafactor")
    sdxl("te-adafactor-relative", optimizer="Adafactor")
    sdxl("te-dadaptadam", "--learning_rate=1.0", optimizer="DAdaptAdam")
    sdxl("te-prodigy", "--learning_rate=1.0", optimizer="Prodigy")
    sdxl("te-b4", batch=4)
    sdxl("te-nogc-512", width=512, height=512, gc=False)
    sdxl("te-full_bf16", "--full_bf16")
    sdxl("te-225", "--max_token_length=225")
    network = f"{unet}"
    flux("cached", network)
    flux("cached-ram", network, common=FLUX.replace("--cache_latents_to_disk ", ""))  # latents stay in the VAE's dtype
    flux("cached-1024", network, width=1024, height=1024)
    flux("cached-fp8", network + " --fp8_base")
    flux("clip_l")
    flux("cached-nogc", network, gc=False)
    flux("cached-scaled", network + " --model_prediction_type=sigma_scaled")  # the parser's default
    flux("cached-mask", network + " --apply_t5_attn_mask")
    encoded = FLUX.replace("--cache_text_encoder_outputs ", "")
    flux("encoded", network, common=encoded)
    flux("encoded-fp8", network + " --fp8_base", common=encoded)
    flux("encoded-clip_l", common=encoded)
    sd15("unet-disk", unet + " --cache_latents_to_disk")  # fp32 latents
    sdxl("cached-disk", cached + " --cache_latents_to_disk")
    # Latents encoded in the step; caches of another batch size.
    sd15("te-images", common="--sdpa --max_grad_norm=1.0 --network_dim=32 --network_alpha=16 --network_module=networks.lora")
    sd15("unet-vae2", unet + " --vae_batch_size=2")
    sdxl("cached-vae2", cached + " --vae_batch_size=2", batch=2)
    # Models loaded to the GPU: what the loader itself takes beside them is not recorded.
    sd15("te-lowram", "--lowram")
    sdxl("cached-lowram", cached + " --lowram")
    # What else makes tensors of the latents' or of a layer's size.
    few = unet + " --gradient_checkpointing"
    sd15("few-noise", few + " --noise_offset=0.05 --adaptive_noise_scale=0.01 --min_snr_gamma=5 --clip_skip=2")
    sd15("few-multires", few + " --multires_noise_iterations=6 --multires_noise_discount=0.3 --ip_noise_gamma=0.1")
    sd15("few-huber", few + " --loss_type=huber --huber_schedule=snr")
    sd15("few-weighted", few + " --weighted_captions --max_token_length=225")
    sd15("few-dropout", few + " --network_dropout=0.1")
    sd15("few-rank-dropout", few + " --network_args rank_dropout=0.1")
    sd15("few-scaled", few + " --scale_weight_norms=1.0")
    sd15("few-unclipped", few + " --max_grad_norm=0")
    sd15("few-mem_eff", few + " --mem_eff_attn")
    sd15("te-mem_eff-512x650", "--mem_eff_attn", width=512, height=650, batch=3)
    sd15("few-full_fp16", few + " --full_fp16", precision="fp16")
    sd15("unet-plain", unet, common=COMMON.replace("--sdpa ", ""))
    add("sd21-te", "train_network", f"{COMMON} --v2 --v_parameterization", 768, 768)
    add("sd21-te-gc", "train_network", f"{COMMON} --v2 --v_parameterization --gradient_checkpointing", 768, 768)
    # Samples, after the second step; and with sample_at_first, before the first.
    picture = "a picture --w 512 --h 512 --s 2"
    sd15("te-sample", prompt=picture)
    sd15("te-sample-first", "--sample_at_first", prompt=picture)
    sd15("te-sample-fp16", precision="fp16", prompt=picture)
    large = "a picture --w 1024 --h 1024 --s 2"
    sdxl("te-sample", prompt=large)
    sdxl("cached-sample", cached, prompt=large)
    sdxl("cached-sample-fp16", cached + " --no_half_vae", precision="fp16", prompt=large)
    flux("cached-sample", network, prompt=picture)
    flux("clip_l-sample", prompt=picture)
    return out


def is_there(case: dict) -> bool:
    return CHECKOUT != "" and PINS != ""


# -- what is not there -------------------------------------------------------------------------------------------------

class _Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Packages that sd-scripts' modules import at their top, and that nothing recorded uses."""

    NAMES = {"cv2", "torchvision", "imagesize", "voluptuous", "easydict", "ftfy"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.NAMES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = lambda name: unittest.mock.MagicMock()
        return module

    def exec_module(self, module):
        pass


def _pretend() -> None:
    import torch

    if CHECKOUT in sys.path:
        return
    sys.path[:0] = [PINS]
    # First of all the libraries, which ask whether these packages are there.
    import accelerate  # noqa: F401
    from diffusers import AutoencoderKL, StableDiffusionPipeline  # noqa: F401
    from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer, T5EncoderModel  # noqa: F401

    import bitsandbytes  # noqa: F401

    torch.cuda.is_available = lambda: True  # accelerate asks
    torch.cuda.device_count = lambda: 1
    for name in ("set_device", "empty_cache", "synchronize", "manual_seed", "manual_seed_all", "seed", "set_rng_state",
                 "ipc_collect"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    torch.cuda.get_rng_state = lambda *_, **__: None
    torch.cuda.device = lambda *_: contextlib.nullcontext()
    torch.cuda.get_device_capability = lambda *_: (8, 9)
    import recorder

    recorder.MODEL_CHECKOUTS += ("diffusers", "transformers", "networks")
    sys.path.insert(0, CHECKOUT)
    sys.meta_path.append(_Missing())
    import library.train_util  # noqa: F401

    # This folder has a module of that name.
    sys.modules["networks"] = package = types.ModuleType("networks")
    package.__path__ = [os.path.join(CHECKOUT, "networks")]

    logging.disable(logging.ERROR)


class _Tokenizer:
    model_max_length = 77
    bos_token_id, eos_token_id, pad_token_id = 49406, 49407, 49407

    def __call__(self, text, max_length=77, return_tensors=None, **_):
        import torch

        if return_tensors is None:  # a word
            return types.SimpleNamespace(input_ids=[self.bos_token_id, 1, self.eos_token_id])
        count = 1 if isinstance(text, str) else len(text)
        ids = {name: torch.zeros((count, max_length), dtype=torch.int64) for name in ("input_ids", "attention_mask")}
        return types.SimpleNamespace(**ids) if isinstance(text, str) else ids


def _empty(build, dtype, device="cpu"):
    """A module of empty tensors, as a loader leaves it."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch.device("meta"):
        module = build()
    made = {}
    for part in module.modules():
        for values in (part._parameters, part._buffers):
            for name, value in values.items():
                if value is None:
                    continue
                if id(value) not in made:
                    own = dtype if value.is_floating_point() and dtype is not None else value.dtype
                    new = torch.empty(value.shape, dtype=own, device=device)
                    made[id(value)] = value, torch.nn.Parameter(new) if values is part._parameters else new
                values[name] = made[id(value)][1]
    return module


def _pretend_files(stack) -> None:
    """Loaders that make models, in the dtype that they leave them in. A file's own dtype decides in FLUX alone, where
    fp8_base loads as it is: the published bf16, and fp16 of T5."""
    import torch
    from library import flux_models, flux_utils, model_util, sdxl_train_util, strategy_base, train_util

    def patch(owner, name, new):
        stack.enter_context(unittest.mock.patch.object(owner, name, new))

    from diffusers import AutoencoderKL
    from library.original_unet import UNet2DConditionModel
    from library.sdxl_original_unet import SdxlUNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    def clip(**changes):
        said = dict(vocab_size=49408, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
                    max_position_embeddings=77, hidden_act="quick_gelu", projection_dim=768, pad_token_id=1,
                    bos_token_id=0, eos_token_id=2)
        return CLIPTextConfig(**said | changes)

    def vae():
        return AutoencoderKL(**model_util.create_vae_diffusers_config())

    def sd(args, weight_dtype, device="cpu", **_):
        unet = _empty(lambda: UNet2DConditionModel(**model_util.create_unet_diffusers_config(args.v2, False)),
                      torch.float32, device)
        first = _empty(vae, torch.float32, device)
        config = clip() if not args.v2 else clip(hidden_size=1024, intermediate_size=4096, num_hidden_layers=23,
                                                 num_attention_heads=16, hidden_act="gelu", projection_dim=512)
        return _empty(lambda: CLIPTextModel._from_config(config), torch.float32), first, unet, True

    def sdxl(name, vae_path, version, weight_dtype, device="cpu", model_dtype=None, disable_mmap=False):
        dtype = model_dtype or torch.float32  # set_module_tensor_to_device: that of the class, whatever the file holds
        unet = _empty(SdxlUNet2DConditionModel, dtype, device)
        second = clip(hidden_size=1280, intermediate_size=5120, num_hidden_layers=32, num_attention_heads=20,
                      hidden_act="gelu", projection_dim=1280)
        return (True, _empty(lambda: CLIPTextModel._from_config(clip()), torch.float32, device),
                _empty(lambda: CLIPTextModelWithProjection(second), torch.float32, device), _empty(vae, dtype, device), unet,
                None, None)

    patch(train_util, "_load_target_model", sd)
    patch(sdxl_train_util, "_load_target_model", sdxl)
    config = flux_models.configs["dev"]
    published = torch.bfloat16
    patch(flux_utils, "analyze_checkpoint_state", lambda path: (False, False, (19, 38), []))
    patch(flux_utils, "load_flow_model", lambda path, dtype, device, **_: (
        False, _empty(lambda: flux_models.Flux(config.params), dtype or published)))
    patch(flux_utils, "load_ae", lambda path, dtype, device, **_: _empty(
        lambda: flux_models.AutoEncoder(config.ae_params), dtype))
    # The loaders' own, with no state dict: only the copy of values is left out.
    patch(torch.nn.Module, "load_state_dict", lambda *_, **__: None)
    plain_clip, plain_t5 = flux_utils.load_clip_l, flux_utils.load_t5xxl
    patch(flux_utils, "load_clip_l", lambda path, dtype, device, **_: _empty(
        lambda: plain_clip(path, dtype, device, state_dict={}), dtype))
    patch(flux_utils, "load_t5xxl", lambda path, dtype, device, **_: _empty(
        lambda: plain_t5(path, dtype, device, state_dict={}), dtype or torch.float16))
    patch(strategy_base.TokenizeStrategy, "_load_tokenizer", lambda *_, **__: _Tokenizer())

    def ids(self, tokenizer, text, length, weighted=False):
        out = torch.zeros((max(1, length // 75), 77), dtype=torch.int64)
        return (out, torch.ones(out.shape)) if weighted else out

    patch(strategy_base.TokenizeStrategy, "_get_input_ids", ids)
    patch(train_util, "load_image", lambda *_: None)
    patch(train_util, "load_images_and_masks_for_caching", lambda infos, *_: (
        torch.empty(len(infos), 3, *reversed(infos[0].bucket_reso)), [None] * len(infos),
        [info.bucket_reso for info in infos], [(0, 0, *info.bucket_reso) for info in infos]))
    patch(strategy_base.LatentsCachingStrategy, "save_latents_to_disk", lambda self, path, latents, *_: None)
    patch(train_util, "get_git_revision_hash", lambda: "")


def _data_set(case: dict, args, count: int):
    import torch
    from library import train_util

    width, height, batch = case["width"], case["height"], args.train_batch_size
    subset = types.SimpleNamespace(flip_aug=False, alpha_mask=False, random_crop=False)

    class Dataset(train_util.MinimalDataset):
        def __init__(self):
            super().__init__((width, height), 1.0)
            self.batch_size = batch
            self.num_train_images = batch * count
            for i in range(batch * count):
                self.image_data[i] = train_util.ImageInfo(i, 1, "a caption", False, "picture.png", None)
                self.image_data[i].bucket_reso = self.image_data[i].resized_size = (width, height)
                self.image_data[i].image_size = (width, height)
                self.image_to_subset[i] = subset

        def is_latent_cacheable(self):
            return True

        def is_text_encoder_output_cacheable(self, *_, **__):
            return True

        def shuffle_buckets(self):
            pass

        def __len__(self):
            return count

        def __getitem__(self, index):
            """What BaseDataset.__getitem__ makes of its pictures (the lines from `# set example` on)."""
            infos = [self.image_data[index * batch + i] for i in range(batch)]
            latents = images = ids = texts = None
            if args.cache_latents_to_disk:  # FloatTensor of what the files hold
                channels = 16 if case["script"].startswith("flux") else 4
                latents = torch.empty(batch, channels, height // 8, width // 8)
            elif args.cache_latents:
                latents = torch.stack([info.latents for info in infos])
            else:
                images = torch.empty(batch, 3, height, width)
            caching = self.text_encoder_output_caching_strategy
            if infos[0].text_encoder_outputs is not None:
                texts = [torch.stack([info.text_encoder_outputs[i].float() for info in infos])
                         for i in range(len(infos[0].text_encoder_outputs))]
            if texts is None or caching.is_partial:
                made = [[one[0] for one in self.tokenize_strategy.tokenize("a caption")] for _ in range(batch)]
                ids = [torch.stack([one[i] for one in made]) for i in range(len(made[0]))]
            sizes = {name: torch.zeros((batch, 2), dtype=torch.int64)
                     for name in ("original_sizes_hw", "crop_top_lefts", "target_sizes_hw")}
            return {"custom_attributes": [{}] * batch, "loss_weights": torch.ones(batch), "text_encoder_outputs_list": texts,
                    "input_ids_list": ids, "alpha_masks": None, "images": images, "latents": latents,
                    "captions": ["a caption"] * batch, **sizes, "flippeds": [False] * batch,
                    "network_multipliers": torch.ones(batch)}

    return Dataset()


# -- the run -----------------------------------------------------------------------------------------------------------

class _Stages:
    """What runs now, and what ran since it was last asked: [name, what lived as it began, its peak, as it ended]."""

    def __init__(self, recorder):
        self.recorder, self.stages, self.name = recorder, [], None

    def begin(self, name) -> None:
        recorder = self.recorder
        if self.stages:
            self.stages[-1][2:] = [recorder.peak, recorder.live]
        recorder.mark(name)
        recorder.peak = recorder.live
        self.name = name
        self.stages.append([name, recorder.live, 0, 0])

    def finish(self) -> list:
        """The stages so far; the one that runs ends here."""
        self.stages[-1][2:] = [self.recorder.peak, self.recorder.live]
        out, self.stages = self.stages, []
        return out


def _around(owner, name, stages, before, after=None):
    """A stage begins where this method of an object is called, and another where it returns."""
    plain = getattr(owner, name)

    def call(*args, **kwargs):
        stages.begin(before)
        try:
            return plain(*args, **kwargs)
        finally:
            if after is not None:
                stages.begin(after)

    setattr(owner, name, call)


def _mark_samples(patch, stages) -> None:
    """Stages "sample text", "sample denoise", "sample decode", and "sample" for what lies around them."""
    from library import flux_train_utils, flux_utils, lpw_stable_diffusion, sdxl_lpw_stable_diffusion, train_util

    def around(owner, name, before, after=None, only=None):
        plain = getattr(owner, name)

        @functools.wraps(plain)  # a pipeline's constructor is asked for its arguments
        def call(*args, **kwargs):
            if only is None or stages.name == only:
                stages.begin(before)
            try:
                return plain(*args, **kwargs)
            finally:
                if after is not None:
                    stages.begin(after)

        patch(owner, name, call)

    for pipeline in (lpw_stable_diffusion.StableDiffusionLongPromptWeightingPipeline,
                     sdxl_lpw_stable_diffusion.SdxlStableDiffusionLongPromptWeightingPipeline):
        around(pipeline, "__init__", "sample")
        around(pipeline, "__call__", "sample text", "sample")
        around(pipeline, "get_timesteps", "sample denoise")
        around(pipeline, "latents_to_image", "sample decode", "sample")
        patch(pipeline, "numpy_to_pil", lambda *_: [unittest.mock.MagicMock()])
    around(flux_train_utils, "sample_image_inference", "sample text", "sampled")
    around(flux_train_utils, "denoise", "sample denoise")
    around(flux_utils, "unpack_latents", "sample decode", None, "sample denoise")


@contextlib.contextmanager
def _values_known(recorder):
    """What the program reads from tensors, beside what record_optimizers.values answers."""
    import numpy
    import PIL.Image
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    with contextlib.ExitStack() as stack:
        def patch(owner, name, new):
            stack.enter_context(unittest.mock.patch.object(owner, name, new, create=True))

        patch(torch.utils.data.RandomSampler, "__iter__", lambda self: iter(range(len(self.data_source))))
        patch(FakeTensor, "numpy", lambda self, **_: self)
        patch(FakeTensor, "astype", lambda self, *_: self)
        patch(PIL.Image, "fromarray", lambda *_, **__: unittest.mock.MagicMock())
        plain = torch.tensor

        def tensor(data, dtype=None, device=None, **others):
            """One allocation on the GPU, as record_optimizers' says."""
            if device is None or torch.device(device).type != "cuda":
                return plain(data, dtype=dtype, device=device, **others)
            return torch.empty(numpy.shape(data), dtype=dtype, device=device)

        patch(torch, "tensor", tensor)
        is_nan = []

        def isnan(tensor, plain=torch.isnan):
            out = plain(tensor)
            recorder.zero.add(out.untyped_storage()._cdata)
            is_nan.append(out.untyped_storage()._cdata)
            return out

        def any_of(tensor, plain=torch.any):
            out = plain(tensor)
            recorder.zero -= set(is_nan)
            is_nan.clear()
            return out

        patch(torch, "isnan", isnan)
        patch(torch, "any", any_of)
        # The scaler asks whether anything is infinite.
        patch(torch.amp.GradScaler, "_maybe_opt_step", lambda self, optimizer, state, *args, **kwargs: optimizer.step(
            *args, **kwargs))
        yield


def record(case: dict) -> tuple:
    """(row, recorder) of a case."""
    fake_cuda.install()
    import optimizers
    from recorder import no_garbage_collector

    _pretend()
    optimizers._pretend_bitsandbytes()
    script = importlib.import_module(case["script"])
    recorder = record_optimizers.values(set())
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        args = script.setup_parser().parse_args(case["arguments"].split() + [
            "--pretrained_model_name_or_path=model.safetensors", f"--output_dir={folder}", "--output_name=case",
            "--max_data_loader_n_workers=0", "--dataset_class=none", "--seed=1", f"--resolution={case['width']}",
            "--no_metadata"])
        if "prompt" in case:
            args.sample_prompts = os.path.join(folder, "prompts.txt")
            pathlib.Path(args.sample_prompts).write_text(case["prompt"])
            args.sample_every_n_steps = 2
        _fresh(stack)
        _pretend_files(stack)
        for each in (no_garbage_collector(), fake_cuda.fake_mode(), recorder, _values_known(recorder),
                     _modules_moved_by_new_parameters()):
            stack.enter_context(each)
        if not os.environ.get("VRAMEST_LOUD"):
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        result = _train(case, script, args, recorder, stack)
    return {"case": case, "made_by": _made_by(), "result": result}, recorder


def _made_by() -> str:
    import accelerate
    import diffusers
    import torch
    import transformers

    return "sd-scripts, " + ", ".join(f"{one.__name__} {one.__version__}"
                                      for one in (torch, diffusers, transformers, accelerate))


def _fresh(stack) -> None:
    """State that classes keep."""
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from library import strategy_base

    AcceleratorState._reset_state(True)
    PartialState._reset_state()
    GradientState._reset_state()
    for name in ("TokenizeStrategy", "TextEncodingStrategy", "TextEncoderOutputsCachingStrategy", "LatentsCachingStrategy"):
        getattr(strategy_base, name)._strategy = None
    for name, cls in (("networks.lora", "LoRANetwork"), ("networks.lora_flux", "LoRANetwork")):
        network = getattr(importlib.import_module(name), cls)
        for key, value in list(vars(network).items()):
            if isinstance(value, list):  # create_network extends these
                stack.enter_context(unittest.mock.patch.object(network, key, list(value)))


def _train(case, script, args, recorder, stack) -> dict:
    import torch
    from library import train_util

    trainer = {"train_network": "NetworkTrainer", "sdxl_train_network": "SdxlNetworkTrainer",
               "flux_train_network": "FluxNetworkTrainer"}[case["script"]]
    trainer = getattr(script, trainer)()
    stages = _Stages(recorder)
    result = {"phases": [], "steps": []}
    accumulation = args.gradient_accumulation_steps
    args.max_train_steps = 2
    seen = types.SimpleNamespace(models=[], parameters={}, network=None, optimizer=None, contexts=[], start=0, micro=0)

    def patch(owner, name, new):
        stack.enter_context(unittest.mock.patch.object(owner, name, new))

    data = _data_set(case, args, 2 * accumulation)
    patch(train_util, "load_arbitrary_dataset", lambda *_: data)

    plain_load = trainer.load_target_model

    def load_target_model(*given):
        stages.begin("load")
        version, text_encoder, vae, unet = plain_load(*given)
        seen.models = [*(text_encoder if isinstance(text_encoder, list) else [text_encoder]), vae, unet]
        for model in seen.models:
            recorder.name_modules(model)
        stages.begin("to_cache_latents" if args.cache_latents else "loaded")
        return version, text_encoder, vae, unet

    trainer.load_target_model = load_target_model
    _around(data, "new_cache_latents", stages, "cache_latents", "from_cache_latents")
    _around(trainer, "cache_text_encoder_outputs_if_needed", stages, "to_cache_text", "network")
    _around(data, "new_cache_text_encoder_outputs", stages, "cache_text", "from_cache_text")

    plain_accelerator = train_util.prepare_accelerator

    def prepare_accelerator(args):
        accelerator = plain_accelerator(args)
        plain_prepare, plain_autocast = accelerator.prepare, accelerator.autocast
        accelerator.init_trackers = lambda *_, **__: None
        accelerator.end_training = lambda: None

        def prepare(*what, **others):
            from torch.optim import Optimizer

            stages.begin(f"prepare {type(what[0]).__name__}")
            before = {}
            for one in what:
                if isinstance(one, torch.nn.Module) and hasattr(one, "apply_to"):
                    seen.network = one
                    recorder.name_modules(one)
                    before = {id(value): (name, value) for name, value in seen.parameters.items()}
            if before:
                # Parameters are moved by new ones; in the optimizer they are the old ones still.
                optimizer = next(one for one in what if isinstance(one, Optimizer))
                seen.network.to(accelerator.device)
                now = dict(seen.network.named_parameters())
                for group in optimizer.param_groups:
                    group["params"] = [now[before[id(one)][0]] for one in group["params"]]
            out = plain_prepare(*what, **others)
            for one in out if isinstance(out, tuple) else (out,):
                if isinstance(one, Optimizer):
                    seen.optimizer = one
                    optimizer_ready(one)
            stages.begin("between")
            return out

        @contextlib.contextmanager
        def autocast(*args, **kwargs):
            name = seen.contexts.pop(0) if seen.contexts else None
            if name is not None:
                stages.begin(name)
            with plain_autocast(*args, **kwargs):
                yield
            if name is not None:
                stages.begin("loss" if name == "forward" else "noise")

        accelerator.prepare, accelerator.autocast = prepare, autocast
        _around(accelerator, "backward", stages, "backward", "return")
        plain_clip = accelerator.clip_grad_norm_

        def clip(parameters, norm):
            result["steps"][-1]["gradients"] = recorder.bytes_of([one.grad for one in seen.network.parameters()])
            stages.begin("clip")
            plain_clip(parameters, norm)
            stages.begin("return")

        accelerator.clip_grad_norm_ = clip
        return accelerator

    patch(train_util, "prepare_accelerator", prepare_accelerator)

    plain_get_optimizer = train_util.get_optimizer

    def get_optimizer(args, params):
        stages.begin("get_optimizer")
        return plain_get_optimizer(args, params)

    patch(train_util, "get_optimizer", get_optimizer)
    plain_post = trainer.post_process_network

    def post_process_network(args, accelerator, network, *others):
        for lora in [*network.text_encoder_loras, *network.unet_loras]:
            lora.alpha.constant = None  # a fake tensor that knows its value would be copied for real
        plain_apply = network.apply_to

        def apply_to(*args):
            plain_apply(*args)
            seen.parameters = dict(network.named_parameters())

        network.apply_to = apply_to
        return plain_post(args, accelerator, network, *others)

    trainer.post_process_network = post_process_network

    def optimizer_ready(optimizer):
        zero = {one.untyped_storage()._cdata for name, one in seen.network.named_parameters() if "lora_up" in name}
        recorder.zero = zero
        result["trained_parameters"] = sum(one.numel() for group in optimizer.param_groups for one in group["params"])
        result["adapted_modules"] = len(seen.network.text_encoder_loras) + len(seen.network.unet_loras)
        result["adapter_bytes"] = recorder.bytes_of([*seen.network.parameters(), *seen.network.buffers()])
        _around(optimizer, "step", stages, "optimizer")
        for name, stage in (("update_grad_norms", "grad_norms"), ("weight_norms", "logs")):
            if hasattr(seen.network, name):
                _around(seen.network, name, stages, stage)

    text = not getattr(args, "cache_text_encoder_outputs", False) or not args.network_train_unet_only

    def on_step_start(*_, **__):
        if seen.micro % accumulation == 0:
            if not result["steps"]:
                result["phases"] += stages.finish()
                result["models"] = recorder.bytes_of([one for model in seen.models for one in
                                                      [*model.parameters(), *model.buffers()]])
            seen.start = recorder.live
            if stages.stages:
                stages.finish()
            result["steps"].append({"start": recorder.live, "kept_for_backward": 0, "gradients": 0})
        seen.micro += 1
        seen.contexts = (["text"] if text else []) + (["noise", "forward"] if case["script"].startswith("flux")
                                                      else ["forward"])
        stages.begin("prepare")

    trainer.on_step_start = on_step_start
    _around(trainer, "all_reduce_network", stages, "reduce", "return")
    plain_samples = trainer.sample_images

    def sample_images(accelerator, args, epoch, step, *others):
        due = args.sample_at_first if step == 0 else args.sample_every_n_steps and epoch is None and step % 2 == 0
        if due:
            stages.begin("sample begin")
        plain_samples(accelerator, args, epoch, step, *others)
        if due:
            stages.begin("sample end" if step else "to the loop")

    trainer.sample_images = sample_images
    plain_add = train_util.LossRecorder.add

    def add(self, **others):
        """Called with the loss of a step that is over."""
        row = result["steps"][-1]
        stages.begin("end")
        for name, first, peak, end in stages.finish():
            if name.startswith("sample"):
                result.setdefault("samples", []).append([name, first, peak, end])
            if name.startswith("sample") or name in ("return", "end"):
                continue
            row[name + "_peak"] = max(row.get(name + "_peak", peak - seen.start), peak - seen.start)
            if name == "forward":
                row["kept_for_backward"] = end - seen.start
        if seen.micro % accumulation == 0:
            states = recorder.bytes_of([value for state in seen.optimizer.state.values() for value in state.values()])
            result["optimizer_state"] = states
            models = recorder.bytes_of([one for model in [*seen.models, seen.network] for one in
                                        [*model.parameters(), *model.buffers()]])
            row["left"] = recorder.live - models - states
        stages.begin("next")
        return plain_add(self, **others)

    patch(train_util.LossRecorder, "add", add)
    _mark_samples(patch, stages)

    class Done(Exception):
        pass

    def done(*_, **__):
        raise Done

    patch(train_util, "get_last_ckpt_name", done)
    with contextlib.suppress(Done):
        trainer.train(args)
    result["attention_calls"] = dict(recorder.attention_calls)
    return result


def _apart(case: dict) -> tuple:
    """(row, None) of a case, recorded by a process of its own: the largest take gigabytes."""
    run = subprocess.run([sys.executable, __file__, "--row", case["id"]], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stderr.strip().splitlines()[-1])
    return json.loads(run.stdout), None


def main() -> int:
    if len(sys.argv) > 2 and sys.argv[1] in ("--events", "--row"):
        case = next(case for case in cases() if case["id"] == sys.argv[2])
        row, recorder = record(case)
        if sys.argv[1] == "--row":
            print(json.dumps(row))
            return 0
        pathlib.Path(sys.argv[3]).write_text(json.dumps(recorder.events.to_dict(case)))
        print(json.dumps(row["result"], indent=1))
        return 0
    table = types.SimpleNamespace(cases=cases, is_there=is_there, MISSING=MISSING)
    return record_optimizers.main(__doc__, table, _apart, STORED)


if __name__ == "__main__":
    sys.exit(main())
