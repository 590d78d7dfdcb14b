"""Reads measured rows, a JSON object a line. Every complaint names file and line; all come at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

TASKS = ("train", "sample", "load", "cache")
OUTCOMES = ("fits", "oom")
BOUNDS = ("point", "approx", "upper", "lower")
MEASURE_KINDS = (
    "torch_allocated",
    "torch_reserved",
    "nvidia_smi",
    "trainer_peak_probably_torch_allocated",
    "weights",
    "user_reading",
    "author_figure",
    "vendor_or_docs_figure",
    "percent_of_card",
    "card_size",
)


@dataclass(frozen=True)
class Row:
    """One report as it was written; None is not stated. Sizes are GiB, as the file holds them."""

    line: int
    id: str
    series: str
    trainer: str
    model: str
    task: str
    outcome: str
    url: str = ""
    date: str = ""
    trainer_version: str | None = None
    method: str | None = None
    rank: int | None = None
    resolution: tuple[int, ...] | None = None
    resolution_kind: str | None = None
    frames: int | None = None
    batch_size: int | None = None
    gradient_checkpointing: bool | str | None = None
    quantize: str | None = None
    te_quantize: str | None = None
    dtype: str | None = None
    optimizer: str | None = None
    offload: str | None = None
    cache_latents: bool | None = None
    cache_text_embeds: bool | None = None
    te_trained: bool | None = None
    te_on_gpu: bool | None = None
    attention: str | None = None
    compile: str | None = None
    blocks_to_swap: int | None = None
    low_vram: bool | None = None
    gpu: str | None = None
    gpu_total_gib: float | None = None
    phase: str | None = None
    completeness: str | None = None
    quality: int | None = None
    notes: str = ""
    measured_gib: float | None = None
    measures: str | None = None
    measure_kind: str | None = None
    bound: str | None = None
    unit_in_source: str | None = None
    load_gib: float | None = None


@dataclass(frozen=True)
class Complaint:
    """What is wrong with a line, or, where it is not fatal, odd."""

    file: str
    line: int
    text: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {'' if self.fatal else 'warning: '}{self.text}"


_REQUIRED = ("id", "series", "trainer", "model", "task", "outcome")
_CHOICES = {"task": TASKS, "outcome": OUTCOMES, "bound": BOUNDS, "measure_kind": MEASURE_KINDS}
_KNOWN = tuple(field.name for field in fields(Row) if field.name != "line")
_UNREAD = ("oom",)  # the numbers of an out-of-memory message: nothing here is measured against them

LARGEST = 10**9  # of any number of a row: beyond it something else was meant


def _is_size(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= LARGEST


def _is_integer(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= LARGEST


def _wrong(key: str, value: object) -> str | None:
    """What `key` should have been, or None where `value` will do."""
    if key in _CHOICES:
        return None if value in _CHOICES[key] else "one of " + ", ".join(_CHOICES[key])
    if key in ("measured_gib", "load_gib", "gpu_total_gib"):
        return None if _is_size(value) else "a number above 0"
    if key in ("rank", "frames", "batch_size"):
        return None if _is_integer(value, 1) else "a whole number above 0"
    if key in ("quality", "blocks_to_swap"):
        return None if _is_integer(value, 0) else "a whole number"
    if key == "resolution":
        good = isinstance(value, list) and value and all(_is_integer(side, 1) for side in value)
        return None if good else "a list of whole numbers above 0"
    if key == "gradient_checkpointing":
        return None if isinstance(value, (bool, str)) else "true, false or a text"
    if key in ("cache_latents", "cache_text_embeds", "te_trained", "te_on_gpu", "low_vram"):
        return None if isinstance(value, bool) else "true or false"
    good = isinstance(value, str) and (bool(value.strip()) or key not in _REQUIRED)
    return None if good else "a text"


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key} stands there twice")
        found[key] = value
    return found


def _object_of(line: str) -> tuple[Mapping[str, Any] | None, str]:
    try:
        value = json.loads(line, parse_constant=_no_constant, object_pairs_hook=_no_doubles)
    except json.JSONDecodeError as error:
        return None, f"no JSON: {error.msg} at column {error.colno}"
    except (ValueError, RecursionError) as error:
        return None, f"no JSON: {error or 'nested too deeply'}"
    if not isinstance(value, dict):
        return None, "a row is a JSON object"
    return value, ""


def _unknown(key: str) -> str:
    near = get_close_matches(key, _KNOWN, 1, 0.75)
    return f"unknown field {key} is not read" + (f"; did you mean {near[0]}?" if near else "")


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _row_of(value: Mapping[str, Any], line: int) -> tuple[Row | None, list[str]]:
    wrong = [f"{key} is missing" for key in _REQUIRED if value.get(key) is None]
    held: dict[str, Any] = {}
    for key in _KNOWN:
        if (said := value.get(key)) is None:
            continue
        if (due := _wrong(key, said)) is not None:
            wrong.append(f"{key} is {_shown(said)}, and should be {due}")
        held[key] = tuple(said) if isinstance(said, list) else said
    if held.get("measured_gib") is not None:
        wrong += [f"measured_gib without {key}" for key in ("measure_kind", "bound") if key not in held]
    return (None if wrong else Row(line=line, **held)), wrong


def read_rows(text: bytes, file: str) -> tuple[list[Row], list[Complaint]]:
    """All rows in order, and what is wrong or odd. With a fatal complaint the rows are not to be used."""
    rows: list[Row] = []
    complaints: list[Complaint] = []
    seen: dict[str, int] = {}
    odd: set[str] = set()
    for number, raw in enumerate(text.split(b"\n"), 1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            complaints.append(Complaint(file, number, "no UTF-8"))
            continue
        if not line:
            continue
        value, problem = _object_of(line)
        if value is None:
            complaints.append(Complaint(file, number, problem))
            continue
        for key in value:
            if key not in _KNOWN and key not in _UNREAD and key not in odd:
                odd.add(key)
                complaints.append(Complaint(file, number, _unknown(key), fatal=False))
        row, wrong = _row_of(value, number)
        complaints += [Complaint(file, number, text) for text in wrong]
        if row is None:
            continue
        if row.id in seen:
            complaints.append(Complaint(file, number, f"id {row.id} stands in line {seen[row.id]} too"))
        seen.setdefault(row.id, number)
        rows.append(row)
    if not rows and not complaints:
        complaints.append(Complaint(file, 1, "no rows"))
    return rows, complaints
