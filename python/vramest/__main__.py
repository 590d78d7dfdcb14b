"""The vramest command: `vramest check job.yaml`, or `python -m vramest check job.yaml`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from vramest import _core


def _write(stream: TextIO | None, text: bytes) -> None:
    """As the C++ command writes: bytes, whatever encoding the stream was given. Raises OSError."""
    if not text:
        return
    if stream is None:  # closed before Python began
        raise OSError("no stream")
    if (raw := getattr(stream, "buffer", None)) is None:  # a notebook's
        stream.write(text.decode("utf-8", "replace"))
    else:
        stream.flush()
        raw.write(text)
    stream.flush()


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command, prints what it answers, and returns its exit code."""
    words = sys.argv[1:] if args is None else args
    code, out, err = _core.run_cli([os.fsencode(word) for word in words])
    try:
        _write(sys.stdout, out)
    except BrokenPipeError:  # `vramest … | head`: the reader has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except (OSError, ValueError):
        code, err = 2, err + b"vramest: the answer could not be written\n"
        sys.stdout = None  # nothing is left that a flush at exit could fail on
    try:
        _write(sys.stderr, err)
    except (OSError, ValueError):
        sys.stderr = None
    return code


if __name__ == "__main__":
    sys.exit(main())
