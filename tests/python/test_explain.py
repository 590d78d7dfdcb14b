"""vramest.explain and vramest.risk: what they take, what they answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vramest


def test_explain_reads_as_its_json(job: dict[str, Any]) -> None:
    explained = vramest.explain(job, gpu="rtx-4090")
    told = explained.to_dict()
    assert told == json.loads(explained.to_json())
    assert told["report"] == explained.report.to_dict()
    moment = told["moment"]
    for name in ("phase", "stage", "device_low", "device_high"):
        assert getattr(explained, name) == moment[name], name
    assert sum(part.low for part in explained.breakdown) == explained.device_low
    assert sum(part.high for part in explained.breakdown) == explained.device_high
    assert explained.report.peak is not None and explained.device_high == explained.report.peak.device_high
    for block, told_block in zip(explained.blocks, moment["blocks"], strict=True):
        for key, value in told_block.items():
            assert getattr(block, "class_name" if key == "class" else key) == value, key
    assert [(a, r) for _, a, r in explained.timeline] == [(a, r) for _, a, r in told["timeline"]["points"]]
    assert {phase for phase, _, _ in explained.timeline} - {""} == {phase.name for phase in explained.report.phases}
    assert explained.to_svg().startswith("<svg ")
    assert str(explained) == explained.to_text()
    assert explained == vramest.explain(job, gpu="rtx-4090")


def test_what_an_option_adds_is_the_difference_of_two_checks(job: dict[str, Any]) -> None:
    explained = vramest.explain(job, gpu="h200")
    options = {one.option: one for one in explained.contributions}
    assert set(options) == {"train.gradient_checkpointing", "train.optimizer"}
    for one in options.values():
        assert one.instead is not None and one.why_not == ""
        without = vramest.check(job, gpu="h200", sets=["=".join(one.instead)])
        assert explained.report.peak is not None and without.peak is not None
        assert one.device_high == explained.report.peak.device_high - without.peak.device_high


def test_a_phase_that_is_not_there_is_an_answer(job: dict[str, Any]) -> None:
    explained = vramest.explain(job, phase="step2")
    assert explained.report.verdict == "cannot_say" and explained.exit_code() == 2
    assert explained.report.diagnostics[0].nearest == "step 2"
    assert explained.to_svg() == "" and explained.timeline == []
    assert vramest.explain(job, phase="load").phase == "load"


def test_risk_reads_as_its_json(job: dict[str, Any], write: Callable[..., Path]) -> None:
    risk = vramest.risk(job, gpu="rtx-4090")
    told = risk.to_dict()
    assert told == json.loads(risk.to_json())
    assert risk.level == told["level"] == "high" and risk.is_on is True
    assert risk.why == told["why"]
    assert risk.on == vramest.risk(job, gpu="rtx-4090").on
    assert risk.off.verdict == "does_not_fit" and risk.exit_code() == 1
    assert [list(bucket.bucket) for bucket in risk.buckets] == [bucket["bucket"] for bucket in told["buckets"]]
    for run in risk.plan:
        again = vramest.check(job, gpu="rtx-4090", sets=run.settings)
        assert again.peak is not None and again.peak.device_high == run.device_high
    assert told["instead"] and all(proposal["verdict"] == "fits" for proposal in told["instead"])
    assert vramest.risk(write(), gpu="h200").exit_code() == 0


@pytest.mark.parametrize("ask", [vramest.explain, vramest.risk])
def test_bad_input_is_an_answer(ask: Callable[..., Any], tmp_path: Path) -> None:
    for job in (tmp_path / "absent.yaml", {"vramest": 1, "trainer": "torch", "model": "flux1_dve"}, {}):
        answer = ask(job, gpu="rtx-4090")
        assert answer.exit_code() == 2
        assert "cannot say" in answer.to_text()
        json.loads(answer.to_json())
    with pytest.raises(TypeError):
        ask(3)
