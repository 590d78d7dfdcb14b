"""A row's job: the text that vramest is asked about, or why there is none.

Nothing is filled in. A setting that the row does not state and that moves memory refuses the row; but where a row
calls itself full, a setting of ai-toolkit or sd-scripts that it does not name stands at the trainer's default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vramest.accuracy.rows import Row
from vramest.accuracy.words import Pipeline, Script, Words

# What the row's number counts. Kinds whose counter is not said are compared with none of ours.
COUNTERS = {
    "torch_allocated": "allocated",
    "torch_reserved": "reserved",
    "nvidia_smi": "device",
    "trainer_peak_probably_torch_allocated": "allocated, inferred",
    "weights": "weights",
    "card_size": "device",
    "user_reading": "not named",
    "author_figure": "not named",
    "vendor_or_docs_figure": "not named",
    "percent_of_card": "not named",
}
DTYPES = ("bf16", "fp16", "fp32")
FP8_BASE = "fp8 (fp8_base)"
# Every model's buckets have sides that are multiples of one that divides this.
_CELL = 64


@dataclass(frozen=True)
class Refusal:
    """`why` is what rows are counted under; `detail` is this row's."""

    why: str
    detail: str = ""


class Refused(Exception):
    """Raised where a setting stops the row; `question_of` turns it into its Refusal."""

    def __init__(self, why: str, detail: str = "") -> None:
        super().__init__(why)
        self.refusal = Refusal(why, detail)


@dataclass(frozen=True)
class Part:
    """One job, and its place in the whole: `train`, `denoise`, `decode`, `text`; `held`: only its weights are there."""

    role: str
    job: Mapping[str, Any]

    def text(self) -> str:
        return json.dumps(self.job, indent=1, ensure_ascii=False)


@dataclass(frozen=True)
class Question:
    """One part: vramest's answer as it is. Several: models that are resident together and called one after another.

    `moves`: none is resident; the parts as they are called, each brought to the card by its call. Then the one before
    it in `parts` leaves, and no other.
    """

    parts: tuple[Part, ...]
    gpu: str | None = None
    capacity: str | None = None
    sets: Mapping[str, Any] | None = None
    loads_only: bool = False
    remarks: tuple[str, ...] = ()
    moves: tuple[int, ...] | None = None


def counter_of(row: Row) -> str | None:
    """Which of our counters the row's number is held against: a value of COUNTERS; None where there is no number."""
    return COUNTERS[row.measure_kind] if row.measure_kind is not None and row.measured_gib is not None else None


def _need(row: Row, *keys: str) -> None:
    for key in keys:
        if getattr(row, key) is None:
            raise Refused(f"{key.replace('_', ' ')} missing")


def _dtype(row: Row) -> str:
    _need(row, "dtype")
    if row.dtype not in DTYPES:
        raise Refused("dtype not known", str(row.dtype))
    return row.dtype


def _scheme(word: str | None, words: Words, what: str) -> str:
    if word is None:
        raise Refused(f"{what} missing")
    if (scheme := words.scheme(word)) is None:
        raise Refused("quantisation not modelled", word)
    return scheme


def _size(row: Row) -> list[int]:
    """[w, h] of a row with one size."""
    assert row.resolution is not None
    if row.resolution_kind is not None and "bucket" in row.resolution_kind:
        raise Refused("resolution is no plain size", row.resolution_kind)
    if len(row.resolution) == 1:
        return [row.resolution[0]] * 2
    if len(row.resolution) != 2:
        raise Refused("resolution is no plain size", f"{len(row.resolution)} sizes")
    return list(row.resolution)


def _data(row: Row, model_has_frames: bool = True) -> dict[str, Any]:
    _need(row, "resolution", "frames")
    data: dict[str, Any] = {"resolution": _size(row)}
    if model_has_frames and row.frames is not None and row.frames > 1:
        data["frames"] = row.frames
    return data


def _card(row: Row, words: Words) -> tuple[str | None, str | None, tuple[str, ...]]:
    """gpu, capacity, remarks."""
    if row.gpu is None:
        return None, None, ("card not stated: kernels as on sm89",)
    if re.search(r"x\s?\d+$", row.gpu):
        raise Refused("several cards not modelled", row.gpu)
    if (card := words.card(row.gpu)) is not None:
        return card, None, ()
    if size := re.fullmatch(r"(\d+)\s?GB class", row.gpu):
        return None, f"{row.gpu_total_gib or size[1]} GiB", (f"card said as {row.gpu}: kernels as on sm89",)
    raise Refused("card not known", row.gpu)


