#!/usr/bin/env python3
"""Measures on a CUDA card what vramest has to assume: needs torch and diffusers (peft for the LoRA steps), no network.

    python tools/measure_gpu.py --out measured        measures, in under eight minutes
    python tools/measure_gpu.py --list                what it would measure; no GPU is needed
    python tools/measure_gpu.py --dry-run             every case with small models on the CPU, without numbers

Three files come out, each line written as soon as it is known:

    rows.jsonl          VAE decodes and LoRA steps as docs/measured-rows.md has them, for python -m vramest.accuracy
    convolutions.jsonl  scratch of each distinct convolution of the VAEs and UNets, forward and backward
    machine.json        card, driver, versions, and what stands beside torch's reserved memory

Models have random shapes of memory for weights: no value is ever looked at. Every case runs in a process of its own, so
that one that runs out of memory takes no other with it. See tools/README.md.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

GIB = 2**30
BUDGET = 465.0  # seconds, of the eight minutes; the rest is for starting and ending


# ------------------------------------------------------------------------------------------------ what is measured
# Published configs, so that nothing is fetched. `row` is the model by whose pipeline the accuracy command asks.
KL = {
    "in_channels": 3, "out_channels": 3, "block_out_channels": [128, 256, 512, 512], "layers_per_block": 2,
    "down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4, "norm_num_groups": 32,
    "sample_size": 1024,
}  # fmt: skip


@dataclass(frozen=True)
class Vae:
    cls: str
    config: dict[str, Any]
    latent_channels: int
    row: str | None
    frames: bool = False  # has a time axis
    sizes: tuple[int, ...] = (512, 1024)
    spatial: int = 8
    small: tuple[tuple[str, Any], ...] = ()  # what --dry-run puts in the config


VAES = {
    "sdxl": Vae("AutoencoderKL", KL | {"latent_channels": 4}, 4, "sdxl",
                small=(("block_out_channels", [32] * 4), ("layers_per_block", 1))),
    "flux": Vae("AutoencoderKL", KL | {"latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False},
                16, "flux1_dev", small=(("block_out_channels", [32] * 4), ("layers_per_block", 1))),
    "qwen": Vae("AutoencoderKLQwenImage",
                {"base_dim": 96, "z_dim": 16, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2,
                 "temperal_downsample": [False, True, True]}, 16, "qwen_image", frames=True,
                small=(("base_dim", 16), ("num_res_blocks", 1))),
}  # fmt: skip

UNET_SDXL = {
    "in_channels": 4, "out_channels": 4, "sample_size": 128, "block_out_channels": [320, 640, 1280],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"], "layers_per_block": 2,
    "transformer_layers_per_block": [1, 2, 10], "attention_head_dim": [5, 10, 20], "cross_attention_dim": 2048,
    "use_linear_projection": True, "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}  # fmt: skip
UNET_SD15 = {
    "in_channels": 4, "out_channels": 4, "sample_size": 64, "block_out_channels": [320, 640, 1280, 1280],
    "down_block_types": ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"],
    "up_block_types": ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3, "layers_per_block": 2, "attention_head_dim": 8,
    "cross_attention_dim": 768,
}  # fmt: skip
FLUX = {
    "patch_size": 1, "in_channels": 64, "num_layers": 19, "num_single_layers": 38, "attention_head_dim": 128,
    "num_attention_heads": 24, "joint_attention_dim": 4096, "pooled_projection_dim": 768, "guidance_embeds": True,
    "axes_dims_rope": [16, 56, 56],
}  # fmt: skip

Shapes = dict[str, tuple[tuple[int, ...], str]]  # argument -> sizes, and "float" or "long"; dotted: within a dict


def unet_inputs(config: dict[str, Any], side: int, batch: int) -> Shapes:
    shapes: Shapes = {
        "sample": ((batch, 4, side // 8, side // 8), "float"), "timestep": ((batch,), "long"),
        "encoder_hidden_states": ((batch, 77, config["cross_attention_dim"]), "float"),
    }  # fmt: skip
    if config.get("addition_embed_type"):
        pooled = config["projection_class_embeddings_input_dim"] - 6 * config["addition_time_embed_dim"]
        shapes["added_cond_kwargs.text_embeds"] = ((batch, pooled), "float")
        shapes["added_cond_kwargs.time_ids"] = ((batch, 6), "float")
    return shapes


def flux_inputs(config: dict[str, Any], side: int, batch: int) -> Shapes:
    tokens, text = (side // 16) ** 2, 512
    return {
        "hidden_states": ((batch, tokens, config["in_channels"]), "float"),
        "encoder_hidden_states": ((batch, text, config["joint_attention_dim"]), "float"),
        "pooled_projections": ((batch, config["pooled_projection_dim"]), "float"), "timestep": ((batch,), "float"),
        "img_ids": ((tokens, 3), "float"), "txt_ids": ((text, 3), "float"), "guidance": ((batch,), "float"),
    }  # fmt: skip


@dataclass(frozen=True)
class Denoiser:
    cls: str
    config: dict[str, Any]
    inputs: Callable[[dict[str, Any], int, int], Shapes]
    target: str  # the input whose shape the output has
    side: int
    row: str
    small: tuple[tuple[str, Any], ...] = ()


DENOISERS = {
    "sdxl": Denoiser("UNet2DConditionModel", UNET_SDXL, unet_inputs, "sample", 1024, "sdxl",
                     small=(("block_out_channels", [32, 64, 64]), ("attention_head_dim", [1, 2, 2]),
                            ("transformer_layers_per_block", 1), ("layers_per_block", 1))),
    "sd15": Denoiser("UNet2DConditionModel", UNET_SD15, unet_inputs, "sample", 512, "sd15",
                     small=(("block_out_channels", [32] * 4), ("layers_per_block", 1))),
    "flux": Denoiser("FluxTransformer2DModel", FLUX, flux_inputs, "hidden_states", 1024, "flux1_dev",
                     small=(("num_layers", 1), ("num_single_layers", 1), ("num_attention_heads", 2))),
}  # fmt: skip

ATTENTION = ["to_q", "to_k", "to_v", "to_out.0"]  # vramest's train.targets: attention
RANK = 16

# A case a process: name, what it plays, at most so many seconds.
CASES: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("context", {"play": "context"}, 60),
    ("convolutions", {"play": "convolutions"}, 190),
    *((f"vae {name}", {"play": "vae", "name": name}, 60) for name in VAES),
    ("lora sdxl", {"play": "lora", "name": "sdxl"}, 80),
    ("lora flux", {"play": "lora", "name": "flux"}, 110),
)


# ------------------------------------------------------------------------------------------------ models and shapes
@dataclass(frozen=True, order=True)
class Convolution:
    """A call of a convolution; sizes are those of the tensors that it sees."""

    input: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    bias: bool


def build(cls: str, config: dict[str, Any], small: tuple[tuple[str, Any], ...] = ()) -> Any:
    """The class with that config, on the meta device: shapes and no memory."""
    import diffusers
    import torch

    with torch.device("meta"):
        return getattr(diffusers, cls)(**(config | dict(small)))


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in flat.items():
        outer, _, inner = name.partition(".")
        if inner:
            out.setdefault(outer, {})[inner] = value
        else:
            out[outer] = value
    return out


def tensors(shapes: Shapes, dtype: Any, device: str) -> dict[str, Any]:
    import torch

    kinds = {"float": dtype, "long": torch.long}
    # Zeros, as an embedding looks its indices up.
    return nested({name: torch.zeros(size, dtype=kinds[kind], device=device) for name, (size, kind) in shapes.items()})


def latent_of(vae: Vae, side: int, batch: int) -> tuple[int, ...]:
    places = (side // vae.spatial, side // vae.spatial)
    return (batch, vae.latent_channels, *((1,) if vae.frames else ()), *places)


def picture_of(vae: Vae, side: int, batch: int) -> tuple[int, ...]:
    return (batch, 3, *((1,) if vae.frames else ()), side, side)


def convolutions_in(call: Callable[[], Any]) -> list[Convolution]:
    """Every distinct convolution of the call, in the order of their first."""
    import torch

    found: dict[Convolution, None] = {}

    class Watched(torch.overrides.TorchFunctionMode):
        """Sees F.conv2d and F.conv3d whoever calls them: a causal convolution pads by hand before."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in (torch.nn.functional.conv2d, torch.nn.functional.conv3d):
                names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
                said = dict(zip(names, args, strict=False)) | (kwargs or {})
                rank = said["weight"].dim() - 2

                def each(key: str, default: int) -> tuple[int, ...]:
                    value = said.get(key, default)
                    return (value,) * rank if isinstance(value, int) else tuple(value)

                if not isinstance(said.get("padding", 0), str):
                    found[Convolution(tuple(said["input"].shape), tuple(said["weight"].shape), each("stride", 1),
                                      each("padding", 0), each("dilation", 1), said.get("groups", 1),
                                      said.get("bias") is not None)] = None  # fmt: skip
            return function(*args, **(kwargs or {}))

    with torch.no_grad(), Watched():
        call()
    return list(found)


