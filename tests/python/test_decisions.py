"""sweep, max and grow: the answers of the command, as objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import vramest
from vramest.__main__ import main


def test_a_cell_is_a_check(job: dict[str, Any]) -> None:
    sweep = vramest.sweep(job, {"train.batch_size": [1, 0], "data.resolution": [256, [512, 768]]}, gpu="l40s")
    assert sweep.axes == [("train.batch_size", ["1", "0"]), ("data.resolution", ["256", "[512, 768]"])]
    assert [cell.at for cell in sweep.cells] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    for cell in sweep.cells:
        report = vramest.check(job, gpu="l40s", sets=[f"{key}={value}" for key, value in cell.settings.items()])
        assert cell.verdict == report.verdict
        if report.peak is not None:
            assert (cell.device_low, cell.device_high) == (report.peak.device_low, report.peak.device_high)
            assert cell.tensors_peak == report.peak.tensors
        else:
            assert cell.device_low is None and cell.device_high is None and cell.diagnostics
    assert sweep.to_dict()["counts"]["cannot_say"] == 2
    assert sweep.to_csv().count("\n") == 5
    assert sweep.to_svg().startswith("<svg") and getattr(sweep, "_repr_svg_")() == sweep.to_svg()
    assert str(sweep) == sweep.to_text() and sweep.exit_code() == 0
    assert vramest.sweep(job, ["train.batch_size=1,2"], gpu="l40s").axes == [("train.batch_size", ["1", "2"])]


def test_the_command_says_the_same(write: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(write())
    assert main(["sweep", path, "--gpu", "l40s", "--set", "train.rank=4,8", "--json", "--svg", str(tmp_path / "s.svg")]) == 0
    sweep = vramest.sweep(path, {"train.rank": [4, 8]}, gpu="l40s")
    assert json.loads(capsys.readouterr().out) == sweep.to_dict()
    assert (tmp_path / "s.svg").read_text() == sweep.to_svg()


def test_max(job: dict[str, Any]) -> None:
    most = vramest.max(job, "batch_size", gpu="l40s")
    assert most.value is not None and most.value > 1 and most.exit_code() == 0
    assert vramest.check(job, gpu="l40s", sets={"train.batch_size": most.value}).verdict == "fits"
    assert vramest.check(job, gpu="l40s", sets={"train.batch_size": most.value + 1}).verdict != "fits"
    frontier = vramest.max(job, ["batch_size", "rank"], gpu="l40s")
    assert frontier.value is None and [row.beside for row in frontier.most][:2] == [4, 8]
    assert frontier.to_dict()["vary"] == ["batch_size", "rank"]


def test_grow(job: dict[str, Any]) -> None:
    grow = vramest.grow(job, gpu="l40s")
    assert grow.verdict == "fits"
    assert [line.what for line in grow.lines] == [
        "steps", "resolution", "samples", "batch_size", "rank", "gradient_checkpointing",
    ]  # fmt: skip
    assert int(grow.lines[3].after) == vramest.max(job, "batch_size", gpu="l40s").value


@pytest.mark.parametrize(
    "axes",
    [{"train.rank": []}, {"train.rank": [4, 4]}, {"train.rank": [""]}, {"a": list(range(400)), "b": list(range(400))},
     ["train.rank"], ["train.rank=4", "train.rank=8"], {1: [2]}],
)  # fmt: skip
def test_bad_axes_are_an_answer(job: dict[str, Any], axes: Any) -> None:
    sweep = vramest.sweep(job, axes)
    assert sweep.exit_code() == 2 and not sweep.cells or all(cell.verdict == "cannot_say" for cell in sweep.cells)
    assert sweep.diagnostics or sweep.cells
    json.loads(sweep.to_json())


def test_bad_questions_are_an_answer(job: dict[str, Any], tmp_path: Path) -> None:
    for answer in (
        vramest.max(job, "batchsize"), vramest.max(job, []), vramest.max(job, ["rank", "rank"]), vramest.max(job, "frames"),
        vramest.max(tmp_path / "none.yaml", "rank"), vramest.grow({}), vramest.grow(job, gpu="rtx-9"),
        vramest.sweep(tmp_path / "none.yaml", {"train.rank": [4]}), vramest.sweep(job, {"train.rank": [4]}, gpu="rtx-9"),
    ):  # fmt: skip
        assert answer.exit_code() == 2 and answer.diagnostics
        json.loads(answer.to_json())
    for wrong in (4, None, "train.rank=4"):
        with pytest.raises(TypeError):
            vramest.sweep(job, wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        vramest.max(job, 4)  # type: ignore[arg-type]
