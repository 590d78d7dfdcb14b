"""Tensors that claim to be on a GPU, on a machine and a PyTorch build that have none.

``ensure()`` builds the small shared object of ``fake_cuda.cpp`` (once, into the user's cache folder) and restarts the
script with that object on the dynamic linker's preload list. ``install()`` then makes the changes that are possible
from Python. After both, ``with fake_mode(): torch.empty(3, device="cuda:0")`` runs forward, backward, checkpointing,
optimizers and CUDA autocast with shapes and devices and no data.

Everything was tried on the CPU build of torch 2.13.0. A build with CUDA is refused: its real hooks would be in the way.
"""

import contextlib
import hashlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import sysconfig

SOURCE = pathlib.Path(__file__).with_name("fake_cuda.cpp")
_MARK = "VRAMEST_FAKE_CUDA"  # in the restarted process: the preload list as it was, so that it can be put back
_loaded = False


def _torch_folder() -> pathlib.Path:
    """Where torch is installed, found without importing it (the import would load its libraries)."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("torch is not installed")
    return pathlib.Path(spec.origin).parent


def _cache_folder() -> pathlib.Path:
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "vramest"


def build() -> pathlib.Path:
    """The shared object for the installed torch; compiled if this source and this torch have not met before."""
    torch = _torch_folder()
    version = (torch / "version.py").read_text()
    key = hashlib.sha256((SOURCE.read_text() + version + str(torch)).encode()).hexdigest()[:16]
    target = _cache_folder() / f"fake_cuda-{key}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_suffix(f".{os.getpid()}.tmp")
    subprocess.run(
        [os.environ.get("CXX", "g++"), "-shared", "-fPIC", "-O1", "-std=c++20", str(SOURCE), "-o", str(scratch),
         f"-I{torch / 'include'}", f"-I{sysconfig.get_paths()['include']}",
         f"-L{torch / 'lib'}", "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch / 'lib'}"],
        check=True)
    scratch.replace(target)  # atomic: two recorders may build at the same time
    return target


def ensure() -> None:
    """Call first in a script: returns in a process that has the object loaded, restarting the script if need be."""
    global _loaded
    if _loaded:
        return
    before = os.environ.pop(_MARK, None)
    if before is not None:  # this is the restarted process; its children shall not inherit the pretence
        os.environ["LD_PRELOAD"] = before
        _loaded = True
        return
    before = os.environ.get("LD_PRELOAD", "")
    environment = os.environ | {"LD_PRELOAD": f"{build()} {before}".strip(), _MARK: before}
    # orig_argv keeps the interpreter's own options and `-m`; argv alone would lose them.
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


_kept_whole = []  # torch.library objects undo their registrations when they are collected


def install() -> None:
    """The part of the pretence that is Python: call once, after ``ensure()``."""
    import torch
    import torch.cuda.amp.common
    import torch.optim.optimizer  # torch.optim deletes the name of its submodule: sys.modules below
    import torch.utils._foreach_utils
    from torch._subclasses.fake_tensor import FakeTensor

    if _kept_whole:
        return
    if not _loaded:
        raise RuntimeError("fake_cuda.ensure() has to be called before torch is imported")
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != "cuda":
        raise RuntimeError("the dynamic linker did not take the object of fake_cuda.cpp from its preload list")
    if torch.version.cuda is not None:
        raise RuntimeError("a CPU build of torch is needed; this one was built for CUDA " + torch.version.cuda)

    # torch.autocast("cuda") switches itself off if this says that there is no GPU.
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda *_, **__: True
    torch.cuda.current_device = lambda: 0  # some modules ask when they are imported

    # Optimizers and clip_grad_norm_ go tensor by tensor unless they know the class of the parameters.
    for module in ("torch.optim.optimizer", "torch.utils._foreach_utils"):
        supported = sys.modules[module]._foreach_supported_types
        if FakeTensor not in supported:
            supported.append(FakeTensor)

    # These have a kernel on CUDA and a composite of many ops elsewhere. A registration for CUDA keeps them whole; it
    # is never run, since fake tensors stop at the op's meta function.
    library = torch.library.Library("aten", "IMPL")

    def never_run(*_):
        raise AssertionError("a CUDA kernel ran")

    for name in ("silu_backward", "mish_backward", "_fused_rms_norm"):
        library.impl(name, never_run, "CUDA")
    _kept_whole.append(library)

    # Compares with a range where it meets a fake tensor; on a card it writes into zeros.
    # Source: aten/src/ATen/native/Onehot.cpp.
    plain = torch.nn.functional.one_hot

    def one_hot(tensor, num_classes=-1):
        if tensor.device.type != "cuda" or num_classes < 0:
            return plain(tensor, num_classes)
        zeros = torch.zeros((*tensor.shape, num_classes), dtype=tensor.dtype, device=tensor.device)
        return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)

    torch.nn.functional.one_hot = one_hot


@contextlib.contextmanager
def fake_mode():
    """Within, every new tensor has a device, a shape and a lifetime, and no data."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode
