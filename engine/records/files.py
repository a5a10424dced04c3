"""What lies at a path, whatever its name, and the content of a file that is read whole."""

from __future__ import annotations

import errno
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from rolegraph.engine.limits import Limit


def is_file(path: Path) -> bool:
    """Whether a file is there. False for a name that no file can have, at which `Path.is_file` may raise."""
    return S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    """Whether a folder is there; never raises, either."""
    return S_ISDIR(_mode(path))


def is_no_file(path: Path) -> bool:
    """Whether something else is there: a folder, a pipe, a device."""
    mode = _mode(path)
    return mode != 0 and not S_ISREG(mode)


def read_bytes(path: Path, most: Limit) -> bytes:
    """A file's content.

    Raises OSError where there is none; where it is a device or a pipe, which may never end or begin; and
    where it is larger than a limit in bytes, of which no more is read.
    """
    mode = path.stat().st_mode
    if not S_ISREG(mode) and not S_ISDIR(mode):  # a folder says so itself
        raise OSError(errno.EINVAL, "it is no file")
    with path.open("rb") as file:
        content = file.read(most.most + 1)
    if len(content) > most.most:
        raise OSError(errno.EFBIG, most.exceeded("the file has"))
    return content


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except (OSError, ValueError):  # too long, circular, not ours to see; a NUL
        return 0
