"""Starts the local service as a process of its own, for the time of a block. Knows no torch and no HTTP.

A service that was started for a run ends with it: it reads its standard input, which only the parent holds
open, and leaves when that closes, however the parent ended. It ignores Ctrl-C; its parent does not.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires, version
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from rolegraph.engine.errors import UsageError, WorldError
from rolegraph.engine.local.weights import base_of
from rolegraph.engine.records.files import is_file, is_folder
from rolegraph.engine.records.jsonl import read_json
from rolegraph.engine.shipped import BASE_NAME, MODELS

BASE_MODEL = MODELS[BASE_NAME]
"""The folder of the model that comes with the package."""
START_SECONDS = 120.0
STOP_SECONDS = 5.0
KEY_VARIABLE = "ROLEGRAPH_SERVICE_KEY"
PROCESS = "process"
"""Under what a client of this machine tells the service its process id, in a session's metadata."""
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)[^;]*(?:;.*\bextra\s*==\s*[\"']local[\"'].*)?")
"""A requirement in the distribution's metadata, where it is always one or is the extra `local`'s."""


@dataclass(frozen=True, slots=True)
class LocalService:
    """A service that answers."""

    base_url: str
    model_name: str
    api_key: str = field(repr=False)
    pid: int


def check_model_folder(folder: Path) -> None:
    """Raises UsageError unless the extra `local` is installed and the folder can hold a model for it."""
    if missing := _missing():
        raise UsageError(f"the local service needs {', '.join(missing)}: pip install 'rolegraph[local]'")
    if not is_folder(folder):
        raise UsageError(f"there is no model folder {str(folder)[:200]}")
    if (base := base_of(folder)) is not None:
        return check_model_folder(base)
    if not is_file(folder / "config.json"):
        raise UsageError(f"{folder} is not a Hugging Face model folder: it has no config.json")
    if _needs_code(folder):
        raise UsageError(
            f"{folder} needs code that comes with the model (`auto_map` in its config.json), and such code "
            "is not run here; take a model whose architecture is part of transformers"
        )


def _needs_code(folder: Path) -> bool:
    """Whether transformers itself does not know the model. What else is wrong is the loader's to say.

    Raises UsageError for a config that is not read.
    """
    try:
        config: Any = read_json(folder / "config.json")
        if "auto_map" not in config:
            return False
        kind = config.get("model_type")
    except OSError as error:
        raise UsageError(f"cannot read {folder / 'config.json'}: {error.strerror}") from error
    except (ValueError, TypeError, AttributeError):
        return False
    from transformers import CONFIG_MAPPING  # which takes seconds

    return kind not in CONFIG_MAPPING


def _missing() -> list[str]:
    """What pyproject.toml asks for, with the extra `local`, and is not installed."""
    lines = map(_REQUIREMENT.fullmatch, requires("rolegraph") or ())
    return [line["name"] for line in lines if line and not _installed(line["name"])]


def _installed(distribution: str) -> bool:
    try:
        return bool(version(distribution))
    except PackageNotFoundError:
        return False


def model_name(folder: Path, name: str | None = None) -> str:
    """What the service calls the model of a folder: a shipped one's own name, else the folder's path."""
    path = folder.resolve()
    return name or next((known for known, shipped in MODELS.items() if shipped == path), str(path))


@contextmanager
def running(
    model_dir: Path,
    *,
    state_dir: Path | None = None,
    threads: int | None = None,
    timeout: float = START_SECONDS,
    silent: float | None = None,
    given_up: threading.Event | None = None,
) -> Generator[LocalService, None, None]:
    """A service for a model folder, in a process of its own, for the time of the block.

    `timeout` is in seconds, for the start; a start is also over, as one that failed, when another thread says
    that it is `given_up`. `silent`, for the silence after which a client is taken for gone, is the service's
    own unless given. Raises UsageError for a folder that holds no model, WorldError when the service does not
    come up.
    """
    check_model_folder(model_dir)
    key = f"tml-{secrets.token_hex(16)}"
    options: dict[str, Any] = {"model_dir": str(model_dir.resolve()), "threads": threads}
    options["bounds"] = {} if silent is None else {"silent": silent}
    options["state_dir"] = str(state_dir) if state_dir else None
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rolegraph.engine.local.service", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={
                **os.environ,
                "OMP_WAIT_POLICY": "PASSIVE",
                KEY_VARIABLE: key,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
        )
        try:
            port = _port(process, timeout, given_up or threading.Event())
            if port is None:
                _stop(process)
                log.seek(0)
                raise _not_started(model_dir, process.returncode, log.read().decode(errors="replace"))
            yield LocalService(f"http://127.0.0.1:{port}", model_name(model_dir), key, process.pid)
        finally:
            _stop(process)


def _not_started(folder: Path, code: int | None, said: str) -> UsageError | WorldError:
    lines = said.strip().splitlines()
    if code == UsageError.exit_code and lines:
        return UsageError(lines[-1])
    if code == -signal.SIGKILL:
        lines.append("it was killed; too little memory?")
    reason = "\n  ".join(lines[-5:]) or "it took too long and said nothing"
    return WorldError(f"the local service for {folder} did not start:\n  {reason}")


def _port(process: subprocess.Popen[bytes], seconds: float, given_up: threading.Event) -> int | None:
    """The port that the service announces when it is ready; None if it ends, is late or given up."""
    lines: list[bytes] = []
    reader = threading.Thread(target=lambda: lines.append(_first_line(process)), daemon=True)
    reader.start()
    deadline = time.monotonic() + seconds
    while reader.is_alive() and time.monotonic() < deadline and not given_up.is_set():
        reader.join(0.1)
    line = lines[0].strip() if lines else b""
    return int(line) if line.isdigit() else None


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    return process.stdout.readline() if process.stdout else b""


def _stop(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def is_this_machine(host: str) -> bool:
    """Whether an address is one that nobody else can reach."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
