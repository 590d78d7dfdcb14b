"""Bad input is an answer with the verdict cannot_say; a wrong Python type is a TypeError; nothing crashes."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Any

import pytest
import vramest
from hypothesis import given, settings
from hypothesis import strategies as st


def problems(report: vramest.Report) -> list[tuple[str, str]]:
    return [(d.problem, d.key) for d in report.diagnostics if d.severity == "error"]


def refused(report: vramest.Report) -> list[tuple[str, str]]:
    assert report.verdict == "cannot_say"
    assert report.exit_code() == 2
    assert report.peak is None and report.reason
    assert report.to_dict()["peak"] is None
    return problems(report)


def test_a_file_that_is_not_there(tmp_path: Path, write: Any) -> None:
    assert refused(vramest.check("/no/such/job.yaml"))[0][0] == "file_not_found"
    assert refused(vramest.check(tmp_path))[0][0] == "file_not_found"
    assert refused(vramest.check("job\0.yaml"))[0][0] == "file_not_found"
    write(name="job.yaml")
    assert vramest.check(tmp_path / "job.yml").diagnostics[0].nearest.endswith("job.yaml")


def test_a_name_that_is_not_utf8(write: Any, tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.yaml")
    assert refused(vramest.check(path))[0][0] == "file_not_found"
    write().rename(path)
    report = vramest.check(path)
    assert report.verdict != "cannot_say"
    assert report.job.source.endswith("?.yaml")


def test_complaints_point_at_the_line(write: Any) -> None:
    path = write("vramest: 1\ntrainer: torch\nmodel: flux1_dev\ntrain: {method: lora, rank: 16}\nbatchsize: 1\n")
    report = vramest.check(path)
    assert refused(report) == [("unknown_key", "batchsize")]
    complaint = report.diagnostics[0]
    assert (complaint.file, complaint.line) == (str(path), 5)
    assert str(complaint).startswith(f"{path}:5:")


def test_a_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"vramest: 1\nmodel: \xff\xfe\n")
    report = vramest.check(path)
    assert refused(report)[0][0] == "bad_encoding"
    for complaint in report.diagnostics:
        str(complaint), repr(complaint), complaint.found


def test_a_wrong_dict_is_told_by_key(job: dict[str, Any]) -> None:
    job["train"]["rank"] = "sixteen"
    job["trian"] = 1
    told = refused(vramest.check(job))
    assert ("wrong_type", "train.rank") in told
    assert "unknown_key" in [problem for problem, _ in told]


def test_true_is_no_number(job: dict[str, Any]) -> None:
    job["train"]["batch_size"] = True
    assert refused(vramest.check(job)) == [("wrong_type", "train.batch_size")]


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**400, float("nan"), float("inf"), -1, 0])
def test_numbers_that_cannot_be(job: dict[str, Any], number: float) -> None:
    job["train"]["batch_size"] = number
    assert [key for _, key in refused(vramest.check(job))] == ["train.batch_size"]


def test_numbers_of_other_kinds(job: dict[str, Any]) -> None:
    class Rank(enum.IntEnum):
        small = 16

    class Index:  # as numpy's integers
        def __index__(self) -> int:
            return 16

    expected = vramest.check(job)
    for rank in (Rank.small, Index(), 16.0):
        job["train"]["rank"] = rank
        assert vramest.check(job).adapter == expected.adapter


def test_keys_that_are_no_text(job: dict[str, Any]) -> None:
    assert refused(vramest.check({**job, 1: 2})) == [("wrong_type", "")]
    job["train"][None] = 1
    assert refused(vramest.check(job)) == [("wrong_type", "train")]


def test_texts_that_no_file_could_hold(job: dict[str, Any]) -> None:
    for text in ("\ud800", "a\0b"):
        assert refused(vramest.check({**job, "model": text})) == [("bad_encoding", "model")]
        assert ("bad_encoding", "") in refused(vramest.check({**job, text: 1}))


def test_what_holds_itself(job: dict[str, Any]) -> None:
    job["train"]["targets"] = job
    assert refused(vramest.check(job))[0][0] == "too_deep"
    lists: list[Any] = []
    lists += [lists, lists, lists]
    assert refused(vramest.check({"vramest": lists}))[0][0] in ("too_deep", "file_too_large")


def test_what_is_too_deep_or_too_much(job: dict[str, Any]) -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert refused(vramest.check({**job, "deep": deep})) == [("too_deep", "deep")]
    assert refused(vramest.check({**job, "much": [0] * 300_000})) == [("file_too_large", "much")]


@pytest.mark.parametrize("wrong", [None, 1, b"job.yaml", ["vramest"], object(), 1.5, {1, 2}])
def test_a_job_of_a_wrong_type(wrong: Any) -> None:
    with pytest.raises(TypeError):
        vramest.check(wrong)


@pytest.mark.parametrize("wrong", [object(), {1, 2}, b"bytes", 1j, lambda: 0])
def test_a_value_of_a_wrong_type(job: dict[str, Any], wrong: Any) -> None:
    job["train"]["rank"] = wrong
    with pytest.raises(TypeError, match=r"train\.rank"):
        vramest.check(job)


def test_options_of_a_wrong_type(job: dict[str, Any]) -> None:
    for options in ({"gpu": 4090}, {"capacity": 1.5}, {"capacity": True}, {"sets": "a=1"}, {"sets": [1]}, {"sets": 5}, {"card": ""}):
        with pytest.raises(TypeError):
            vramest.check(job, **options)
    with pytest.raises(TypeError):
        vramest.check(job, "rtx-4090")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("capacity", "problem"),
    [("24 gigs", "bad_unit"), ("", "bad_unit"), ("-1GiB", "bad_unit"), (0, "out_of_range"), (-1, "out_of_range"), (2**70, "overflow")],
)
def test_capacities_that_cannot_be(job: dict[str, Any], capacity: Any, problem: str) -> None:
    assert refused(vramest.check(job, capacity=capacity)) == [(problem, "capacity")]


def test_options_that_cannot_be(job: dict[str, Any]) -> None:
    report = vramest.check(job, gpu="RTX 4099")
    assert refused(report)[0][0] == "unknown_gpu" and report.diagnostics[0].nearest
    assert refused(vramest.check(job, gpu="rtx-4090", capacity="8 GiB"))[0][0] == "conflict"
    assert refused(vramest.check(job, sets=["rank"]))[0] == ("bad_value", "sets")
    assert refused(vramest.check(job, sets={"train.rnk": 4}))


def test_what_a_value_raises_passes_through(job: dict[str, Any]) -> None:
    class Broken(os.PathLike[str]):
        def __fspath__(self) -> str:
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        vramest.check(Broken())
    job["model"] = Broken()
    with pytest.raises(RuntimeError, match="on purpose"):
        vramest.check(job)


def test_a_dict_that_changes_while_it_is_read(job: dict[str, Any]) -> None:
    class Changing(os.PathLike[str]):
        def __fspath__(self) -> str:
            job.clear()
            return "flux1_dev"

    job["model"] = Changing()
    vramest.check(job)  # what it says is nobody's promise; that it ends is


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["lora", "adamw", "bf16", "torch", "flux1_dev", "24 GiB", "2.13", "attention"])
)  # fmt: skip
keys = st.sampled_from(
    ["vramest", "trainer", "model", "dtype", "train", "data", "method", "rank", "targets", "batch_size", "resolution", "buckets",
     "gradient_checkpointing", "optimizer", "environment", "torch", "gpu", "capacity", "quantize", "sample", "reference_images"]
) | st.text(max_size=8)  # fmt: skip
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=6), max_leaves=25)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(keys, values, max_size=8))
def test_any_dict_gets_an_answer(job: dict[str, Any]) -> None:
    report = vramest.check(job)
    assert report.verdict in ("fits", "tight", "does_not_fit", "cannot_say")
    assert report.verdict != "cannot_say" or problems(report)
    report.to_dict(), repr(report), str(report)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["train.rank", "train.batch_size", "dtype", "data.resolution", "x.y", "a[0]", ""]), values))
def test_any_setting_gets_an_answer(sets: dict[str, Any]) -> None:
    job = {"vramest": 1, "trainer": "torch", "model": "vae_sd_4ch", "op": "decode", "data": {"resolution": 64}}
    assert vramest.check(job, sets=sets).verdict in ("fits", "tight", "does_not_fit", "cannot_say")
