"""Which optimizers are recorded (record_optimizers.py), and how each is made.

A case names a class, its keyword arguments, and the parameters that it is given. Classes of libraries are imported from
what is installed; ai-toolkit's own from a checkout that VRAMEST_AI_TOOLKIT names.
"""

import importlib
import os
import pathlib
import sys

#: Telling shapes: a LoRA pair (the second starts at zero), a norm, a convolution, and one below every threshold.
SHAPES = [[16, 3072], [3072, 16], [3072], [64, 3, 3, 3], [5]]
ZERO = {1}
#: bitsandbytes pages tensors of 100,000 elements and more.
PAGED_SHAPES = [[16, 3072], [100, 1024], [5]]

AI_TOOLKIT = os.environ.get("VRAMEST_AI_TOOLKIT", "")


def parameters(shapes: list, dtype: str) -> list:
    """[[shape, dtype], ..]; "mixed" alternates bf16 and fp32, bf16 first."""
    dtypes = ["bf16", "fp32"] if dtype == "mixed" else [dtype]
    return [[shape, dtypes[i % len(dtypes)]] for i, shape in enumerate(shapes)]


def cases() -> list:
    out = []

    def add(id: str, cls: str, dtypes=("fp32", "bf16"), shapes=SHAPES, steps=2, micro_steps=1, **arguments):
        for dtype in dtypes:
            out.append({"id": f"{id}-{dtype}", "class": cls, "arguments": arguments,
                        "parameters": parameters(shapes, dtype), "steps": steps, "micro_steps": micro_steps})

    adam = ("fp32", "bf16", "mixed")
    add("adamw", "torch.optim.AdamW", adam, lr=1e-4)
    add("adamw-amsgrad", "torch.optim.AdamW", lr=1e-4, amsgrad=True)
    add("adamw-loop", "torch.optim.AdamW", lr=1e-4, foreach=False)
    add("adamw-fused", "torch.optim.AdamW", lr=1e-4, fused=True)
    add("adamw-capturable", "torch.optim.AdamW", lr=1e-4, capturable=True)
    add("adam", "torch.optim.Adam", lr=1e-4)
    add("adam-decay", "torch.optim.Adam", adam, lr=1e-4, weight_decay=0.01)
    add("adam-decay-loop", "torch.optim.Adam", lr=1e-4, weight_decay=0.01, foreach=False)
    add("sgd", "torch.optim.SGD", lr=1e-4)
    add("sgd-momentum", "torch.optim.SGD", adam, lr=1e-4, momentum=0.9)
    add("sgd-nesterov-decay", "torch.optim.SGD", lr=1e-4, momentum=0.9, nesterov=True, weight_decay=0.01)
    add("adagrad", "torch.optim.Adagrad", adam, lr=1e-4)
    add("adagrad-decay", "torch.optim.Adagrad", lr=1e-4, weight_decay=0.01)

    bnb = "bitsandbytes.optim."
    for name in ("Adam8bit", "AdamW8bit", "Lion8bit", "AdEMAMix8bit"):
        add(name.lower(), bnb + name, lr=1e-4)
    for name in ("AdamW", "Lion", "AdEMAMix"):
        add(f"bnb-{name.lower()}32bit", bnb + f"{name}32bit" if name != "AdEMAMix" else bnb + name, lr=1e-4)
    add("sgd8bit", bnb + "SGD8bit", lr=1e-4, momentum=0.9)
    for name in ("PagedAdamW8bit", "PagedAdamW32bit", "PagedLion8bit", "PagedAdEMAMix8bit"):
        add(name.lower(), bnb + name, shapes=PAGED_SHAPES, lr=1e-4)

    add("lion", "lion_pytorch.Lion", adam, lr=1e-4, weight_decay=0.01)
    add("prodigy", "prodigyopt.Prodigy", lr=1.0, eps=1e-6)
    add("prodigy-slice", "prodigyopt.Prodigy", lr=1.0, slice_p=11, weight_decay=0.01)
    add("prodigy-nomomentum", "prodigyopt.Prodigy", lr=1.0, betas=[0.0, 0.999])
    add("dadaptadam", "dadaptation.DAdaptAdam", lr=1.0, eps=1e-6)
    add("dadaptlion", "dadaptation.DAdaptLion", lr=1.0)
    add("came", "came_pytorch.CAME", lr=1e-4)
    fixed = {"lr": 1e-4, "relative_step": False, "scale_parameter": False, "warmup_init": False}
    add("adafactor", "transformers.optimization.Adafactor", **fixed)
    add("adafactor-beta1", "transformers.optimization.Adafactor", **fixed, beta1=0.9)
    add("adafactor-relative", "transformers.optimization.Adafactor")
    add("adafactor-relative-decay", "transformers.optimization.Adafactor", weight_decay=0.01)
    add("adamwschedulefree", "schedulefree.AdamWScheduleFree", lr=1e-4)
    add("adamwschedulefree-loop", "schedulefree.AdamWScheduleFree", lr=1e-4, foreach=False)

    own = "toolkit.optimizers."
    add("toolkit-adafactor", own + "adafactor.Adafactor", **fixed)
    add("toolkit-adafactor-beta1", own + "adafactor.Adafactor", **fixed, beta1=0.9)
    add("toolkit-adafactor-plain", own + "adafactor.Adafactor", ("bf16",), **fixed, stochastic_accumulation=False,
        stochastic_rounding=False)
    add("adam8", own + "adam8bit.Adam8bit", ("fp32", "bf16", "fp16"), lr=1e-4, eps=1e-6)
    add("adam8-accumulate", own + "adam8bit.Adam8bit", ("bf16", "fp16"), micro_steps=2, lr=1e-4, eps=1e-6)
    add("prodigy8bit", own + "prodigy_8bit.Prodigy8bit", lr=1.0, eps=1e-6)
    add("automagic", own + "automagic.Automagic", lr=1e-6)
    add("automagic-decay", own + "automagic.Automagic", lr=1e-6, weight_decay=0.01)
    add("automagic2", own + "automagic2.Automagic2", ("fp32", "bf16", "fp16"), lr=1e-6)
    # The vote begins when the window of signs is full: with the default of 8 in the eighth step, with 2 in the second.
    add("automagic3", own + "automagic3.Automagic3", ("bf16",), steps=9, lr=1e-6)
    add("automagic3-vote", own + "automagic3.Automagic3", lr=1e-6, polarity_history=2)
    add("automagic3-unfused-vote", own + "automagic3.Automagic3", lr=1e-6, polarity_history=2, fused=False)
    add("automagic3-accumulate", own + "automagic3.Automagic3", ("bf16",), micro_steps=2, lr=1e-6, polarity_history=2,
        fused=False)
    add("automagicexperiment", own + "automagicEXPERIMENT.AutomagicEXPERIMENT", lr=1e-6)
    add("automagicexperiment-vote", own + "automagicEXPERIMENT.AutomagicEXPERIMENT", lr=1e-6, polarity_history=2)
    add("automagicexperiment-unfused-vote", own + "automagicEXPERIMENT.AutomagicEXPERIMENT", lr=1e-6,
        polarity_history=2, fused=False)
    return out


