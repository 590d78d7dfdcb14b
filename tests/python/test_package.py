"""What the package is: its names, its stubs, its version, what it costs to import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import vramest
from vramest import _core

STUB = Path(vramest.__file__).parent / "_core.pyi"


def test_all_is_honest() -> None:
    assert vramest.__all__ == sorted(vramest.__all__)
    assert len(set(vramest.__all__)) == len(vramest.__all__)
    for name in vramest.__all__:
        assert hasattr(vramest, name), name
    told = {"accuracy"}  # a package inside, there once something imported it
    leaked = {name for name in vars(vramest) if not name.startswith("_")} - set(vramest.__all__) - told
    assert leaked == set()


def test_types_are_the_packages() -> None:
    for name in vramest.__all__:
        thing = getattr(vramest, name)
        if isinstance(thing, type):
            assert thing.__module__ == "vramest" and thing.__doc__
            with pytest.raises(TypeError):
                thing()  # reports come from check alone


def test_the_version_is_that_of_the_build(source_dir: Path) -> None:
    stated = re.search(r"project\(vramest VERSION ([\d.]+)", (source_dir / "CMakeLists.txt").read_text())
    assert stated and vramest.__version__ == stated[1]


def test_import_is_quick_and_brings_nothing() -> None:
    code = (
        "import sys, time; before = set(sys.modules); t = time.perf_counter(); import vramest; t = time.perf_counter() - t;"
        "print(t, [m for m in ('torch', 'numpy', 'yaml', 'json', 'typing') if m in set(sys.modules) - before])"
    )

    def once() -> tuple[float, str]:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        seconds, modules = done.stdout.split(" ", 1)
        return float(seconds), modules.strip()

    runs = [once() for _ in range(5)]
    assert {modules for _, modules in runs} == {"[]"}
    assert min(seconds for seconds, _ in runs) < 0.05


def stub_names() -> dict[str, set[str]]:
    """Each class of the stub with its members; "" holds the module's own names."""
    names: dict[str, set[str]] = {"": set()}
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names[""].add(node.name)
            members = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            names[node.name] = {name for name in members if not name.startswith("__")}
        elif isinstance(node, ast.FunctionDef):
            names[""].add(node.name)
    return names


def test_stubs_name_what_is_there() -> None:
    stubs = stub_names()
    assert stubs[""] == {name for name in vars(_core) if not name.startswith("_")}
    for name in stubs[""] & set(stubs):
        members = {member for member in vars(getattr(_core, name)) if not member.startswith("_")}
        assert stubs[name] == members, name


def test_stubs_agree_with_stubtest(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    known = tmp_path / "known"  # pybind11's metaclass, and the __init__ that refuses
    known.write_text("vramest\\._core\\.[A-Z]\\w*\nvramest\\._core\\.[A-Z]\\w*\\.__init__\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "vramest._core", "--concise", "--allowlist", str(known)],
        capture_output=True, text=True, cwd=tmp_path,
        env={"PYTHONPATH": str(STUB.parent.parent), "MYPYPATH": str(STUB.parent.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