def distinct_convolutions(dry: bool) -> dict[Convolution, str]:
    """All of the VAEs' (decode and encode of a picture) and of the UNets', each with the first model that has it."""
    import torch

    out: dict[Convolution, str] = {}
    side = 64 if dry else 1024
    for name, vae in VAES.items():
        model = build(vae.cls, vae.config, vae.small if dry else ())
        latent = torch.zeros(latent_of(vae, side, 1), device="meta")
        picture = torch.zeros(picture_of(vae, side, 1), device="meta")
        for where, call in (("decode", lambda m=model, z=latent: m.decode(z)),
                            ("encode", lambda m=model, x=picture: m.encode(x))):  # fmt: skip
            for conv in convolutions_in(call):
                out.setdefault(conv, f"vae {name} {where}")
    for name, denoiser in DENOISERS.items():
        if denoiser.cls != "UNet2DConditionModel":
            continue
        config = denoiser.config | dict(denoiser.small if dry else ())
        model = build(denoiser.cls, config)
        given = tensors(denoiser.inputs(config, 128 if dry else denoiser.side, 1), torch.float32, "meta")
        for conv in convolutions_in(lambda m=model, g=given: m(**g)):
            out.setdefault(conv, f"unet {name}")
    return out


@dataclass(frozen=True)
class Mode:
    """How a convolution is called."""

    dtype: str = "bf16"
    batch: int = 1
    channels_last: bool = False
    backward: bool = False
    tf32: bool = True
    benchmark: bool = False


