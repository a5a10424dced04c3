"""Serving of a local model folder in this process, for `rolegraph serve` and the launcher's child.

torch is imported when the model is loaded, not with this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from types import FrameType

from rolegraph.engine.errors import UsageError, WorldError
from rolegraph.engine.limits import service as limits
from rolegraph.engine.local.launcher import check_model_folder, model_name


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
    with contextlib.ExitStack() as stack:
        state = open_state_dir(state_dir, stack)
        launch(
            model_dir,
            model_name(model_dir, name),
            host=host,
            port=port,
            api_key=api_key,
            state_dir=state,
            threads=threads,
            child=False,
        )


def open_state_dir(folder: Path | None, stack: contextlib.ExitStack) -> Path:
    """Create the folder of the checkpoints; None creates a temporary one, deleted when the stack closes."""
    if folder is None:
        temporary = tempfile.TemporaryDirectory(prefix="rolegraph-", ignore_cleanup_errors=True)
        return Path(stack.enter_context(temporary))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot keep checkpoints in {folder}: {error.strerror}") from error
    return folder


def launch(
    model_dir: Path,
    name: str,
    *,
    host: str,
    port: int,
    api_key: str | None = None,
    state_dir: Path,
    threads: int | None,
    child: bool,
    silent: float = limits.SILENT_SECONDS.most,
) -> None:
    """Load a model and serve it until stopped.

    A `child` of the launcher prints its port and ignores signals, for its parent decides on its end.
    Otherwise the address is printed, and the key if it was generated. The other arguments are those of
    `serve`; `silent` is the number of seconds without a request after which a client counts as gone.
    """
    if not child:
        signal.signal(signal.SIGTERM, _exit)
    listener = _listen(host, port)
    import uvicorn

    from rolegraph.engine.local.service.backend import Backend
    from rolegraph.engine.local.service.checkpoints import CheckpointStore
    from rolegraph.engine.local.service.local_model import LocalModel
    from rolegraph.engine.local.service.server import Service

    model = LocalModel(model_dir, threads)
    folder = str(model_dir.resolve())
    backend = Backend(model, CheckpointStore(state_dir, name, model_dir), name, {str(model_dir), folder})
    key = api_key or f"tml-{secrets.token_hex(16)}"
    app = Service(backend, tokenizer=folder, silent=silent).app(key, host)
    config = uvicorn.Config(
        app, log_level="critical", access_log=False, ws="none", timeout_graceful_shutdown=2
    )
    bound: int = listener.getsockname()[1]
    lines = [str(bound)]
    if not child:
        lines = [f"serving {name} at http://{host}:{bound} (Ctrl-C stops it); checkpoints in {state_dir}"]
        if not api_key:
            lines.append(f"its key is {key}: put it in TINKER_API_KEY, or in OPENAI_API_KEY for /v1")
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()
    server = uvicorn.Server(config)
    if child:
        server.capture_signals = _ignore_signals
    try:
        asyncio.run(server.serve(sockets=[listener]))
    finally:
        backend.close()


@contextlib.contextmanager
def _ignore_signals() -> Generator[None, None, None]:
    yield


def _exit(number: int, frame: FrameType | None) -> None:
    """Exit through the `finally` clauses, so that a temporary folder is deleted."""
    sys.exit(128 + number)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise WorldError(
            f"cannot listen at {host}:{port}: {error.strerror}; choose another --port"
        ) from error
    listener.listen(1024)
    return listener
