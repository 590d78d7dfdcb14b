"""The library never prints, exits, or reads the environment, the clock or chance; probe/ alone does, when asked.

Twice: in the sources, where a finding has a line; and in the compiled objects, which nothing escapes. The objects are
those of VRAM_OBJECTS, a file with one path a line (ctest sets it); without it the second half is skipped.
"""

import os
import re
import shutil
import subprocess
import unittest
from pathlib import Path

from source import code_of, folder_of, headers, included_folder, includes, shown, sources  # noqa: F401

FORBIDDEN_HEADERS = {"<iostream>", "<print>", "<syncstream>", "<ctime>", "<chrono>", "<random>", "<csignal>"}

CALLS = re.compile(
    r"""(?<![\w.>])(?:std::|::)?(?P<name>
        printf|fprintf|vprintf|vfprintf|puts|fputs|putchar|fputc|perror
      | exit|_exit|_Exit|quick_exit|abort
      | getenv|secure_getenv|setenv|putenv
      | time|clock|gettimeofday|clock_gettime
      | rand|srand|random
      | system|popen)\s*\(""",
    re.X,
)
STREAMS = re.compile(r"\bstd::(?P<name>cout|cerr|clog|cin|random_device)\b")

SYMBOLS = re.compile(
    r"""^(?:
        (?:__)?v?f?printf(?:_chk)? | puts | fputs | putchar | putc | fputc | perror
      | exit | _exit | _Exit | quick_exit | abort
      | getenv | secure_getenv | setenv | putenv | environ
      | time | clock | gettimeofday | clock_gettime
      | rand | srand | random | getrandom | system | popen | stdout | stderr | stdin
      | _ZSt4cout | _ZSt4cerr | _ZSt4clog | _ZSt3cin | _ZNSt8ios_base4InitC1Ev
      | _ZNSt6chrono.*3nowEv | _ZNSt13random_device.*
    )$""",
    re.X,
)


class Silence(unittest.TestCase):
    def test_no_source_prints_exits_or_looks_around(self) -> None:
        found = []
        for path in headers() + sources():
            if folder_of(path) == "probe":
                continue
            for header in FORBIDDEN_HEADERS.intersection(includes(path)):
                found.append(f"{shown(path)}: {header}")
            for number, line in enumerate(code_of(path).splitlines(), start=1):
                for match in [*CALLS.finditer(line), *STREAMS.finditer(line)]:
                    found.append(f"{shown(path)}:{number}: {match['name']}")
        self.assertEqual(found, [])

    def test_no_object_does_either(self) -> None:
        listed = os.environ.get("VRAM_OBJECTS")
        nm = shutil.which("nm")
        if not listed or not nm:
            self.skipTest("VRAM_OBJECTS is not set, or nm is not there")
        if os.environ.get("VRAM_SANITIZED"):
            self.skipTest("the sanitizers call what they like")
        found = []
        objects = [Path(line) for line in Path(listed).read_text().split("\n") if line]
        self.assertGreater(len(objects), 3, "the list of objects is not the library's")
        for path in objects:
            if "/probe/" in path.as_posix() or "/_deps/" in path.as_posix():
                continue
            symbols = subprocess.run([nm, "--undefined-only", "--format=posix", path], capture_output=True, text=True, check=True)
            for line in symbols.stdout.splitlines():
                name = line.split()[0].partition("@")[0]
                if SYMBOLS.match(name):
                    found.append(f"{path.name}: {name}")
        self.assertEqual(found, [])


if __name__ == "__main__":
    unittest.main()
