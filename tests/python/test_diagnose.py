"""vramest.diagnose: what it takes, what it answers, and that no bytes make it raise."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import vramest
from hypothesis import given, settings
from hypothesis import strategies as st

OOM = (
    "Loading pipeline components...\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of "
    "8.00 GiB of which 0 bytes is free.\n"
)


def test_a_diagnosis_reads_as_its_json(source_dir: Path) -> None:
    for log in sorted((source_dir / "tests/fixtures/logs").glob("*.log")):
        diagnosis = vramest.diagnose(log)
        told = diagnosis.to_dict()
        assert told == json.loads(diagnosis.to_json())
        assert told["vramest"] == vramest.__version__
        assert diagnosis.exit_code() == (0 if diagnosis.recognised else 2)
        for key, value in told.items():
            if key in ("schema", "vramest", "diagnostics"):
                continue
            read = getattr(diagnosis, key)
            if key == "numbers":
                assert {name: getattr(read, name) for name in value} == value
            elif key == "evidence":
                assert [{"line": e.line, "text": e.text, "says": e.says} for e in read] == value
            elif key == "heaviest_bucket":
                assert read == (tuple(value["size"]) if value else None)
            else:
                assert read == value, (log, key)
        assert vramest.diagnose(text=log.read_bytes()).to_dict() | {"source": str(log)} == told
        assert str(diagnosis) == diagnosis.to_text()


def test_a_text_or_a_path(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(OOM)
    for diagnosis in (vramest.diagnose(path), vramest.diagnose(str(path)), vramest.diagnose(text=OOM), vramest.diagnose(text=OOM.encode("utf-16"))):
        assert (diagnosis.phase, diagnosis.kind, diagnosis.numbers.tried) == ("model_load", "config_too_big", 2**30)
        assert diagnosis.short_by == 2**30 and diagnosis.first_change
    assert repr(diagnosis) == "<vramest.Diagnosis config_too_big in model_load>"


def test_a_config_beside_it(job: dict[str, Any], write: Any) -> None:
    del job["gpu"]
    beside = vramest.diagnose(config=job, text=OOM).prediction
    assert beside is not None and beside.capacity == 8 * 2**30 and beside.verdict == "does_not_fit"
    assert beside.needs_high > beside.capacity
    other = vramest.diagnose(config=job, text=OOM, gpu="h200", sets={"train.rank": 4}).prediction
    assert other is not None and other.verdict == "fits" and other.change == []
    tight = vramest.diagnose(config=job, text=OOM, gpu="rtx-4090").prediction
    assert tight is not None and (tight.verdict == "fits") == (tight.change == [])
    assert vramest.diagnose(text=OOM).prediction is None
    broken = vramest.diagnose(config="/no/such.yaml", text=OOM)
    assert broken.prediction is not None and broken.prediction.verdict == "cannot_say"
    assert broken.recognised and broken.diagnostics[0].problem == "file_not_found"


def test_what_cannot_be_read_is_an_answer(tmp_path: Path) -> None:
    for path in ("/no/such.log", tmp_path, "a\0b", "two\nlines"):
        diagnosis = vramest.diagnose(path)
        assert not diagnosis.recognised and diagnosis.exit_code() == 2
        assert diagnosis.diagnostics[0].problem in ("file_not_found", "bad_value")
    assert "looked for" in vramest.diagnose(text="").to_text()


def test_wrong_types_raise() -> None:
    for arguments in ({}, {"log": "a", "text": "b"}, {"log": b"a"}, {"log": 3}, {"text": 3}):
        with pytest.raises(TypeError):
            vramest.diagnose(**arguments)  # type: ignore[arg-type]


def test_threads_agree() -> None:
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: vramest.diagnose(text=OOM), range(16)))
    assert all(answer == answers[0] for answer in answers)


def test_published_failures_are_read_as_the_page_says(source_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows lie beside the repository, and not in it; docs/diagnose.md has the table of them."""
    rows = source_dir.parent / "shared/reports/oom.jsonl"
    if not rows.is_file():
        pytest.skip(f"{rows} is not there")
    folder = source_dir / "tests/diagnose"
    monkeypatch.syspath_prepend(str(folder))
    from write_log import rows_of, write_log

    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    read = {}
    for row in rows_of(rows):
        diagnosis = vramest.diagnose(text=write_log(row, facts.get(row["id"], {})))
        read[row["id"]] = [diagnosis.phase, diagnosis.kind]
    assert read == json.loads((folder / "expected.json").read_text(encoding="utf-8"))


WORDS = ["CUDA out of memory. Tried to allocate ", "2.00 GiB", "%|", "| 3/9 [00:01<00:09, ", "  File \"a.py\", line 3, in decode\n", "\x1b[", "\r", "\n", "got prompt",
         "bucket: (", "OOM during training step, skipping batch ", "process 1 has ", "MemoryError", "\ud800"]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=8), max_size=30).map("".join))
def test_no_text_raises(text: str) -> None:
    vramest.diagnose(text=text).to_dict()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_raise(text: bytes) -> None:
    str(vramest.diagnose(text=text))
