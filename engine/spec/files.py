"""What lies at a path that a spec names, whatever was written there, and how a file is shown to a person."""

from __future__ import annotations

import errno
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from engine.limits import Limit


def is_file(path: Path) -> bool:
    """Whether a file is there. False for a name that no file can have, at which `Path.is_file` may raise."""
    return S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    """Whether a folder is there; never raises, either."""
    return S_ISDIR(_mode(path))


def resolved(path: Path) -> Path:
    """The path without links; never raises, either: where nothing can be, it is only made absolute."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):  # links that go in circles; a NUL
        return path.absolute()


def shown(path: Path) -> str:
    """The path from the working folder, where it is below that."""
    where, here = resolved(path), Path.cwd()
    return str(where.relative_to(here) if where.is_relative_to(here) else path)


def read_text(path: Path, most: Limit) -> str:
    """A file's text, without the mark that some editors begin it with.

    Raises OSError where the file is larger than a limit in bytes, of which no more is read, or no file; and
    UnicodeDecodeError where it is no text.
    """
    if not is_file(path):
        raise OSError(errno.EINVAL, "not a file that holds text")
    with path.open("rb") as file:
        content = file.read(most.most + 1)
    if len(content) > most.most:
        raise OSError(errno.EFBIG, most.past("the file has"))
    return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except (OSError, ValueError):  # too long, circular, not ours to see; a NUL
        return 0
