"""The vramest command: `vramest check job.yaml`, or `python -m vramest check job.yaml`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from vramest import _core


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command, prints what it answers, and returns its exit code."""
    code, out, err = _core.run_cli(list(sys.argv[1:] if args is None else args))
    try:
        if err:
            sys.stderr.write(err)
        if out:
            sys.stdout.write(out)
        sys.stdout.flush()
    except BrokenPipeError:  # `vramest … | head`: the reader has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


if __name__ == "__main__":
    sys.exit(main())
