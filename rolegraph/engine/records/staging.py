"""Staging folders: their content appears as a whole, by a rename, or not at all.

Each staging folder is locked by the process that writes it. A staging folder without a lock was left by a
killed process, and `sweep` deletes it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rolegraph.engine.errors import WorldError, os_errors_as
from rolegraph.engine.records import confined
from rolegraph.engine.records.ownership import STAGING
from rolegraph.engine.records.writer_lock import lock


@contextmanager
def staged(target: Path) -> Generator[Path]:
    """Yield a path at which the block makes a file or a folder, which is then renamed to `target`.

    Args:
        target: A file to write or replace, or a folder that is missing or empty.

    Raises:
        WorldError: A file cannot be written; nothing appears at `target` then.
    """
    target = Path(os.path.abspath(target))  # noqa: PTH100 - `.` needs a name, and a link at the end stays one
    with os_errors_as(WorldError, f"cannot write {target}"):
        confined.check([target])
        # A folder that is there may be a mount, or the shell's working folder: it stays, and is filled.
        parent = target if target.is_dir() else target.parent
        parent.mkdir(parents=True, exist_ok=True)
        sweep(parent)
        with staging_folder(parent) as staging_path:
            staged_path = staging_path / target.name
            yield staged_path
            for child in [*staged_path.iterdir()] if parent == target else ():
                child.rename(target / child.name)
            if parent != target:
                staged_path.rename(target)


@contextmanager
def staging_folder(parent: Path) -> Generator[Path]:
    """Yield a new locked folder below `parent` for the block to write into, and delete it afterwards; raises
    OSError."""
    with ExitStack() as stack:
        staging_path = _new_locked(parent, stack)
        stack.callback(shutil.rmtree, staging_path, ignore_errors=True)
        yield staging_path


def sweep(parent: Path, rescue: Callable[[Path], None] = lambda _: None) -> None:
    """Delete staging folders that killed processes left below `parent`.

    A living writer holds a lock on its folder. Does nothing on Windows, which cannot lock folders.

    Args:
        parent: The folder.
        rescue: Function called with each staging folder before it is deleted.
    """
    if sys.platform != "win32":
        for folder in parent.glob(f"{STAGING}*"):
            with suppress(OSError), _locked(folder):  # raises if its writer is alive
                rescue(folder)
                shutil.rmtree(folder, ignore_errors=True)


def _new_locked(parent: Path, stack: ExitStack) -> Path:
    """Create a folder and lock it until `stack` ends; another process may sweep it before it is locked."""
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=STAGING))
        with suppress(FileNotFoundError, BlockingIOError):
            stack.enter_context(_locked(folder))
            if folder.exists():
                return folder


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
