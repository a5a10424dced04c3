"""Folders in which something is written before it is in its place, and what a kill leaves of them.

Several services may write below one folder: each part is locked by who writes it, and one that nobody locks
is left over.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

NEW = "checkpoint"
"""In a part, what is to be put in its place."""
_PREFIX = ".part-"


class Parts:
    """The parts below a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def part(self) -> Generator[Path]:
        """A new one, which is gone after the block. Raises OSError."""
        with _locked(self._folder, shared=True):  # a sweep cannot come between the two
            part = Path(tempfile.mkdtemp(dir=self._folder, prefix=_PREFIX))
            lock = _open(part)
        try:
            yield part
        finally:
            shutil.rmtree(part, ignore_errors=True)
            os.close(lock)

    def sweep(self, rescue: Callable[[Path], None]) -> None:
        """Remove those that a kill has left; `rescue` sees each before."""
        with suppress(OSError), _locked(self._folder):
            for part in self._folder.glob(f"{_PREFIX}*"):
                with suppress(OSError):  # somebody writes it
                    lock = os.open(part, os.O_RDONLY)
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        rescue(part)
                        shutil.rmtree(part, ignore_errors=True)
                    finally:
                        os.close(lock)


@contextmanager
def _locked(folder: Path, *, shared: bool = False) -> Generator[None]:
    lock = _open(folder, shared=shared)
    try:
        yield
    finally:
        os.close(lock)


def _open(folder: Path, *, shared: bool = False) -> int:
    """The folder, open and locked until it is closed."""
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    return lock
