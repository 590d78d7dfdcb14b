"""Records what an optimizer's steps allocate and free, on a fake GPU.

    python record_optimizers.py --check [--only TEXT]     record what is stored again, and compare
    python record_optimizers.py --write [--only TEXT]     record it again, and store it
    python record_optimizers.py --show ID                 the events of a case, with the op that made each

Real optimizer classes, a few parameters of telling shapes (optimizers.py), two steps. Every parameter gets its gradient
by a backward of its own, as hooks fire there: a scalar is made of it, and the gradient is a new tensor. Then step() and
zero_grad(). Rows of truth/optimizers.jsonl:

    {"case": {...}, "made_by": "bitsandbytes 0.50.2, torch 2.13.0+cpu",
     "result": {"state_bytes": of what stays beside the parameters, "stages": [["constructor", [...]], ["backward 1",
     [...]], ["step 1", [...]], ["zero_grad 1", [...]], ...]}}

A stage is a list of numbers: n > 0 is an allocation of n bytes as requested, n < 0 the free of the -n-th allocation
since the parameters were made, counted from 1. The frees between two allocations are sorted.
"""

import fake_cuda

if __name__ == "__main__":
    fake_cuda.ensure()

import argparse
import contextlib
import io
import json
import pathlib
import sys
import traceback

import optimizers

STORED = pathlib.Path(__file__).with_name("truth") / "optimizers.jsonl"


def values(zero: set):
    """A recorder that answers where a program asks a tensor for its value: 1, and true; but `any` of a parameter that
    starts at zero is false."""
    import torch

    from recorder import Recorder

    aten = torch.ops.aten

    class Values(Recorder):
        def __init__(self):
            super().__init__(trace=True)
            self.zero, self._no = set(), set()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is aten._local_scalar_dense.default:
                storage = args[0].untyped_storage()._cdata
                if args[0].dtype == torch.bool:
                    return storage not in self._no
                return 1.0 if args[0].dtype.is_floating_point else 1
            out = super().__torch_dispatch__(func, types, args, kwargs)
            if func is aten.any.default:  # addresses come again: only the newest answer counts
                is_zero = args[0].untyped_storage()._cdata in self.zero
                self._no = {out.untyped_storage()._cdata} if is_zero else set()
            return out

    return Values()


@contextlib.contextmanager
def _tensors_made_on_the_gpu():
    """torch.tensor(data, device="cuda") as the one allocation that it is: inside a hook of backward it does not see the
    fake mode, and would copy from the CPU for real."""
    import torch

    plain = torch.tensor

    def tensor(data, dtype=None, device=None, **others):
        if device is None or torch.device(device).type != "cuda":
            return plain(data, dtype=dtype, device=device, **others)
        return torch.empty((len(data),) if isinstance(data, list) else (), dtype=dtype, device=device)

    torch.tensor = tensor
    try:
        yield
    finally:
        torch.tensor = plain


def record(case: dict) -> tuple:
    """(row, recorder) of a case."""
    fake_cuda.install()
    import torch

    import jobs
    from recorder import Loss, no_garbage_collector

    cls, made_by = optimizers.class_of(case)
    getattr(cls, "_PACK_CONSTS", {}).clear()  # a class's cache on the GPU: each case starts without
    recorder = values(optimizers.ZERO)
    with (no_garbage_collector(), fake_cuda.fake_mode(), recorder, _tensors_made_on_the_gpu(),
          contextlib.redirect_stdout(io.StringIO())):
        trained = []
        for shape, dtype in case["parameters"]:
            tensor = torch.empty(shape, dtype=jobs.DTYPES[dtype], device="cuda:0")
            trained.append(torch.nn.Parameter(tensor))
            del tensor
        recorder.zero = {trained[i].untyped_storage()._cdata for i in optimizers.ZERO}
        weights = recorder.live
        recorder.mark("constructor")
        optimizer = cls(trained, **{key: tuple(value) if isinstance(value, list) else value
                                    for key, value in case["arguments"].items()})
        if hasattr(optimizer, "train"):
            optimizer.train()
        for step in range(1, case["steps"] + 1):
            recorder.mark(f"backward {step}")
            for parameter in trained * case["micro_steps"]:
                Loss.apply(parameter).backward()
            recorder.mark(f"step {step}")
            optimizer.step()
            recorder.mark(f"zero_grad {step}")
            optimizer.zero_grad()
        state = recorder.live - weights
        recorder.mark("end")
    if "torch " not in made_by:
        made_by += f", torch {torch.__version__}"
    return {"case": case, "made_by": made_by, "result": {"state_bytes": state, "stages": stages(recorder)}}, recorder


def stages(recorder, empty: bool = True) -> list:
    """By mark what was allocated and freed; without `empty`, tensors of no bytes are left out."""
    texts, out, numbers, frees = recorder.events.texts, [], {}, []
    for kind, slot, nbytes, op, _ in recorder.events.rows:
        if kind == "m":
            if out:
                out[-1][1] += sorted(frees)
            frees = []
            if texts[op] == "end":
                break
            out.append([texts[op], []])
        elif not out or (kind == "a" and nbytes == 0 and not empty):
            continue
        elif kind == "a":
            numbers[slot] = len(numbers) + 1
            out[-1][1] += sorted(frees) + [nbytes]
            frees = []
        elif slot in numbers:
            frees.append(-numbers[slot])
    return out


def show(recorder) -> None:
    texts, numbers = recorder.events.texts, {}
    for kind, slot, nbytes, op, _ in recorder.events.rows:
        if kind == "m":
            print(texts[op])
        elif kind == "a":
            numbers[slot] = len(numbers) + 1
            print(f"  {nbytes:>9}  {texts[op]}  #{numbers[slot]}")
        else:
            print(f"             free #{numbers[slot]}")


def main(about: str, table, record, stored_at: pathlib.Path) -> int:
    """The command over the cases of `table`, a module with `cases`, `is_there` and, for those that are not, `MISSING`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="record again and compare with what is stored")
    parser.add_argument("--write", action="store_true", help="record again and store what differs")
    parser.add_argument("--only", default="", help="ids that hold this text")
    parser.add_argument("--show", metavar="ID", help="print a case's events")
    arguments = parser.parse_args()
    cases = {case["id"]: case for case in table.cases()}
    if arguments.show:
        show(record(cases[arguments.show])[1])
        return 0
    if not (arguments.check or arguments.write):
        parser.error("--check, --write or --show")
    stored = {}
    if stored_at.exists():
        stored = {row["case"]["id"]: row for row in map(json.loads, stored_at.read_text().splitlines())}
    failures = 0
    for name, case in cases.items():
        if arguments.only not in name:
            continue
        if not table.is_there(case):
            print(f"skipped {name}: {table.MISSING}")
            continue
        try:
            row, _ = record(case)
        except Exception as error:  # the others are still worth a look
            failures += 1
            print(f"FAILED  {name}: {str(error).splitlines()[0] if str(error) else type(error).__name__}", flush=True)
            if arguments.only == name:
                traceback.print_exc()
            continue
        equal = stored.get(name) == row
        failures += not equal
        print(f"{'equal  ' if equal else 'DIFFERS'} {name}", flush=True)
        stored[name] = row
    if arguments.write:
        rows = [stored[name] for name in cases if name in stored]
        stored_at.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
        return 0
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(__doc__, optimizers, record, STORED))
