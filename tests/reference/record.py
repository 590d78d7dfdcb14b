"""Records a case of real PyTorch on a fake GPU.

    python record.py CASE.json --out SUMMARY.json [--events EVENTS.json]
    python record.py --id flux1_dev-1 --cases recordings/flux1_dev.json --events EVENTS.json
    python record.py --check [--only TEXT] [--quick]       record what is stored again, and compare
    python record.py --write [--only TEXT]                 record it again, and store it

A summary is a row `{"case": ..., "result": ...}`. A file of rows is a JSON array with one row a line, or JSON lines.
`--cases` names such a file; without it all of recordings/ is meant. A new case is added to a file by hand, with
`"result": null`, and filled in by `--write --only ID`.
"""

import fake_cuda

if __name__ == "__main__":
    fake_cuda.ensure()

import argparse
import json
import pathlib
import sys

RECORDINGS = pathlib.Path(__file__).with_name("recordings")


def record(case: dict, trace: bool = False):
    """(result, event list or None) of a case."""
    fake_cuda.install()
    import jobs

    result, recorder = jobs.play(case, trace)
    return result, recorder.events.to_dict(case) if trace else None


def differences(ours: dict, theirs: dict, path: str = "") -> list:
    """Lines that name each field in which two results differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [line for key in sorted(ours.keys() | theirs.keys())
                for line in differences(ours.get(key), theirs.get(key), f"{path}.{key}" if path else key)]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [line for i, pair in enumerate(zip(ours, theirs)) for line in differences(*pair, f"{path}[{i}]")]
    if ours == theirs:
        return []
    apart = f" ({ours - theirs:+d})" if isinstance(ours, int) and isinstance(theirs, int) else ""
    return [f"{path}: {ours} recorded, {theirs} stored{apart}"]


def read_rows(path) -> list:
    """The rows of a file; bare cases become rows without a result."""
    text = pathlib.Path(path).read_text()
    if text.lstrip().startswith("["):
        rows = json.loads(text)
    else:
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    return [row if "case" in row else {"case": row, "result": None} for row in rows]


def write_rows(path, rows: list) -> None:
    pathlib.Path(path).write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def is_quick(case: dict) -> bool:
    """Components and shrunken models: a few seconds each."""
    return "component" in case or "layers" in case


def check(files: list, only: str = "", quick: bool = False, write: bool = False) -> int:
    """Records the rows of files again; prints what differs (or stores it) and returns how many rows differ."""
    import models

    failures = 0
    for path in files:
        rows = read_rows(path)
        for row in rows:
            case = row["case"]
            if only not in case["id"] or (quick and not is_quick(case)):
                continue
            try:
                result, _ = record(case)
            except models.NotHere as reason:
                print(f"skipped {case['id']}: {reason}", flush=True)
                continue
            wrong = ["new"] if row["result"] is None else differences(result, row["result"])
            failures += bool(wrong)
            print("\n  ".join([f"{'DIFFERS' if wrong else 'equal  '} {case['id']}", *wrong]), flush=True)
            if write and wrong:
                row["result"] = result
                write_rows(path, rows)
    return failures


def _find(path: str, wanted: str) -> dict:
    for row in read_rows(path):
        if row["case"]["id"] == wanted:
            return row["case"]
    sys.exit(f"no case {wanted} in {path}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?", help="a file that holds one case")
    parser.add_argument("--id", help="the id of a case in --cases")
    parser.add_argument("--cases", help="a file of rows or cases")
    parser.add_argument("--out", help="where the summary goes")
    parser.add_argument("--events", help="where the event list goes")
    parser.add_argument("--check", action="store_true", help="record again and compare with what is stored")
    parser.add_argument("--write", action="store_true", help="record again and store what differs")
    parser.add_argument("--only", default="", help="with --check or --write: ids that hold this text")
    parser.add_argument("--quick", action="store_true", help="with --check: components and shrunken models only")
    arguments = parser.parse_args()

    if arguments.check or arguments.write:
        files = [arguments.cases] if arguments.cases else sorted(RECORDINGS.glob("*.json"))
        failures = check(files, arguments.only, arguments.quick, arguments.write)
        return 1 if failures and not arguments.write else 0

    if arguments.case:
        case = json.loads(pathlib.Path(arguments.case).read_text())
        case = case.get("case", case)
    elif arguments.id and arguments.cases:
        case = _find(arguments.cases, arguments.id)
    else:
        parser.error("a case file, or --id with --cases, or --check, or --write")
    import models

    try:
        result, events = record(case, trace=bool(arguments.events))
    except models.NotHere as reason:
        sys.exit(str(reason))
    text = json.dumps({"case": case, "result": result})
    if arguments.out:
        pathlib.Path(arguments.out).write_text(text + "\n")
    else:
        print(text)
    if arguments.events:
        pathlib.Path(arguments.events).write_text(json.dumps(events, separators=(",", ":")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
