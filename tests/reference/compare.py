"""Compares two event lists of one job, ours and PyTorch's, and names the first event at which they part.

    python compare.py OURS.json THEIRS.json [--more N] [--context N]

No torch is needed. Exit status: 0 equal, 1 they part, 2 a file cannot be read.

The format, written by `record.py --events` and by the library's own trace dump:

    {"format": 1, "made_by": "...", "case": {...}, "texts": ["", ...],
     "events": [[kind, slot, bytes, op, where], ...]}

- kind: "a" allocation, "f" free, "m" mark.
- slot: any number that names the storage from its allocation to its free.
- bytes: of an allocation, as requested (rounding to 512 is done here; 0 is no event). Of a free or a mark: 0.
- op, where: a text, or the index of one in `texts`. Of an allocation: what allocated, and for whom (file:line of the
  forward and the module's name; of a weight or an input its name). Of a mark, op is "begin PHASE/STAGE" or
  "end PHASE/STAGE". Trailing fields may be left out.
- `texts`, `case` and `made_by` may be left out.

What counts as equal: the same sizes in the same order, and between any two allocations the same set of frees (their
order among themselves moves no allocator's state). Within the phase `load` the order of allocations does not count
either, only which sizes were allocated. Names are never compared. What follows the last mark is left out.
"""

import argparse
import collections
import json
import sys

ROUND = 512


class Allocation:
    """An allocation, with what was freed between the one before and this one."""

    __slots__ = ("name", "size", "op", "where", "stage", "frees")

    def __init__(self, name, size, op, where, stage):
        self.name, self.size, self.op, self.where, self.stage = name, size, op, where, stage
        self.frees = []

    def __str__(self):
        size = f"{self.size:,}" if self.size else "nothing"
        return f"{size:>15}  {self.op}  {self.where}".rstrip()


class Stage:
    def __init__(self, name, live):
        self.name, self.start, self.peak, self.end = name, live, live, None


