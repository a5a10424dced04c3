"""Lock on the folder of a run, training, evaluation or sweep: one process writes, any number read."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG

from rolegraph.engine.errors import UsageError, WorldError, os_errors_as
from rolegraph.engine.records.jsonl import make_folder

LOCK_FILE = ".writer"
# An untrusted folder may hold a link or a pipe under the file's name.
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_HOLDER_BYTES = 200


@contextmanager
def sole_writer(folder: Path) -> Generator[None]:
    """Create a folder and hold it for writing; the lock ends with the block, or with the process.

    Windows, and a file system without locks, let every process write.

    Args:
        folder: The folder; a folder that is still empty after the block is removed.

    Raises:
        UsageError: Another process writes in the folder; the message has its pid and host.
        WorldError: The folder is not writable.
    """
    file = _open_locked(folder)
    try:
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        with suppress(OSError):
            (folder / LOCK_FILE).unlink()
            folder.rmdir()  # raises OSError for a folder that is not empty
        os.close(file)


def lock(file: int) -> bool:
    """Try to lock an open file or folder until it is closed; return False if another process has locked it.

    Returns True without a lock where the system has none.
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
    """Return the name that the lock's holder wrote into the locked file; waits up to 1 s for it."""
    for _ in range(20):
        if name := os.pread(file, _HOLDER_BYTES, 0):
            return name.decode("utf-8", "replace")
        time.sleep(0.05)
    return "another process"


def _open_locked(folder: Path) -> int:
    make_folder(folder)
    path = folder / LOCK_FILE
    with os_errors_as(WorldError, f"cannot write {path}"):
        file = os.open(path, _FLAGS, 0o644)
    if not S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise WorldError(f"cannot write {path}: it is no regular file")
    if not lock(file):
        holder = _holder(file)
        os.close(file)
        raise UsageError(f"{folder} is in use by {holder}; wait for its end, or name another with --out")
    if not os.fstat(file).st_nlink:  # its last writer removed the file between opening and locking
        os.close(file)
        return _open_locked(folder)
    return file
