"""A switch over one of our enums has no `default`, so that the compiler lists what a new case touches."""

import re
import unittest

from source import ROOT, code_of, headers, shown, sources

SWITCH = re.compile(r"\bswitch\s*\(")


def end_of(text: str, start: int) -> int:
    """Just behind the bracket that closes the one at `start`."""
    pairs = {"(": ")", "{": "}"}
    opening, closing, depth = text[start], pairs[text[start]], 0
    for i in range(start, len(text)):
        depth += (text[i] == opening) - (text[i] == closing)
        if depth == 0:
            return i + 1
    raise ValueError("unbalanced brackets")


def own_enums() -> set[str]:
    return {name for path in headers() + sources() for name in re.findall(r"\benum class (\w+)", code_of(path))}


def names_one(body: str, enums: set[str]) -> bool:
    return any(name in enums for name in re.findall(r"\bcase\s+(?:\w+::)*?(\w+)::\w+\s*:(?!:)", body))


def switches(code: str):
    """(offset, body without the bodies of switches within)."""
    for match in SWITCH.finditer(code):
        begin = code.index("{", end_of(code, match.end() - 1))
        body = code[begin + 1 : end_of(code, begin) - 1]
        while inner := SWITCH.search(body):
            start = body.index("{", end_of(body, inner.end() - 1))
            body = body[: inner.start()] + body[end_of(body, start) :]
        yield match.start(), body


class Switches(unittest.TestCase):
    def test_no_default_beside_an_enumerator(self) -> None:
        found = []
        files = headers() + sources() + sorted((ROOT / "cli").rglob("*.cpp")) + sorted((ROOT / "bindings").rglob("*.cpp"))
        enums = own_enums()
        for path in files:
            code = code_of(path)
            for offset, body in switches(code):
                if names_one(body, enums) and re.search(r"\bdefault\s*:", body):
                    found.append(f"{shown(path)}:{code.count(chr(10), 0, offset) + 1}")
        self.assertEqual(found, [])

    def test_the_scan_sees_one(self) -> None:
        code = "switch (a) { case A::b: switch (c) { default: break; } case A::c: return; }  switch (x) { case E::f: default: ; }"
        bodies = [body for _, body in switches(code)]
        self.assertEqual(["default" in body for body in bodies], [False, True, True])
        self.assertEqual([names_one(body, {"A", "B"}) for body in bodies], [True, False, False])
        self.assertIn("Verdict", own_enums())


if __name__ == "__main__":
    unittest.main()