MISSING = "VRAMEST_AI_TOOLKIT names no checkout of ai-toolkit"


def is_there(case: dict) -> bool:
    return AI_TOOLKIT != "" or not case["class"].startswith("toolkit.")


def class_of(case: dict):
    """The class, and the library and version that it is of."""
    module, _, name = case["class"].rpartition(".")
    package = module.partition(".")[0]
    if package == "toolkit":
        if AI_TOOLKIT not in sys.path:
            sys.path.insert(0, AI_TOOLKIT)
        found = importlib.import_module(module)
        if name == "AutomagicEXPERIMENT":
            _pretend_convrot()
        return getattr(found, name), "ai-toolkit"
    if package == "bitsandbytes":
        _pretend_bitsandbytes()
    cls = getattr(importlib.import_module(module), name)
    from importlib.metadata import version
    distribution = {"lion_pytorch": "lion-pytorch", "came_pytorch": "came-pytorch"}.get(package, package)
    return cls, f"{distribution} {version(distribution)}"


def _pretend_bitsandbytes() -> None:
    """bitsandbytes' native calls as what they allocate on a card, which is nothing.

    The updates work in place, in C (backends/cuda/ops.py, _optimizer_update_32bit_impl and
    _optimizer_update_8bit_blockwise_impl: no allocation); get_paged is cudaMallocManaged, outside torch's allocator, and
    its tensor says that it is on the CPU; the code maps are made on the CPU by the constructor.
    """
    import bitsandbytes.functional as functional
    import bitsandbytes.optim.optimizer as optimizer
    import torch

    def paged(*shape, dtype=torch.float32, device=None):
        out = torch.empty(shape, dtype=dtype)
        out.is_paged = True
        out.page_deviceid = 0
        return out

    nothing = lambda *_, **__: None
    functional.optimizer_update_32bit = functional.optimizer_update_8bit_blockwise = nothing
    functional.prefetch_tensor = functional.fill = optimizer.sync_gpu = nothing
    functional.get_paged = paged
    functional.create_dynamic_map = lambda signed=True, *_, **__: torch.empty(256)


def _pretend_convrot() -> None:
    """toolkit.util.convrot_quant with Triton, as on a card: its kernel's wrapper says itself what it allocates
    (register_fake). The Hadamard matrix is built on the CPU and copied, once."""
    import torch
    from toolkit.util import convrot_quant

    def regular_hadamard(rot_size, device, dtype=torch.bfloat16):
        key = (rot_size, str(device), dtype)
        return convrot_quant._cached(convrot_quant._hadamard_cache, key,
                                     lambda: torch.empty(rot_size, rot_size, device=device, dtype=dtype))

    convrot_quant._hadamard_cache.clear()
    convrot_quant._triton_available = lambda: True
    convrot_quant.regular_hadamard = regular_hadamard
