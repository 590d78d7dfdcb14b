"""The command as the package ships it: the same run() as the C++ program's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vramest.__main__ import main


def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "vramest", *args], input=stdin, capture_output=True, text=True)


def test_check(write: Any) -> None:
    done = run("check", str(write()), "--gpu", "rtx-4090")
    assert done.returncode in (0, 1)
    assert "GiB" in done.stdout
    told = json.loads(run("check", str(write()), "--gpu", "rtx-4090", "--json").stdout)
    assert told["gpu"]["id"] == "rtx-4090"


def test_exit_codes(write: Any, tmp_path: Path) -> None:
    path = str(write())
    assert run("check", path, "--capacity", "80GiB").returncode == 0
    assert run("check", path, "--capacity", "4GiB").returncode == 1
    assert run("check", str(tmp_path / "none.yaml")).returncode == 2
    assert run("chekc", path).returncode == 2
    assert run("--help").returncode == 0


def test_standard_input(write: Any) -> None:
    assert run("check", "-", "--capacity", "80GiB", stdin=write().read_text()).returncode == 0


def test_main_takes_arguments(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(write()), "--capacity", "80GiB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "fits"


def test_a_reader_that_leaves_early() -> None:
    command = f"{sys.executable} -m vramest schema | head -c 10"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.stderr == "" and done.returncode == 0
