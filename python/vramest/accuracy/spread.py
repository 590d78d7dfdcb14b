"""Numbers over many rows. Series weigh alike, however many rows they have; counters are never put together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from statistics import mean, median
from typing import TypeVar

from vramest.accuracy.judge import Judged, Point
from vramest.accuracy.rows import Row

T = TypeVar("T")
K = TypeVar("K")


@dataclass(frozen=True)
class Summary:
    """Of misses: sizes without sign, but for `signed`, their mean, and how many predictions were above and below."""

    rows: int
    series: int
    median: float
    mean: float
    worst: float  # with its sign
    worst_id: str
    signed: float
    over: int
    under: int
    by_series: float  # the mean of each series' median


@dataclass(frozen=True)
class Slope:
    """Rows of one series that differ in one thing alone: GiB for one more of `unit`, by least squares."""

    series: str
    model: str
    counter: str
    unit: str  # picture, megapixel
    at: tuple[float, ...]
    measured: float
    predicted: float

    @property
    def miss(self) -> float | None:
        return self.predicted / self.measured - 1 if self.measured else None


def grouped(things: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Groups in the order in which their keys first come, each in the order of `things`."""
    found: dict[K, list[T]] = defaultdict(list)
    for thing in things:
        found[key(thing)].append(thing)
    return dict(found)


def summary(points: list[tuple[Row, Point]]) -> Summary:
    """Of one counter's points, at least one. Of rows that miss alike the last by id is the worst."""
    misses = [point.miss for _, point in points]
    row, worst = max(points, key=lambda held: (abs(held[1].miss), held[0].id))
    series = grouped(points, lambda held: held[0].series)
    return Summary(
        len(points), len(series), median(map(abs, misses)), mean(map(abs, misses)), worst.miss, row.id, mean(misses),
        sum(miss > 0 for miss in misses), sum(miss < 0 for miss in misses),
        mean(median(abs(point.miss) for _, point in held) for held in series.values()),
    )  # fmt: skip


# What may differ between rows that are alike: what was measured, and what says where it was found.
_ASIDE = {"line", "id", "url", "date", "notes", "measured_gib", "measures", "bound", "unit_in_source", "load_gib",
          "outcome", "completeness", "quality", "phase"}  # fmt: skip


def _alike(row: Row, but: str) -> tuple[object, ...]:
    return tuple(getattr(row, field.name) for field in fields(Row) if field.name not in _ASIDE | {but})


def _least_squares(xs: list[float], ys: list[float]) -> float:
    x, y = mean(xs), mean(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def _megapixels(row: Row) -> float | None:
    if row.resolution is None or len(row.resolution) > 2:
        return None
    return row.resolution[0] * row.resolution[-1] / 1e6


def _pictures(row: Row) -> float | None:
    return None if row.batch_size is None else float(row.batch_size)


def _slopes_against(judged: list[Judged], unit: str, but: str, size: Callable[[Row], float | None]) -> list[Slope]:
    held = [(one.row, one.judgement, x) for one in judged
            if isinstance(one.judgement, Point) and (x := size(one.row)) is not None]  # fmt: skip

    def alike(entry: tuple[Row, Point, float]) -> tuple[str, tuple[object, ...]]:
        return entry[1].counter, _alike(entry[0], but)

    found: list[Slope] = []
    for (counter, _), group in grouped(held, alike).items():
        xs = [x for _, _, x in group]
        if len(set(xs)) < 2:
            continue
        row = group[0][0]
        measured = _least_squares(xs, [point.measured for _, point, _ in group])
        predicted = _least_squares(xs, [point.predicted for _, point, _ in group])
        found.append(Slope(row.series, row.model, counter, unit, tuple(sorted(set(xs))), measured, predicted))
    return found


def slopes(judged: list[Judged]) -> list[Slope]:
    """Of every group of rows that are alike but for their batch size, or but for their resolution."""
    found = _slopes_against(judged, "picture", "batch_size", _pictures)
    found += _slopes_against(judged, "megapixel", "resolution", _megapixels)
    return sorted(found, key=lambda slope: (slope.series, slope.model, slope.unit, slope.counter, slope.at))