# In this order, as the time may end: what vramest's rules say measured first, then what they only assume.
MODES = (
    Mode(), Mode(backward=True), Mode("fp32"), Mode(batch=4), Mode(channels_last=True), Mode("fp16"), Mode(batch=2),
    Mode(batch=8), Mode("fp32", tf32=False), Mode("fp32", backward=True), Mode(batch=4, backward=True), Mode(batch=3),
    Mode(batch=16), Mode("fp32", batch=4), Mode(channels_last=True, backward=True), Mode(benchmark=True),
)  # fmt: skip


# ------------------------------------------------------------------------------------------------ counters
class Counters:
    """torch's counters of the card; on the CPU, where nothing counts, zeros."""

    def __init__(self, device: str) -> None:
        import torch

        self.cuda = torch.cuda if device == "cuda" else None

    def start(self) -> None:
        gc.collect()
        if self.cuda is not None:
            self.cuda.synchronize()
            self.cuda.empty_cache()
            self.cuda.reset_peak_memory_stats()

    def _stat(self, key: str) -> int:
        return int(self.cuda.memory_stats().get(key, 0)) if self.cuda is not None else 0

    def allocated(self) -> int:
        return self._stat("allocated_bytes.all.current")

    def requested(self) -> int:
        return self._stat("requested_bytes.all.current")

    def peaks(self) -> dict[str, int]:
        if self.cuda is not None:
            self.cuda.synchronize()
        return {"allocated": self._stat("allocated_bytes.all.peak"), "reserved": self._stat("reserved_bytes.all.peak"),
                "requested": self._stat("requested_bytes.all.peak")}  # fmt: skip

    def reserved(self) -> int:
        return self._stat("reserved_bytes.all.current")


