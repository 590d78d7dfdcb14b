"""A recorded case as a vramest job file.

    python job_file.py recordings/flux1_dev.json flux1_dev-512x768-lora > job.yaml

Needs neither torch nor the library. A case of a shrunken model ("layers", "config") has no job file: its profile would be
another one; copy the model's profile under a new id with fewer layers, rebuild, and name that id with --model.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

FLAGS = ("tiling", "slicing", "attention_mask", "all_hidden_states", "use_cache")


def _yaml(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (bool, list)) else str(value)


def _flow(keys: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {_yaml(value)}" for key, value in keys.items()) + "}"


def _train(case: dict[str, Any]) -> dict[str, Any]:
    keys: dict[str, Any] = {"method": case["train"]}
    if case["train"] == "lora":
        keys |= {"rank": case["rank"], "alpha": case["rank"], "targets": case["targets"], "adapter_dtype": case["lora_dtype"]}
    if case.get("autocast"):
        keys["autocast"] = "bf16"
    for key in ("gradient_accumulation", "ema"):
        if key in case:
            keys[key] = case[key]
    return keys | {"gradient_checkpointing": case["checkpointing"], "batch_size": case["batch"], "optimizer": "adamw"}


def job_file(case: dict[str, Any], model: str | None = None) -> str:
    """The text of the job file. Raises ValueError for a shrunken model without a profile of its own."""
    if model is None and ({"layers", "config"} & case.keys()):
        raise ValueError(f"{case['id']} is a shrunken model, which has no profile")
    kind = "component" if "component" in case else "model"
    lines = ["vramest: 1", "trainer: torch", f"{kind}: {model or case[kind]}", f"dtype: {case['weights']}"]
    if "forward" in case:
        lines.append(f"forward: {case['forward']}")
    if kind == "component":
        lines.append(f"op: {case.get('op', 'forward')}")
    if case.get("train", "none") == "none":
        lines.append(f"batch_size: {case['batch']}")
    else:
        lines.append("train: " + _flow(_train(case)))
    data: dict[str, Any] = {}
    if "width" in case:
        data = {"resolution": [case["width"], case["height"]]}
    data |= {key: case[key] for key in ("frames", "text_tokens", "reference_images") if key in case}
    lines.append("data: " + _flow(data))
    lines += [f"{flag}: {_yaml(case[flag])}" for flag in FLAGS if flag in case]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path, help="a file of recordings/ or truth/")
    parser.add_argument("id")
    parser.add_argument("--model", help="a profile to name instead of the case's")
    arguments = parser.parse_args()
    text = arguments.cases.read_text()
    rows = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
    cases = {row["case"]["id"]: row["case"] for row in rows}
    if arguments.id not in cases:
        print(f"{arguments.cases} has no {arguments.id}; it has {', '.join(cases)}", file=sys.stderr)
        return 2
    try:
        print(job_file(cases[arguments.id], arguments.model), end="")
    except ValueError as error:
        print(f"{error}; see --help", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
