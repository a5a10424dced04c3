"""Writes of this process outside of some folders, seen by an audit hook while an input is judged."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

_CHANGES = {
    *("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"),
}
"""Audit events whose arguments are paths that change."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_roots: list[str] = []
"""The folders that may be written in; empty while nobody watches."""
_strays: list[str] = []
_folders: list[int | None] = [None]
"""Descriptors of the folders that calls of `os.open` begin in, the innermost last."""


@contextmanager
def written_within(*folders: Path) -> Generator[None]:
    """Raise AssertionError at the end where something was written outside of these folders."""
    _install()
    around = [*_roots]
    _strays.clear()
    _roots[:] = [os.path.realpath(folder) for folder in folders]
    try:
        yield
    finally:
        _roots[:] = around
    assert not _strays, f"written outside: {_strays[0]}"


@cache
def _install() -> None:
    sys.dont_write_bytecode = True
    sys.addaudithook(_see)
    open_path = os.open

    def open_below(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        _folders.append(dir_fd)  # which the audit event of `os.open` lacks
        try:
            return open_path(path, flags, mode, dir_fd=dir_fd)
        finally:
            _folders.pop()

    os.open = open_below


def _see(event: str, arguments: tuple[Any, ...]) -> None:
    if not _roots:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = bool({*(mode or "")} & {*"wax+"}) or flags & _WRITING
        folder = "" if _folders[-1] is None else f"/proc/self/fd/{_folders[-1]}"
        if not writes or not isinstance(path, str | bytes | Path):
            paths = []
        elif flags & os.O_NOFOLLOW:
            whole = os.path.join(folder, os.fsdecode(path))  # noqa: PTH118
            paths = [os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))]  # noqa: PTH118, PTH119, PTH120
        else:  # a write goes through a link, so its target counts
            paths = [os.path.realpath(os.path.join(folder, os.fsdecode(path)))]  # noqa: PTH118
    elif event in _CHANGES:
        *_, at = arguments  # most often the descriptor of the folder that a path begins in, or -1
        base = f"/proc/self/fd/{at}" if event != "os.truncate" and isinstance(at, int) and at >= 0 else ""
        paths = [
            os.path.join(os.path.realpath(os.path.join(base, os.path.dirname(path))), os.path.basename(path))  # noqa: PTH118, PTH119, PTH120
            for path in map(os.fspath, (a for a in arguments if isinstance(a, str | Path)))
        ]
        if event in ("os.link", "os.symlink"):
            del paths[0]  # what it leads to, which stays
    else:
        return
    for path in map(os.fsdecode, paths):
        inside = any(path == root or path.startswith(f"{root}/") for root in _roots)
        if not inside and not path.startswith("/dev/"):
            _strays.append(f"{event} {path}")