def _versions(row: Row, words: Words) -> dict[str, Any] | None:
    """What the row says of torch and cuDNN; None where it says nothing."""
    return words.versions(row.trainer_version) or None


def _refuse_what_no_job_has(row: Row, words: Words, plays: str) -> None:
    if row.compile not in (None, "none"):
        raise Refused("torch.compile not modelled", str(row.compile))
    offload = words.offload(row.offload)
    played = (plays == "pipeline" and offload == "model") or (
        plays == "ai-toolkit" and offload == "low_vram" and row.low_vram is True
    )
    if row.offload not in (None, "none") and not played:
        if re.search(r"ulysses|ddp|fsdp|x\d", str(row.offload).lower()):
            raise Refused("several cards not modelled", str(row.offload))
        raise Refused("offload not modelled", str(row.offload))
    if row.blocks_to_swap:
        raise Refused("offload not modelled", f"{row.blocks_to_swap} blocks swapped")
    if row.attention is not None and plays != "sd-scripts":
        raise Refused("attention not the default", row.attention)
    if (said := words.refused_by_notes(row.notes, plays)) is not None:
        raise Refused(*said)


# ------------------------------------------------------------------------------------------------------ ai-toolkit
def _ai_toolkit(row: Row, words: Words, model: str) -> Question:
    if row.task != "train":
        raise Refused(f"task {row.task} not asked for with ai-toolkit")
    keys = ["method", "resolution", "batch_size", "gradient_checkpointing", "dtype", "optimizer"]
    _need(row, *keys, *(["rank"] if row.method != "full" else []))
    if row.completeness != "full":
        raise Refused("config not full", "what it does not name need not stand at the default")
    if (arch := words.arch(model)) is None:
        raise Refused("model not known to ai-toolkit", row.model)
    if not isinstance(row.gradient_checkpointing, bool):
        raise Refused("checkpointing not modelled", str(row.gradient_checkpointing))
    assert row.resolution is not None
    config: dict[str, Any] = {"name_or_path": words.repository(model), "arch": arch}
    for flag, qtype, said in (("quantize", "qtype", row.quantize), ("quantize_te", "qtype_te", row.te_quantize)):
        if said is None:
            continue
        value = words.qtype(said) or _scheme(said, words, flag).rpartition("_")[2]
        config[flag] = value != "none"
        if value != "none":
            config[qtype] = value
    if row.low_vram:
        config["low_vram"] = True
    train: dict[str, Any] = {
        "batch_size": row.batch_size, "dtype": _dtype(row), "optimizer": row.optimizer, "noise_scheduler": "flowmatch",
        "gradient_checkpointing": row.gradient_checkpointing, "disable_sampling": True,
    }  # fmt: skip
    if words.notes_say("ema", row.notes):
        train["ema_config"] = {"use_ema": True}
    if row.cache_text_embeds:
        train["cache_text_embeddings"] = True
    elif row.te_on_gpu is False:
        train["unload_text_encoder"] = True  # what else takes it away while steps run
    dataset: dict[str, Any] = {"folder_path": "pictures/that/the/row/does/not/name", "resolution": list(row.resolution)}
    dataset["cache_latents_to_disk"] = bool(row.cache_latents)
    if (controls := words.control_images(row.notes)) is None:
        raise Refused("number of control images missing")
    if controls > 0:
        paths = [f"controls/that/the/row/does/not/name/{n}" for n in range(1, controls + 1)]
        dataset["control_path"] = paths if controls > 1 else paths[0]
    process: dict[str, Any] = {"type": "sd_trainer", "device": "cuda:0", "datasets": [dataset], "train": train}
    process["model"] = config
    if row.method != "full":
        process["network"] = {"type": row.method, "linear": row.rank, "linear_alpha": row.rank}
    gpu, capacity, remarks = _card(row, words)
    remarks = ("no samples: the row does not give their size", *remarks)
    sets: dict[str, Any] | None = None
    if all(side % _CELL == 0 for side in row.resolution):
        # A bucket of a square picture: the row says no more about the dataset.
        sets = {"data.buckets": [[side, side, row.frames or 1] for side in row.resolution]}
    else:
        remarks = ("no square picture has that resolution: its heaviest bucket", *remarks)
    job = {"job": "extension", "config": {"name": "row", "process": [process]}}
    return Question((Part("train", job),), gpu, capacity, sets, remarks=remarks)


