"""Files that a spec names: resolved paths, paths in messages, and text."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rolegraph.engine.limits import Limit
from rolegraph.engine.records.files import is_file, is_folder, read_bytes
from rolegraph.engine.shipped import PROMPTS, SPECS


def resolve_path(path: Path) -> Path:
    """Return the path without links, or the path itself where it cannot be resolved; never raise."""
    for resolve in (path.resolve, path.absolute):  # links that go in circles; a NUL; a deleted folder
        with suppress(OSError, RuntimeError, ValueError):
            return resolve()
    return path


def display_path(path: Path) -> str:
    """Return the path as messages show it: relative to the working folder if the file is below it, else
    absolute."""
    with suppress(FileNotFoundError):  # the working folder was deleted
        working_folder = Path.cwd()
        for absolute_path in (path.absolute(), resolve_path(path)):
            if absolute_path.is_relative_to(working_folder) and ".." not in absolute_path.parts:
                return str(absolute_path.relative_to(working_folder))
    return str(path)


def shown_path(path: Path) -> str:
    """Return a path for messages: `judge.j2 (shipped)` for a file of the package, else as `display_path`."""
    displayed = display_path(path)
    is_shipped = any(path.is_relative_to(folder) for folder in (SPECS, PROMPTS))
    return f"{path.name} (shipped)" if is_shipped and Path(displayed).is_absolute() else displayed


def names_in(folders: Iterable[Path], pattern: str) -> list[str]:
    """Return the names of the files in these folders that match a pattern such as `*.yaml`."""
    entries = (entry for folder in folders if is_folder(folder) for entry in folder.glob(pattern))
    return [entry.name for entry in entries if is_file(entry)]


def has_surrogate(text: str) -> bool:
    """Return True for a text with an unpaired surrogate, which cannot be encoded as UTF-8."""
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def pair_surrogates(text: str) -> str:
    """Return a text in which each pair of surrogates, JSON's escape of an emoji, is the single character."""
    if not has_surrogate(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def read_text(path: Path, most: Limit) -> str:
    """Return the text of a UTF-8 file without its byte-order mark, its line ends as newlines.

    Args:
        path: The file.
        most: Largest permitted size in bytes; no more is read.

    Raises:
        OSError: The file is missing, not a regular file, or larger than `most`.
        UnicodeDecodeError: The file is not UTF-8.
    """
    return read_bytes(path, most).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