def torch_dtype(word: str) -> Any:
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[word]


def is_out_of_memory(error: BaseException) -> bool:
    return type(error).__name__ == "OutOfMemoryError" or "out of memory" in str(error).lower()


def tell(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def pause() -> None:
    """Lets the parent look at the card while this process holds what it holds."""
    tell(pause=True)
    sys.stdin.readline()


# ------------------------------------------------------------------------------------------------ cases, each a process
class Case:
    """What a process is told: where it runs, and when it has to be done."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.device = "cpu" if told["dry"] else "cuda"
        self.dry = bool(told["dry"])
        self.until = float(told["until"])  # time.time()
        self.name = told.get("name", "")
        self.counters = Counters(self.device)

    def late(self) -> bool:
        return time.time() > self.until


def play_context(case: Case) -> None:
    """Beside the reserved memory: with nothing loaded, then with the kernels of a small net."""
    import torch

    torch.zeros(1, device=case.device)
    tell(context="bare", reserved=case.counters.reserved())
    pause()
    x = torch.randn(1, 64, 64, 64, device=case.device, requires_grad=True)
    weight = torch.randn(64, 64, 3, 3, device=case.device)
    y = torch.nn.functional.group_norm(torch.nn.functional.conv2d(x, weight, padding=1), 8).flatten(2).transpose(1, 2)
    z = torch.nn.functional.scaled_dot_product_attention(y[None], y[None], y[None])
    (z @ torch.randn(64, 64, device=case.device)).sum().backward()
    tell(context="a small net, forward and backward", reserved=case.counters.reserved())
    pause()


def nearest(scratch: int, tensors_of: dict[str, int]) -> str:
    """The sum of a call's tensors that the scratch is closest to."""
    i, o, f, c = (tensors_of[key] for key in ("input", "output", "filter", "columns"))
    sums = {"0": 0, "filter": f, "input": i, "output": o, "input+output": i + o, "input+filter": i + f,
            "input+output+filter": i + o + f, "2(input+output)+filter": 2 * (i + o) + f, "columns": c}  # fmt: skip
    return min(sums, key=lambda key: abs(sums[key] - scratch))


def measure_convolution(case: Case, conv: Convolution, mode: Mode) -> Iterator[dict[str, Any]]:
    """A row for the forward, or for each of the two gradients."""
    import torch

    dtype = torch_dtype(mode.dtype)
    rank = len(conv.weight) - 2
    last = torch.channels_last if rank == 2 else torch.channels_last_3d
    memory = last if mode.channels_last else torch.contiguous_format

    def empty(size: tuple[int, ...]) -> Any:
        return torch.zeros(size, dtype=dtype, device=case.device).to(memory_format=memory)

    x = empty((conv.input[0] * mode.batch, *conv.input[1:]))
    weight = empty(conv.weight)
    bias = torch.zeros(conv.weight[0], dtype=dtype, device=case.device) if conv.bias else None
    call = torch.nn.functional.conv2d if rank == 2 else torch.nn.functional.conv3d
    how = (conv.stride, conv.padding, conv.dilation, conv.groups)

    def forward() -> tuple[Any, ...]:
        return (call(x, weight, bias, *how),)

    plays: list[tuple[str, Callable[[], tuple[Any, ...]]]] = [("forward", forward)]
    if mode.backward:
        grad = torch.zeros_like(forward()[0])

        def gradients(mask: list[bool]) -> Callable[[], tuple[Any, ...]]:
            def play() -> tuple[Any, ...]:
                args = (grad, x, weight, None, *how[:3], False, [0] * rank, how[3], mask)
                made = torch.ops.aten.convolution_backward(*args)
                return tuple(tensor for tensor in made if tensor is not None)

            return play

        masks = {"data_gradient": [True, False, False], "weight_gradient": [False, True, False]}
        plays = [(name, gradients(mask)) for name, mask in masks.items()]
    elif mode.benchmark:
        plays = [("forward, first", forward), ("forward, again", forward)]
    with torch.no_grad():
        for name, play in plays:
            case.counters.start()
            allocated, requested = case.counters.allocated(), case.counters.requested()
            out = play()
            peaks = case.counters.peaks()
            kept = sum(tensor.untyped_storage().nbytes() for tensor in out)
            blocks = sum(-(-tensor.untyped_storage().nbytes() // 512) * 512 for tensor in out)
            y = grad if mode.backward else out[0]
            volume = 1
            for side in conv.weight[2:]:
                volume *= side
            sizes = {
                "input": x.numel() * x.element_size(), "output": y.numel() * y.element_size(),
                "filter": weight.numel() * weight.element_size(),
                "columns": conv.weight[1] * volume * y[0, 0].numel() * x.element_size(),
            }  # fmt: skip
            exact = peaks["requested"] > 0  # torch before 2.1 does not count requests
            scratch = peaks["requested"] - requested - kept if exact else peaks["allocated"] - allocated - blocks
            yield {"pass": name, "scratch": scratch, "scratch_allocated": peaks["allocated"] - allocated - blocks,
                   **sizes, "nearest": nearest(scratch, sizes)}  # fmt: skip
            del out, y


def play_convolutions(case: Case) -> None:
    import torch

    shapes = distinct_convolutions(case.dry)
    if case.dry:  # one of each kind of call is enough
        shapes = dict(list(shapes.items())[::15])
    # The workspace of cuBLAS stays where a column buffer is multiplied: it must be there before.
    square = torch.zeros(64, 64, device=case.device)
    square = square @ square
    for mode in (*MODES[:5], MODES[-1]) if case.dry else MODES:
        torch.backends.cudnn.allow_tf32 = mode.tf32
        torch.backends.cudnn.benchmark = mode.benchmark
        for conv, where in shapes.items():
            if case.late():
                tell(skipped=f"convolutions from {asdict(mode)} on: no time left")
                return
            row = {"where": where, **asdict(conv), **asdict(mode)}
            try:
                for found in measure_convolution(case, conv, mode):
                    tell(convolution=row | found)
            except Exception as error:  # one shape that a card refuses is an answer, too
                tell(convolution=row | {"error": "out of memory" if is_out_of_memory(error) else str(error)[:300]})


def on_card(model: Any, case: Case, dtype: Any) -> Any:
    """The model with memory for its weights, and nothing in it."""
    return model.to(dtype).to_empty(device=case.device)


def play_vae(case: Case) -> None:
    import torch

    vae = VAES[case.name]
    for dtype in ("bf16", "fp32"):
        model = on_card(build(vae.cls, vae.config, vae.small if case.dry else ()).eval(), case, torch_dtype(dtype))
        model.requires_grad_(False)
        for batch in (1, 2, 4, 8):
            for side in (64,) if case.dry else vae.sizes:
                if case.late():
                    tell(skipped=f"VAE {case.name} from {dtype}, batch {batch}, {side} px on: no time left")
                    return
                if dtype == "fp32" and batch > 1:
                    continue
                row = {
                    "trainer": "diffusers (VAE decode only)", "model": vae.row, "task": "sample", "phase": "VAE decode",
                    "resolution": [side, side], "frames": 1, "batch_size": batch, "dtype": dtype,
                }  # fmt: skip
                case.counters.start()
                load = case.counters.allocated()
                out_of_memory = False
                try:
                    latent = torch.zeros(latent_of(vae, side, batch), dtype=torch_dtype(dtype), device=case.device)
                    with torch.no_grad():
                        model.decode(latent)
                except Exception as error:
                    if not is_out_of_memory(error):
                        raise
                    out_of_memory = True
                tell(row=row, out_of_memory=out_of_memory, load=load, peaks=case.counters.peaks())
                if out_of_memory:
                    break
        del model
        gc.collect()


def play_lora(case: Case) -> None:
    """Two steps of vramest's plain loop (docs/job-file.md, section 2), with a LoRA of PEFT on attention."""
    import torch
    from peft import LoraConfig

    denoiser = DENOISERS[case.name]
    config = denoiser.config | dict(denoiser.small if case.dry else ())
    side = 64 if case.dry else denoiser.side
    row = {
        "trainer": "torch", "model": denoiser.row, "task": "train", "method": "lora", "rank": RANK,
        "resolution": [side, side], "frames": 1, "batch_size": 1, "dtype": "bf16", "gradient_checkpointing": True,
        "quantize": "none", "optimizer": "adamw", "offload": "none", "cache_latents": True, "cache_text_embeds": True,
        "te_on_gpu": False,
    }  # fmt: skip
    model = build(denoiser.cls, config)
    model.requires_grad_(False)
    with torch.device("meta"):
        model.add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, target_modules=ATTENTION))
    out_of_memory = False
    case.counters.start()
    load = 0
    try:
        on_card(model, case, torch.bfloat16)
        load = case.counters.allocated()
        given = tensors(denoiser.inputs(config, side, 1), torch.bfloat16, case.device)
        target = torch.zeros_like(given[denoiser.target])
        model.train()
        model.enable_gradient_checkpointing()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
        for _ in range(2):
            preds = model(**given, return_dict=False)
            loss = torch.nn.functional.mse_loss(preds[0].float(), target.float())
            del preds
            loss.backward()
            del loss
            optimizer.step()
            optimizer.zero_grad()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        out_of_memory = True
    peaks, reserved = case.counters.peaks(), case.counters.reserved()
    tell(row=row, out_of_memory=out_of_memory, load=load, peaks=peaks, reserved=reserved)
    pause()


PLAYS = {"context": play_context, "convolutions": play_convolutions, "vae": play_vae, "lora": play_lora}


# ------------------------------------------------------------------------------------------------ the parent
def used_on_card() -> int | None:
    """Bytes in use as nvidia-smi sees them: of every process. None where it cannot be asked (MIG, no nvidia-smi)."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    try:
        said = subprocess.run(
            ["nvidia-smi", "-i", first, "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=20, check=True,
        ).stdout  # fmt: skip
        return int(said.split()[0]) * 2**20
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None


MACHINE = """
import importlib.metadata, json, platform, torch
said = {"torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip, "os": platform.platform()}
for name in ("diffusers", "peft"):
    try: said[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError: said[name] = "not there"
if torch.cuda.is_available():
    card = torch.cuda.get_device_properties(0)
    said |= {"gpu": card.name, "total": card.total_memory, "multiprocessors": card.multi_processor_count,
             "sm": card.major * 10 + card.minor, "cudnn": torch.backends.cudnn.version(),
             "allocator": torch.cuda.get_allocator_backend()}
print(json.dumps(said))
"""


def machine() -> dict[str, Any]:
    """Asked in a process of its own: this one must not hold a context."""
    try:
        said = subprocess.run([sys.executable, "-c", MACHINE], capture_output=True, text=True, timeout=600, check=True)
    except subprocess.SubprocessError as error:
        raise SystemExit(f"measure_gpu: torch cannot be asked about the card: {error}\n{error.stderr or ''}"[-3000:])
    out: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    out["date"] = datetime.date.today().isoformat()
    try:
        driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                                capture_output=True, text=True, timeout=20, check=True)  # fmt: skip
        out["driver"] = driver.stdout.split()[0]
    except (OSError, IndexError, subprocess.SubprocessError):
        out["driver"] = None
    out["alloc_conf"] = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") or ""
    return out


class Out:
    """The files. In a dry run all of it is only counted."""

    def __init__(self, folder: Path, about: dict[str, Any], dry: bool) -> None:
        self.folder, self.about, self.dry = folder, about, dry
        self.beside: list[dict[str, Any]] = []
        self.counts = {"rows": 0, "convolutions": 0}
        if not dry:
            folder.mkdir(parents=True, exist_ok=True)
            for name in ("rows.jsonl", "convolutions.jsonl"):
                (folder / name).write_text("", encoding="utf-8")
            self.machine()

    def _line(self, name: str, line: dict[str, Any]) -> None:
        self.counts[name] += 1
        if not self.dry:
            with (self.folder / f"{name}.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def machine(self) -> None:
        if not self.dry:
            text = json.dumps(self.about | {"beside_reserved": self.beside}, indent=1)
            (self.folder / "machine.json").write_text(text + "\n", encoding="utf-8")

    def convolution(self, line: dict[str, Any]) -> None:
        versions = {key: self.about.get(key) for key in ("gpu", "sm", "torch", "cudnn")}
        self._line("convolutions", line | versions)

    def row(self, said: dict[str, Any], device: int | None) -> None:
        """A line for each counter; one where it ran out of memory."""
        row, peaks = said["row"], said["peaks"]
        what = "-".join(str(part) for part in (
            row["model"], "decode" if row["task"] == "sample" else row["task"], row["dtype"],
            "x".join(map(str, row["resolution"])), f"b{row['batch_size']}"))  # fmt: skip
        about = self.about
        common = row | {
            "series": f"{about.get('gpu')}, torch {about['torch']}, {about['date']}", "gpu": about.get("gpu"),
            "gpu_total_gib": about.get("total", 0) / GIB, "date": about["date"], "completeness": "full",
            "trainer_version": f"torch {about['torch']}, cuDNN {about.get('cudnn')}, diffusers {about['diffusers']}",
        }  # fmt: skip
        if said["out_of_memory"]:
            self._line("rows", common | {"id": f"{what}-oom", "outcome": "oom"})
            return
        counters = {"torch_allocated": peaks["allocated"], "torch_reserved": peaks["reserved"], "nvidia_smi": device}
        for kind, value in counters.items():
            if self.dry or not value:
                self.counts["rows"] += 1 if self.dry else 0
                continue
            line = common | {"id": f"{what}-{kind}", "outcome": "fits", "measured_gib": value / GIB,
                             "measure_kind": kind, "bound": "point", "unit_in_source": "GiB"}  # fmt: skip
            if kind == "torch_allocated" and said["load"] > 0:
                line["load_gib"] = said["load"] / GIB
            self._line("rows", line)


def run_case(name: str, told: dict[str, Any], seconds: float, out: Out) -> str:
    """Starts the case's process, writes what it tells, ends it when its time is over. Returns what became of it."""
    before = used_on_card()
    told = told | {"dry": out.dry, "until": time.time() + 0.9 * seconds}
    environment = os.environ | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "0"}
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), "--case", json.dumps(told)], text=True, env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    lines: queue.Queue[str | None] = queue.Queue()
    errors: list[str] = []

    def read(stream: Any) -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, args=(process.stdout,), daemon=True).start()
    threading.Thread(target=lambda: errors.extend(process.stderr), daemon=True).start()
    end = time.monotonic() + seconds
    waiting: dict[str, Any] | None = None  # a row that waits for the card to be looked at
    became = "done"
    try:
        while True:
            try:
                line = lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                became = f"ended after {seconds:.0f} s"
                break
            if line is None:
                break
            if not line.startswith("{"):
                continue
            said = json.loads(line)
            if "convolution" in said:
                out.convolution(said["convolution"])
            elif "skipped" in said:
                became = said["skipped"]
            elif "context" in said or ("row" in said and "reserved" in said):
                waiting = said
            elif "row" in said:
                out.row(said, None)
            elif "pause" in said:
                used = used_on_card() if before is not None else None
                device = None if used is None or before is None else used - before
                if waiting is not None:
                    if "row" in waiting:
                        out.row(waiting, device)
                    if device is not None and not waiting.get("out_of_memory"):
                        where = waiting.get("context") or f"two steps, {name}"
                        out.beside.append({"where": where, "bytes": device - waiting["reserved"]})
                        out.machine()
                    waiting = None
                process.stdin.write("\n")
                process.stdin.flush()
    finally:
        if waiting is not None and "row" in waiting:
            out.row(waiting, None)
        if process.poll() is None and became != "done":
            process.kill()
        process.stdin.close()
        process.wait()
    if became == "done" and process.returncode != 0:
        became = f"failed with {process.returncode}: " + ("".join(errors).strip().splitlines() or [""])[-1][:300]
    return became


