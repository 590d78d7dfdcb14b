"""A row beside its prediction. Each kind of statement is judged in its own way, and none is mixed with another."""

from __future__ import annotations

from dataclasses import dataclass

from vramest.accuracy.jobs import Question, Refusal, counter_of, question_of
from vramest.accuracy.predict import Prediction, predict
from vramest.accuracy.rows import Row
from vramest.accuracy.words import Words

GIB = 2**30
OPEN_UNITS = (None, "GB", "G", "GB printed", "MB")  # words for 2^30 and for 10^9 bytes alike


@dataclass(frozen=True)
class Point:
    """A measurement of a named counter."""

    counter: str
    measured: float  # GiB
    predicted: float
    least: float | None = None  # predicted, where it is a range
    most: float | None = None

    @property
    def within(self) -> bool | None:
        """The range, to 1 MiB; None: there is none."""
        if self.least is None or self.most is None:
            return None
        return self.least - 1 / 1024 <= self.measured <= self.most + 1 / 1024

    @property
    def miss(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Bound:
    """It fits a card of that size, it needs more than that, it ran out of memory. `holds` is None if undecided."""

    says: str
    low: float  # GiB, predicted
    high: float | None
    holds: bool | None


@dataclass(frozen=True)
class Unnamed:
    """A reading whose counter nobody named: it should lie between our allocated and our device, whichever it was."""

    measured: float  # as written
    least: float  # lower where a bare GB may have been 10^9 bytes
    allocated: float
    device: float | None  # None: a pipeline's is not known

    @property
    def within(self) -> bool | None:
        """None: not below allocated, and where device ends is not known."""
        if self.measured < self.allocated:
            return False
        return None if self.device is None else self.least <= self.device

    @property
    def miss(self) -> float:
        """How far outside: above 0 we say too much, below 0 too little. Otherwise 0."""
        if self.within is not False:
            return 0.0
        if self.measured < self.allocated:
            return self.allocated / self.measured - 1
        assert self.device is not None
        return self.device / self.least - 1


Judgement = Point | Bound | Unnamed


@dataclass(frozen=True)
class Judged:
    """A row that could be predicted."""

    row: Row
    question: Question
    prediction: Prediction
    judgement: Judgement
    at_rest: Point | None  # its load_gib, where its counter is allocated memory


@dataclass(frozen=True)
class Unjudged:
    """A row that could not, and why."""

    row: Row
    refusal: Refusal


def _of_counter(prediction: Prediction, counter: str) -> int | None:
    """Bytes; None where a pipeline's calls do not tell. Of device we have a range, and a miss needs one number."""
    if counter == "weights":
        return prediction.weights
    if counter == "device":
        return None if prediction.device is None else sum(prediction.device) // 2
    return prediction.reserved if counter == "reserved" else prediction.allocated


def _range_of(prediction: Prediction, counter: str) -> tuple[int, int] | None:
    if counter == "weights":
        return None
    if counter == "device":
        return prediction.device
    return prediction.reserved_range if counter == "reserved" else prediction.allocated_range


def _needs(prediction: Prediction) -> tuple[float, float | None]:
    """What it takes of a card, GiB: from, to. Of a pipeline only the lower end is known."""
    if prediction.device is None:
        return prediction.allocated / GIB, None
    return prediction.device[0] / GIB, prediction.device[1] / GIB


def _outcome(row: Row, prediction: Prediction) -> Bound | Refusal:
    """No number; whether it fitted the card that the row names."""
    if prediction.usable is None:
        return Refusal("nothing to compare with", "neither a number nor a card")
    card = prediction.usable / GIB
    low, high = _needs(prediction)
    said = f"out of memory on {row.gpu}" if row.outcome == "oom" else f"fits {row.gpu}"
    fits = False if low > card else True if high is not None and high <= card else None
    return Bound(said, low, high, None if fits is None else fits == (row.outcome == "fits"))


def _bound(row: Row, prediction: Prediction, measured: float) -> Bound:
    low, high = _needs(prediction)
    if row.bound == "lower":
        holds = True if low >= measured else False if high is not None and high < measured else None
        return Bound(f"needs {measured:g} or more", low, high, holds)
    holds = False if low > measured else True if high is not None and high <= measured else None
    return Bound(f"at most {measured:g}", low, high, holds)


def _judgement(row: Row, prediction: Prediction) -> Judgement | Refusal:
    if row.outcome == "oom" or row.measured_gib is None:
        return _outcome(row, prediction)
    if row.bound in ("upper", "lower"):
        return _bound(row, prediction, row.measured_gib)
    counter = counter_of(row)
    assert counter is not None
    if counter == "not named":
        device = None if prediction.device is None else prediction.device[1] / GIB
        least = row.measured_gib * (1e9 / GIB if row.unit_in_source in OPEN_UNITS else 1)
        return Unnamed(row.measured_gib, least, prediction.allocated / GIB, device)
    predicted = _of_counter(prediction, counter)
    if predicted is None:
        return Refusal("counter cannot be compared", f"a pipeline's {counter} memory does not follow from its calls")
    low, high = _range_of(prediction, counter) or (predicted, predicted)
    if low == high:
        return Point(counter, row.measured_gib, predicted / GIB)
    return Point(counter, row.measured_gib, predicted / GIB, low / GIB, high / GIB)


def judge(row: Row, words: Words) -> Judged | Unjudged:
    """Asks vramest about `row` and holds its answer against what was measured."""
    question = question_of(row, words)
    if isinstance(question, Refusal):
        return Unjudged(row, question)
    prediction = predict(question)
    if isinstance(prediction, Refusal):
        return Unjudged(row, prediction)
    judgement = _judgement(row, prediction)
    if isinstance(judgement, Refusal):
        return Unjudged(row, judgement)
    at_rest = None
    counter = counter_of(row)
    if row.load_gib is not None and counter is not None and counter.startswith("allocated"):
        at_rest = Point(counter, row.load_gib, prediction.at_rest / GIB)
    return Judged(row, question, prediction, judgement, at_rest)