# ------------------------------------------------------------------------------------------------------ sd-scripts
def _sd_scripts(row: Row, words: Words, model: str) -> Question:
    if row.task != "train" or row.method != "lora":
        raise Refused(f"{row.task} {row.method or ''}".rstrip() + " not asked for with sd-scripts")
    _need(row, "rank", "resolution", "batch_size", "gradient_checkpointing", "optimizer", "te_trained")
    if row.completeness != "full":
        raise Refused("config not full", "what it does not name need not stand at the default")
    if (module := words.network_module(model)) is None:
        raise Refused("model not known to sd-scripts", row.model)
    if not isinstance(row.gradient_checkpointing, bool):
        raise Refused("checkpointing not modelled", str(row.gradient_checkpointing))
    if row.quantize not in (None, "none", FP8_BASE):
        raise Refused("quantisation not modelled", row.quantize)
    if row.attention not in (None, "sdpa", "xformers"):
        raise Refused("attention not modelled", row.attention)
    width, height = _size(row)
    dtype = _dtype(row)
    config: dict[str, Any] = {
        "pretrained_model_name_or_path": words.repository(model), "network_module": module, "network_dim": row.rank,
        "resolution": f"{width},{height}", "train_batch_size": row.batch_size, "optimizer_type": row.optimizer,
        "mixed_precision": "no" if dtype == "fp32" else dtype, "gradient_checkpointing": row.gradient_checkpointing,
        "cache_latents": bool(row.cache_latents), "cache_text_encoder_outputs": bool(row.cache_text_embeds),
        "network_train_unet_only": not row.te_trained, "fp8_base": row.quantize == FP8_BASE,
        "highvram": words.notes_say("highvram", row.notes),
    }  # fmt: skip
    if row.attention is not None:
        config[row.attention] = True
    gpu, capacity, remarks = _card(row, words)
    remarks = ("no samples: the row does not give their size", *remarks)
    return Question((Part("train", config),), gpu, capacity, remarks=remarks)


# ---------------------------------------------------------------------------------------------------- plain PyTorch
def _component(role: str, name: str, op: str, dtype: str, batch: int, data: Mapping[str, Any], scheme: str) -> Part:
    job: dict[str, Any] = {"vramest": 1, "trainer": "torch", "component": name, "op": op, "dtype": dtype}
    job |= {"batch_size": batch, "data": dict(data)}
    if scheme != "none":
        job["quantize"] = scheme
    return Part(role, job)


def _of_same_size(dtype: str) -> str:
    """Of a text encoder that was converted after loading: what transformers keeps in fp32 where it loads in fp16 (T5's
    wo) is not kept then. A job says only what is loaded."""
    return "bf16" if dtype == "fp16" else dtype


def _pipeline_of(model: str, words: Words) -> Pipeline:
    pipeline = words.pipeline(model)
    if pipeline is None or pipeline.guidance is None:
        raise Refused("parts of the pipeline not listed", model)
    return pipeline


def _loop(row: Row, words: Words, script: Script, model: str) -> Question:
    if row.task != "train":
        raise Refused(f"task {row.task} not asked for with a loop")
    _need(row, "method", "resolution", "frames", "batch_size", "gradient_checkpointing", "optimizer", "offload", "quantize")
    _need(row, *(["rank"] if row.method != "full" else []))
    if not isinstance(row.gradient_checkpointing, bool):
        raise Refused("checkpointing not modelled", str(row.gradient_checkpointing))
    dtype = _dtype(row)
    scheme = _scheme(row.quantize, words, "quantize")
    train: dict[str, Any] = {"method": row.method, "batch_size": row.batch_size, "optimizer": row.optimizer}
    train["gradient_checkpointing"] = row.gradient_checkpointing
    if row.method != "full":
        train["rank"] = row.rank
        if dtype in script.fp32_adapter_with:
            train["adapter_dtype"] = "fp32"
    if script.autocast and dtype != "fp32":
        train["autocast"] = dtype
    if words.notes_say("ema", row.notes):
        train["ema"] = True
    data = _data(row)
    if (tokens := words.text_tokens(row.notes)) is not None:
        data["text_tokens"] = tokens
    job = {"vramest": 1, "trainer": "torch", "model": model, "dtype": dtype, "train": train, "data": data}
    if scheme != "none":
        job["quantize"] = scheme
    parts = [Part("train", job)]
    encoders, vae = row.te_on_gpu, None if row.cache_latents is None else not row.cache_latents
    if encoders is None and row.cache_text_embeds:
        encoders = False
    if encoders is None or vae is None:
        raise Refused("what else is resident is not stated", "text encoders" if encoders is None else "the VAE")
    if encoders or vae:
        pipeline = _pipeline_of(model, words)
        size: dict[str, Any] = {key: value for key, value in data.items() if key != "text_tokens"}
        te_scheme = _scheme(row.te_quantize or "none", words, "te quantize")
        held = _of_same_size(dtype) if script.converts else dtype
        for name, padded in pipeline.text_encoders if encoders else ():
            parts.append(_component("held", name, "forward", held, 1, {"text_tokens": padded}, te_scheme))
        if vae:
            parts.append(_component("held", pipeline.vae, "encode", dtype, 1, size, "none"))
    gpu, capacity, remarks = _card(row, words)
    return Question(tuple(parts), gpu, capacity, _versions(row, words), remarks=remarks)


