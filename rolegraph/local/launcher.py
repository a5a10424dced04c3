"""Launcher of the local service as a child process. Imports neither torch nor an HTTP library.

The child ends with the process that started it: its standard input is a pipe that only the parent holds open,
and the child exits when that pipe closes, however the parent ended. A child that stays does so only until it
is ready. The child ignores Ctrl-C, SIGTERM and SIGHUP; the parent handles them.
"""

from __future__ import annotations

import json
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import distributions, requires
from pathlib import Path

from rolegraph.engine.errors import UsageError, WorldError
from rolegraph.engine.limits.records import WHOLE_FILE
from rolegraph.engine.models.types import LocalService
from rolegraph.engine.records.files import is_folder, read_bytes
from rolegraph.engine.records.weights import base_of_adapter, missing_model
from rolegraph.engine.shipped import BASE_NAME, MODELS
from rolegraph.engine.vocabulary.children import child_environment

BASE_MODEL = MODELS[BASE_NAME]
"""Folder of the base model that comes with the package."""
START_SECONDS = 120.0
STOP_SECONDS = 5.0
KEY_VARIABLE = "ROLEGRAPH_SERVICE_KEY"
SERVICE = ("-P", "-m", "rolegraph.local.service")
"""Words between Python and the options on the service's command line."""
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)[^;]*(?:;.*\bextra\s*==\s*[\"']local[\"'].*)?")
"""A requirement in the distribution's metadata that is unconditional or belongs to the extra `local`."""


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Options of a service; a child process gets them on its command line."""

    model_dir: str
    state_dir: str | None = None
    """The folder of the checkpoints; None for a temporary one."""
    threads: int | None = None
    """Number of torch's threads; None follows the size of the model."""
    name: str | None = None
    """The model's name for clients; None uses `model_name`."""
    host: str = "127.0.0.1"
    port: int = 0
    """The port to listen at; 0 takes a free one."""
    any_key: bool = False
    """True if OpenAI's API accepts any key."""
    bf16: bool = False
    """True to compute in bfloat16 on a CPU as well; a GPU always does."""
    silent: float | None = None
    """Seconds without a request after which a client counts as gone; None for the limit."""
    lent_at: str | None = None
    """Unix socket of a service that outlives its command and is lent to others; None for a service that ends
    with its parent."""
    idle_seconds: float = 0.0
    """Seconds without a borrower after which a service that stays ends."""


def check_model_folder(folder: Path) -> None:
    """Check that the extra `local` is installed and that a folder can hold a model for the service.

    Raises:
        UsageError: A package is missing, or the folder is not a Hugging Face model or adapter of one.
    """
    if packages := _missing_packages():
        raise UsageError(f"the local service needs {', '.join(packages)}: pip install 'rolegraph[local]'")
    if not is_folder(folder):
        raise UsageError(missing_model(folder))
    if (base_folder := base_of_adapter(folder)) is not None:
        return check_model_folder(base_folder)
    try:
        read_bytes(folder / "config.json", WHOLE_FILE)
    except OSError as error:
        raise UsageError(
            f"{folder} is not a Hugging Face model folder: it has no config.json ({error.strerror})"
        ) from error


def _missing_packages() -> list[str]:
    """Return the requirements of rolegraph, with the extra `local`, that are not installed."""
    requirements = map(_REQUIREMENT.fullmatch, requires("rolegraph") or ())
    return [line["name"] for line in requirements if line and not any(distributions(name=line["name"]))]


def model_name(folder: Path, name: str | None = None) -> str:
    """Return the name under which the service serves a model folder.

    Args:
        folder: The model's folder.
        name: A name chosen by the user; by default the name of a shipped model, else the path.
    """
    path = folder.resolve()
    return name or next((model for model, model_folder in MODELS.items() if model_folder == path), str(path))


@contextmanager
def running(
    model_dir: Path,
    *,
    state_dir: Path | None = None,
    bf16: bool = False,
    threads: int | None = None,
    timeout: float = START_SECONDS,
    silent: float | None = None,
    cancelled: threading.Event | None = None,
) -> Generator[LocalService, None, None]:
    """Run a service for a model folder in a child process for the duration of the block.

    Args:
        model_dir: A Hugging Face model folder, or an adapter folder in PEFT's form.
        state_dir: The folder of the checkpoints; by default a temporary one, deleted with the service.
        bf16: True to compute in bfloat16 on a CPU, too.
        threads: Number of torch's threads; by default it follows the size of the model.
        timeout: Seconds until a start counts as failed.
        silent: Seconds without a request after which a client counts as gone; by default the service's limit.
        cancelled: An event which, set by another thread, aborts the start.

    Raises:
        UsageError: The folder holds no model, or `state_dir` cannot be used.
        WorldError: The service does not start.
    """
    state_folder = str(state_dir) if state_dir else None
    options = ServiceOptions(str(model_dir.resolve()), state_folder, threads, bf16=bf16, silent=silent)
    key, process, port = _started(model_dir, options, timeout, cancelled)
    try:
        yield LocalService(f"http://127.0.0.1:{port}", model_name(model_dir), key, process.pid)
    finally:
        _stop(process)


def start(
    model_dir: Path,
    lent_at: Path,
    idle_seconds: float,
    *,
    bf16: bool = False,
    cancelled: threading.Event | None = None,
) -> None:
    """Start a service that outlives this process.

    Args:
        model_dir: A Hugging Face model folder, or an adapter folder in PEFT's form.
        lent_at: The Unix socket at which commands borrow the service.
        idle_seconds: Seconds without a borrower after which the service ends.
        bf16: True to compute in bfloat16 on a CPU, too.
        cancelled: An event which, set by another thread, aborts the start.

    Raises:
        UsageError: The folder holds no model.
        WorldError: The service does not start.
    """
    options = ServiceOptions(
        str(model_dir.resolve()), bf16=bf16, lent_at=str(lent_at), idle_seconds=idle_seconds
    )
    _, process, _ = _started(model_dir, options, START_SECONDS, cancelled)
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def _started(
    model_dir: Path, options: ServiceOptions, timeout: float, cancelled: threading.Event | None
) -> tuple[str, subprocess.Popen[bytes], int]:
    """Start a service process and wait until it is ready; return (key, process, port)."""
    check_model_folder(model_dir)
    key = f"tml-{secrets.token_hex(16)}"
    with tempfile.TemporaryFile() as log, ExitStack() as stack:
        process = subprocess.Popen(
            [sys.executable, *SERVICE, json.dumps(asdict(options))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**child_environment(), "OMP_WAIT_POLICY": "PASSIVE", KEY_VARIABLE: key},
            start_new_session=options.lent_at is not None,  # for which Ctrl-C of this terminal is not meant
        )
        stack.callback(_stop, process)
        port = _read_port(process, timeout, cancelled or threading.Event())
        if port is None:
            stack.close()
            log.seek(0)
            raise _start_failure(model_dir, process.returncode, log.read().decode(errors="replace"))
        stack.pop_all()  # nothing has failed
    return key, process, port


def _start_failure(folder: Path, exit_code: int | None, stderr: str) -> UsageError | WorldError:
    lines = stderr.strip().splitlines()
    if exit_code == UsageError.exit_code and lines:
        return UsageError(lines[-1])
    if exit_code == -signal.SIGKILL:
        lines.append("it was killed; too little memory?")
    reason = "\n  ".join(lines[-5:]) or "no port and no error message within the timeout"
    return WorldError(f"the local service for {folder} did not start:\n  {reason}")


def _read_port(process: subprocess.Popen[bytes], timeout: float, cancelled: threading.Event) -> int | None:
    """Return the port that the child process prints once ready; None if it ended, was late or was
    cancelled."""
    output_lines: list[bytes] = []
    output = process.stdout
    assert output is not None
    reader = threading.Thread(target=lambda: output_lines.append(output.readline()), daemon=True)
    reader.start()
    deadline = time.monotonic() + timeout
    while reader.is_alive() and time.monotonic() < deadline and not cancelled.is_set():
        reader.join(0.1)
    line = output_lines[0].strip() if output_lines else b""
    return int(line) if line.isdigit() else None


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a service by closing its standard input, or kill it after `STOP_SECONDS`; wait for its end."""
    with process:  # at its end, closes the output and waits
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
