"""The accuracy command on made-up rows: each kind of bound and counter, each refusal, broken lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import vramest
from vramest.accuracy.__main__ import main
from vramest.accuracy.jobs import COUNTERS, Part, Question, Refusal, question_of
from vramest.accuracy.judge import GIB, Bound, Judged, Point, Unjudged, Unnamed, judge
from vramest.accuracy.predict import predict
from vramest.accuracy.rows import MEASURE_KINDS, Row, read_rows
from vramest.accuracy.spread import slopes, summary
from vramest.accuracy.table import page, percent
from vramest.accuracy.words import words

# FLUX.1 in memory and at work, as a pipeline whose parts are all resident.
SAMPLE: dict[str, Any] = {
    "id": "flux", "series": "made-up", "trainer": "diffusers", "model": "flux.1-dev", "task": "sample",
    "outcome": "fits", "resolution": [512, 512], "frames": 1, "batch_size": 1, "quantize": "none", "te_quantize": "none", "dtype": "bf16",
    "offload": "none", "te_on_gpu": True, "gpu": "H100 80GB", "measured_gib": 32.0, "measure_kind": "torch_allocated",
    "bound": "point", "unit_in_source": "GiB", "load_gib": 31.4, "url": "https://example.org/a",
}  # fmt: skip
LOOP: dict[str, Any] = {
    "id": "loop", "series": "made-up too", "trainer": "torch", "model": "flux.1-dev", "task": "train", "method": "lora",
    "outcome": "fits", "rank": 16, "resolution": [512, 512], "frames": 1, "batch_size": 1, "quantize": "none",
    "dtype": "bf16", "gradient_checkpointing": True, "optimizer": "adamw", "offload": "none", "cache_latents": True, "te_on_gpu": False,
    "gpu": "RTX 4090", "measured_gib": 24.0, "measure_kind": "torch_reserved", "bound": "point",
}  # fmt: skip
TOOLKIT: dict[str, Any] = {
    "id": "toolkit", "series": "made-up again", "trainer": "ai-toolkit", "model": "flux.1-dev", "task": "train",
    "outcome": "fits", "method": "lora", "rank": 16, "resolution": [512, 768], "batch_size": 1, "dtype": "bf16",
    "gradient_checkpointing": True, "optimizer": "adamw8bit", "quantize": "qfloat8", "te_quantize": "qfloat8",
    "cache_latents": True, "completeness": "full", "measured_gib": 24, "measure_kind": "card_size", "bound": "upper",
}  # fmt: skip
KOHYA: dict[str, Any] = {
    "id": "kohya", "series": "made-up once more", "trainer": "sd-scripts", "model": "flux.1-dev", "task": "train",
    "outcome": "fits", "method": "lora", "rank": 4, "resolution": [1024, 768], "batch_size": 2, "dtype": "bf16",
    "gradient_checkpointing": True, "optimizer": "adamw8bit", "quantize": "fp8 (fp8_base)", "attention": "sdpa",
    "cache_latents": True, "cache_text_embeds": True, "te_trained": False, "completeness": "full",
    "measured_gib": 24, "measure_kind": "card_size", "bound": "upper",
}  # fmt: skip


BETWEEN = object()


def row_of(fields: dict[str, Any]) -> Row:
    rows, complaints = read_rows(json.dumps({k: v for k, v in fields.items() if v is not None}).encode(), "rows.jsonl")
    assert complaints == []
    return rows[0]


def judged(fields: dict[str, Any], **but: Any) -> Judged:
    found = judge(row_of(fields | but), words())
    assert isinstance(found, Judged), found
    return found


def refused(fields: dict[str, Any], **but: Any) -> Refusal:
    found = judge(row_of(fields | but), words())
    assert isinstance(found, Unjudged), found
    return found.refusal


def question(fields: dict[str, Any], **but: Any) -> Question:
    found = question_of(row_of(fields | but), words())
    assert isinstance(found, Question), found
    return found


# ------------------------------------------------------------------------------------------------------------- rows
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "no JSON"),
        ("[1]", "a row is a JSON object"),
        ('{"id": "a", "id": "b"}', "id stands there twice"),
        (json.dumps(SAMPLE | {"measured_gib": float("nan")}), "NaN is no number"),
        (json.dumps({k: v for k, v in SAMPLE.items() if k != "model"}), "model is missing"),
        (json.dumps(SAMPLE | {"id": "  "}), 'id is "  ", and should be a text'),
        (json.dumps(SAMPLE | {"task": "dream"}), "should be one of train, sample, load, cache"),
        (json.dumps(SAMPLE | {"bound": "about"}), "should be one of point, approx, upper, lower"),
        (json.dumps(SAMPLE | {"measure_kind": "guess"}), "should be one of torch_allocated"),
        (json.dumps(SAMPLE | {"measured_gib": 0}), "should be a number above 0"),
        (json.dumps(SAMPLE | {"measured_gib": "32"}), "should be a number above 0"),
        (json.dumps(SAMPLE | {"batch_size": True}), "should be a whole number above 0"),
        (json.dumps(SAMPLE | {"resolution": [512, 0]}), "should be a list of whole numbers above 0"),
        (json.dumps(SAMPLE | {"te_on_gpu": "yes"}), "should be true or false"),
        (json.dumps({k: v for k, v in SAMPLE.items() if k != "bound"}), "measured_gib without bound"),
        ("[" * 100_000, "no JSON"),
        ('{"id": ' + "9" * 5000 + "}", "no JSON"),
        (json.dumps(SAMPLE | {"measured_gib": 10**400}), "should be a number above 0"),
        (json.dumps(SAMPLE | {"frames": 10**30}), "should be a whole number above 0"),
        (json.dumps(SAMPLE | {"id": "first"}), "id first stands in line 1 too"),
    ],
)
def test_a_broken_line_names_its_place(line: str, says: str) -> None:
    text = json.dumps(SAMPLE | {"id": "first"}) + "\n\n" + line + "\n"
    _, complaints = read_rows(text.encode(), "rows.jsonl")
    assert [c.fatal for c in complaints] == [True]
    assert str(complaints[0]).startswith("rows.jsonl:3: ") and says in str(complaints[0])


def test_bytes_that_are_no_text() -> None:
    _, complaints = read_rows(b"\xff\xfe\n", "rows.jsonl")
    assert [str(c) for c in complaints] == ["rows.jsonl:1: no UTF-8"]
    assert [str(c) for c in read_rows(b"", "rows.jsonl")[1]] == ["rows.jsonl:1: no rows"]


def test_an_unknown_field_is_a_warning() -> None:
    rows, complaints = read_rows(json.dumps(SAMPLE | {"batchsize": 2}).encode(), "rows.jsonl")
    assert len(rows) == 1
    assert [str(c) for c in complaints] == [
        "rows.jsonl:1: warning: unknown field batchsize is not read; did you mean batch_size?"
    ]


def test_every_kind_of_measure_has_a_counter() -> None:
    assert set(COUNTERS) == set(MEASURE_KINDS)


# ------------------------------------------------------------------------------------------------------------- jobs
def test_a_pipeline_is_asked_about_part_by_part() -> None:
    asked = question(SAMPLE, batch_size=4)
    assert [part.role for part in asked.parts] == ["text", "text", "denoise", "decode"]
    assert asked.gpu == "h100-sxm"
    denoise, decode = asked.parts[2].job, asked.parts[3].job
    assert denoise["model"] == "flux1_dev" and denoise["batch_size"] == 4  # FLUX is guided without a second prompt
    assert decode["component"] == "vae_flux1" and decode["op"] == "decode" and decode["batch_size"] == 4


def test_guidance_doubles_the_denoisers_batch_alone() -> None:
    asked = question(SAMPLE, model="cogvideox-5b", resolution=[720, 480], frames=49)
    sizes = {part.role: part.job["batch_size"] for part in asked.parts}
    assert sizes == {"text": 1, "denoise": 2, "decode": 1}
    assert asked.parts[-1].job["data"] == {"resolution": [720, 480], "frames": 49}


def test_what_else_is_resident_while_training() -> None:
    assert [part.role for part in question(LOOP).parts] == ["train"]
    asked = question(LOOP, te_on_gpu=True, cache_latents=False)
    assert [(part.role, part.job.get("component")) for part in asked.parts] == [
        ("train", None), ("held", "clip_l"), ("held", "t5_xxl"), ("held", "vae_flux1")
    ]  # fmt: skip


def test_a_script_of_diffusers_trains_under_autocast() -> None:
    script = "diffusers train_dreambooth_lora_flux"
    asked = question(LOOP, trainer=script, dtype="fp16", notes="EMA on, text length 77.")
    assert asked.parts[0].job["train"] == {
        "method": "lora", "batch_size": 1, "optimizer": "adamw", "gradient_checkpointing": True, "rank": 16,
        "adapter_dtype": "fp32", "autocast": "fp16", "ema": True,
    }  # fmt: skip
    assert asked.parts[0].job["data"] == {"resolution": [512, 512], "text_tokens": 77}


def test_a_config_of_ai_toolkit() -> None:
    asked = question(TOOLKIT, notes="EMA on", low_vram=True)
    assert asked.sets == {"data.buckets": [[512, 512, 1], [768, 768, 1]]}
    process = asked.parts[0].job["config"]["process"][0]
    assert process["model"] == {
        "name_or_path": "black-forest-labs/FLUX.1-dev", "arch": "flux", "quantize": True, "qtype": "qfloat8",
        "quantize_te": True, "qtype_te": "qfloat8", "low_vram": True,
    }  # fmt: skip
    del process["model"]["quantize_te"], process["model"]["qtype_te"]
    left_out = question(TOOLKIT, notes="EMA on", low_vram=True, te_quantize=None).parts[0].job
    assert left_out["config"]["process"][0]["model"] == process["model"]  # the trainer's default decides
    assert process["network"] == {"type": "lora", "linear": 16, "linear_alpha": 16}
    assert process["train"]["ema_config"] == {"use_ema": True} and process["train"]["disable_sampling"] is True


def test_a_config_of_sd_scripts() -> None:
    config = question(KOHYA, notes="A complete command, with --highvram.").parts[0].job
    assert config == {
        "pretrained_model_name_or_path": "black-forest-labs/FLUX.1-dev", "network_module": "networks.lora_flux", "network_dim": 4,
        "resolution": "1024,768", "train_batch_size": 2, "optimizer_type": "adamw8bit", "mixed_precision": "bf16",
        "gradient_checkpointing": True, "cache_latents": True, "cache_text_encoder_outputs": True,
        "network_train_unet_only": True, "fp8_base": True, "highvram": True, "sdpa": True,
    }  # fmt: skip
    assert vramest.check(config).job.trainer == "sd-scripts"
    assert judged(KOHYA).prediction.device is not None
    plain = question(KOHYA, model="sdxl", quantize="none", dtype="fp32", te_trained=True, attention=None).parts[0].job
    assert plain["mixed_precision"] == "no" and plain["network_module"] == "networks.lora" and "sdpa" not in plain
    assert plain["fp8_base"] is False and plain["network_train_unet_only"] is False


def test_what_a_row_of_ai_toolkit_says_in_words() -> None:
    def process(**but: Any) -> dict[str, Any]:
        found: dict[str, Any] = question(TOOLKIT, **but).parts[0].job["config"]["process"][0]
        return found

    adapted = process(quantize="uint3 + accuracy recovery adapter (torchao)")["model"]
    assert adapted["quantize"] is True and adapted["qtype"].startswith("uint3|")
    assert process(notes="One control image.")["datasets"][0]["control_path"].endswith("/1")
    assert "control_path" not in process()["datasets"][0]
    assert process(offload="inactive expert on CPU", low_vram=True)["model"]["low_vram"] is True
    assert process(te_on_gpu=False)["train"]["unload_text_encoder"] is True
    cached = process(te_on_gpu=False, cache_text_embeds=True)["train"]
    assert cached["cache_text_embeddings"] is True and "unload_text_encoder" not in cached


def test_a_resolution_that_no_square_picture_has() -> None:
    asked = question(TOOLKIT, resolution=[512, 632])
    assert asked.sets is None
    assert any("no square picture has that resolution" in remark for remark in asked.remarks)
    assert judged(TOOLKIT, resolution=[512, 632], notes="One control image.", model="flux.1-kontext-dev")


def test_one_text_encoder_that_is_quantised_by_name() -> None:
    asked = question(SAMPLE, model="sd3-medium", te_quantize="int8 (bnb) T5")
    schemes = {part.job["component"]: part.job.get("quantize") for part in asked.parts if part.role == "text"}
    assert schemes == {"clip_l": None, "openclip_bigg": None, "t5_xxl": "bnb_int8"}


@pytest.mark.parametrize(
    ("fields", "but", "why"),
    [
        (SAMPLE, {"trainer": "SimpleTuner"}, "trainer not modelled yet"),
        (SAMPLE, {"model": "no such model"}, "model not known"),
        (SAMPLE, {"model": "clip_l"}, "model not known"),  # a text encoder is no model to train or sample
        (SAMPLE, {"model": "chroma"}, "parts of the pipeline not listed"),
        (SAMPLE, {"task": "cache"}, "task cache not asked for with a pipeline"),
        (SAMPLE, {"resolution": None}, "resolution missing"),
        (SAMPLE, {"resolution": [512, 768, 1024]}, "resolution is no plain size"),
        (SAMPLE, {"frames": None}, "frames missing"),
        (SAMPLE, {"batch_size": None}, "batch size missing"),
        (SAMPLE, {"dtype": None}, "dtype missing"),
        (SAMPLE, {"dtype": "bf16 mixed"}, "dtype not known"),
        (SAMPLE, {"quantize": None}, "quantize missing"),
        (SAMPLE, {"te_quantize": None}, "te quantize missing"),
        (SAMPLE, {"quantize": "by hand"}, "quantisation not modelled"),
        (SAMPLE, {"offload": None}, "offload missing"),
        (SAMPLE, {"offload": "sequential CPU offload"}, "offload not modelled"),
        (SAMPLE, {"offload": "DDP"}, "several cards not modelled"),
        (SAMPLE, {"blocks_to_swap": 20}, "offload not modelled"),
        (SAMPLE, {"te_on_gpu": False}, "offload not modelled"),
        (SAMPLE, {"compile": "max-autotune"}, "torch.compile not modelled"),
        (SAMPLE, {"attention": "sage"}, "attention not the default"),
        (SAMPLE, {"gpu": "L20 48GB x2"}, "several cards not modelled"),
        (SAMPLE, {"gpu": "Voodoo 2"}, "card not known"),
        (SAMPLE, {"notes": "QKV fused."}, "fused QKV not modelled"),
        (SAMPLE, {"measure_kind": "torch_reserved"}, "counter cannot be compared"),
        (SAMPLE, {"measure_kind": "nvidia_smi"}, "counter cannot be compared"),
        (SAMPLE, {"measured_gib": None, "gpu": None}, "nothing to compare with"),
        (LOOP, {"rank": None}, "rank missing"),
        (LOOP, {"gradient_checkpointing": None}, "gradient checkpointing missing"),
        (LOOP, {"gradient_checkpointing": "segments of 2 blocks"}, "checkpointing not modelled"),
        (LOOP, {"te_on_gpu": None}, "what else is resident is not stated"),
        (LOOP, {"cache_latents": None}, "what else is resident is not stated"),
        (LOOP, {"task": "sample"}, "task sample not asked for with a loop"),
        (TOOLKIT, {"completeness": "partial"}, "config not full"),
        (TOOLKIT, {"model": "no such model"}, "model not known"),
        (TOOLKIT, {"quantize": "uint9 + accuracy recovery adapter (torchao)"}, "quantisation not modelled"),
        (TOOLKIT, {"notes": "Several control images possible."}, "number of control images missing"),
        (TOOLKIT, {"offload": "inactive expert on CPU"}, "offload not modelled"),  # that is low_vram, which is not said
        (LOOP, {"notes": "One control image."}, "control images not modelled"),
        (SAMPLE, {"quantize": "uint3 + accuracy recovery adapter (torchao)"}, "quantisation not modelled"),
        (TOOLKIT, {"model": "sd1.5"}, "model not known to ai-toolkit"),
        (TOOLKIT, {"task": "sample"}, "task sample not asked for with ai-toolkit"),
        (KOHYA, {"task": "sample"}, "sample lora not asked for with sd-scripts"),
        (KOHYA, {"method": "full"}, "train full not asked for with sd-scripts"),
        (KOHYA, {"completeness": "partial"}, "config not full"),
        (KOHYA, {"te_trained": None}, "te trained missing"),
        (KOHYA, {"model": "sd3-medium"}, "model not known to sd-scripts"),
        (KOHYA, {"gradient_checkpointing": "every second block"}, "checkpointing not modelled"),
        (KOHYA, {"quantize": "nf4 (bnb)"}, "quantisation not modelled"),
        (KOHYA, {"attention": "sage"}, "attention not modelled"),
        (KOHYA, {"blocks_to_swap": 16}, "offload not modelled"),
        (SAMPLE | {"trainer": "diffusers (VAE decode only)"}, {"dtype": None, "phase": "VAE decode"}, "dtype missing"),
        (SAMPLE | {"trainer": "diffusers (VAE decode only)"}, {"phase": "denoise"}, "a VAE's call that is no decode"),
    ],
)
def test_each_refusal(fields: dict[str, Any], but: dict[str, Any], why: str) -> None:
    assert refused(fields, **but).why == why


@pytest.mark.parametrize(
    ("but", "why"),
    [
        ({"sample": {"steps": 1}}, "not modelled, says vramest"),
        ({"model": "no such model"}, "model not known"),
        ({"train": {"method": "lora"}}, "vramest cannot say"),
    ],
)
def test_what_vramest_refuses_is_told_in_its_words(but: dict[str, Any], why: str) -> None:
    found = predict(Question((Part("train", dict(question(LOOP).parts[0].job) | but),)))
    assert isinstance(found, Refusal) and found.why == why and found.detail


# ------------------------------------------------------------------------------------------------------ judgements
def test_a_counter_that_is_named() -> None:
    found = judged(SAMPLE)
    assert isinstance(found.judgement, Point) and found.judgement.counter == "allocated"
    assert found.judgement.predicted == found.prediction.allocated / GIB
    assert found.at_rest is not None and found.at_rest.predicted == found.prediction.at_rest / GIB
    # Parts: FLUX and T5 and CLIP and the VAE, weights alone; in blocks of torch a little more.
    assert found.prediction.weights < found.prediction.at_rest < found.prediction.allocated


@pytest.mark.parametrize(
    ("kind", "counter"),
    [
        ("torch_allocated", "allocated"),
        ("torch_reserved", "reserved"),
        ("nvidia_smi", "device"),
        ("weights", "weights"),
        ("trainer_peak_probably_torch_allocated", "allocated, inferred"),
    ],
)
def test_each_counter_is_compared_with_itself(kind: str, counter: str) -> None:
    found = judged(LOOP, measure_kind=kind)
    point, told = found.judgement, found.prediction
    assert isinstance(point, Point) and point.counter == counter
    assert told.reserved is not None and told.device is not None
    ours = {"reserved": told.reserved, "device": sum(told.device) // 2, "weights": told.weights}
    assert point.predicted == ours.get(counter, told.allocated) / GIB
    assert told.weights < told.allocated < told.reserved < told.device[0]


@pytest.mark.parametrize("kind", ["user_reading", "author_figure", "vendor_or_docs_figure", "percent_of_card"])
def test_a_counter_that_nobody_named(kind: str) -> None:
    told = judged(LOOP, measure_kind=kind).prediction
    assert told.device is not None
    low, high = told.allocated / GIB, told.device[1] / GIB
    for measured, unit, miss in [
        ((low + high) / 2, "GiB", 0.0),
        (low / 1.1, "GiB", 0.1),
        (high * 1.25, "GiB", -0.2),
        (high * 1.05, "GB", 0.0),  # 10^9 bytes, perhaps
    ]:
        reading = judged(LOOP, measure_kind=kind, measured_gib=measured, unit_in_source=unit).judgement
        assert isinstance(reading, Unnamed) and reading.miss == pytest.approx(miss)


@pytest.mark.parametrize(
    ("but", "holds"),
    [
        ({"bound": "upper", "measured_gib": 40}, True),
        ({"bound": "upper", "measured_gib": 12}, False),
        ({"bound": "upper", "measured_gib": BETWEEN}, None),
        ({"bound": "lower", "measured_gib": BETWEEN}, None),
        ({"bound": "lower", "measured_gib": 12}, True),
        ({"bound": "lower", "measured_gib": 40}, False),
        ({"outcome": "oom", "measured_gib": None, "gpu": "RTX 3070"}, True),
        ({"outcome": "oom", "measured_gib": None, "gpu": "A100 80GB"}, False),
        ({"outcome": "oom", "measured_gib": 23.0, "gpu": "A100 80GB"}, False),  # the last reading before it failed
        ({"outcome": "fits", "measured_gib": None, "gpu": "A100 80GB"}, True),
        ({"outcome": "fits", "measured_gib": None, "gpu": "48GB class"}, True),
        ({"outcome": "fits", "measured_gib": None, "gpu": "8GB class"}, False),
    ],
)
def test_each_bound(but: dict[str, Any], holds: bool | None) -> None:
    if but["measured_gib"] is BETWEEN:  # within our range of the device
        low, high = judged(LOOP, measure_kind="nvidia_smi").prediction.device or (0, 0)
        but = but | {"measured_gib": (low + high) / 2 / GIB}
    bound = judged(LOOP, measure_kind="card_size", **but).judgement
    assert isinstance(bound, Bound) and bound.holds is holds


@pytest.mark.parametrize(
    ("but", "holds"),
    [
        ({"bound": "upper", "measured_gib": 40}, None),  # its allocated memory is below: that decides nothing
        ({"bound": "upper", "measured_gib": 30}, False),
        ({"bound": "lower", "measured_gib": 30}, True),
        ({"bound": "lower", "measured_gib": 40}, None),
        ({"outcome": "oom", "measured_gib": None, "gpu": "RTX 4090"}, True),
        ({"outcome": "fits", "measured_gib": None, "gpu": "H100 80GB"}, None),
        ({"outcome": "fits", "measured_gib": None, "gpu": "RTX 4090"}, False),
    ],
)
def test_of_a_pipeline_only_the_lower_end_is_known(but: dict[str, Any], holds: bool | None) -> None:
    bound = judged(SAMPLE, measure_kind="card_size", **but).judgement
    assert isinstance(bound, Bound) and bound.holds is holds


def test_a_reading_of_a_pipeline_has_no_upper_end() -> None:
    high, low = (judged(SAMPLE, measure_kind="user_reading", measured_gib=size).judgement for size in (99, 20))
    assert isinstance(high, Unnamed) and isinstance(low, Unnamed)
    assert (high.within, high.miss, low.within) == (None, 0.0, False) and low.miss > 0.5


def test_a_trainers_card() -> None:
    found = judged(TOOLKIT)
    assert isinstance(found.judgement, Bound) and found.judgement.holds is True
    assert found.prediction.phase == "quantize"


def test_loading_is_the_weights_alone() -> None:
    found = judged(SAMPLE, task="load", measure_kind="torch_allocated")
    assert found.prediction.phase == "load" and found.prediction.allocated == found.prediction.at_rest


# ------------------------------------------------------------------------------------------------------- statistics
def test_series_weigh_alike() -> None:
    row = row_of(SAMPLE)
    points = [(replace(row, series="a", id=f"a{i}"), Point("allocated", 10, 11)) for i in range(9)]
    points += [(replace(row, series="b", id="b"), Point("allocated", 10, 7))]
    told = summary(points)
    assert (told.rows, told.series, told.over, told.under, told.worst_id) == (10, 2, 9, 1, "b")
    assert told.median == pytest.approx(0.1) and told.mean == pytest.approx(0.12)
    assert told.worst == pytest.approx(-0.3) and told.signed == pytest.approx(0.06)
    assert told.by_series == pytest.approx(0.2)


def test_slopes_compare_rows_that_differ_in_one_thing() -> None:
    held = [judged(SAMPLE, id=f"b{n}", batch_size=n, measured_gib=31 + 1.5 * n) for n in (1, 2, 4)]
    held += [judged(SAMPLE, id="r", resolution=[1024, 1024], measured_gib=34.0)]
    batch, resolution = sorted(slopes(held), key=lambda slope: slope.unit, reverse=True)
    assert (batch.unit, batch.at) == ("picture", (1, 2, 4)) and batch.measured == pytest.approx(1.5)
    assert (resolution.unit, resolution.at) == ("megapixel", (0.262144, 1.048576))
    assert slopes(held[:1]) == [] and slopes([held[0], judged(SAMPLE, dtype="fp16", batch_size=2)]) == []


def test_percentages_have_no_minus_zero() -> None:
    assert [percent(x) for x in (-1e-9, 0.0, 0.01234, -0.5)] == ["0.00 %", "0.00 %", "+1.23 %", "-50.00 %"]


# ---------------------------------------------------------------------------------------------------------- command
@pytest.fixture
def reports(tmp_path: Path) -> Callable[..., Path]:
    def write(*rows: dict[str, Any]) -> Path:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "vramest.accuracy", *args], capture_output=True, text=True)


def test_the_command(reports: Callable[..., Path], tmp_path: Path) -> None:
    refused_rows = SAMPLE | {"id": "x", "trainer": "SimpleTuner"}, SAMPLE | {"id": "y", "dtype": None}
    path = reports(SAMPLE, LOOP, TOOLKIT, *refused_rows)
    done = run(str(path), "--out", str(tmp_path / "page.md"))
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "5 rows were read; 3 can be predicted today, 2 not yet." in done.stdout
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    for said in ("## In short", "## Points: every row", "## Bounds", "## Not predicted", "| dtype missing | 1 | 1 |",
                 "[`flux`](https://example.org/a)", "| `loop` |", "| trainer not modelled yet | 1 |"):  # fmt: skip
        assert said in text, said
    assert str(tmp_path) not in text  # of the file's path only its name
    assert run(str(path), "--out", "-").stdout == text


def test_the_order_of_rows_does_not_matter(reports: Callable[..., Path]) -> None:
    def written(*rows: dict[str, Any]) -> str:
        found = [judge(row_of(row), words()) for row in rows]
        return page("rows.jsonl", [one for one in found if isinstance(one, Judged)],
                    [one for one in found if isinstance(one, Unjudged)], {})  # fmt: skip

    rows = [SAMPLE, LOOP, TOOLKIT, SAMPLE | {"id": "z", "dtype": None}]
    assert written(*rows) == written(*reversed(rows))


def test_explanations_stand_beside_the_worst() -> None:
    found = [judged(SAMPLE, measured_gib=40.0), judged(SAMPLE, id="other", measured_gib=36.0)]
    text = page("rows.jsonl", found, [], {"flux": "a term | that is missing"})
    assert "a term \\| that is missing" in text and "not found out yet" in text


def test_bad_input_ends_with_2_and_no_traceback(reports: Callable[..., Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text(json.dumps(SAMPLE) + "\n{\n" + json.dumps(SAMPLE | {"id": "b", "task": "?"}) + "\n")
    good, page_here = str(reports(SAMPLE)), tmp_path / "page.md"
    no_folder = str(tmp_path / "no" / "a.md")
    for args in ([str(broken)], [str(tmp_path / "none.jsonl")], [str(tmp_path)], [good, "--out", no_folder],
                 [good, "--job", "none"], [], [good, "--what"]):  # fmt: skip
        done = run(*args)
        assert done.returncode == 2 and done.stderr and "Traceback" not in done.stderr, args
    assert main([good, "--out", "a\0b"]) == 2 and main(["a\0b"]) == 2
    done = run(str(broken), "--out", str(page_here))
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == [f"{broken}:2", f"{broken}:3"]
    assert not page_here.exists()


def test_a_rows_jobs_can_be_seen(reports: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = str(reports(SAMPLE, TOOLKIT, SAMPLE | {"id": "x", "trainer": "SimpleTuner"}))
    assert main([path, "--job", "flux"]) == 0
    assert '"component": "t5_xxl"' in (told := capsys.readouterr().out) and "# --gpu h100-sxm" in told
    assert main([path, "--job", "toolkit"]) == 0
    assert '"arch": "flux"' in capsys.readouterr().out
    assert main([path, "--job", "x"]) == 0
    assert capsys.readouterr().out == "trainer not modelled yet: SimpleTuner\n"


def test_the_data_files_name_what_is_known() -> None:
    known = words()
    for name in ("flux1_dev", "cogvideox_5b", "sd3_medium", "qwen_image"):
        pipeline = known.pipeline(name)
        assert pipeline is not None and known.model(name) == name
    assert known.model("flux.1-kontext-dev") == "flux1_kontext" and known.card("RTX 5090 32GB") == "rtx-5090"
    assert known.repository("flux1_dev") == "black-forest-labs/FLUX.1-dev"


def test_the_row_in_the_docs_is_one(source_dir: Path) -> None:
    text = (source_dir / "docs" / "measured-rows.md").read_text(encoding="utf-8")
    found = judge(row_of(json.loads(text.split("```json\n")[1].split("```")[0])), words())
    assert isinstance(found, Judged) and isinstance(found.judgement, Point)


def test_types(source_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "-p", "vramest.accuracy"],
        capture_output=True, text=True, cwd=tmp_path, env={"MYPYPATH": str(source_dir / "python")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_public_reports(tmp_path: Path, source_dir: Path) -> None:
    """On the rows themselves, where they are at hand: no complaint, and the page in docs/ is theirs."""
    named = os.environ.get("VRAMEST_REPORTS", "")
    if not named or not Path(named).is_file():
        pytest.skip("VRAMEST_REPORTS names no file of reports")
    done = run(named, "--out", str(tmp_path / "page.md"))
    assert done.returncode == 0 and done.stderr == ""
    page_there = (source_dir / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == page_there


# ---- models that move to the card as they are called
def in_turn(**but: Any) -> Question:
    found = question_of(row_of(SAMPLE | {"model": "sd3-medium", "dtype": "fp16", "offload": "model CPU offload", "te_on_gpu": None,
                                         "completeness": "full", "load_gib": None} | but), words())  # fmt: skip
    assert isinstance(found, Question), found
    return found


def test_models_that_move_are_asked_about_in_the_order_of_their_calls() -> None:
    question = in_turn()
    assert [part.role for part in question.parts] == ["text", "text", "text", "denoise", "decode"]
    assert question.moves == (0, 1, 2, 0, 1, 2, 3, 4)  # the prompt, the negative prompt, the denoiser, the VAE
    assert in_turn(model="flux.1-dev", dtype="bf16").moves == (0, 1, 2, 3)  # one prompt
    dropped = in_turn(te_quantize="T5 dropped")
    assert [part.job.get("component") for part in dropped.parts] == ["clip_l", "openclip_bigg", None, "vae_sd3_16ch"]
    assert dropped.moves == (0, 1, 0, 1, 2, 3)


def test_a_model_that_moves_finds_what_its_predecessor_in_order_did_not_send_away() -> None:
    """The largest encoder comes last, and is still there when the second comes again for the negative prompt."""
    alone = {part.job.get("component"): predict(replace(in_turn(), parts=(part,), moves=None)) for part in in_turn().parts}
    t5, bigg = alone["t5_xxl"], alone["openclip_bigg"]
    whole = predict(in_turn())
    assert not isinstance(t5, Refusal) and not isinstance(bigg, Refusal) and not isinstance(whole, Refusal)
    assert whole.allocated == t5.at_rest + bigg.allocated
    assert whole.phase == "text"
    assert whole.at_rest == 0
    without = predict(in_turn(te_quantize="T5 dropped"))
    assert not isinstance(without, Refusal)
    assert without.phase == "denoise"
    assert without.allocated < whole.allocated


def test_models_that_move_need_a_full_row() -> None:
    assert refused(SAMPLE, offload="model CPU offload", te_on_gpu=None, completeness="partial").why == "config not full"
    assert refused(SAMPLE, offload="sequential CPU offload", completeness="full").why == "offload not modelled"
    assert refused(LOOP, offload="model CPU offload", completeness="full").why == "offload not modelled"


def test_versions_that_a_row_states_are_asked_about() -> None:
    question = question_of(row_of(LOOP | {"trainer_version": "torch 2.9.1+cu128, cuDNN 91002, diffusers 0.36"}), words())
    assert isinstance(question, Question)
    assert question.sets == {"environment.torch": "2.9", "environment.cudnn": "9.10.2"}
    assert words().versions("cuDNN 8902") == {"environment.cudnn": "8.9.2"}
    plain = question_of(row_of(LOOP | {"trainer_version": "0.36"}), words())
    assert isinstance(plain, Question) and plain.sets is None


def test_a_card_goes_by_the_name_that_torch_gives_it() -> None:
    assert words().card("NVIDIA GeForce RTX 4090") == "rtx-4090"
    assert words().card("nobody's card") is None


def test_a_script_that_loads_in_bf16_keeps_nothing_in_fp32() -> None:
    """T5's wo stays in fp32 where it is loaded in fp16: 2 bytes more a value."""
    fields = SAMPLE | {"model": "cogvideox-2b", "dtype": "fp16", "resolution": [720, 480], "frames": 49}
    loaded, converted = (predict(question) for question in (
        question_of(row_of(fields), words()), question_of(row_of(fields | {"series": "diffusers-torchao"}), words()))
        if isinstance(question, Question))  # fmt: skip
    assert not isinstance(loaded, Refusal) and not isinstance(converted, Refusal)
    assert loaded.weights - converted.weights == 24 * 10240 * 4096 * 2
