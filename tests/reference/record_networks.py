"""Records what a layer with one of ai-toolkit's networks allocates and frees, on a fake GPU.

    VRAMEST_AI_TOOLKIT=~/ai-toolkit python record_networks.py --check [--only TEXT]

The options are those of record_optimizers.py. The layer stands on the GPU; a row's stages are then what BaseSDTrainProcess
does with the network ("force_to", "multiplier"), "input", "forward", "gradient" and "backward" (unless called without
gradients), "merge_in" of the adapter into its layer, and "save", the network's state dict. Rows of truth/networks.jsonl are as those of truth/optimizers.jsonl, with

    "result": {"parameters": of the adapter, "adapter_bytes": with buffers, each storage rounded up to 512, "stages": [...]}
"""

import fake_cuda

if __name__ == "__main__":
    fake_cuda.ensure()

import contextlib
import io
import pathlib
import sys

import networks
import quantized
import record_optimizers
from record_optimizers import stages

STORED = pathlib.Path(__file__).with_name("truth") / "networks.jsonl"


@contextlib.contextmanager
def _modules_moved_by_new_parameters():
    """Module.to puts a new parameter in the place of the old one: fake tensors cannot be swapped, and have no data to set.
    What is allocated and freed, and in which order, is the same."""
    import torch

    plain = torch.nn.Module._apply

    def apply(module, fn, recurse=True):
        for child in module.children():
            child._apply(fn)
        with torch.no_grad():
            for values in (module._parameters, module._buffers):
                for key, value in values.items():
                    moved = None if value is None else fn(value)
                    if moved is not value:
                        is_parameter = values is module._parameters
                        values[key] = torch.nn.Parameter(moved, value.requires_grad) if is_parameter else moved
        return module

    torch.nn.Module._apply = apply
    try:
        yield
    finally:
        torch.nn.Module._apply = plain


def record(case: dict) -> tuple:
    """(row, recorder) of a case."""
    fake_cuda.install()
    import torch
    import torch.utils.checkpoint

    import jobs
    from recorder import no_garbage_collector

    networks.pretend()
    import toolkit.lora_special  # before the fake mode: it makes tensors of its own

    class Root(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = networks.layer_of(case["layer"], dtype)

        def forward(self, x):
            return self.layer(x)

    dtype = jobs.DTYPES[case.get("dtype", "bf16")]
    recorder = record_optimizers.values(set())
    with (no_garbage_collector(), fake_cuda.fake_mode(), recorder, _modules_moved_by_new_parameters(),
          contextlib.redirect_stdout(io.StringIO())):
        root = Root()
        root.to("cuda:0")
        if "quantize" in case:
            _quantize(root, case["quantize"])
        if "recovery" in case:
            recorder.mark("recovery")
            networks.recover(root, case["recovery"], dtype)
        if case.get("offloaded"):
            recorder.mark("attach")
            quantized.attach(root)
        root.requires_grad_(False)
        root.eval()
        if "recovery" in case:
            recorder.mark("network")
        network = networks.network_of(root, case["network"])
        recorder.mark("force_to")
        network.force_to("cuda:0", dtype=torch.float32)
        recorder.mark("multiplier")
        network.multiplier = case.get("multiplier", [1.0] * case["input"][0])
        network.apply_to([], root, False, True)
        network.prepare_grad_etc([], root)
        network.is_active = True
        recorder.mark("input")
        if case["layer"]["kind"] == "embedding":
            x = torch.zeros(case["input"], dtype=torch.int64, device="cuda:0")
        else:
            x = torch.empty(case["input"], dtype=dtype, device="cuda:0", requires_grad=not case.get("first", False))
        if case["call"] == "no_grad":
            network.eval()
        recorder.mark("forward")
        if case["call"] == "no_grad":
            with torch.no_grad():
                y = root(x)
        elif case["call"] == "checkpoint":
            y = torch.utils.checkpoint.checkpoint(root, x, use_reentrant=False)
        else:
            y = root(x)
        recorder.mark("gradient")
        if case["call"] != "no_grad":
            gradient = torch.empty_like(y)
            recorder.mark("backward")
            torch.autograd.backward([y], [gradient])
            recorder.mark("between")
            del gradient
        del y
        for parameter in network.parameters():
            parameter.grad = None
        x = None
        network.eval()
        if "quantize" not in case and "recovery" not in case:  # can_merge_in
            recorder.mark("merge_in")
            network.merge_in(1.0)
        recorder.mark("save")
        network.get_state_dict(dtype=torch.float16)
        recorder.mark("end")
        adapter = recorder.bytes_of([*network.parameters(), *network.buffers()])
        parameters = sum(parameter.numel() for parameter in network.parameters())
    row = {"parameters": parameters, "adapter_bytes": adapter, "stages": stages(recorder)}
    return {"case": case, "made_by": f"ai-toolkit, torch {torch.__version__}", "result": row}, recorder


def _quantize(root, qtype: str) -> None:
    import torch
    from optimum.quanto import freeze, qtypes, quantize
    from optimum.quanto.library import qbytes_mm

    # An op of its own is one event; on a card its Python body runs, with two copies of the weight.
    torch.ops.quanto.qbytes_mm = qbytes_mm.qbytes_mm
    quantize(root, weights=qtypes[qtype])
    freeze(root)


if __name__ == "__main__":
    sys.exit(record_optimizers.main(__doc__, networks, record, STORED))
