"""What `import vramest` and one command cost, from a new process each: the best of n, in milliseconds.

    PYTHONPATH=build/release/python python bench/import_time.py [--cli build/release/bin/vramest] [-n 20]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time


def best_of(n: int, command: list[str]) -> float:
    def once() -> float:
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        return time.perf_counter() - start

    return 1000 * min(once() for _ in range(n))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cli", help="the C++ command, to be timed on --job")
    parser.add_argument("--job", default="examples/flux_lora.yaml")
    parser.add_argument("-n", type=int, default=20)
    arguments = parser.parse_args()

    bare = best_of(arguments.n, [sys.executable, "-c", "pass"])
    imported = best_of(arguments.n, [sys.executable, "-c", "import vramest"])
    print(f"import vramest           {imported - bare:7.1f} ms  (python alone: {bare:.1f} ms)")
    checked = best_of(arguments.n, [sys.executable, "-m", "vramest", "check", arguments.job])
    print(f"python -m vramest check  {checked:7.1f} ms")
    if arguments.cli:
        print(f"vramest check            {best_of(arguments.n, [arguments.cli, 'check', arguments.job]):7.1f} ms")


if __name__ == "__main__":
    main()