class Trace:
    """An event list in canonical form.

    `allocations` are those after the phase `load`, in order, and a closing one without size; a storage is called by
    its number among them, a storage of `load` by its size. `loaded` counts the sizes of `load`.
    """

    def __init__(self, data: dict):
        texts = data.get("texts", [])
        self.made_by = data.get("made_by", "")
        self.allocations, self.stages, self.loaded = [], [], collections.Counter()
        self.born = {}  # canonical name -> Allocation
        live, sizes, names, stage, frees = 0, {}, {}, "", []
        rows = data["events"]
        last_mark = max((i for i, row in enumerate(rows) if row[0][0] == "m"), default=len(rows) - 1)
        for row in rows[:last_mark + 1]:
            kind, slot, size, op, where = (*row, *(0, 0, 0, "", "")[len(row):])
            op, where = (texts[text] if isinstance(text, int) and texts else text for text in (op, where))
            if kind[0] == "m":
                verb, _, stage_name = op.partition(" ")
                if verb == "begin":
                    self.stages.append(Stage(stage_name, live))
                    stage = stage_name
                elif self.stages:
                    self.stages[-1].end = live
                continue
            if kind[0] == "a":
                size = -(-size // ROUND) * ROUND
                if size == 0:
                    continue
                if slot in sizes:
                    raise ValueError(f"slot {slot} is allocated twice")
                sizes[slot] = size
                live += size
                if self.stages:
                    self.stages[-1].peak = max(self.stages[-1].peak, live)
                if stage.split("/")[0] == "load":
                    names[slot] = f"load:{size}"
                    self.loaded[size] += 1
                    self.born.setdefault(names[slot], Allocation(names[slot], size, op, "a weight or an input", stage))
                else:
                    names[slot] = len(self.allocations)
                    allocation = Allocation(names[slot], size, op, where, stage)
                    allocation.frees, frees = frees, []
                    self.allocations.append(allocation)
                    self.born[names[slot]] = allocation
            elif slot in sizes:  # a slot of size 0 was never an event
                live -= sizes.pop(slot)
                name = names.pop(slot)
                if stage.split("/")[0] == "load" and isinstance(name, str):
                    self.loaded[self.born[name].size] -= 1
                else:
                    frees.append(name)
        closing = Allocation(None, 0, "any more", "", stage)
        closing.frees = frees
        self.allocations.append(closing)


def _describe_free(trace: Trace, name, at: int) -> str:
    born = trace.born[name]
    if isinstance(name, str):
        return f"    {born.size:>15,}  of the weights and inputs"
    return f"{born}\n{'':21}born {at - name} allocations earlier, in {born.stage}"


def _context(trace: Trace, at: int, count: int) -> list:
    lines = []
    for i in range(max(0, at - count), min(len(trace.allocations), at + count + 1)):
        allocation = trace.allocations[i]
        lines.extend(f"       free {trace.born[name].size:>15,}  {trace.born[name].op}" for name in allocation.frees)
        lines.append(f"  {'-->' if i == at else '   '} #{i:<6}{allocation}")
    return lines


def differences(ours: Trace, theirs: Trace, more: int, context: int):
    """Yields reports, the first difference first, at most `more` after it.

    A free that one side does earlier is reported once and forgiven when the other side catches up; an allocation of
    another size ends the comparison, since from there on the two no longer speak of the same storages.
    """
    if ours.loaded != theirs.loaded:
        lines = ["The weights and inputs differ:"]
        for size in sorted(ours.loaded.keys() | theirs.loaded.keys(), reverse=True):
            if ours.loaded[size] != theirs.loaded[size]:
                lines.append(f"  {size:>15,}  ours {ours.loaded[size]} times, PyTorch {theirs.loaded[size]} times")
        yield "\n".join(lines)
    early_ours, early_theirs = collections.Counter(), collections.Counter()
    reported = 0
    for at, (mine, other) in enumerate(zip(ours.allocations, theirs.allocations)):
        freed_ours = collections.Counter(mine.frees) + early_ours
        freed_theirs = collections.Counter(other.frees) + early_theirs
        only_ours, only_theirs = freed_ours - freed_theirs, freed_theirs - freed_ours
        new_ours = only_ours - early_ours
        new_theirs = only_theirs - early_theirs
        lines = []
        if new_ours:
            lines.append("  ours frees what PyTorch still holds:")
            lines.extend(f"    {_describe_free(theirs, name, at)}" for name in new_ours)
        if new_theirs:
            lines.append("  PyTorch frees what ours still holds:")
            lines.extend(f"    {_describe_free(theirs, name, at)}" for name in new_theirs)
        early_ours, early_theirs = only_ours, only_theirs
        if mine.size != other.size:
            lines.append(f"  ours allocates {mine}\n  PyTorch        {other}")
        if not lines:
            continue
        where = f"{other.op}  {other.where}".rstrip()
        head = f"At allocation #{at} (stage {other.stage}; PyTorch: {where}):"
        yield "\n".join([head, *lines, "  PyTorch's events around it:", *_context(theirs, at, context),
                         "  ours:", *_context(ours, at, context)])
        reported += 1
        if mine.size != other.size or reported > more:
            return


def _stage_table(ours: Trace, theirs: Trace) -> list:
    def numbered(trace):
        seen, result = collections.Counter(), {}
        for stage in trace.stages:
            seen[stage.name] += 1
            result[stage.name if seen[stage.name] == 1 else f"{stage.name} #{seen[stage.name]}"] = stage
        return result

    mine, other = numbered(ours), numbered(theirs)
    lines = [f"{'stage':<24}{'our peak':>17}{'PyTorch':>17}{'apart':>14}{'our end':>17}{'PyTorch':>17}{'apart':>14}"]
    for name in [*other, *(n for n in mine if n not in other)]:
        a, b = mine.get(name), other.get(name)
        if a is None or b is None:
            lines.append(f"{name:<24}only in {'ours' if b is None else 'PyTorch'}")
            continue
        end_a, end_b = (stage.end if stage.end is not None else 0 for stage in (a, b))
        lines.append(f"{name:<24}{a.peak:>17,}{b.peak:>17,}{a.peak - b.peak:>+14,}"
                     f"{end_a:>17,}{end_b:>17,}{end_a - end_b:>+14,}")
    return lines


def compare(ours: dict, theirs: dict, more: int = 0, context: int = 4):
    """(equal, report) of two event lists."""
    mine, other = Trace(ours), Trace(theirs)
    reports = list(differences(mine, other, more, context))
    table = _stage_table(mine, other)
    apart = any(a.peak != b.peak or a.end != b.end for a, b in zip(mine.stages, other.stages))
    if not reports and not apart and len(mine.stages) == len(other.stages):
        return True, f"equal: {len(other.allocations) - 1} allocations after loading"
    if not reports:
        reports = ["The events are equal, but a mark stands elsewhere among them."]
    return False, "\n\n".join([*reports, "\n".join(table)])


def main() -> int:
    parser = argparse.ArgumentParser(description="Names the first event at which two event lists part.")
    parser.add_argument("ours")
    parser.add_argument("theirs")
    parser.add_argument("--more", type=int, default=0, help="how many further differences to report (default 0)")
    parser.add_argument("--context", type=int, default=4, help="allocations to show on either side (default 4)")
    arguments = parser.parse_args()
    try:
        lists = []
        for path in (arguments.ours, arguments.theirs):
            with open(path, encoding="utf-8") as file:
                lists.append(json.load(file))
        equal, report = compare(*lists, more=arguments.more, context=arguments.context)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"cannot compare: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