# ------------------------------------------------------------------------------------------------ diffusers sampling
def _sampling(row: Row, words: Words, model: str) -> Question:
    if row.task not in ("sample", "load"):
        raise Refused(f"task {row.task} not asked for with a pipeline")
    resident = words.notes_say("resident", row.notes)
    if row.offload is None and not resident:
        raise Refused("offload missing")
    if row.te_on_gpu is False:
        raise Refused("offload not modelled", "text encoders elsewhere")
    in_turn = words.offload(row.offload) == "model"
    if in_turn and row.task != "sample":
        raise Refused("offload not modelled", "a load of models that move later")
    if in_turn and row.completeness != "full":
        raise Refused("config not full", "which models move follows from the pipeline's defaults")
    pipeline = _pipeline_of(model, words)
    dtype = _dtype(row)
    scheme = _scheme(row.quantize, words, "quantize")
    if row.te_quantize is None and not resident:
        raise Refused("te quantize missing")
    dropped = words.dropped(row.te_quantize)
    by_name = words.quantized(row.te_quantize)
    te_scheme = "none" if dropped or by_name else _scheme(row.te_quantize or "none", words, "te quantize")
    data: dict[str, Any] = {}
    batch = 1
    if row.task == "sample":
        _need(row, "resolution", "frames", "batch_size")
        data = _data(row)
        batch = row.batch_size or 1
    tokens = words.text_tokens(row.notes)
    denoiser: dict[str, Any] = {"vramest": 1, "trainer": "torch", "model": model, "dtype": dtype}
    denoiser["batch_size"] = batch * (2 if pipeline.guidance == "batched" else 1)
    if scheme != "none":
        denoiser["quantize"] = scheme
    denoiser["data"] = data | ({"text_tokens": tokens} if tokens is not None else {})
    loaded = _of_same_size(dtype) if words.converts(row.series) else dtype
    parts = [
        _component(
            "text", name, "forward", loaded, batch, {"text_tokens": padded}, by_name.get(name, te_scheme)
        )
        for name, padded in pipeline.text_encoders
        if name not in dropped
    ]
    encoders = tuple(range(len(parts)))
    parts.append(Part("denoise", denoiser))
    parts.append(_component("decode", pipeline.vae, "decode", dtype, batch, data, "none"))
    moves = None
    if in_turn:
        prompts = 1 if pipeline.guidance == "none" else 2
        moves = encoders * prompts + (len(encoders), len(encoders) + 1)
    gpu, capacity, remarks = _card(row, words)
    return Question(tuple(parts), gpu, capacity, _versions(row, words), row.task == "load", remarks, moves)


def _vae_alone(row: Row, words: Words, model: str) -> Question:
    if row.task != "sample" or row.phase != "VAE decode":
        raise Refused("a VAE's call that is no decode", str(row.phase))
    _need(row, "resolution", "frames", "batch_size", "dtype")
    if (pipeline := words.pipeline(model)) is None:
        raise Refused("parts of the pipeline not listed", model)
    gpu, capacity, remarks = _card(row, words)
    part = _component("decode", pipeline.vae, "decode", _dtype(row), row.batch_size or 1, _data(row), "none")
    return Question((part,), gpu, capacity, _versions(row, words), remarks=remarks)


def question_of(row: Row, words: Words) -> Question | Refusal:
    """What to ask about `row`. Reasons are looked for in this order: trainer, model, what was measured, settings."""
    try:
        if (script := words.script(row.trainer)) is None:
            raise Refused("trainer not modelled yet", row.trainer)
        if (model := words.model(row.model)) is None:
            raise Refused("model not known", row.model)
        if row.measured_gib is None and row.gpu is None:
            raise Refused("nothing to compare with", "neither a number nor a card")
        _refuse_what_no_job_has(row, words, script.plays)
        if script.plays == "ai-toolkit":
            return _ai_toolkit(row, words, model)
        if script.plays == "sd-scripts":
            return _sd_scripts(row, words, model)
        if script.plays == "loop":
            return _loop(row, words, script, model)
        return _sampling(row, words, model) if script.plays == "pipeline" else _vae_alone(row, words, model)
    except Refused as refused:
        return refused.refusal
