"""What transformers' text encoders read out of tensors; fake tensors hold no values to read.

`known(grids)` answers for it, and only for it, while a model is called:

- Positions that count up are not packed sequences. With values the class finds that out and goes on without a mask;
  told that it traces, it would build one.
- Qwen2.5-VL reads the grids of its pictures (`grids`: rows and columns of patches of each) in helpers of
  `vision_utils`, and the lengths of the pieces within which vision attends. The helpers run on the CPU with the true
  grids; their results are made on the fake GPU, what they need in passing is not recorded. It is smaller than what is
  alive soon after.
"""

import contextlib
import sys

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes


@contextlib.contextmanager
def known(grids: list):
    with contextlib.ExitStack() as patches:
        _know_positions(patches)
        if grids:
            _know_grids(grids, patches)
        yield


@contextlib.contextmanager
def _replaced(owner, name, value):
    plain = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, plain)


@contextlib.contextmanager
def padded():
    """A class that asks whether a mask holds padding, and nothing else, is told so: pipelines pad to a fixed length."""
    with _replaced(FakeTensor, "__bool__", lambda tensor: False):
        yield


def _know_positions(patches: contextlib.ExitStack) -> None:
    import transformers.masking_utils as masking

    is_tracing, true_or_false = masking.is_tracing, FakeTensor.__bool__
    asked = []  # whether positions count up, which is answered next

    def is_tracing_but_for_positions(tensor=None):
        if tensor is None or tensor.dtype != torch.int64:
            return is_tracing(tensor)
        asked.append(True)
        return False

    patches.enter_context(_replaced(masking, "is_tracing", is_tracing_but_for_positions))
    patches.enter_context(_replaced(FakeTensor, "__bool__", lambda tensor: asked.pop() if asked
                                    else true_or_false(tensor)))


def _know_grids(grids: list, patches: contextlib.ExitStack) -> None:
    qwen = sys.modules["transformers.models.qwen2_5_vl.modeling_qwen2_5_vl"]
    lists = {}  # (dtype, elements) of a tensor that is read -> its values

    def helper(name, *results_on_gpu):
        plain = getattr(qwen, name)

        def call(grid_thw, *args, **kwargs):
            with _disable_current_modes():
                results = plain(torch.tensor([(1, *grid) for grid in grids]), *args, **kwargs)
                results = results if isinstance(results, tuple) else (results,)
                for ends in results:
                    if isinstance(ends, torch.Tensor) and ends.dtype == torch.int32:
                        lengths = (ends[1:] - ends[:-1]).tolist()
                        lists[torch.int32, len(lengths)] = lengths
            made = tuple(_made(result, place) for result, place in zip(results, results_on_gpu))
            return made if len(made) > 1 else made[0]

        patches.enter_context(_replaced(qwen, name, call))

    def _made(result, on_gpu):
        if not isinstance(result, torch.Tensor):
            return result
        return torch.empty(result.shape, dtype=result.dtype, device="cuda:0" if on_gpu else "cpu")

    helper("get_vision_position_ids", True)
    helper("get_vision_attention_seqlens", True, False)
    helper("get_vision_window_index", False, True)
    lists[torch.int64, len(grids)] = [rows * columns // 4 for rows, columns in grids]
    patches.enter_context(_replaced(FakeTensor, "tolist", lambda tensor: lists[tensor.dtype, tensor.numel()]))
    patches.enter_context(_replaced(qwen, "torch_compilable_check", lambda *_: None))
