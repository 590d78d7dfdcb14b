"""vramest.check: what it takes, what it answers."""

from __future__ import annotations

import json
from collections import OrderedDict, UserDict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import vramest


def test_a_report_reads_as_its_json(job: dict[str, Any]) -> None:
    report = vramest.check(job)
    assert report.verdict in ("fits", "tight", "does_not_fit")
    assert report.to_dict() == json.loads(report.to_json())
    told = report.to_dict()
    assert told["verdict"] == report.verdict
    assert told["reason"] == report.reason
    assert told["vramest"] == vramest.__version__
    for thing, fields in {
        "job": report.job, "gpu": report.gpu, "peak": report.peak, "checkpointing": report.checkpointing, "risk": report.risk,
    }.items():  # fmt: skip
        for key, value in told[thing].items():
            if not isinstance(value, dict) or isinstance(getattr(fields, key), dict):
                assert getattr(fields, key) == value, (thing, key)
    assert report.checkpointing.other is not None
    for key, value in told["checkpointing"]["other"].items():
        assert getattr(report.checkpointing.other, key) == value, key
    assert (report.breaks_first is None) == (told["breaks_first"] is None)
    for name in ("weights", "adapter", "optimizer_state", "gradients", "inputs", "targets", "kept_for_backward"):
        assert getattr(report, name) == told[name], name
    assert [[name, list(shape), dtype] for name, shape, dtype in report.input_tensors] == told["input_tensors"]
    assert report.counts.attention_calls == told["counts"]["attention_calls"]
    assert report.counts.parameters == told["counts"]["parameters"] > 11e9
    assert [phase.name for phase in report.phases] == [phase["name"] for phase in told["phases"]]
    for phase, told_phase in zip(report.phases, told["phases"], strict=True):
        for key, value in told_phase.items():
            if key == "stages":
                assert [stage.name for stage in phase.stages] == [stage["name"] for stage in value]
                for stage, told_stage in zip(phase.stages, value, strict=True):
                    assert all(getattr(stage, field) == size for field, size in told_stage.items())
            else:
                read = getattr(phase, key)
                assert (list(read) if isinstance(read, tuple) else read) == value, key
    assert [(p.component, p.category, p.low, p.high, p.source) for p in report.breakdown] == [
        (p["component"], p["category"], p["low"], p["high"], p["source"]) for p in told["breakdown"]
    ]


def test_the_breakdown_adds_up_to_the_byte(job: dict[str, Any]) -> None:
    report = vramest.check(job)
    assert report.peak is not None
    assert sum(part.low for part in report.breakdown) == report.peak.device_low
    assert sum(part.high for part in report.breakdown) == report.peak.device_high


def test_a_phase_by_its_name(job: dict[str, Any]) -> None:
    report = vramest.check(job)
    step = report.phase("step 2")
    assert step.kind == "train"
    assert [stage.name for stage in step.stages] == ["forward", "loss", "backward", "optimizer"]
    with pytest.raises(KeyError, match="step 2"):  # says which there are
        report.phase("step 9")


def test_parts_outlive_their_report(job: dict[str, Any]) -> None:
    stages = vramest.check(job).phase("step 2").stages
    assert stages[0].name == "forward" and stages[0].tensors_peak > 0


def test_a_path_and_a_dict_say_the_same(job: dict[str, Any], write: Any) -> None:
    path = write()
    by_text, by_path, by_dict = vramest.check(str(path)), vramest.check(path), vramest.check(job)
    assert by_text == by_path
    assert by_dict.job.source == "<dict>" and by_path.job.source == str(path)
    told, expected = by_dict.to_dict(), by_path.to_dict()
    told["job"]["source"] = expected["job"]["source"]
    assert told == expected


def test_any_mapping_will_do(job: dict[str, Any]) -> None:
    expected = vramest.check(job)
    for mapping in (OrderedDict(job), UserDict(job), MappingProxyType(job)):
        assert vramest.check(mapping) == expected


def test_a_card_or_a_capacity(job: dict[str, Any]) -> None:
    assert vramest.check(job, gpu="RTX 3090").gpu.id == "rtx-3090"
    assert vramest.check(job, gpu="RTX 3090").gpu.chosen_by == "flag"
    assert vramest.check(job).gpu.chosen_by == "job"
    small = vramest.check(job, capacity="8 GiB")
    assert (small.gpu.capacity, small.verdict, small.exit_code()) == (8 << 30, "does_not_fit", 1)
    assert vramest.check(job, capacity=8 << 30) == small
    del job["gpu"]
    assert vramest.check(job).gpu.chosen_by == "smallest_that_holds"


def test_settings_override(job: dict[str, Any]) -> None:
    job["data"]["resolution"] = [768, 512]
    job["train"]["batch_size"] = 2
    job["environment"] = {"torch": "2.10"}
    expected = vramest.check(job).phase("step 2")
    assert expected.batch_size == 2 and expected.bucket == (768, 512, 1)
    values = {"train.batch_size": 2, "data.resolution": (768, 512), "environment.torch": "2.10"}
    for sets in (values, ["train.batch_size=2", "data.resolution=[768, 512]"]):
        changed = vramest.check(job, sets=sets).phase("step 2")
        assert (changed.tensors_peak, changed.bucket) == (expected.tensors_peak, expected.bucket)


def test_more_need_is_more(job: dict[str, Any]) -> None:
    peaks = [vramest.check(job, sets={"train.batch_size": n}).peak for n in (1, 2, 4)]
    sizes = [peak.tensors for peak in peaks if peak is not None]
    assert len(sizes) == 3 and sizes == sorted(sizes)


def test_it_shows_itself(job: dict[str, Any]) -> None:
    report = vramest.check(job)
    assert repr(report).startswith("<vramest.Report flux1_dev ") and "rtx-4090" in repr(report)
    assert str(report) == report.to_text()
    assert "GiB" in str(report)
    assert "\n" not in report.to_json(indent=-1)
    with pytest.raises(TypeError):
        hash(report)
    assert (report == 1) is False


def test_lists_of_what_is_known() -> None:
    assert "flux1_dev" in [model.id for model in vramest.models()]
    assert all(model.parameters > 0 and model.source for model in vramest.models())
    cards = {card.id: card for card in vramest.gpus()}
    assert cards["rtx-4090"].linux_capacity.low > 22 << 30
    assert "torch" in [trainer.id for trainer in vramest.trainers()]


def test_the_examples_have_a_verdict(source_dir: Path) -> None:
    examples = sorted((source_dir / "examples").rglob("*.yaml"))
    assert examples
    for example in examples:
        report = vramest.check(example, gpu="rtx-4090")
        assert report.verdict != "cannot_say", f"{example.name}: {report.reason}"
