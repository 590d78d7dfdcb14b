#!/usr/bin/env python3
"""Writes a Markdown table of what `vramest check` says about every config of a folder, on three cards.

    python tools/config_table.py VRAMEST FOLDER > docs/ai-toolkit-configs.md

A row is a file: the peak of tensors in each kind of phase, the verdict on a card of 24, 32 and 48 GB, and where the run
is tightest; or why nothing can be said.
"""

import json
import pathlib
import subprocess
import sys

CARDS = {"24 GB": "rtx-4090", "32 GB": "rtx-5090", "48 GB": "rtx-a6000"}
KINDS = ["load", "quantize", "cache", "sample", "train", "save"]
GIB = 1 << 30


def check(vramest: str, path: pathlib.Path, card: str) -> dict:
    done = subprocess.run([vramest, "check", str(path), "--gpu", card, "--json"], capture_output=True, text=True, check=False)
    return json.loads(done.stdout)


def row(vramest: str, path: pathlib.Path) -> str:
    reports = {size: check(vramest, path, card) for size, card in CARDS.items()}
    first = next(iter(reports.values()))
    if first["verdict"] == "cannot_say":
        reason = first["reason"].replace(str(path), path.name).replace("|", "\\|")
        return f"| {path.name} | {' | ' * len(KINDS)}{' | ' * len(CARDS)}cannot say: {reason} |"
    peaks = []
    for kind in KINDS:
        of_kind = [phase["tensors_peak"] for phase in first["phases"] if phase["kind"] == kind]
        peaks.append(f"{max(of_kind) / GIB:.2f}" if of_kind else "–")
    verdicts = []
    for report in reports.values():
        peak = report["peak"]
        low, high = peak["device_low"] / GIB, peak["device_high"] / GIB
        verdicts.append(f"{report['verdict'].replace('_', ' ')} ({low:.1f} to {high:.1f})")
    where = ", ".join(name for name in (first["peak"]["phase"], first["peak"]["stage"]) if name)
    return f"| {path.name} | {' | '.join(peaks)} | {' | '.join(verdicts)} | {where} |"


def main() -> None:
    vramest, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    print("# ai-toolkit's example configs\n")
    print("What `vramest check` says of the configs that ai-toolkit ships (27a03a91, `config/examples`), written by")
    print("`tools/config_table.py`. Peaks are GiB of tensors, the highest of each kind of phase; verdicts are for a card of that")
    print("size, with what the run needs of it in GiB. Their folders of pictures are not there, so each resolution stands for its")
    print("heaviest bucket.\n")
    print(f"| config | {' | '.join(KINDS)} | {' | '.join(CARDS)} | tightest on {next(iter(CARDS))} |")
    print("|---|" + "---:|" * len(KINDS) + "---|" * (len(CARDS) + 1))
    for path in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml"), *folder.glob("*.json")]):
        print(row(vramest, path))


if __name__ == "__main__":
    main()
