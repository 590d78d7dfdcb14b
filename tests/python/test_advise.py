"""vramest.advise: what it takes, what it answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import vramest

CONFIG = """# a run of mine
vramest: 1
trainer: torch
model: flux1_dev
train:
  method: lora
  rank: 16   # small
  batch_size: 4
  gradient_checkpointing: false  # faster
data: {resolution: 1024}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(CONFIG)
    return path


def test_the_first_advice_fits_when_it_is_checked(config: Path, tmp_path: Path) -> None:
    advised = vramest.advise(config, gpu="rtx-6000-ada")
    assert advised.before == vramest.check(config, gpu="rtx-6000-ada") or advised.before.checkpointing.other is None
    assert advised.before.verdict == "does_not_fit"
    assert advised.exit_code() == 0
    first = advised.fits[0]
    assert first.verdict == "fits"
    (change,) = first.changes
    assert change.lever == "gradient_checkpointing"
    (edit,) = change.edits
    assert (edit.key, edit.line, edit.before, edit.after) == ("train.gradient_checkpointing", 9, "false", "true")
    assert first.file == CONFIG.replace("checkpointing: false ", "checkpointing: true ")
    copy = tmp_path / "copy.yaml"
    copy.write_text(first.file)
    after = vramest.check(copy, gpu="rtx-6000-ada")
    assert after.verdict == "fits"
    assert after.peak is not None and advised.before.peak is not None
    assert first.saves == advised.before.peak.device_high - after.peak.device_high > 0
    assert config.read_text() == CONFIG


def test_it_reads_as_its_json(config: Path) -> None:
    advised = vramest.advise(config, gpu="rtx-6000-ada")
    told = json.loads(advised.to_json())
    assert told == advised.to_dict()
    assert [len(told[key]) for key in ("fits", "helps", "idle")] == [
        len(advised.fits), len(advised.helps), len(advised.idle),
    ]  # fmt: skip
    for proposal, told_proposal in zip(advised.fits, told["fits"], strict=True):
        for key in ("verdict", "phase", "stage", "device_low", "device_high", "saves", "saves_there", "short_of"):
            assert getattr(proposal, key) == told_proposal[key]
        for change, told_change in zip(proposal.changes, told_proposal["changes"], strict=True):
            for key in ("lever", "text", "settings", "price", "cost", "panel", "shell"):
                assert getattr(change, key) == told_change[key]
            assert [edit.key for edit in change.edits] == [edit["key"] for edit in told_change["edits"]]
    assert "the safest first" in advised.to_text()
    assert repr(advised).startswith("<vramest.Advised does_not_fit")
    assert advised == vramest.advise(config, gpu="rtx-6000-ada")


def test_a_dict_is_advised_without_a_file(job: dict[str, Any]) -> None:
    advised = vramest.advise(job, capacity="16 GiB")
    assert advised.fits
    assert advised.fits[0].file == ""
    assert all(edit.line == 0 for change in advised.fits[0].changes for edit in change.edits)


def test_what_fits_needs_no_advice(job: dict[str, Any]) -> None:
    advised = vramest.advise(job, gpu="h200")
    assert (advised.before.verdict, advised.fits, advised.nearest) == ("fits", [], None)
    assert "nothing has to change" in advised.to_text()


def test_without_a_card_nothing_can_be_said(job: dict[str, Any]) -> None:
    advised = vramest.advise({key: value for key, value in job.items() if key not in ("gpu", "capacity")})
    assert advised.before.verdict == "cannot_say"
    assert advised.exit_code() == 2
    assert "name one with --gpu" in advised.to_text()


def test_a_config_that_is_wrong_is_a_complaint() -> None:
    advised = vramest.advise({"vramest": 1, "trainer": "torch", "modle": "x"}, gpu="rtx-4090")
    assert advised.before.verdict == "cannot_say"
    with pytest.raises(TypeError):
        vramest.advise(3)  # type: ignore[arg-type]
