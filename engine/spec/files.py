"""What lies at a path that a spec names, whatever was written there, and how a file is shown to a person."""

from __future__ import annotations

from pathlib import Path
from stat import S_ISDIR, S_ISREG


def is_file(path: Path) -> bool:
    """Whether a file is there. False for a name that no file can have, at which `Path.is_file` may raise."""
    return S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    """Whether a folder is there; never raises, either."""
    return S_ISDIR(_mode(path))


def shown(path: Path) -> str:
    """The path from the working folder, where it is below that."""
    resolved, here = path.resolve(), Path.cwd()
    return str(resolved.relative_to(here) if resolved.is_relative_to(here) else path)


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except (OSError, ValueError):  # too long, circular, not ours to see; a NUL
        return 0
