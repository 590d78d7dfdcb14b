"""compare.py on event lists written by hand. Needs no torch."""

import json

import pytest

import compare

WHERE = "transformer.py:1 blocks.0"


def events(*rows):
    return {"events": [["m", 0, 0, "begin load/weights"], ["a", 1, 1000, "empty", "weight"],
                       ["a", 2, 600, "empty", "bias"], ["m", 0, 0, "end load/weights"],
                       ["m", 0, 0, "begin step 1/forward"], *rows, ["m", 0, 0, "end step 1/forward"]]}


PLAIN = events(["a", 3, 512, "mm", WHERE], ["a", 4, 1024, "gelu", WHERE], ["f", 3], ["f", 4],
               ["a", 5, 2048, "add", WHERE])

EQUAL = [
    ("the list itself", PLAIN),
    ("sizes that round to the same",
     events(["a", 3, 1, "mm"], ["a", 4, 513, "gelu"], ["f", 3], ["f", 4], ["a", 5, 1600, "add"])),
    ("frees between two allocations in another order, slots under other numbers",
     events(["a", 30, 512, ""], ["a", 40, 1024, ""], ["f", 40], ["f", 30], ["a", 30, 2048, ""])),
    ("allocations of nothing",
     events(["a", 3, 512, ""], ["a", 9, 0, ""], ["f", 9], ["a", 4, 1024, ""], ["f", 3], ["f", 4], ["a", 5, 2048, ""])),
    ("weights in another order", {"events": [PLAIN["events"][i] for i in (0, 2, 1, *range(3, 11))]}),
    ("what comes after the last mark", {"events": [*PLAIN["events"], ["f", 5], ["a", 6, 512, ""]]}),
]


@pytest.mark.parametrize("why, ours", EQUAL, ids=[why for why, _ in EQUAL])
def test_equal(why, ours):
    equal, report = compare.compare(ours, PLAIN)
    assert equal, report


APART = [
    ("another size", events(["a", 3, 512], ["a", 4, 2048, "silu"], ["f", 3], ["f", 4], ["a", 5, 2048]),
     ["At allocation #1 ", "PyTorch: gelu  transformer.py:1 blocks.0", "ours allocates", "silu"]),
    ("a free that comes too late", events(["a", 3, 512], ["a", 4, 1024], ["f", 4], ["a", 5, 2048], ["f", 3]),
     ["At allocation #2 ", "PyTorch frees what ours still holds", "512  mm", "born 2 allocations earlier"]),
    ("a free that comes too early", events(["a", 3, 512], ["f", 3], ["a", 4, 1024], ["f", 4], ["a", 5, 2048]),
     ["At allocation #1 ", "ours frees what PyTorch still holds", "512  mm"]),
    ("an allocation that is missing at the end", events(["a", 3, 512], ["a", 4, 1024], ["f", 3], ["f", 4]),
     ["At allocation #2 ", "ours allocates         nothing  any more", "PyTorch                  2,048  add"]),
    ("a weight of another size", {"events": [["m", 0, 0, "begin load/weights"], ["a", 1, 5000], *PLAIN["events"][2:]]},
     ["The weights and inputs differ", "5,120  ours 1 times, PyTorch 0 times"]),
    ("a mark in another place",
     events(["a", 3, 512], ["a", 4, 1024], ["f", 3], ["f", 4], ["m", 0, 0, "end step 1/forward"],
            ["m", 0, 0, "begin step 1/loss"], ["a", 5, 2048]),
     ["a mark stands elsewhere", "step 1/loss"]),
]


@pytest.mark.parametrize("why, ours, said", APART, ids=[why for why, _, _ in APART])
def test_apart(why, ours, said):
    equal, report = compare.compare(ours, PLAIN)
    assert not equal
    for text in said:
        assert text in report


def test_a_late_free_is_reported_once():
    ours = events(["a", 3, 512], ["a", 4, 1024], ["f", 4], ["a", 5, 2048], ["f", 3], ["a", 6, 512])
    theirs = events(["a", 3, 512], ["a", 4, 1024], ["f", 3], ["f", 4], ["a", 5, 2048], ["a", 6, 512])
    assert compare.compare(ours, theirs, more=5)[1].count("At allocation") == 1


def test_peaks_of_stages():
    table = compare.compare(events(["a", 3, 4096]), PLAIN)[1].splitlines()[-1]
    assert table.split() == ["step", "1/forward", "6,144", "4,096", "+2,048", "6,144", "4,096", "+2,048"]


def test_texts_may_stand_in_a_table():
    table = {"texts": ["", "begin step 1/forward", "mm", WHERE],
             "events": [["m", 0, 0, 1, 0], ["a", 1, 512, 2, 3], ["m", 0, 0, "end step 1/forward", 0]]}
    trace = compare.Trace(table)
    assert (trace.allocations[0].op, trace.allocations[0].where) == ("mm", WHERE)


def test_exit_status(tmp_path, monkeypatch, capsys):
    files = {"a": PLAIN, "b": events(), "c": {"nothing": 1}}
    for name, data in files.items():
        (tmp_path / name).write_text(json.dumps(data))
    for ours, status in (("a", 0), ("b", 1), ("c", 2), ("missing", 2)):
        monkeypatch.setattr("sys.argv", ["compare.py", str(tmp_path / ours), str(tmp_path / "a")])
        assert compare.main() == status
