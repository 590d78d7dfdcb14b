"""Records what quantised linears allocate and free, on a fake GPU.

    python record_quantized.py --check [--only TEXT]     record what is stored again, and compare
    python record_quantized.py --write [--only TEXT]     record it again, and store it
    python record_quantized.py --show ID                 the events of a case, with the op that made each

Real classes (quantized.py). A stack of two linears stands on the GPU, is quantised there, goes to the CPU and comes back. Then
it is called without grad, with an input that requires grad, and so under gradient checkpointing; the loss is a scalar whose
gradient is a new tensor. Rows of truth/quantized.jsonl:

    {"case": {...}, "made_by": "optimum-quanto 0.2.4, torch 2.13.0+cpu",
     "result": {"bytes": what stays beside the input, "stages": [["quantize", [...]], ["to cpu", [...]], ["to gpu", [...]],
     ["no_grad", [...]], ["forward", [...]], ["backward", [...]], ["forward checkpointed", [...]],
     ["backward checkpointed", [...]]]}}

A stage is a list of numbers as in record_optimizers.py; the weights before quantisation are the first allocations.
"""

import fake_cuda

if __name__ == "__main__":
    fake_cuda.ensure()

import contextlib
import io
import pathlib
import sys

import quantized
import record_optimizers
from record_optimizers import stages

STORED = pathlib.Path(__file__).with_name("truth") / "quantized.jsonl"


def _recorder():
    """A recorder that looks inside tensor subclasses, and answers 1 where a program asks a tensor for its value."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    from recorder import Recorder

    aten = torch.ops.aten
    plain = (torch.Tensor, FakeTensor, torch.nn.Parameter)

    class Inside(Recorder):
        def __init__(self):
            super().__init__(trace=True)

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is aten._local_scalar_dense.default:
                return 1.0 if args[0].dtype.is_floating_point else 1
            if not all(issubclass(kind, FakeTensor) or kind in plain or kind.__module__.startswith("bitsandbytes")
                       for kind in types):
                return NotImplemented  # the subclass takes the op apart, and the parts come here
            return super().__torch_dispatch__(func, types, args, kwargs)

    return Inside()


def record(case: dict) -> tuple:
    """(row, recorder) of a case."""
    fake_cuda.install()
    import torch
    from torch.utils.checkpoint import checkpoint

    import jobs
    from recorder import Loss, no_garbage_collector

    recorder, said = _recorder(), io.StringIO()
    dtype = jobs.DTYPES[case["dtype"]]
    with (quantized.prepared(case), no_garbage_collector(), _apply_without_swaps(), fake_cuda.fake_mode(), recorder,
          contextlib.redirect_stdout(said)):
        recorder.mark("load")
        model = quantized.make(case, dtype)
        if case.get("manager") == "before":
            recorder.mark("attach")
            quantized.attach(model)
        recorder.mark("quantize")
        model = quantized.quantize(case, model)
        if case.get("manager") == "after":
            recorder.mark("attach")
            quantized.attach(model)
        stays = recorder.live
        recorder.mark("to cpu")
        model.to("cpu")
        recorder.mark("to gpu")
        model.to("cuda:0")
        again = recorder.live
        recorder.mark("input")
        x = torch.empty(case["input"], dtype=dtype, device="cuda:0")
        recorder.mark("no_grad")
        with torch.no_grad():
            y = model(x)
        del y
        x.requires_grad_()
        for name in ("", " checkpointed"):
            recorder.mark("forward" + name)
            y = checkpoint(model, x, use_reentrant=False) if name else model(x)
            recorder.mark("backward" + name)
            Loss.apply(y).backward()
            del y
            x.grad = None
        recorder.mark("end")
    if "Failed" in said.getvalue() and not case.get("fails"):
        raise RuntimeError(said.getvalue())
    result = {"bytes": stays, "bytes_again": again, "stages": stages(recorder, empty=False)}
    return {"case": case, "made_by": made_by(case), "result": result}, recorder


@contextlib.contextmanager
def _apply_without_swaps():
    """nn.Module._apply swaps fake tensors, which their recorder forbids. Here each parameter is made anew, one by one."""
    import torch

    def apply(module, fn, recurse=True):
        if recurse:
            for child in module.children():
                child._apply(fn)
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            with torch.no_grad():
                applied = fn(parameter)
            if applied is not parameter:
                module._parameters[name] = torch.nn.Parameter(applied, requires_grad=parameter.requires_grad)
            del parameter, applied
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fn(buffer)
        return module

    plain = torch.nn.Module._apply
    torch.nn.Module._apply = apply
    try:
        yield
    finally:
        torch.nn.Module._apply = plain


def made_by(case: dict) -> str:
    import torch

    name = case["format"]
    if name.startswith("bnb-"):
        import bitsandbytes

        library = f"bitsandbytes {bitsandbytes.__version__}"
    elif name in quantized.QUANTO:
        library = "optimum-quanto 0.2.4"
    elif name in quantized.TORCHAO:
        library = "torchao 0.10.0"
    else:
        library = "ai-toolkit 27a03a91"
    return f"{library}, torch {torch.__version__}"


if __name__ == "__main__":
    sys.exit(record_optimizers.main(__doc__, quantized, record, STORED))