def chosen(only: str | None) -> list[tuple[str, dict[str, Any], float]]:
    wanted = only.split(",") if only else []
    plays = {told["play"] for _, told, _ in CASES}
    for word in wanted:
        if word not in plays:
            raise SystemExit(f"measure_gpu: --only knows {', '.join(sorted(plays))}, not {word}")
    return [case for case in CASES if not wanted or case[1]["play"] in wanted]


def show(only: str | None, dry: bool) -> int:
    for name, told, seconds in chosen(only):
        print(f"{name}: at most {seconds:.0f} s")
        if told["play"] == "convolutions":
            shapes = distinct_convolutions(dry)
            print(f"  {len(shapes)} distinct convolutions, in up to {len(MODES)} modes")
            for conv, where in shapes.items():
                print(f"  {where}: input {list(conv.input)}, weight {list(conv.weight)}, stride {list(conv.stride)}, "
                      f"padding {list(conv.padding)}, groups {conv.groups}")  # fmt: skip
    return 0


def main(args: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("measured"), help="folder of the files (default: measured)")
    budget_help = f"seconds for all of it (default {BUDGET:.0f}); more also gives each case more"
    parser.add_argument("--budget", type=float, default=BUDGET, help=budget_help)
    parser.add_argument("--only", metavar="PLAYS", help="of context, convolutions, vae, lora: some, with commas")
    parser.add_argument("--list", action="store_true", help="what would be measured; torch and diffusers, no GPU")
    parser.add_argument("--dry-run", action="store_true", help="every case with small models on the CPU, no numbers")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    told = parser.parse_args(args)
    if told.case is not None:
        case = json.loads(told.case)
        PLAYS[case["play"]](Case(case))
        return 0
    if told.list:
        return show(told.only, told.dry_run)
    about = machine()
    if not told.dry_run and "gpu" not in about:
        print("measure_gpu: torch sees no CUDA card; --list and --dry-run work without", file=sys.stderr)
        return 2
    out = Out(told.out, about, told.dry_run)
    end = time.monotonic() + told.budget
    failed = False
    for name, what, seconds in chosen(told.only):
        left = end - time.monotonic()
        if left < 20:
            print(f"{name}: no time left")
            continue
        became = run_case(name, what, min(seconds * max(1.0, told.budget / BUDGET), left), out)
        failed = failed or became.startswith("failed")
        print(f"{name}: {became}", flush=True)
    print(f"{out.counts['rows']} rows, {out.counts['convolutions']} convolutions" +
          ("" if told.dry_run else f" in {told.out}"))  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
