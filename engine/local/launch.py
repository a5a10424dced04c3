"""Loads the model and runs the HTTP server in this process. Imports torch; nothing else does so early."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import click
import uvicorn

from engine.errors import WorldError
from engine.local.backend import Backend
from engine.local.checkpoints import Checkpoints
from engine.local.policy import Policy
from engine.local.server import Service


def launch(
    model_dir: Path,
    name: str,
    host: str,
    port: int,
    api_key: str | None,
    state_dir: Path,
    threads: int | None,
    *,
    lifeline: bool,
) -> None:
    """Serve a model until stopped. With `lifeline`, print the port, and stop when standard input closes."""
    listener = _listen(host, port)
    policy = Policy(model_dir, threads)
    backend = Backend(policy, Checkpoints(state_dir, name))
    names = frozenset({name, str(model_dir), str(model_dir.resolve())})
    app = Service(backend, name, names).app(api_key)
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=2
        )
    )
    bound: int = listener.getsockname()[1]
    if lifeline:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_watch_parent, daemon=True).start()
        sys.stdout.write(f"{bound}\n")
        sys.stdout.flush()
    else:
        click.echo(f"serving {name} at http://{host}:{bound} (Ctrl-C stops it); checkpoints in {state_dir}")
    try:
        asyncio.run(server.serve(sockets=[listener]))
    finally:
        backend.close()


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


def _watch_parent() -> None:
    """Leave at once when the parent is gone: there is nobody to answer, and nothing here to keep."""
    sys.stdin.buffer.read()
    os._exit(0)
