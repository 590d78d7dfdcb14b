"""What vramest answers to a question.

A pipeline's models are asked about one by one, since a job file holds one. What they allocate adds up, as torch's
counter adds up blocks: at each call, the others' weights as they lie in torch's blocks after loading, and what the
call takes at its highest. During the decode the denoiser's inputs are still alive, as the pipeline's locals are.
Reserved memory does not add up (a call reuses what an earlier one left in the cache), so nothing is said about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import vramest
from vramest.accuracy.jobs import Question, Refusal


@dataclass(frozen=True)
class Prediction:
    """Bytes. Of a pipeline, `reserved` and `device` are None; `at_rest` is what is allocated before the work begins."""

    phase: str
    allocated: int
    at_rest: int
    weights: int
    reserved: int | None
    device: tuple[int, int] | None
    usable: int | None  # of the card, where the row names one


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
    return Prediction(peak.phase, peak.allocated, _at_rest(report), report.weights, peak.reserved, device, usable)


def _together(reports: list[vramest.Report], question: Question) -> Prediction:
    rest = [_at_rest(report) for report in reports]
    held = sum(rest)
    roles = [part.role for part in question.parts]
    kept = sum(report.inputs for report, role in zip(reports, roles, strict=True) if role == "denoise")
    peaks: list[tuple[int, str]] = [(held, "load")]
    for role, report, own in zip(roles, reports, rest, strict=True):
        if role == "held" or question.loads_only:
            continue
        highest = max(phase.allocated_peak for phase in report.phases[1:])
        peaks.append((held - own + highest + (kept if role == "decode" else 0), role))
    allocated, phase = max(peaks, key=lambda peak: peak[0])
    weights = sum(report.weights for report in reports)
    return Prediction(phase, allocated, held, weights, None, None, _usable(reports[0], question))


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
    return _together(reports, question)
