from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# A shrunken job would be quicker, but this one is what people run, and it takes milliseconds.
JOB: dict[str, Any] = {
    "vramest": 1,
    "trainer": "torch",
    "model": "flux1_dev",
    "train": {"method": "lora", "rank": 16, "gradient_checkpointing": True, "batch_size": 1},
    "data": {"resolution": 512, "text_tokens": 512},
    "gpu": "rtx-4090",
}

YAML = """\
vramest: 1
trainer: torch
model: flux1_dev
train: {method: lora, rank: 16, gradient_checkpointing: true, batch_size: 1}
data: {resolution: 512, text_tokens: 512}
gpu: rtx-4090
"""


@pytest.fixture
def job() -> dict[str, Any]:
    return copy.deepcopy(JOB)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_file(text: str = YAML, name: str = "job.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


@pytest.fixture
def source_dir() -> Path:
    return Path(__file__).resolve().parents[2]
