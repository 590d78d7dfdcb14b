"""The stored recordings, recorded again. Skipped where torch, the model libraries or a compiler are missing.

Only a shrunken FLUX runs here (seconds on an idle machine); `python record.py --check` does them all.
"""

import importlib.metadata
import json
import pathlib
import shutil
import subprocess
import sys

import pytest

import compare

RECORD = pathlib.Path(__file__).with_name("record.py")
#: What the recordings were made with. Other versions allocate in other ways, which is no fault of anyone.
VERSIONS = {"torch": "2.13.0+cpu", "diffusers": "0.42.1", "transformers": "5.24.0", "peft": "0.21.2"}


def _why_not() -> str:
    for package, version in VERSIONS.items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return f"{package} is not installed"
        if found != version:
            return f"{package} is {found}, the recordings are of {version}"
    return "" if shutil.which("g++") or shutil.which("c++") else "no C++ compiler"


pytestmark = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "-")


def test_recordings_come_out_the_same():
    # A process of its own: the pretended GPU has to be loaded before torch is.
    run = subprocess.run([sys.executable, str(RECORD), "--check", "--only", "flux1_dev-small"],
                         capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "equal" in run.stdout


def test_what_a_class_makes_of_its_config_comes_out_the_same():
    run = subprocess.run([sys.executable, str(RECORD.with_name("record_classes.py")), "--check", "--only", "krea2-p"],
                         capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("equal") == 2


def test_an_event_list_equals_itself_and_adds_up(tmp_path):
    events, summary = tmp_path / "events.json", tmp_path / "summary.json"
    subprocess.run([sys.executable, str(RECORD), "--cases", str(RECORD.parent / "recordings" / "flux1_dev.json"),
                    "--id", "flux1_dev-small-lora", "--events", str(events), "--out", str(summary)], check=True)
    data = json.loads(events.read_text())
    assert compare.compare(data, data)[0]
    result = json.loads(summary.read_text())["result"]
    stages = {stage.name: stage for stage in compare.Trace(data).stages}
    for i, step in enumerate(result["steps"], 1):
        for stage in ("forward", "loss", "backward", "optimizer"):
            assert stages[f"step {i}/{stage}"].peak == step[f"{stage}_peak_bytes"]
        assert stages[f"step {i}/optimizer"].end == step["end_bytes"]
