"""python -m vramest.accuracy REPORTS.jsonl [--out FILE]: measured rows beside what vramest predicts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from vramest.accuracy.jobs import Refusal, question_of
from vramest.accuracy.judge import Judged, Unjudged, judge
from vramest.accuracy.rows import Row, read_rows
from vramest.accuracy.table import in_short, page
from vramest.accuracy.words import Words, words



def _complain(text: str) -> int:
    print(f"vramest.accuracy: {text}", file=sys.stderr)
    return 2


def _rows(path: str) -> list[Row] | None:
    """None after complaints."""
    try:
        text = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        _complain(f"{path}: {getattr(error, 'strerror', None) or error}")
        return None
    rows, complaints = read_rows(text, path)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return None if any(complaint.fatal for complaint in complaints) else rows


def _show_jobs(rows: list[Row], wanted: str, known: Words) -> int:
    row = next((row for row in rows if row.id == wanted), None)
    if row is None:
        return _complain(f"no row {wanted}")
    question = question_of(row, known)
    if isinstance(question, Refusal):
        print(f"{question.why}: {question.detail}" if question.detail else question.why)
        return 0
    for part in question.parts:
        print(f"# {part.role}")
        print(part.text())
    said = {"gpu": question.gpu, "capacity": question.capacity, "set": dict(question.sets) if question.sets else None}
    for key, value in said.items():
        if value is not None:
            print(f"# --{key} {value}")
    return 0


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m vramest.accuracy", description=__doc__, allow_abbrev=False)
    parser.add_argument("reports", metavar="REPORTS.jsonl", help="measured rows, a JSON object a line")
    parser.add_argument("--out", metavar="FILE", default="-", help="write the page there; else it is printed")
    parser.add_argument("--job", metavar="ID", help="only show what would be asked about this row")
    try:
        told = parser.parse_args(args)
    except SystemExit as left:  # --help, or a mistake that argparse has told
        return left.code if isinstance(left.code, int) else 2
    rows = _rows(told.reports)
    if rows is None:
        return 2
    known = words()
    if told.job is not None:
        return _show_jobs(rows, told.job, known)
    found = [judge(row, known) for row in rows]
    judged = [one for one in found if isinstance(one, Judged)]
    unjudged = [one for one in found if isinstance(one, Unjudged)]
    text = page(Path(told.reports).name, judged, unjudged, known.explanations)
    if told.out == "-":
        print(text, end="")
        return 0
    try:
        Path(told.out).write_text(text, encoding="utf-8", newline="\n")
    except (OSError, ValueError) as error:
        return _complain(f"{told.out}: {getattr(error, 'strerror', None) or error}")
    print(in_short(judged, unjudged))
    print(f"{told.out} has every row.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
