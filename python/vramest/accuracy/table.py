"""The page: Markdown, the same bytes for the same rows and the same vramest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import vramest
from vramest.accuracy.judge import Bound, Judged, Judgement, Point, Unjudged, Unnamed
from vramest.accuracy.rows import Row
from vramest.accuracy.spread import Slope, grouped, slopes, summary

WORST = 10
MET = 0.01  # below it a miss asks for no explanation
NOT_YET = "trainer not modelled yet"


def _cell(text: object) -> str:
    return str(text).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def table(head: Sequence[str], body: Iterable[Sequence[object]]) -> str:
    """A Markdown table. Cells that hold words of a row come through `_cell` first."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(map(str, cells)) + " |" for cells in body]
    return "\n".join(lines) + "\n"


def percent(miss: float, signed: bool = True) -> str:
    """0.0123 → "+1.23 %"; what rounds to nought has no sign."""
    text = f"{100 * miss:+.2f}" if signed else f"{100 * miss:.2f}"
    return ("0.00" if text in ("+0.00", "-0.00") else text) + " %"


def _gib(size: float | None) -> str:
    return "" if size is None else f"{size:.3f}"


def _range(point: Point) -> str:
    """From the least to the most that convolutions may take; empty where both are the same."""
    if point.within is None:
        return ""
    outside = "" if point.within else ", outside"
    return f"{_gib(point.least)} to {_gib(point.most)}{outside}"


def _linked(row: Row) -> str:
    name = f"`{_cell(row.id)}`".replace("``", "`")
    return f"[{name}]({row.url})" if re.fullmatch(r"https://[^\s()<>|\"]+", row.url) else name


def _size(row: Row) -> str:
    if row.resolution is None:
        return ""
    is_list = len(row.resolution) != 2 or row.trainer == "ai-toolkit"
    size = ", ".join(map(str, row.resolution)) if is_list else f"{row.resolution[0]} x {row.resolution[1]}"
    return size + (f" x {row.frames}" if row.frames is not None and row.frames > 1 else "")


def _settings(row: Row) -> str:
    words = [row.task if row.task != "train" else f"train {row.method}" + (f" {row.rank}" if row.rank else "")]
    words += [size] if (size := _size(row)) else []
    words += [f"batch {row.batch_size}"] if row.batch_size is not None else []
    words += [row.dtype] if row.dtype else []
    words += ["checkpointing"] if row.gradient_checkpointing is True else []
    words += [f"{row.quantize}"] if row.quantize not in (None, "none") else []
    return _cell(", ".join(words))


def _points(judged: Sequence[Judged]) -> list[tuple[Row, Point]]:
    return [(one.row, one.judgement) for one in judged if isinstance(one.judgement, Point)]


_HEAD = ("rows", "series", "median", "mean", "worst", "in row", "direction", "by series")


def _summary_cells(points: list[tuple[Row, Point]]) -> list[object]:
    held = summary(points)
    direction = f"{held.over} over, {held.under} under, mean {percent(held.signed)}"
    return [held.rows, held.series, percent(held.median, False), percent(held.mean, False), percent(held.worst),
            f"`{_cell(held.worst_id)}`", direction, percent(held.by_series, False)]  # fmt: skip


def _spread(points: list[tuple[Row, Point]], title: str, key: Callable[[Row], str]) -> str:
    groups = grouped(points, lambda held: (held[1].counter, key(held[0])))
    order = sorted(groups, key=lambda group: (group[1], group[0]))
    body = ([_cell(name), counter, *_summary_cells(groups[counter, name])] for counter, name in order)
    return table((title, "counter", *_HEAD), body)


def in_short(judged: Sequence[Judged], unjudged: Sequence[Unjudged]) -> str:
    """The part that is printed too."""
    points = _points(judged)
    by_counter = grouped(points, lambda held: held[1].counter)
    read = len(judged) + len(unjudged)
    out = [f"{read} rows were read; {len(judged)} can be predicted today, {len(unjudged)} not yet.\n"]
    if points:
        body = [[counter, *_summary_cells(held)] for counter, held in sorted(by_counter.items())]
        out.append(table(("counter", *_HEAD), body))
        rest = [(one.row, one.at_rest) for one in judged if one.at_rest is not None]
        if rest:
            out.append("What was allocated before the call, where a row gives it:\n")
            out.append(table(("at rest", *_HEAD), [["allocated", *_summary_cells(rest)]]))
    inside = Counter(one.judgement.within for one in judged if isinstance(one.judgement, Point))
    if inside[True] + inside[False] > 0:
        out.append(f"Points whose prediction is a range: {inside[True]} within it, {inside[False]} outside.\n")
    bounds = [one.judgement for one in judged if isinstance(one.judgement, Bound)]
    unnamed = [one.judgement for one in judged if isinstance(one.judgement, Unnamed)]
    held = Counter(bound.holds for bound in bounds)
    out.append(f"Bounds: {held[True]} right, {held[False]} wrong, {held[None]} undecided.")
    within = Counter(reading.within for reading in unnamed)
    out.append(f"Readings whose counter is not named: {within[True]} between our allocated and our device, "
               f"{within[False]} outside; {within[None]} above allocated where our device is not known.\n")  # fmt: skip
    return "\n".join(out)


