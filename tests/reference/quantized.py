"""Which quantised linears are recorded (record_quantized.py), and how each is made.

A case is a stack of two linears, Linear(768, 1280) and Linear(1280, 768, bias=False), and the name of a format. ai-toolkit's
own code quantises it (toolkit/util/quantize.py of the checkout that VRAMEST_AI_TOOLKIT names, with quanto 0.2.4 and torchao
0.10.0 from the folder that VRAMEST_QUANTIZERS names), bitsandbytes' own classes the formats that begin with "bnb-".

What cannot run on fake tensors, and what stands in its place:

- Triton kernels (convrot*, nvfp4): the launch does nothing. What they need is allocated in Python, beside the launch. They are
  there as on Linux with a card: `_triton_available` is true.
- Custom operators of ai-toolkit and quanto are called as the Python function that they were made of, so that what they
  allocate inside is seen; their backward is theirs.
- The card is one of compute capability 8.9 with int8 tensor cores: `_int8_gemm_supported`. Its one trial product is left out.
- bitsandbytes' kernels (quantize_4bit, dequantize_4bit, int8_*): the fake functions that the library registers for them, which
  return what the CUDA functions return (bitsandbytes/backends/cuda/ops.py); those allocate nothing else.
"""

import contextlib
import importlib
import os
import sys
import types

AI_TOOLKIT = os.environ.get("VRAMEST_AI_TOOLKIT", "")
QUANTIZERS = os.environ.get("VRAMEST_QUANTIZERS", "")

#: [in, out, bias] of each linear.
LAYERS = [[768, 1280, True], [1280, 768, False]]
#: The input's shape: 160 rows, no multiple of 128.
INPUT = [2, 80, 768]

QUANTO = ("qfloat8", "qfloat8_e5m2", "qint8", "qint4", "qint2")
TORCHAO = ("float8", "int8")
OSTRIS = (*(f"uint{bits}" for bits in range(2, 9)), "nvfp4", "convrot4", "convrot8",
          *(f"convrotint{bits}" for bits in range(2, 9)), "convrotbitnet", "convrotcomfyw4a4")
BITSANDBYTES = ("bnb-nf4", "bnb-nf4-double", "bnb-fp4")  # Linear8bitLt's operators ask for values: it is read, not recorded


def cases() -> list:
    out = []

    def add(id, format, dtype="bf16", layers=LAYERS, input=INPUT, **more):
        out.append({"id": id, "format": format, "dtype": dtype, "layers": layers, "input": input, **more})

    for name in (*(name for name in QUANTO if name != "qint4"), *TORCHAO, *OSTRIS, *BITSANDBYTES):
        add(f"{name}-bf16", name)
    for name in ("qfloat8", "qint4", "float8", "int8", "uint3", "convrot8", "convrotint4", "bnb-nf4"):
        add(f"{name}-fp32", name, "fp32")
    # Few rows: convrot's fused product. One row of tokens, and a last dimension that few formats take.
    few = [1, 3, 768]
    for name in ("convrot8", "convrotint3", "convrotint8", "bnb-nf4"):
        add(f"{name}-few", name, input=few)
    odd = [[72, 136, True], [136, 40, False]]
    add("bnb-nf4-many", "bnb-nf4", input=[2, 1024, 768])
    for name in ("qfloat8", "qint4", "qint2", "uint4", "nvfp4", "convrot4", "convrot8", "float8", "bnb-nf4"):
        add(f"{name}-odd", name, layers=odd, input=[2, 80, 72])
    narrow = [[192, 320, True], [320, 64, True]]
    for name in ("qint4", "qint2", "uint5", "convrotint2", "convrotint5", "convrotbitnet", "bnb-fp4"):
        add(f"{name}-narrow", name, layers=narrow, input=[2, 80, 192])
    # Six layers whose weights live in host memory, and come for each call: ai-toolkit's memory manager, attached behind
    # quantize or before it; of plain weights, too.
    stack = [[192, 320, True], [320, 192, False]] * 3
    managed = {"layers": stack, "input": [2, 80, 192], "manager": "after"}
    for name in ("none", "float8"):
        add(f"{name}-offloaded", name, **managed)
    # Of ai-toolkit's own a bias is swapped as `.data`, which a fake tensor does not take.
    for name in ("uint4", "nvfp4", "convrot8"):
        add(f"{name}-offloaded", name, **managed | {"layers": [[192, 320, False], [320, 192, False]] * 3})
    for name in ("float8", "uint4"):
        add(f"{name}-offloaded-before", name, **managed | {"manager": "before"})
    return out


MISSING = "VRAMEST_AI_TOOLKIT and VRAMEST_QUANTIZERS name no folders"


