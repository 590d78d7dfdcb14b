"""What denoisers read out of tensors; fake tensors hold no values to read.

`evenly_spread(experts)` answers for HiDream's forward, and only for it:

- Which expert a token goes to is a value, and so is how many tokens an expert gets: `x[chosen == i]` and `bincount` have
  no shape without data, and fake tensors refuse them. Here every expert gets its share, tokens x top_k / experts, the
  first ones one more where that leaves a rest. A router that prefers some experts makes their tensors larger and the
  others' smaller. A mask picks as so many places do; on a card these are found inside the kernel, as scratch.
- Numbers that were written into a tensor, sizes of pictures, are followed through views and products until they are read.
"""

import contextlib

import numpy
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

aten = torch.ops.aten
PICKS = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
FOLLOWED = (aten.view.default, aten.unsqueeze.default, aten.repeat.default, aten.unbind.int, aten.mul.Tensor)


def share(choices: int, experts: int, expert: int) -> int:
    """How many of the choices fall on this expert."""
    return choices // experts + (expert < choices % experts)


class _Counts:
    """What `bincount` returns: a tensor on the GPU until its values are asked for."""

    def __init__(self, chosen: torch.Tensor, experts: int):
        self._on_gpu = torch.empty(experts, dtype=torch.int64, device=chosen.device)
        self._values = [share(chosen.numel(), experts, expert) for expert in range(experts)]

    def cpu(self):
        return _CountsOnCpu(self._values)


class _CountsOnCpu:
    def __init__(self, values: list):
        self._values = values

    def numpy(self) -> numpy.ndarray:
        return numpy.array(self._values)


@contextlib.contextmanager
def evenly_spread(experts: int):
    plain = FakeTensorMode.dispatch  # below the recorder: what is done here, it does not see

    def places(mode, index):
        if index is None or index.dtype != torch.bool:
            return index
        with mode:
            return torch.empty(index.count, dtype=torch.int64, device=index.device)

    def dispatch(mode, func, types, args=(), kwargs=None):
        followed = bool(args) and hasattr(args[0], "numbers")
        if func is aten._local_scalar_dense.default and followed:
            return args[0].numbers.item()
        if func in PICKS:
            args = (args[0], [places(mode, index) for index in args[1]], *args[2:])
        out = plain(mode, func, types, args, kwargs or {})
        if func is aten.eq.Scalar:
            out.count = share(out.numel(), experts, args[1])
        elif func is aten.lift_fresh.default and args[0].dtype == torch.int64:
            out.numbers = args[0]
        elif func is aten._to_copy.default and followed:
            out.numbers = args[0].numbers
        elif func in FOLLOWED and followed:
            numbers = func(*(getattr(arg, "numbers", arg) for arg in args))
            for fake, real in zip(out, numbers) if func is aten.unbind.int else [(out, numbers)]:
                fake.numbers = real
        return out

    FakeTensorMode.dispatch, FakeTensor.bincount = dispatch, lambda chosen: _Counts(chosen, experts)
    try:
        yield
    finally:
        FakeTensorMode.dispatch = plain
        del FakeTensor.bincount
