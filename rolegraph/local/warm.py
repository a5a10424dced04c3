"""Local services that outlive their command, so that the next command need not load the model again.

Each has a Unix socket in a folder that only the user can open; the socket's name begins with the digest of
everything that the service depends on. A command that connects borrows the service until it disconnects; see
`rolegraph.local.service.serving`. On Windows, and where there is no such folder, each command starts a
service of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rolegraph.engine.errors import UsageError
from rolegraph.engine.records.weights import base_of_adapter
from rolegraph.engine.vocabulary.children import child_environment
from rolegraph.local.launcher import LocalService, check_model_folder, running, start
from rolegraph.local.taught import foreign_findings as foreign_findings

ANSWER_SECONDS = 20.0
_LONGEST_PATH = 100
"""Largest number of bytes of a socket's path that every system accepts."""
_BUSY: dict[str, Any] = {"busy": True}
_PACKAGE = Path(__file__).parents[1]


class _Kept:
    """Settings of this process: seconds for which unused services stay, and True once this process has
    started such a service."""

    seconds = 0.0
    started = False


def keep_services(seconds: float) -> None:
    """Keep the local services that this process starts from now on running for other commands of the user.

    Args:
        seconds: Seconds that a service stays after its last use; 0, the default, ends it after its use.
    """
    _Kept.seconds, _Kept.started = seconds, False


def has_started_service() -> bool:
    """Return True if this process has started a service that stays, since the last `keep_services`."""
    return _Kept.started


def stop_services() -> tuple[int, int]:
    """Stop the services that stay and are not in use.

    Returns:
        (number of stopped services, number of services in use).
    """
    with ExitStack() as stack:
        answers = [_ask(path, stack, stop=True) for path in _sockets()]
    return answers.count({}), answers.count(_BUSY)


@contextmanager
def borrowed(
    model_dir: Path,
    *,
    bf16: bool = False,
    state_dir: Path | None = None,
    cancelled: threading.Event | None = None,
) -> Generator[LocalService]:
    """Borrow a service that stays, or start one; without `keep_services`, run one for the block.

    Args:
        model_dir: A Hugging Face model folder, or an adapter folder in PEFT's form.
        bf16: True to compute in bfloat16 on a CPU, too.
        state_dir: The folder of the checkpoints; by default a temporary one.
        cancelled: An event which, set by another thread, aborts the start.

    Raises:
        UsageError: The folder holds no model, or `state_dir` cannot be used.
        WorldError: The service does not start.
    """
    check_model_folder(model_dir)
    socket_folder = _folder() if _Kept.seconds else None
    run_service = partial(running, model_dir, bf16=bf16, state_dir=state_dir, cancelled=cancelled)
    if socket_folder is None:
        with run_service() as service:
            yield service
        return
    digest = _digest(model_dir, bf16)
    with ExitStack() as stack:
        for path in _sockets(digest):
            if (service := _borrow(path, state_dir, stack)) is not None:
                break
        else:
            stop_services()  # one idle model in memory is enough
            path = socket_folder / f"{digest}-{secrets.token_hex(4)}"
            start(model_dir, path, _Kept.seconds, bf16=bf16, cancelled=cancelled)
            _Kept.started = True
            service = _borrow(path, state_dir, stack)
            if service is None:  # another command was faster
                service = stack.enter_context(run_service())
        yield service


def _borrow(path: Path, state_dir: Path | None, stack: ExitStack) -> LocalService | None:
    """Borrow the running service at a Unix socket until the stack closes; None if it has ended or is in
    use."""
    folder = str(state_dir.absolute()) if state_dir else None
    answer = _ask(path, stack, process=os.getpid(), state_dir=folder) or _BUSY
    if "error" in answer:
        raise UsageError(answer["error"])
    return None if answer == _BUSY else LocalService(**answer)


def _ask(path: Path, stack: ExitStack, **request: Any) -> dict[str, Any] | None:
    """Connect to a service's socket until the stack closes, send a request, and return the answer.

    Returns:
        The answer; empty if the service ended, `{"busy": true}` if it did not answer in time. None if no
        service listens at the socket; the socket of a killed service is deleted.
    """
    connection = stack.enter_context(socket.socket(socket.AF_UNIX))
    connection.settimeout(ANSWER_SECONDS)
    try:
        connection.connect(str(path))
    except ConnectionRefusedError:  # its service was killed
        path.unlink(missing_ok=True)
        return None
    except OSError:
        return None
    with suppress(OSError, ValueError):
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as stream:
            return json.loads(stream.readline() or b"{}")
    return _BUSY


def _folder() -> Path | None:
    """Return the folder of services' sockets, created if missing; None if other users could write into it."""
    if sys.platform == "win32":
        return None
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = (
        Path(runtime, "rolegraph") if runtime else Path(tempfile.gettempdir(), f"rolegraph-{os.getuid()}")
    )
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    private = status.st_uid == os.getuid() and not status.st_mode & 0o077 and folder.is_dir()
    return folder if private and not folder.is_symlink() and len(str(folder)) < _LONGEST_PATH - 30 else None


def _sockets(digest: str = "") -> Iterator[Path]:
    folder = _folder()
    yield from sorted(folder.glob(f"{digest}*")) if folder else ()


def _digest(model_dir: Path, bf16: bool) -> str:
    """Return a digest that changes with a service's model files, type of numbers, environment and code of
    Rolegraph."""
    folders = [folder.resolve() for folder in (model_dir, base_of_adapter(model_dir)) if folder]
    files = [*(file for folder in folders for file in folder.iterdir()), *_PACKAGE.rglob("*.py")]
    stats = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(files)]
    digest_input = (sys.executable, str(folders[0]), bf16, stats, sorted(child_environment().items()))
    return hashlib.sha256(repr(digest_input).encode()).hexdigest()[:16]
