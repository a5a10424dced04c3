"""Checks of a path that never raise, and the content of a file up to a limit."""

from __future__ import annotations

import errno
import filecmp
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from rolegraph.engine.limits import Limit
from rolegraph.engine.records.confined import open_to_read


def is_file(path: Path) -> bool:
    """Return True if a path is a regular file; False for a name with a NUL, for which `Path.is_file`
    raises."""
    return S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    """Return True if a path is a folder; False for a name with a NUL."""
    return S_ISDIR(_mode(path))


def is_no_file(path: Path) -> bool:
    """Return True if a path exists and is no regular file: a folder, a pipe or a device."""
    mode = _mode(path)
    return mode != 0 and not S_ISREG(mode)


def is_same(path: Path, other: Path) -> bool:
    """Return True if two files have the same content; False if either cannot be read."""
    try:
        return filecmp.cmp(path, other, shallow=False)
    except (OSError, ValueError):
        return False


def read_bytes(path: Path, most: Limit) -> bytes:
    """Return the content of a regular file.

    Args:
        path: The file.
        most: Limit on its size, in bytes; no more is read.

    Raises:
        OSError: The file is missing, a folder, a device or a pipe, or larger than the limit.
    """
    mode = path.stat().st_mode
    if not S_ISREG(mode) and not S_ISDIR(mode):  # opening a folder raises by itself
        raise OSError(errno.EINVAL, "not a regular file")
    with open_to_read(path) as file:
        content = file.read(most.most + 1)
    if len(content) > most.most:
        raise OSError(errno.EFBIG, most.exceeded("the file has"))
    return content


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except (OSError, ValueError):  # name too long, circular links, no permission; a NUL
        return 0
