"""What vramest answers to a question.

A pipeline's models are asked about one by one, since a job file holds one. What they allocate adds up, as torch's
counter adds up blocks: at each call, the others' weights as they lie in torch's blocks after loading, and what the
call takes at its highest. During the decode the denoiser's inputs are still alive, as the pipeline's locals are.
Reserved memory does not add up (a call reuses what an earlier one left in the cache), so nothing is said about it.

Where models move to the card as they are called (diffusers' enable_model_cpu_offload), a call finds there what has not
been sent away by then: accelerate's hook sends away the model before it in the pipeline's order and no other
(accelerate/hooks.py, CpuOffload.pre_forward). So a text encoder that comes again for the negative prompt finds the last
one of the first round still there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import vramest
from vramest.accuracy.jobs import Question, Refusal


@dataclass(frozen=True)
class Prediction:
    """Bytes. Of a pipeline, `reserved` and `device` are None; `at_rest` is what is allocated before the work begins.

    `allocated` and `reserved` lie within their ranges: the least and the most that convolutions may take
    (docs/scratch.md).
    """

    phase: str
    allocated: int
    at_rest: int
    weights: int
    reserved: int | None
    device: tuple[int, int] | None
    usable: int | None  # of the card, where the row names one
    allocated_range: tuple[int, int]
    reserved_range: tuple[int, int] | None


def _ask(job: Mapping[str, object], question: Question) -> vramest.Report:
    return vramest.check(job, gpu=question.gpu, capacity=question.capacity, sets=question.sets)


def _at_rest(report: vramest.Report) -> int:
    """Allocated after its weights have come, before its inputs."""
    load = report.phases[0]
    return next((stage.allocated_peak for stage in load.stages if stage.name == "weights"), load.allocated_peak)


def _refusal_of(report: vramest.Report) -> Refusal:
    errors = [note for note in report.diagnostics if note.severity == "error"]
    if not errors:
        return Refusal("vramest cannot say", report.reason)
    first = errors[0]
    why = {"unknown_model": "model not known", "unsupported": "not modelled, says vramest"}
    return Refusal(why.get(first.problem, "vramest cannot say"), first.text)


def _usable(report: vramest.Report, question: Question) -> int | None:
    return report.gpu.usable if question.gpu is not None or question.capacity is not None else None


def _whole(report: vramest.Report, question: Question) -> Prediction | Refusal:
    if report.peak is None:
        return _refusal_of(report)
    peak = report.peak
    usable = _usable(report, question)
    device = (peak.device_low, peak.device_high)
    return Prediction(peak.phase, peak.allocated, _at_rest(report), report.weights, peak.reserved, device, usable,
                      (peak.allocated_low, peak.allocated_high), (peak.reserved_low, peak.reserved_high))  # fmt: skip


Peaks = tuple[int, int, int]  # allocated: the middle, the least, the most


def _highest(report: vramest.Report, beside: int) -> Peaks:
    """Allocated at its call's highest, its weights included, with so many bytes beside it."""
    peak = report.peak
    assert peak is not None
    middle = max(phase.allocated_peak for phase in report.phases[1:])
    return beside + middle, beside + peak.allocated_low, beside + peak.allocated_high


def _kept(reports: list[vramest.Report], roles: list[str]) -> int:
    """What the denoiser was handed is alive during the decode."""
    return sum(report.inputs for report, role in zip(reports, roles, strict=True) if role == "denoise")


def _of_calls(
    calls: list[tuple[str, Peaks]], at_rest: int, reports: list[vramest.Report], question: Question
) -> Prediction:
    phase, (allocated, _, _) = max(calls, key=lambda call: call[1][0])
    least, most = (max(peaks[end] for _, peaks in calls) for end in (1, 2))
    weights = sum(report.weights for report in reports)
    usable = _usable(reports[0], question)
    return Prediction(phase, allocated, at_rest, weights, None, None, usable, (least, most), None)


def _together(reports: list[vramest.Report], question: Question) -> Prediction:
    rest = [_at_rest(report) for report in reports]
    held = sum(rest)
    roles = [part.role for part in question.parts]
    kept = _kept(reports, roles)
    calls: list[tuple[str, Peaks]] = [("load", (held, held, held))]
    for role, report, own in zip(roles, reports, rest, strict=True):
        if role == "held" or question.loads_only:
            continue
        calls.append((role, _highest(report, held - own + (kept if role == "decode" else 0))))
    return _of_calls(calls, held, reports, question)


def _in_turn(reports: list[vramest.Report], question: Question, moves: tuple[int, ...]) -> Prediction:
    rest = [_at_rest(report) for report in reports]
    roles = [part.role for part in question.parts]
    kept = _kept(reports, roles)
    calls: list[tuple[str, Peaks]] = []
    here: set[int] = set()
    for part in moves:
        here.discard(part - 1)
        here.add(part)
        others = sum(rest[other] for other in here if other != part)
        calls.append((roles[part], _highest(reports[part], others + (kept if roles[part] == "decode" else 0))))
    return _of_calls(calls, 0, reports, question)


def predict(question: Question) -> Prediction | Refusal:
    """Checks every part. One part is its report; several are put together as the module says."""
    reports: list[vramest.Report] = []
    for part in question.parts:
        report = _ask(part.job, question)
        if report.peak is None:
            return _refusal_of(report)
        reports.append(report)
    if len(reports) == 1:
        return _whole(reports[0], question)
    if question.moves is not None:
        return _in_turn(reports, question, question.moves)
    return _together(reports, question)
