"""Serving of a local model folder in this process, for `rolegraph serve` and the launcher's child.

torch is imported when the model is loaded, not with this module.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType

from rolegraph.engine.errors import UsageError, WorldError, os_errors_as
from rolegraph.engine.local.launcher import LocalService, ServiceOptions, check_model_folder, model_name


def serve(
    model_dir: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    name: str | None = None,
    api_key: str | None = None,
    state_dir: Path | None = None,
    threads: int | None = None,
) -> None:
    """Serve a model at the Tinker API and at OpenAI's (/v1) until interrupted.

    Args:
        model_dir: a Hugging Face model folder, or an adapter folder in PEFT's form.
        host: the address to listen at.
        port: the port to listen at; 0 takes a free one.
        name: the model's name for clients; by default that of a model of the package, else the folder's path.
        api_key: the key that clients must send; by default one is generated and printed.
        state_dir: the folder of the checkpoints; by default a temporary one, deleted with the service.
        threads: torch's threads; by default chosen by the size of the model.

    Raises:
        UsageError: the folder holds no model, or `state_dir` cannot be created.
        WorldError: the address is not free.
    """
    check_model_folder(model_dir)
    signal.signal(signal.SIGTERM, _exit)
    name = model_name(model_dir, name)
    key = api_key or f"tml-{secrets.token_hex(16)}"
    with open_state_dir(state_dir) as state, listen(host, port) as listener:
        lines = [
            f"serving {name} at http://{host}:{listener.getsockname()[1]} (Ctrl-C stops it); "
            f"checkpoints in {state}"
        ]
        if not api_key:
            lines.append(f"its key is {key}: put it in TINKER_API_KEY, or in OPENAI_API_KEY for /v1")
        options = ServiceOptions(str(model_dir), threads=threads)
        launch(options, listener, name=name, host=host, api_key=key, state_dir=state, ready=lines)


def open_state_dir(folder: Path | None) -> AbstractContextManager[str]:
    """Create the folder of the checkpoints; None creates a temporary one, deleted at the end of the block."""
    if folder is None:
        return tempfile.TemporaryDirectory(prefix="rolegraph-", ignore_cleanup_errors=True)
    with os_errors_as(UsageError, f"cannot keep checkpoints in {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    return nullcontext(str(folder))


def launch(
    options: ServiceOptions,
    listener: socket.socket,
    *,
    name: str,
    host: str,
    api_key: str,
    state_dir: str,
    ready: Sequence[str],
    ignore_signals: bool = False,
) -> None:
    """Load a model, print the lines `ready` and serve the model until stopped.

    Args:
        options: the model's folder, and the options of the service but for the folder of the checkpoints.
        listener: the socket to listen at.
        name: the model's name for clients.
        host: the host that clients may name beside the socket's address.
        api_key: the key that clients must send.
        state_dir: the folder of the checkpoints, which is there.
        ready: the lines to print when the model is loaded.
        ignore_signals: leave SIGINT and SIGTERM as they are.

    Raises:
        UsageError: the model cannot be loaded.
    """
    import uvicorn

    from rolegraph.engine.local.service.backend import Backend
    from rolegraph.engine.local.service.checkpoints import CheckpointStore
    from rolegraph.engine.local.service.connections import BoundedConnection
    from rolegraph.engine.local.service.lending import Lender
    from rolegraph.engine.local.service.local_model import LocalModel
    from rolegraph.engine.local.service.server import Service

    model_dir, lent_at = Path(options.model_dir), options.lent_at
    model = LocalModel(model_dir, options.threads)
    folder = str(model_dir.resolve())
    checkpoints = CheckpointStore(Path(state_dir), name, model_dir)
    backend = Backend(model, checkpoints, name, {str(model_dir), folder})
    service = Service(backend, tokenizer=folder, silent=options.silent)
    app = service.app(api_key, host)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=BoundedConnection,
            log_level="critical",
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=2,
        )
    )
    if ignore_signals:
        server.capture_signals = _ignore_signals

    def stop() -> None:
        server.should_exit = True

    async def serve_until_stopped() -> None:
        if lent_at is not None:
            url = f"http://{host}:{listener.getsockname()[1]}"
            address = LocalService(url, name, api_key, os.getpid())
            await Lender(service, address, options.idle_seconds, stop).listen(lent_at)
        sys.stdout.write("\n".join([*ready, ""]))
        sys.stdout.flush()
        if lent_at is not None:
            _leave_terminal()
        await server.serve(sockets=[listener])

    try:
        asyncio.run(serve_until_stopped())
    finally:
        backend.close()
        if lent_at is not None:
            Path(lent_at).unlink(missing_ok=True)


def _leave_terminal() -> None:
    """Leave the folder and the outputs of the command that started this process."""
    os.chdir("/")
    with Path(os.devnull).open("w") as nothing:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nothing.fileno(), stream.fileno())


@contextmanager
def _ignore_signals() -> Generator[None, None, None]:
    yield


def _exit(number: int, frame: FrameType | None) -> None:
    """Exit through the `finally` clauses, so that a temporary folder is deleted."""
    sys.exit(128 + number)


def listen(host: str, port: int) -> socket.socket:
    """Return a TCP socket that listens at an address; port 0 takes a free one.

    Raises:
        WorldError: the port is in use or not permitted.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise WorldError(f"cannot listen at {host}:{port}: {error.strerror}; choose another port") from error
    listener.listen(1024)
    return listener
