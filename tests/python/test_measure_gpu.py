"""tools/measure_gpu.py without a GPU: what it would measure, every case on the CPU, and the lines that it writes.

Needs torch and diffusers; peft for the LoRA steps.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOL = Path(os.environ.get("VRAMEST_SOURCE_DIR", Path(__file__).parents[2])) / "tools" / "measure_gpu.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure_gpu", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["measure_gpu"] = module
    spec.loader.exec_module(module)
    return module


ABOUT: dict[str, Any] = {
    "gpu": "NVIDIA GeForce RTX 4090", "total": 24217 * 2**20, "sm": 89, "torch": "2.13.0+cu130", "cudnn": 92000,
    "diffusers": "0.42.1", "date": "2026-01-02",
}  # fmt: skip
DECODE: dict[str, Any] = {
    "trainer": "diffusers (VAE decode only)", "model": "flux1_dev", "task": "sample", "phase": "VAE decode",
    "resolution": [1024, 1024], "frames": 1, "batch_size": 1, "dtype": "bf16",
}  # fmt: skip


def told(**but: Any) -> dict[str, Any]:
    peaks = {"allocated": 3 * 2**30, "reserved": 5 * 2**30, "requested": 1}
    return {"row": DECODE, "out_of_memory": False, "load": 2**28, "peaks": peaks} | but


def test_its_rows_are_rows_that_are_predicted(tool: ModuleType, tmp_path: Path) -> None:
    from vramest.accuracy.judge import Judged, judge
    from vramest.accuracy.rows import read_rows
    from vramest.accuracy.words import words

    out = tool.Out(tmp_path, ABOUT, False)
    out.row(told(), 6 * 2**30)
    out.row(told(out_of_memory=True, row=DECODE | {"batch_size": 8}), None)
    rows, complaints = read_rows((tmp_path / "rows.jsonl").read_bytes(), "rows.jsonl")
    assert complaints == []
    assert [row.measure_kind for row in rows] == ["torch_allocated", "torch_reserved", "nvidia_smi", None]
    assert rows[0].load_gib == 0.25
    found = [judge(row, words()) for row in rows]
    assert all(isinstance(one, Judged) for one in found), found
    assert all(one.question.gpu == "rtx-4090" for one in found if isinstance(one, Judged))
    assert json.loads((tmp_path / "machine.json").read_text())["sm"] == 89


def test_a_dry_run_writes_nothing(tool: ModuleType, tmp_path: Path) -> None:
    out = tool.Out(tmp_path / "no", ABOUT, True)
    out.row(told(), None)
    out.convolution({"scratch": 0})
    assert out.counts == {"rows": 3, "convolutions": 1}
    assert not (tmp_path / "no").exists()


def test_the_nearest_sum(tool: ModuleType) -> None:
    sizes = {"input": 100, "output": 50, "filter": 7, "columns": 900}
    assert tool.nearest(0, sizes) == "0"
    assert tool.nearest(107, sizes) == "input+filter"
    assert tool.nearest(157, sizes) == "input+output+filter"
    assert tool.nearest(880, sizes) == "columns"


def test_only_knows_its_plays(tool: ModuleType) -> None:
    assert {told["play"] for _, told, _ in tool.chosen("vae,context")} == {"vae", "context"}
    with pytest.raises(SystemExit):
        tool.chosen("unet")


def test_the_convolutions_are_those_of_the_models(tool: ModuleType) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("diffusers")
    found = tool.distinct_convolutions(dry=False)
    sizes = {(conv.input, conv.weight[:2]) for conv in found}
    assert ((1, 256, 1024, 1024), (256, 256)) in sizes  # the peak of a decode
    assert ((1, 96, 3, 1026, 1026), (96, 96)) in sizes  # Qwen-Image's, padded by hand
    assert ((1, 320, 128, 128), (320, 320)) in sizes  # SDXL's UNet
    assert {where.split()[0] for where in found.values()} == {"vae", "unet"}


def test_dry_run_plays_every_case(tool: ModuleType) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("diffusers")
    pytest.importorskip("peft")
    command = [sys.executable, str(TOOL), "--dry-run", "--budget", "3000"]  # an idle machine needs two minutes
    ran = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = dict(line.split(": ", 1) for line in ran.stdout.splitlines() if ": " in line)
    assert lines == {name: "done" for name, _, _ in tool.CASES}


def test_without_a_card_it_says_so() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    ran = subprocess.run([sys.executable, str(TOOL)], capture_output=True, text=True, timeout=900)
    assert ran.returncode == 2
    assert "no CUDA card" in ran.stderr
