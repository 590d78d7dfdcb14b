"""Each public header compiles alone, with the public folder and the standard library in reach and warnings as errors.

The compiler is that of CXX (ctest sets it to the build's), else c++.
"""

import os
import shutil
import subprocess
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from source import INCLUDE, headers, shown

FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Werror", "-x", "c++"]


class Headers(unittest.TestCase):
    def test_each_compiles_alone(self) -> None:
        compiler = shutil.which(os.environ.get("CXX", "c++"))
        if not compiler:
            self.skipTest("no C++ compiler")

        def compile_alone(path: Path) -> str:
            name = path.relative_to(INCLUDE).as_posix()
            # Twice, so that the guard is tried too.
            program = f'#include "{name}"\n#include "{name}"\n'
            command = [compiler, *FLAGS, "-I", str(INCLUDE), "-"]
            done = subprocess.run(command, input=program, capture_output=True, text=True)
            return "" if done.returncode == 0 else f"{shown(path)}:\n{done.stderr}"

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            complaints = [complaint for complaint in threads.map(compile_alone, headers()) if complaint]
        self.assertEqual(complaints, [], "\n".join(complaints))


if __name__ == "__main__":
    unittest.main()
