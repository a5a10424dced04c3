"""Paths and texts that a spec names, whatever was written there, and how a file is shown to a person."""

from __future__ import annotations

from pathlib import Path

from rolegraph.engine.limits import Limit
from rolegraph.engine.records.files import read_bytes


def resolve_path(path: Path) -> Path:
    """The path without links; never raises, either: where nothing can be, it is only made absolute."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):  # links that go in circles; a NUL
        return path.absolute()


def display_path(path: Path) -> str:
    """The path from the working folder, where it is below that."""
    where, here = resolve_path(path), Path.cwd()
    return str(where.relative_to(here) if where.is_relative_to(here) else path)


def read_text(path: Path, most: Limit) -> str:
    """A file's text, without the mark that some editors begin it with.

    Raises OSError where the file is larger than a limit in bytes, of which no more is read, or no file; and
    UnicodeDecodeError where it is no text.
    """
    return read_bytes(path, most).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
