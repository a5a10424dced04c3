"""Loads the model and runs the HTTP server in this process. Imports torch; nothing else does so early."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click
import uvicorn

from rolegraph.engine.errors import WorldError
from rolegraph.engine.limits import service as limits
from rolegraph.engine.local.service.backend import Backend
from rolegraph.engine.local.service.checkpoints import CheckpointStore
from rolegraph.engine.local.service.policy import LocalModel
from rolegraph.engine.local.service.server import Service


class _Child(uvicorn.Server):
    """A server that leaves signals alone: its end is its parent's, not the terminal's."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


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
    """Serve a model until stopped. The child of a run prints its port, and leaves signals to its parent.

    Without a key one is made and printed.
    """
    if not child:
        signal.signal(signal.SIGTERM, _leave)
    listener = _listen(host, port)
    policy = LocalModel(model_dir, threads)
    backend = Backend(policy, CheckpointStore(state_dir, name, model_dir))
    folder = str(model_dir.resolve())
    names = frozenset({name, str(model_dir), folder})
    key = api_key or f"tml-{secrets.token_hex(16)}"
    app = Service(backend, name, names, tokenizer=folder, silent=silent).app(key, host)
    config = uvicorn.Config(
        app, log_level="critical", access_log=False, ws="none", timeout_graceful_shutdown=2
    )
    bound: int = listener.getsockname()[1]
    if child:
        sys.stdout.write(f"{bound}\n")
        sys.stdout.flush()
    else:
        click.echo(f"serving {name} at http://{host}:{bound} (Ctrl-C stops it); checkpoints in {state_dir}")
        if not api_key:
            click.echo(f"its key is {key}: put it in TINKER_API_KEY, or in OPENAI_API_KEY for /v1")
    server = _Child(config) if child else uvicorn.Server(config)
    try:
        asyncio.run(server.serve(sockets=[listener]))
    finally:
        backend.close()


def _leave(number: int, frame: FrameType | None) -> None:
    """End in good order, so that a temporary folder is removed."""
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
