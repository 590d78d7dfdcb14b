"""The C++ sources as the architecture tests see them. Only the standard library, so that any python3 runs them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "libvram" / "include"
SRC = ROOT / "libvram" / "src"

# In the order of the layers: a folder may include itself and what stands before it. HACKING.md says what each holds.
FOLDERS = (
    "base", "io", "profile", "shadow", "nn", "models", "job", "device", "run", "trainers",
    "report", "advise", "diagnose", "calibrate", "probe",
)  # fmt: skip

_COMMENT_OR_TEXT = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.S
)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"][^>"]+[>"])', re.M)


def headers() -> list[Path]:
    """The public ones."""
    return sorted(INCLUDE.rglob("*.hpp"))


def sources() -> list[Path]:
    return sorted([*SRC.rglob("*.hpp"), *SRC.rglob("*.cpp")])


def folder_of(path: Path) -> str | None:
    """The layer that a file belongs to; None for vram/vram.hpp, which stands above all."""
    base = INCLUDE / "vram" if path.is_relative_to(INCLUDE) else SRC
    parts = path.relative_to(base).parts
    return parts[0] if len(parts) > 1 else None


def includes(path: Path) -> list[str]:
    """As written: `<vector>`, `"vram/base/bytes.hpp"`."""
    return _INCLUDE.findall(path.read_text(encoding="utf-8"))


def included_folder(include: str) -> str | None:
    """The layer that an include of ours names; None for the standard library and third parties."""
    if not include.startswith('"'):
        return None
    parts = [part for part in include.strip('"').split("/") if part != "vram"]
    return parts[0] if len(parts) > 1 else None


def code_of(path: Path) -> str:
    """The text with comments blank and literals empty, each line where it was."""

    def blank(match: re.Match[str]) -> str:
        text = match.group()
        kept = "" if text.startswith("/") else '""' if not text.startswith("'") else "''"
        return kept + "\n" * text.count("\n")

    return _COMMENT_OR_TEXT.sub(blank, path.read_text(encoding="utf-8"))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
