"""Diagnoses the logs of reports/oom.jsonl's rows and lays the answers beside the labels, misses at full length.

    python3 tests/diagnose/oom_table.py --rows ../shared/reports/oom.jsonl --binary build/release/bin/vramest [--page docs/diagnose.md]

With --page the table of that page is written anew, between its two marks. Exit code 1 where a row is misread that was read before
(tests/diagnose/expected.json is what was read; --accept writes it).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from write_log import Row, rows_of, write_log

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- written by tests/diagnose/oom_table.py -->", "<!-- end -->"


def diagnose(binary: str, log: str) -> dict[str, Any]:
    done = subprocess.run([binary, "diagnose", "-", "--json"], input=log.encode(), capture_output=True, timeout=60, check=False)
    return json.loads(done.stdout)


def numbers_read(row: Row, said: dict[str, Any]) -> str:
    """Which of the row's numbers were read back otherwise: as printed, so to 0.005 of its unit."""
    wrong = []
    for name in ("tried", "capacity", "free", "process", "allocated", "reserved_unallocated", "other_processes"):
        truth = row["numbers"][f"{name}_gib"]
        if truth is None or (name == "process" and truth == 0):
            continue
        read = said["numbers"][name]
        if read is None or abs(read / 2**30 - truth) > 0.011:
            wrong.append(name)
    return " ".join(wrong)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", required=True)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--page")
    parser.add_argument("--accept", action="store_true")
    arguments = parser.parse_args()
    facts = json.loads((HERE / "facts.json").read_text(encoding="utf-8"))
    rows = rows_of(arguments.rows)

    lines = ["| row | trainer | message | label | phase | kind | read as | sure | |", "|---|---|---|---|---|---|---|---|---|"]
    count = {scored: {"rows": 0, "phase": 0, "kind": 0, "both": 0, "numeric": 0, "numbers": 0} for scored in (True, False)}
    read: dict[str, list[str]] = {}
    for row in rows:
        own = facts.get(row["id"], {})
        said = diagnose(arguments.binary, write_log(row, own))
        phase, kind = said["phase"] == row["phase_true"], said["kind"] == row["kind_true"]
        scored = row["label_confidence"] != "low"
        part = count[scored]
        part["rows"] += 1
        part["phase"] += phase
        part["kind"] += kind
        part["both"] += phase and kind
        misread = ""
        if row["message_form"] in ("torch1", "torch2.1", "torch2.2", "cudamallocasync", "hip"):
            misread = numbers_read(row, said)
            part["numeric"] += 1
            part["numbers"] += not misread
        read[row["id"]] = [said["phase"], said["kind"]]
        remark = ("**miss** " if not (phase and kind) else "") + (f"numbers: {misread} " if misread else "") + own.get("why", "")
        answer = "" if phase and kind else f"{said['phase']}, {said['kind']}"
        lines.append(f"| {row['id']} | {row['trainer']} | {row['message_form']} | {row['label_confidence']} | {row['phase_true']} | {row['kind_true']} | "
                     f"{answer} | {said['confidence']} | {remark.strip()} |")  # fmt: skip
    summary = ["| rows | | phase | kind | both | numbers |", "|---|---|---|---|---|---|"]
    for scored, name in ((True, "labels of high and medium confidence"), (False, "labels of low confidence")):
        p = count[scored]
        summary.append(f"| {p['rows']} | {name} | {p['phase']} | {p['kind']} | {p['both']} | {p['numbers']} of {p['numeric']} |")
    text = "\n".join(summary) + "\n\n" + "\n".join(lines) + "\n"
    if arguments.page:
        page = Path(arguments.page)
        old = page.read_text(encoding="utf-8")
        start, end = old.index(BEGIN) + len(BEGIN), old.index(END)
        page.write_text(old[:start] + "\n\n" + text + "\n" + old[end:], encoding="utf-8")
    else:
        print("\n".join(line for line in lines if "**miss**" in line or "numbers:" in line))
    print("\n".join(summary))

    memory = HERE / "expected.json"
    if arguments.accept:
        memory.write_text(json.dumps(read, indent=0, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    before = json.loads(memory.read_text(encoding="utf-8")) if memory.exists() else {}
    truth = {row["id"]: [row["phase_true"], row["kind_true"]] for row in rows}
    worse = [id_ for id_, was in before.items() if id_ in read and was == truth[id_] != read[id_]]
    if worse:
        print("read before, and misread now: " + ", ".join(worse))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
