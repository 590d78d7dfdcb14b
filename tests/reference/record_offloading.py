"""Records models whose layers live in host memory, on a fake GPU.

    VRAMEST_AI_TOOLKIT=~/ai-toolkit VRAMEST_QUANTIZERS=~/quantizers python record_offloading.py --check [--only TEXT]

The options are those of record_optimizers.py. A model (offloading.py) stands on the CPU; ai-toolkit's MemoryManager is attached
to it, it is quantised, and goes to the GPU. A row's stages are then "input", "no_grad" (a call without gradients), and of a denoiser "forward" and "backward", whose
latents ask for gradients. Rows of truth/offloading.jsonl are as those of truth/optimizers.jsonl, with

    "result": {"moved": the sizes of what is on the GPU before the call, sorted, "stages": [...]}
"""

import fake_cuda

if __name__ == "__main__":
    fake_cuda.ensure()

import contextlib
import io
import pathlib
import sys

import offloading
import quantized
import record_optimizers
from record_optimizers import stages
from record_quantized import _recorder

STORED = pathlib.Path(__file__).with_name("truth") / "offloading.jsonl"


@contextlib.contextmanager
def _modules_moved_by_new_parameters(roots: list):
    """Module._apply puts a new parameter in the place of the old one, wherever in `roots` that stands: fake tensors cannot be
    swapped, and have no data to set."""
    import torch

    plain = torch.nn.Module._apply

    def apply(module, fn, recurse=True):
        for child in module.children() if recurse else ():
            child._apply(fn)
        with torch.no_grad():
            for key, value in list(module._parameters.items()):
                moved = value if value is None else fn(value)
                if moved is value:
                    continue
                new = torch.nn.Parameter(moved, requires_grad=value.requires_grad)
                holders = [one for root in roots for one in root.modules()] + [module]
                for holder in holders:
                    for name, held in holder._parameters.items():
                        if held is value:
                            holder._parameters[name] = new
                del moved, new
            for key, value in module._buffers.items():
                if value is not None:
                    module._buffers[key] = fn(value)
        return module

    torch.nn.Module._apply = apply
    try:
        yield
    finally:
        torch.nn.Module._apply = plain


def _made(case: dict, recorder):
    """(model on the CPU, shapes of its inputs, its other arguments, what is true of its values, call)"""
    import torch

    import jobs
    import models

    if "component" in case:
        entry = models.TEXT_ENCODERS[case["component"]]
        if "cls" in case:
            import dataclasses

            models.TEXT_ENCODERS[case["component"]] = dataclasses.replace(entry, cls=case["cls"])
        model, shapes, call = jobs._text_encoder(case)
        models.TEXT_ENCODERS[case["component"]] = entry
        if hasattr(model.model, "vision_tower"):
            model.model.vision_tower = None
        return model, shapes, {}, contextlib.nullcontext(), call
    entry = models.MODELS[case["model"]]
    config = jobs._config_of(case, entry)
    cls = offloading.own_class(case) if "forward" in case else entry.load()
    model = jobs._on_meta(lambda: entry.make(cls, config))
    shapes = entry.inputs(case, config)
    if "forward" in case:  # as the trainer hands it over
        shapes["timestep"] = (shapes["timestep"][0], torch.float32)
    return (model, shapes, entry.arguments(case) | entry.always, entry.values(case), model)


def record(case: dict) -> tuple:
    """(row, recorder) of a case."""
    fake_cuda.install()
    import torch

    import jobs
    from recorder import no_garbage_collector

    class Loss(torch.autograd.Function):
        """A scalar of several tensors, whose gradients are new tensors."""

        @staticmethod
        def forward(ctx, *xs):
            ctx.like = [(x.shape, x.dtype) for x in xs]
            return xs[0].new_empty(())

        @staticmethod
        def backward(ctx, grad):
            return tuple(torch.empty(shape, dtype=dtype, device="cuda:0") for shape, dtype in ctx.like)

    recorder, roots = _recorder(), []
    quantized_case = {"format": case.get("quantize", "none")}
    with (quantized.prepared(quantized_case), no_garbage_collector(), fake_cuda.fake_mode(), recorder,
          _modules_moved_by_new_parameters(roots), contextlib.redirect_stdout(io.StringIO())):
        model, shapes, arguments, values, call = _made(case, recorder)
        jobs.DEVICE = "cpu"
        jobs._materialise(model, case, recorder)
        jobs.DEVICE = "cuda:0"
        model.requires_grad_(False)
        roots.append(model)
        attaches = case["attach"] != "none"

        def attach():
            if attaches:
                quantized.attach(model, offloading.ignored(case, model))

        if case.get("before"):
            attach()
            model.to("cuda:0", dtype=torch.bfloat16)
        elif not attaches:
            model.to("cuda:0")
        quantized.quantize(quantized_case, model)
        if not case.get("before"):
            attach()
        if case["attach"].startswith("ltx2") and "component" in case:
            model.to("cuda:0", dtype=torch.bfloat16)
        model.to("cuda:0")
        model.requires_grad_(False)
        if case.get("checkpointing"):
            model.enable_gradient_checkpointing()
        model.train("component" not in case)
        moved = sorted(nbytes for nbytes in _alive(recorder) if nbytes)
        recorder.mark("input")
        inputs = jobs._make(recorder, shapes, torch.bfloat16)
        named = jobs._nested(inputs)
        with values:
            recorder.mark("no_grad")
            with torch.no_grad():
                out = call(**named, **arguments)
            del out
            if "component" not in case:
                for name, one in named.items():
                    if "hidden_states" in name and "encoder" not in name:
                        one.requires_grad_()
                recorder.mark("forward")
                out = jobs._outputs(call(**named, **arguments))
                loss = Loss.apply(*out)
                recorder.mark("backward")
                del out
                loss.backward()
        recorder.mark("end")
    result = {"moved": moved, "stages": stages(recorder, empty=False)}
    made_by = f"ai-toolkit 27a03a91, torch {torch.__version__}"
    return {"case": case, "made_by": made_by, "result": result}, recorder


def _alive(recorder) -> list:
    """Bytes of what is alive."""
    sizes = {}
    for kind, slot, nbytes, _, _ in recorder.events.rows:
        if kind == "a":
            sizes[slot] = nbytes
        elif kind == "f":
            sizes.pop(slot, None)
    return list(sizes.values())


if __name__ == "__main__":
    sys.exit(record_optimizers.main(__doc__, offloading, record, STORED))