def _point_rows(judged: Sequence[Judged]) -> str:
    def cells(one: Judged, point: Point) -> list[object]:
        rest = one.at_rest
        at_rest = [_gib(rest.measured), _gib(rest.predicted), percent(rest.miss)] if rest is not None else ["", "", ""]
        return [_linked(one.row), _cell(one.row.model), _settings(one.row), _cell(one.row.gpu or "not stated"),
                point.counter, _gib(point.measured), _gib(point.predicted), percent(point.miss), _range(point),
                one.prediction.phase, *at_rest]  # fmt: skip

    head = ("row", "model", "settings", "card", "counter", "measured", "predicted", "miss", "range", "peak in",
            "at rest", "predicted", "miss")  # fmt: skip
    return table(head, (cells(one, one.judgement) for one in judged if isinstance(one.judgement, Point)))


_HOLDS = {True: "right", False: "**wrong**", None: "undecided"}


def _bound_rows(judged: Sequence[Judged]) -> str:
    def cells(one: Judged, bound: Bound) -> list[object]:
        needs = f"{bound.low:.3f} to {bound.high:.3f}" if bound.high is not None else f"{bound.low:.3f} or more"
        return [_linked(one.row), _cell(one.row.model), _settings(one.row), _cell(bound.says), needs,
                one.prediction.phase, _HOLDS[bound.holds], _cell("; ".join(one.question.remarks))]  # fmt: skip

    head = ("row", "model", "settings", "says", "predicted", "peak in", "", "remarks")
    return table(head, (cells(one, one.judgement) for one in judged if isinstance(one.judgement, Bound)))


def _unnamed_rows(judged: Sequence[Judged]) -> str:
    def cells(one: Judged, reading: Unnamed) -> list[object]:
        side = "reading above" if reading.miss < 0 else "reading below"
        where = {True: "within", None: "not below", False: f"{side}, {percent(reading.miss)}"}[reading.within]
        is_open = reading.least != reading.measured
        said = f"{reading.least:.2f} to {reading.measured:g}" if is_open else f"{reading.measured:g}"
        device = _gib(reading.device) if reading.device is not None else "not known"
        return [_linked(one.row), _cell(one.row.model), _settings(one.row), _cell(one.row.measure_kind), said,
                _gib(reading.allocated), device, where, _cell("; ".join(one.question.remarks))]  # fmt: skip

    head = ("row", "model", "settings", "who read", "reading", "allocated", "device", "", "remarks")
    return table(head, (cells(one, one.judgement) for one in judged if isinstance(one.judgement, Unnamed)))


def _slope_rows(found: Sequence[Slope]) -> str:
    body = [[_cell(slope.series), _cell(slope.model), slope.counter, slope.unit, ", ".join(f"{x:g}" for x in slope.at),
             f"{slope.measured:.3f}", f"{slope.predicted:.3f}", "" if slope.miss is None else percent(slope.miss)]
            for slope in found]  # fmt: skip
    return table(("series", "model", "counter", "a further", "at", "measured", "predicted", "miss"), body)


def _size_of(judgement: Judgement) -> float:
    if isinstance(judgement, Bound):
        return 1.0 if judgement.holds is False else 0.0
    return abs(judgement.miss)


def _said(judgement: Judgement) -> str:
    if isinstance(judgement, Bound):
        return _HOLDS[judgement.holds]
    return percent(judgement.miss)


def _explained(judged: Sequence[Judged], explanations: Mapping[str, str]) -> str:
    order = sorted(judged, key=lambda one: (-_size_of(one.judgement), one.row.id))
    worst = [one for one in order[:WORST] if _size_of(one.judgement) > 0]
    shown = worst + [one for one in order if one not in worst and one.row.id in explanations]

    def sentence(one: Judged) -> str:
        met = "met" if _size_of(one.judgement) < MET else "not found out yet"
        return _cell(explanations.get(one.row.id, met))

    return table(("row", "miss", "what was found"), ([f"`{_cell(one.row.id)}`", _said(one.judgement), sentence(one)]
                                                     for one in shown))  # fmt: skip


