"""Staging folders: checkpoints are written in one and then renamed into place.

Several services may share one state folder. Each staging folder is locked by the process that writes it; one
without a lock was left by a process that was killed.
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
"""Subfolder of a staging folder that is to be renamed into place."""
_PREFIX = ".part-"


class StagingDirs:
    """The staging folders below a state folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def create(self) -> Generator[Path]:
        """Create a locked staging folder and delete it after the block. Raises OSError."""
        with ExitStack() as stack:
            with _locked(self._folder, shared=True):  # keeps `sweep` from deleting it before it is locked
                staging = Path(tempfile.mkdtemp(dir=self._folder, prefix=_PREFIX))
                stack.enter_context(_locked(staging))
            stack.callback(shutil.rmtree, staging, ignore_errors=True)
            yield staging

    def sweep(self, rescue: Callable[[Path], None]) -> None:
        """Delete the staging folders of killed processes, calling `rescue` with each before.

        Does nothing on Windows, which has no such locks.
        """
        if sys.platform == "win32":
            return
        with suppress(OSError), _locked(self._folder):
            for staging in self._folder.glob(f"{_PREFIX}*"):
                with suppress(OSError), _locked(staging, wait=False):  # raises if its writer is alive
                    rescue(staging)
                    shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _locked(folder: Path, *, shared: bool = False, wait: bool = True) -> Generator[None]:
    """Hold a lock on a folder; without `wait`, raises OSError if another process holds it."""
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
