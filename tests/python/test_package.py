"""What the package is: its names, its types, its version, what it costs to import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import vramest

PACKAGE = Path(vramest.__file__).parent


def test_all_is_honest() -> None:
    assert len(set(vramest.__all__)) == len(vramest.__all__)
    for name in vramest.__all__:
        assert hasattr(vramest, name), name
    public = {name for name in vars(vramest) if not name.startswith("_")}
    assert public - {"annotations"} <= set(vramest.__all__), "a name leaks"


def test_the_version_is_that_of_the_build() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", vramest.__version__)


def test_import_brings_no_torch_and_no_numpy() -> None:
    code = "import sys, vramest; print([m for m in ('torch', 'numpy', 'yaml', 'json') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
    ast.parse((PACKAGE / "_core.pyi").read_text(encoding="utf-8"))
