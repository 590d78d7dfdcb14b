"""Births and deaths of every storage on the fake GPU, in order.

    with fake_cuda.fake_mode(), Recorder() as recorder:
        with recorder.stage("step 1", "forward"):
            ...

A `Recorder` sits above FakeTensorMode and sees what every op returns. It notes each storage once, with the op that made
it, the line of the model's own code that asked for it and the module that was being called; a weak reference tells
when the storage has died. What it cannot see is scratch inside kernels.

Three things differ under a dispatch mode from a run on a card, and are put right: gradients that the engine adds in
place (`_adds_in_place`), the attention kernel (`attention.py`), and ops that a CPU build takes apart (`fake_cuda.py`).
"""

import contextlib
import gc
import os
import sys
import threading
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import attention

aten = torch.ops.aten

#: Packages whose frames count as "the model's code"; the innermost such frame names an event.
MODEL_PACKAGES = ("diffusers", "transformers", "peft")
#: Folders of classes that no package has.
MODEL_CHECKOUTS = ("omnigen2", "library", "musubi_tuner")
#: What any allocation is rounded up to: the smallest block of torch's caching allocator.
ROUND = 512


def rounded(nbytes: int) -> int:
    return -(-nbytes // ROUND) * ROUND


class Events:
    """The event list: rows of [kind, slot, bytes, op, where] over a table of texts (see compare.py for the format)."""

    def __init__(self):
        self.texts = [""]
        self.rows = []
        self._index = {"": 0}

    def text(self, text: str) -> int:
        index = self._index.get(text)
        if index is None:
            index = self._index[text] = len(self.texts)
            self.texts.append(text)
        return index

    def to_dict(self, case: dict) -> dict:
        return {"format": 1, "made_by": f"torch {torch.__version__}", "case": case, "texts": self.texts,
                "events": self.rows}


class Recorder(TorchDispatchMode):
    """Counts live tensors on the fake GPU; with `trace` it also keeps the event list."""

    def __init__(self, trace: bool = False):
        super().__init__()
        self.live = 0            # bytes, each storage once, rounded up
        self.peak = 0            # since the last stage began
        self.stages = []         # (phase, stage, start, peak, end)
        self.attention_calls = {}
        self.events = Events() if trace else None
        self._slots = 0
        self._storages = {}      # the address of a storage's implementation -> its weak reference
        self._names = {}         # id of a module -> qualified name
        self._calls = threading.local()
        self._main = threading.get_ident()
        self._forward_places = {}  # sequence number of an autograd node -> index of the text of its place
        self._short_names = {}
        self._patches = contextlib.ExitStack()

    # -- what is running ---------------------------------------------------------------------------------------------

    def name_modules(self, model: torch.nn.Module) -> None:
        """Events name the modules of this model from now on."""
        self._names.update((id(module), name) for name, module in model.named_modules())

    def __enter__(self):
        self._patches.enter_context(attention.like_a_gpu(self._count_attention))
        if self.events is not None:
            self._patches.enter_context(self._module_calls_noted())
        return super().__enter__()

    def __exit__(self, *error):
        try:
            return super().__exit__(*error)
        finally:
            self._patches.close()

    def _count_attention(self, kernel: str) -> None:
        self.attention_calls[kernel] = self.attention_calls.get(kernel, 0) + 1

    @contextlib.contextmanager
    def _module_calls_noted(self):
        # A wrapper, rather than hooks: modules that have hooks are called in another way, which keeps their arguments
        # alive for longer. The wrapper's own references end when those of Module.__call__ end.
        plain = torch.nn.Module.__call__
        calls, names = self._calls, self._names

        def call(module, *args, **kwargs):
            stack = calls.__dict__.setdefault("stack", [])
            stack.append(names.get(id(module)))
            try:
                return plain(module, *args, **kwargs)
            finally:
                stack.pop()

        torch.nn.Module.__call__ = call
        try:
            yield
        finally:
            torch.nn.Module.__call__ = plain

    def _short_name(self, path: str):
        """`transformer_flux.py` for a file of a model package, None for any other."""
        parts = path.split(os.sep)
        package = parts[parts.index("site-packages") + 1] if "site-packages" in parts else ""
        inside = package in MODEL_PACKAGES or any(folder in parts for folder in MODEL_CHECKOUTS)
        return parts[-1] if inside else None

    def _model_line(self):
        """`file:line module` of the innermost frame of a model package, or None."""
        frame = sys._getframe(2)
        while frame is not None:
            path = frame.f_code.co_filename
            if path not in self._short_names:
                self._short_names[path] = self._short_name(path)
            name = self._short_names[path]
            if name is not None:
                stack = getattr(self._calls, "stack", None)
                module = next((m for m in reversed(stack) if m), "") if stack else ""
                return f"{name}:{frame.f_lineno} {module}"
            frame = frame.f_back
        return None

    def _place(self):
        """(op's suffix, index of the place's text) of the op that is running."""
        name = getattr(self._calls, "name", None)
        if name is not None:
            return "", self.events.text(name)
        node = torch._C._current_autograd_node()
        line = self._model_line()
        if node is None:
            place = self.events.text(line or "")
            if threading.get_ident() == self._main:
                # A node is made just before its op is dispatched, so the newest number is this op's; ops without a
                # node find the number of the one before them, which keeps its first place.
                self._forward_places.setdefault(torch._C._autograd._get_sequence_nr() - 1, place)
            return "", place
        if line is not None:  # a checkpoint's recomputation
            return " (recomputed)", self.events.text(line)
        return f" ({node.name()})", self._forward_places.get(node._sequence_nr(), 0)

    # -- storages ----------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is aten.add.Tensor and _adds_in_place(args, kwargs):
            return args[0]
        if func in _PUTS_IN_PLACE and _puts_in_place(func):
            return args[0]
        out = func(*args, **(kwargs or {}))
        place = self._place() if self.events is not None else None
        for tensor in (out if isinstance(out, (tuple, list)) else (out,)):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cuda":
                self._note(tensor, func, place)
        return out

    def _note(self, tensor: torch.Tensor, func, place) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return
        nbytes = storage.nbytes()
        size = rounded(nbytes)
        slot = self._slots = self._slots + 1
        self.live += size
        self.peak = max(self.peak, self.live)
        events = self.events
        if events is not None:
            suffix, where = place
            op = events.text(str(func).removeprefix("aten.").removesuffix(".default") + suffix)
            events.rows.append(["a", slot, nbytes, op, where])

        def died(_, self=self, key=key):
            del self._storages[key]
            self.live -= size
            if events is not None:
                events.rows.append(["f", slot, 0, 0, 0])

        self._storages[key] = weakref.ref(storage, died)

    def bytes_of(self, tensors) -> int:
        """Rounded bytes of the storages of these tensors that are on the fake GPU, each once."""
        sizes = {}
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cuda":
                storage = tensor.untyped_storage()
                sizes[storage._cdata] = rounded(storage.nbytes())
        return sum(sizes.values())

    def named(self, name: str, make):
        """Runs `make`; what it allocates is called `name` (weights, inputs)."""
        self._calls.name = name
        try:
            return make()
        finally:
            self._calls.name = None

    # -- stages ------------------------------------------------------------------------------------------------------

    def mark(self, text: str) -> None:
        if self.events is not None:
            self.events.rows.append(["m", 0, 0, self.events.text(text), 0])

    @contextlib.contextmanager
    def stage(self, phase: str, name: str):
        """A stage of a phase: its peak is the highest sum of live tensors between begin and end."""
        start = self.peak = self.live
        self.mark(f"begin {phase}/{name}")
        yield
        self.mark(f"end {phase}/{name}")
        self.stages.append((phase, name, start, self.peak, self.live))


def _adds_in_place(args, kwargs) -> bool:
    """Whether this `add` stands for the engine's in-place sum of two gradients.

    Where paths join, the engine adds into the value that arrived first, if nobody else holds it and it is dense
    (torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace). Under a dispatch mode it takes every tensor for a
    subclass, does not dare, and makes a third tensor. "Nobody else" is a storage that is held by one tensor and by its
    own Python object, and a tensor that is held by the engine's buffer, its own Python object, and this call.
    """
    if kwargs or len(args) != 2 or torch.is_grad_enabled() or torch._C._current_graph_task_id() == -1:
        return False
    first, second = args
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return False
    if first.shape != second.shape or first.dtype != second.dtype or first.device.type != "cuda":
        return False
    return (torch._C._storage_Use_Count(first.untyped_storage()._cdata) == 2 and first._use_count() == 4
            and torch._prims_common.is_non_overlapping_and_dense_or_false(first))


#: Ops that the gradient of a pick is made with, and the nodes that make it so.
_PUTS_IN_PLACE = {aten.index_put.default: "IndexBackward0", aten.scatter.src: "TopkBackward0"}


def _puts_in_place(func) -> bool:
    """Whether this op stands for the one in place that puts a gradient into zeros that nobody else sees. Under a
    dispatch mode these count as a subclass, too, and are copied (torch/csrc/autograd/FunctionsManual.cpp,
    index_backward, value_selecting_reduction_backward)."""
    node = torch._C._current_autograd_node()
    return not torch.is_grad_enabled() and node is not None and node.name() == _PUTS_IN_PLACE[func]


class Loss(torch.autograd.Function):
    """A scalar of a tensor, whose backward is a new tensor of its shape."""

    @staticmethod
    def forward(ctx, x):
        ctx.like = x.shape, x.dtype, x.device
        return x.new_empty(())

    @staticmethod
    def backward(ctx, grad):
        shape, dtype, device = ctx.like
        return torch.empty(shape, dtype=dtype, device=device)


@contextlib.contextmanager
def no_garbage_collector():
    """Deaths then come from reference counts alone, at the same moment in every run."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
