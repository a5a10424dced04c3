"""Lock on the folder of a run, training, evaluation or sweep: one process writes, any number read."""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

from rolegraph.engine.errors import UsageError, WorldError, os_errors_as
from rolegraph.engine.records import confined
from rolegraph.engine.records.files import is_file
from rolegraph.engine.records.ownership import LOCK_FILE, FolderKind

_HOLDER_BYTES = 200
_HOLDER = re.compile(r"process (\d{1,9}) on (.+)")


@contextmanager
def sole_writer(folder: Path, kind: FolderKind, writes: Iterable[Path] = ()) -> Generator[None]:
    """Create a folder and hold it for writing; the lock ends with the block, or with the process.

    Within the block, nothing below the folder is opened through a link. Windows, and a file system without
    locks, let every process write.

    Args:
        folder: The folder; a folder that is still empty after the block is removed.
        kind: Kind of the folder. The block must write a mark of the kind before any file; if it writes no
            mark, the subfolders that it made are removed afterwards.
        writes: Paths that the block writes; none may be a link.

    Raises:
        UsageError: Another process writes in the folder, and the message has its pid and host; or the folder
            has files of another origin.
        WorldError: The folder is not writable, or one of the paths is a link, a pipe or a device.
    """
    kind.check(folder)
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    file = _open_locked(folder)
    try:
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
        with confined.held(folder):
            confined.check(writes)
            confined.remove_parts(folder)
            yield
    finally:
        with suppress(OSError):
            os.ftruncate(file, 0)
            if not any((folder / mark).exists() for mark in kind.marks):
                for name in {*kind.in_the_way(folder)} - present - {*kind.in_the_way(folder, begun=True)}:
                    shutil.rmtree(folder / name)
            if not kind.in_the_way(folder):
                confined.remove(folder / LOCK_FILE)
            folder.rmdir()  # raises OSError for a folder that is not empty
        os.close(file)


def is_held(folder: Path) -> bool:
    """Return True if a process writes in a folder, judged by the process that the folder's lock file names.

    The lock itself is not tried, because a writer that begins at the same time would be refused. A process of
    another host counts as running, and so does any process on Windows, where `os.kill` would interrupt it.
    """
    path = folder / LOCK_FILE
    if not is_file(path):
        return False
    with suppress(OSError), confined.open_to_read(path) as file:
        holder = _HOLDER.fullmatch(file.read(_HOLDER_BYTES).decode("utf-8", "replace"))
        if holder is None or os.name == "nt" or holder[2] != socket.gethostname():
            return holder is not None
        with suppress(PermissionError):  # a process of another user
            os.kill(int(holder[1]), 0)
        return True
    return False


def lock(file: int) -> bool:
    """Try to lock an open file or folder until it is closed; return False if another process has locked it.

    Returns True without a lock on a system without locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _holder(file: int) -> str:
    """Return the name that the lock's holder wrote into the locked file, waiting up to 1 s for it; "another
    process" without a name."""
    for _ in range(20):
        if name := os.pread(file, _HOLDER_BYTES, 0):
            return name.decode("utf-8", "replace")
        time.sleep(0.05)
    return "another process"


def _open_locked(folder: Path) -> int:
    confined.make_folder(folder)
    path = folder / LOCK_FILE
    with os_errors_as(WorldError, f"cannot write {path}"):
        file = confined.open_file(path, os.O_RDWR | os.O_CREAT, 0o644)
    if not lock(file):
        holder = _holder(file)
        os.close(file)
        raise UsageError(f"{folder} is in use by {holder}; wait for its end, or name another with --out")
    if not os.fstat(file).st_nlink:  # its last writer removed the file between opening and locking
        os.close(file)
        return _open_locked(folder)
    return file
