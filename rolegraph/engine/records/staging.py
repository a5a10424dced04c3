"""Staging folders: what is written in one appears as a whole, by a rename, or not at all.

Each staging folder is locked by the process that writes it; one without a lock was left by a process that was
killed, and `sweep` deletes it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from rolegraph.engine.records.writer_lock import lock

_STAGING = ".part-"


@contextmanager
def staging_folder(parent: Path) -> Generator[Path]:
    """Yield a new locked folder below `parent` to write into; it is deleted after the block. Raises
    OSError."""
    new = Path(tempfile.mkdtemp(dir=parent, prefix=".new-"))
    with _locked(new):
        # Only now under the name that `sweep` looks for, which deletes what is not locked.
        staging = new.rename(new.with_name(new.name.replace(".new-", _STAGING)))
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def sweep(parent: Path, rescue: Callable[[Path], None] = lambda _: None) -> None:
    """Delete staging folders that killed processes left below `parent`; `rescue` is called with each before.

    A living writer holds a lock on its folder. Does nothing on Windows, which has no locks on folders.
    """
    if sys.platform != "win32":
        for staging in parent.glob(f"{_STAGING}*"):
            with suppress(OSError), _locked(staging):  # raises if its writer is alive
                rescue(staging)
                shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Lock a folder within a block; raises OSError if another process has locked it."""
    if sys.platform == "win32":
        yield
        return
    file = os.open(folder, os.O_RDONLY)
    try:
        if not lock(file):
            raise BlockingIOError(f"{folder} is locked")
        yield
    finally:
        os.close(file)