def is_there(case: dict) -> bool:
    return case["format"].startswith("bnb-") or bool(AI_TOOLKIT and QUANTIZERS)


def _function_of(op):
    """The custom operator `op` as an autograd function over the Python function that it was made of."""
    import torch

    body, setup, backward = op._init_fn, op._setup_context_fn, op._backward_fn
    if backward is None:
        return body

    class Played(torch.autograd.Function):
        @staticmethod
        def forward(*args):
            return body(*args)

        @staticmethod
        def setup_context(ctx, inputs, output):
            setup(ctx, inputs, output)

        @staticmethod
        def backward(ctx, *grads):
            return backward(ctx, *grads)

    return Played.apply


class _Launch:
    """A compiled Triton kernel whose launch does nothing."""

    def __getitem__(self, grid):
        return lambda *args, **kwargs: None


_ready = False


def _prepare() -> None:
    """Imports ai-toolkit's quantisation and puts the stand-ins in place, once."""
    global _ready
    if _ready:
        return
    _ready = True
    sys.path[:0] = [QUANTIZERS, AI_TOOLKIT]
    import torch

    torch.version.cuda = None
    torch.cuda.get_device_capability = lambda *_: (8, 9)
    import toolkit.util.quantize  # noqa: F401
    import toolkit.util.convrot_quant as convrot

    convrot._triton_ok = True
    convrot._int8_mm_ok = True
    convrot._int8_gemm_supported = lambda device: True
    for name, count in (("_get_kernel", 1), ("_get_dequant_kernel", 1), ("_get_int8_kernels", 2), ("_get_intn_kernel", 1),
                        ("_get_intn_grouped_kernel", 1), ("_get_bitnet_kernel", 1), ("_get_int_gemv_kernel", 1)):
        setattr(convrot, name, lambda count=count: _Launch() if count == 1 else (_Launch(),) * count)
    for name, value in list(vars(convrot).items()):
        if type(value).__name__ == "CustomOpDef":
            setattr(convrot, name, _function_of(value))

    from optimum.quanto.library import qbytes_mm as quanto_matmul, quantize as quanto_quantize

    def unpack(packed, bits):  # quanto's own kernel: one tensor (library/extensions/cuda/unpack.cu)
        return packed.new_empty((packed.shape[0] * (8 // bits), *packed.shape[1:]))

    # Operators as Python functions: what they allocate inside is seen.
    torch.ops.quanto.qbytes_mm = quanto_matmul.qbytes_mm  # of the CUDA one: what floating activations get
    torch.ops.quanto.quantize_symmetric = quanto_quantize.quantize_symmetric._init_fn
    torch.ops.quanto.quantize_affine = quanto_quantize.quantize_affine._init_fn
    torch.ops.quanto.unpack = unpack
    # quanto asks `type(x) is torch.Tensor`, which a fake tensor is meant to be.
    from torch._subclasses.fake_tensor import FakeTensor

    def plain_type(value, *more):
        return torch.Tensor if not more and type(value) is FakeTensor else type(value, *more)

    qbits = sys.modules["optimum.quanto.tensor.qbits.qbits"]
    for name in ("qbits.qbits", "qbits.tinygemm.qbits", "qtensor_func", "qbytes", "qtensor"):
        vars(importlib.import_module(f"optimum.quanto.tensor.{name}"))["type"] = plain_type
    importlib.import_module("toolkit.util.ostris_quant").type = plain_type

    class Version:
        """torch of a CUDA build: tinygemm asks which one."""

        @staticmethod
        def parse(text):
            from packaging import version

            return version.parse(text or "13.0")

    qbits.version = Version


def _forget_caches() -> None:
    """What ai-toolkit keeps on the GPU for the process: each case starts without."""
    import toolkit.util.convrot_quant as convrot
    import toolkit.util.orbit_quant as orbit

    convrot._hadamard_cache.clear()
    convrot._edges_cache.clear()
    orbit._normal_codebook_cache.clear()
    orbit._rotation_cache.clear()


def make(case: dict, dtype):
    """The stack as it is before it is quantised, on the GPU."""
    import torch

    layers = [torch.nn.Linear(i, o, bias=bias, device="cuda:0", dtype=dtype) for i, o, bias in case["layers"]]
    model = torch.nn.Sequential(*layers)
    model.requires_grad_(False)
    return model


def quantize(case: dict, model):
    """The stack quantised, as ai-toolkit's quantize_model does it with a block; of bitsandbytes as its class does it on its
    way to the GPU."""
    if case["format"].startswith("bnb-"):
        return _bitsandbytes(case, model)
    if case["format"] == "none":
        return model
    from optimum.quanto import freeze
    from toolkit.util.quantize import get_qtype, quantize as toolkit_quantize

    toolkit_quantize(model, weights=get_qtype(case["format"]))
    freeze(model)
    return model.requires_grad_(False)


def attach(model, ignore_modules=()) -> None:
    """MemoryManager.attach. There are no streams here, and nothing is pinned; a parameter is made anew where it would get
    other data, which a fake tensor does not take."""
    import torch
    from toolkit.memory_management import manager_modules
    from toolkit.memory_management.manager import MemoryManager

    nothing = types.SimpleNamespace(record=lambda *_: None, wait_event=lambda *_: None, synchronize=lambda: None)
    torch.cuda.Stream = torch.cuda.Event = torch.cuda.current_stream = lambda *_, **__: nothing
    torch.cuda.stream = torch.cuda.device = lambda *_: contextlib.nullcontext()
    torch.Tensor.record_stream = lambda *_: None
    torch.Tensor.pin_memory = lambda tensor, *_: tensor
    torch.Tensor.is_pinned = lambda *_: True

    def move(module):
        with torch.no_grad():
            for name in ("weight", "bias"):
                parameter = getattr(module, name, None)
                # One that is on the CPU stays what it is, and may be another module's, too.
                if isinstance(parameter, torch.nn.Parameter) and parameter.device.type != "cpu":
                    moved = manager_modules._ensure_cpu_pinned(parameter.data).detach()
                    setattr(module, name, torch.nn.Parameter(moved, requires_grad=parameter.requires_grad))

    manager_modules._move_params_to_cpu_and_pin = move
    manager_modules._DEVICE_STATE.clear()
    MemoryManager.attach(model, torch.device("cuda:0"), ignore_modules=list(ignore_modules))


class _With:
    """torch, but for one operator of bitsandbytes."""

    def __init__(self, torch, gemm_4bit):
        self._torch = torch
        operators = types.SimpleNamespace(**{name: getattr(torch.ops.bitsandbytes, name) for name in (
            "dequantize_4bit",)})
        operators.gemm_4bit = types.SimpleNamespace(default=gemm_4bit)
        self.ops = types.SimpleNamespace(bitsandbytes=operators)

    def __getattr__(self, name):
        return getattr(self._torch, name)


def _bitsandbytes(case: dict, model):
    """bitsandbytes' Linear4bit as its parameter is made on the way to the GPU. A Params4bit cannot be of fake data: a module
    that does what its `_quantize` and the class's `forward` do stands in."""
    import bitsandbytes as bnb
    import torch

    kind = case["format"].removeprefix("bnb-")
    bnb.functional.name2qmap.pop("dynamic", None)  # kept for the process: each case starts without
    plain = torch.ops.bitsandbytes.gemm_4bit.default

    def gemm_4bit(x, packed, shape, absmax, blocksize, quant_type, bias=None, **nested):
        """What the CUDA function does where it does not multiply from the codes (backends/cuda/ops.py, gemm_4bit,
        _dequant_linear_fallback)."""
        if x.numel() // x.shape[-1] <= 1536 and x.shape[-1] % blocksize == 0:
            return plain(x, packed, shape, absmax, blocksize, quant_type, bias=bias, **nested)
        weight = torch.ops.bitsandbytes.dequantize_4bit.default(packed, absmax, blocksize, quant_type, shape, x.dtype)
        return torch.nn.functional.linear(x, weight, bias)

    bnb.autograd._functions.torch = _With(torch, gemm_4bit)

    class Linear4bit(torch.nn.Module):
        def __init__(self, weight, bias):
            super().__init__()
            w = weight.contiguous().to("cuda:0")
            packed, self.quant_state = bnb.functional.quantize_4bit(
                w, blocksize=64, compress_statistics=kind.endswith("double"), quant_type=kind[:3])
            self.weight = torch.nn.Parameter(packed, requires_grad=False)
            self.register_parameter("bias", bias)

        def _apply(self, fn, recurse=True):
            self.weight = torch.nn.Parameter(fn(self.weight), requires_grad=False)
            self.quant_state.to(self.weight.device)
            if self.bias is not None:
                self.bias = torch.nn.Parameter(fn(self.bias), requires_grad=False)
            return self

        def forward(self, x):
            return bnb.matmul_4bit(x, self.weight, bias=self.bias, quant_state=self.quant_state).to(x.dtype)

    layers = []
    for i in range(len(model)):
        old, model[i] = model[i], None
        layers.append(Linear4bit(torch.empty(old.weight.shape, dtype=old.weight.dtype, device="cpu"), old.bias))
        del old
    return torch.nn.Sequential(*layers)


@contextlib.contextmanager
def prepared(case: dict):
    if not case["format"].startswith("bnb-"):
        _prepare()
        _forget_caches()
    yield
