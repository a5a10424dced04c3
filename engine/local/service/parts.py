"""Folders in which something is written before it is in its place, and what a kill leaves of them.

Several services may write below one folder: each part is locked by who writes it, and one that nobody locks
is left over.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

NEW = "checkpoint"
"""In a part, what is to be put in its place."""
_PREFIX = ".part-"


class StagingDirs:
    """The parts below a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def part(self) -> Generator[Path]:
        """A new one, which is gone after the block. Raises OSError."""
        with ExitStack() as stack:
            with _locked(self._folder, shared=True):  # a sweep cannot come between the two
                part = Path(tempfile.mkdtemp(dir=self._folder, prefix=_PREFIX))
                stack.enter_context(_locked(part))
            stack.callback(shutil.rmtree, part, ignore_errors=True)
            yield part

    def sweep(self, rescue: Callable[[Path], None]) -> None:
        """Remove those that a kill has left; `rescue` sees each before. Windows has no such locks."""
        if sys.platform == "win32":
            return
        with suppress(OSError), _locked(self._folder):
            for part in self._folder.glob(f"{_PREFIX}*"):
                with suppress(OSError), _locked(part, wait=False):  # somebody writes those that are locked
                    rescue(part)
                    shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _locked(folder: Path, *, shared: bool = False, wait: bool = True) -> Generator[None]:
    """A folder that nobody else locks, or only as shared; raises OSError where that would take a wait."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(lock)
