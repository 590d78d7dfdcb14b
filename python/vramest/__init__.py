"""Predicts the VRAM of diffusion training before a GPU is touched.

    import vramest

    report = vramest.check("job.yaml", gpu="RTX 4090")
    report.verdict, report.peak.device, report.phase("step 2").stages
    vramest.advise("job.yaml", gpu="RTX 4090").fits
    vramest.diagnose("run.log", "job.yaml").first_change

All sizes are bytes. What a report's fields mean stands in docs/job-file.md.
"""

from vramest._core import (
    Advice,
    Advised,
    Card,
    Cell,
    Change,
    Checkpointing,
    Counts,
    Diagnosis,
    Diagnostic,
    Edit,
    Evidence,
    GpuLine,
    Grow,
    Growth,
    JobLine,
    Max,
    MemoryRange,
    Model,
    Most,
    Numbers,
    Part,
    Peak,
    Phase,
    Prediction,
    Proposal,
    Report,
    Risk,
    Stage,
    Sweep,
    Trainer,
    Tried,
    __version__,
    advise,
    check,
    diagnose,
    gpus,
    grow,
    max,
    models,
    sweep,
    trainers,
)

__all__ = [
    "Advice",
    "Advised",
    "Card",
    "Cell",
    "Change",
    "Checkpointing",
    "Counts",
    "Diagnosis",
    "Diagnostic",
    "Edit",
    "Evidence",
    "GpuLine",
    "Grow",
    "Growth",
    "JobLine",
    "Max",
    "MemoryRange",
    "Model",
    "Most",
    "Numbers",
    "Part",
    "Peak",
    "Phase",
    "Prediction",
    "Proposal",
    "Report",
    "Risk",
    "Stage",
    "Sweep",
    "Trainer",
    "Tried",
    "__version__",
    "advise",
    "check",
    "diagnose",
    "gpus",
    "grow",
    "max",
    "models",
    "sweep",
    "trainers",
]

for _name in __all__:  # they are this package's, wherever they are compiled
    if isinstance(_thing := globals()[_name], type):
        _thing.__module__ = "vramest"
del _name, _thing