def _reasons(unjudged: Sequence[Unjudged]) -> str:
    groups = grouped(unjudged, lambda one: one.refusal.why)

    def trainers(held: list[Unjudged]) -> str:
        count = Counter(one.row.trainer for one in held)
        most_first = sorted(count.items(), key=lambda item: (-item[1], item[0]))
        return _cell(", ".join(f"{name} {n}" for name, n in most_first))

    order = sorted(groups, key=lambda why: (-len(groups[why]), why))
    body = ([_cell(why), len(groups[why]), len({one.row.series for one in groups[why]}), trainers(groups[why])]
            for why in order)  # fmt: skip
    return table(("reason", "rows", "series", "trainers"), body)


def _refused_rows(unjudged: Sequence[Unjudged]) -> str:
    near = [one for one in unjudged if one.refusal.why != NOT_YET]
    return table(("row", "model", "reason", ""), ([_linked(one.row), _cell(one.row.model), _cell(one.refusal.why),
                                                   _cell(one.refusal.detail)] for one in near))  # fmt: skip


_INTRO = """\
# Accuracy: measured and predicted

Memory that other people measured and published, beside what vramest {version} says to the same settings. Written by

```sh
python -m vramest.accuracy {file} --out PAGE.md
```

A miss is predicted / measured - 1: above 0 we say too much. Sizes are GiB. Nothing is fitted to the rows on the way
to this page. A row is asked about only if it states what moves memory, and is counted below with its reason
otherwise. A counter is compared with itself alone: allocated with torch's `max_memory_allocated`, reserved with
`max_memory_reserved`, device with nvidia-smi, where the middle of our range counts; "allocated, inferred" is a
trainer's own figure that its source does not name. The rows of one series share hardware, code and counter, so the last column of a summary takes the median of
each series and gives all series the same weight.

A pipeline's rows are asked about model by model, since a job file holds one: at each call the others' weights as
torch's blocks hold them, and what the call takes at its highest. Such a sum exists for allocated memory alone. With
model offload the others are those that are still on the card at that call.

What convolutions take beside their tensors is a [range](scratch.md): "predicted" is its middle, "range" the sums with its
ends.
"""


def page(file: str, judged: Sequence[Judged], unjudged: Sequence[Unjudged], explanations: Mapping[str, str]) -> str:
    """The whole page; `file` is the name of the rows' file, `explanations` go by row id."""
    judged = sorted(judged, key=lambda one: (one.row.series, one.row.id))
    unjudged = sorted(unjudged, key=lambda one: (one.refusal.why, one.row.series, one.row.id))
    points = _points(judged)
    out = [_INTRO.format(version=vramest.__version__, file=file), "## In short\n", in_short(judged, unjudged)]
    if points:
        for title, key in (("trainer", _trainer), ("model", _model), ("task", _task), ("series", _series)):
            out.append(_spread(points, title, key))
        out += ["## Points: every row\n", _point_rows(judged)]
    if found := slopes(list(judged)):
        out += ["## Slopes within a series\n", "GiB for one more, by least squares.\n", _slope_rows(found)]
    if any(isinstance(one.judgement, Bound) for one in judged):
        out += ["## Bounds\n", "Right or wrong, and no miss: a card's size says how much was enough, not how much was "
                "needed.\n", _bound_rows(judged)]  # fmt: skip
    if any(isinstance(one.judgement, Unnamed) for one in judged):
        out += ["## Readings whose counter is not named\n", "Whichever it was, it lies between allocated and device. "
                "A bare GB may be 10^9 bytes: such a reading is a range.\n", _unnamed_rows(judged)]  # fmt: skip
    if judged:
        out += ["## The worst, and what was looked into\n", _explained(judged, explanations)]
    if unjudged:
        out += ["## Not predicted\n", _reasons(unjudged)]
        if any(one.refusal.why != NOT_YET for one in unjudged):
            out += ["Rows of trainers that are modelled, one by one:\n", _refused_rows(unjudged)]
    return "\n".join(out)


def _trainer(row: Row) -> str:
    return row.trainer


def _model(row: Row) -> str:
    return row.model


def _task(row: Row) -> str:
    return {"train": "training", "sample": "sampling"}.get(row.task, row.task)


def _series(row: Row) -> str:
    return row.series
