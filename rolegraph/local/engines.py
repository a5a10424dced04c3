"""Tinker services of other projects: each is installed in an environment of its own, started and probed.

An integration registers a `TinkerEngine` in `rolegraph.engines`. `rolegraph serve --engine NAME` installs its
package with uv, starts it, waits until it answers and prints how to train on it. Imports no torch.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import httpx

from rolegraph.engine.errors import UsageError, WorldError, os_errors_as
from rolegraph.engine.vocabulary.children import program_environment

ANY_KEY = "tml-anything"
"""Key for services that check none: with 8 characters or more it is cut from messages without a warning."""
START_SECONDS = 900.0
"""Seconds until a start counts as failed: an engine compiles, and may download its model."""
_POLL_SECONDS = 0.5
_STOP_SECONDS = 10.0
_INSTALLED = ".installed"
"""File of an environment that lists the requirements installed in it."""
_LOG_LINES = 8


@dataclass(frozen=True)
class EngineStart:
    """Arguments of an engine's command line."""

    environment: Path
    """Folder of the engine's Python environment."""
    state: Path
    """Folder of the engine's checkpoints and other files."""
    model: str
    """Folder of the model, or its name at the hub."""
    port: int
    key: str
    rank: int = 32
    """Largest rank of an adapter."""


@dataclass(frozen=True)
class TinkerEngine:
    """Tinker service of another project: how to install, start and probe it."""

    name: str
    requirements: tuple[str, ...]
    """Requirements of the package, as pip takes them."""
    python: str
    """Version of Python that the package needs, such as `3.12`."""
    sdk: str
    """Beginning of the versions of the Tinker SDK that the service works with, such as `0.25`."""
    command: Callable[[EngineStart], list[str]]
    """Function that returns the words of the engine's command line; it may write a config file into the
    state's folder."""
    health: str = "/api/v1/healthz"
    """Path that answers once the service is ready."""
    needs_gpu: bool = False
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables of the engine's process."""
    hints: Mapping[str, str] = field(default_factory=dict[str, str])
    """Remedies for a failed start, by a text in its output."""

    @property
    def folder(self) -> Path:
        """Folder of the engine's Python environment: `rolegraph/engines/NAME` in the user's cache."""
        cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        return cache_folder / "rolegraph" / "engines" / self.name

    @property
    def is_installed(self) -> bool:
        """True if the engine's requirements are installed in its environment."""
        with suppress(OSError):
            return (self.folder / _INSTALLED).read_text("utf-8").split("\n") == [*self.requirements]
        return False

    @property
    def lacks_gpu(self) -> bool:
        """True where the engine needs a GPU, but this machine has none."""
        return self.needs_gpu and shutil.which("nvidia-smi") is None

    def lacks(self) -> list[str]:
        """Return what is missing to serve and train with the engine, each with its remedy."""
        faults: list[str] = []
        if _uv() is None and not self.is_installed:
            faults.append("uv, which installs it: pip install uv")
        if self.lacks_gpu:
            faults.append(f"a GPU: there is no nvidia-smi, and {self.name} runs on CUDA alone")
        if not self.is_installed:
            faults.append(f"its package, which rolegraph serve --engine {self.name} installs: {self.folder}")
        if fault := self.sdk_fault():
            faults.append(fault)
        return faults

    def sdk_fault(self) -> str | None:
        """Return the reason why this environment's Tinker SDK cannot train on the engine; None if it can."""
        try:
            sdk_version = version("tinker")
        except PackageNotFoundError:
            sdk_version = "none"
        if f"{sdk_version}.".startswith(f"{self.sdk}."):
            return None
        return f"Tinker's SDK {self.sdk} (here is {sdk_version}): pip install 'tinker~={self.sdk}.0'"


def serve_engine(
    engine: TinkerEngine,
    model: str,
    *,
    port: int,
    state_dir: Path,
    say: Callable[[str], object],
    seconds: float = START_SECONDS,
    key: str = ANY_KEY,
) -> None:
    """Install an engine if necessary, serve a model with it until interrupted, and say how to train on it.

    Args:
        engine: The engine.
        model: Folder of the model, or its name at the hub.
        port: The port that the service listens at.
        state_dir: Folder of checkpoints, log and other files of the service.
        say: Function that gets each line for the user.
        seconds: Seconds until a start counts as failed.
        key: Key that clients send.

    Raises:
        UsageError: Something is missing, or the port is taken.
        WorldError: The package cannot be installed, or the service does not start or serves another model.
    """
    if engine.lacks_gpu:
        raise UsageError(f"{engine.name} needs a GPU: there is no nvidia-smi on PATH")
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise UsageError(
                f"port {port} is taken: another service listens at 127.0.0.1:{port}; end it "
                f"(lsof -i :{port} names its process), or choose another --port"
            )
    with os_errors_as(UsageError, f"cannot keep checkpoints in {state_dir}"):
        state_dir.mkdir(parents=True, exist_ok=True)
    install(engine, say)
    engine_start = EngineStart(engine.folder, state_dir.absolute(), model, port, key)
    log = state_dir / f"{engine.name}.log"
    url = f"http://127.0.0.1:{port}"
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            engine.command(engine_start),
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            env={**program_environment(), **_own_python(engine.folder), **engine.variables},
            cwd=state_dir,
            start_new_session=True,
        )
        try:
            say(f"starting {engine.name} with {model}; its output is in {log}")
            _await_ready(engine, process, url, log, seconds)
            served = _served_models(url, key)
            if model not in served:
                raise WorldError(f"{engine.name} serves {', '.join(served) or 'no model'}, expected {model}")
            say(f"{engine.name} serves {model} at {url} (Ctrl-C stops it); checkpoints in {state_dir}")
            if fault := engine.sdk_fault():
                say(f"to train on it, this environment needs {fault}")
            variables = f"TINKER_API_KEY={key} rolegraph"
            say(f"probe it: {variables} doctor --base-url {url}")
            say(f"train on it: {variables} train solver_judge --base-url {url} train.lora.rank=8")
            ending = _ending(process.wait())
            raise WorldError(
                f"{engine.name} {ending}; its checkpoints are in {state_dir}: start it again with that "
                f"--state-dir, and go on with rolegraph train --resume\n{_tail(log)}"
            )
        finally:
            _stop(process)


def install(engine: TinkerEngine, say: Callable[[str], object]) -> None:
    """Create an engine's environment and install its package there, unless that was done before.

    Raises:
        UsageError: uv is missing.
        WorldError: uv fails.
    """
    if engine.is_installed:
        return
    uv = _uv()
    if uv is None:
        raise UsageError(f"{engine.name} is installed with uv, which is missing: pip install uv")
    say(f"installing {' '.join(engine.requirements)} (Python {engine.python}) in {engine.folder}")
    interpreter = engine.folder / "bin" / "python"
    for command in (
        [uv, "venv", "--clear", "--python", engine.python, str(engine.folder)],
        [uv, "pip", "install", "--python", str(interpreter), *engine.requirements],
    ):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise WorldError(
                f"{engine.name} cannot be installed: {' '.join(command[:3])}:\n{result.stderr.strip()}"
            )
    (engine.folder / _INSTALLED).write_text("\n".join(engine.requirements), "utf-8")


def _uv() -> str | None:
    neighbour = Path(sys.executable).with_name("uv")
    return str(neighbour) if neighbour.is_file() else shutil.which("uv")


def _own_python(environment: Path) -> dict[str, str]:
    """Return the environment variables that activating an environment sets."""
    path = os.pathsep.join([str(environment / "bin"), os.environ.get("PATH", "")])
    return {"VIRTUAL_ENV": str(environment), "PATH": path, "PYTHONPATH": "", "PYTHONUNBUFFERED": "1"}


def _await_ready(
    engine: TinkerEngine, process: subprocess.Popen[bytes], url: str, log: Path, seconds: float
) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise WorldError(
                f"{engine.name} {_ending(process.returncode)} before it was ready{_remedy(engine, log)}"
            )
        with suppress(httpx.HTTPError):
            httpx.get(url + engine.health, timeout=5).raise_for_status()
            return
        time.sleep(_POLL_SECONDS)
    raise WorldError(f"{engine.name} was not ready within {seconds:g} seconds{_remedy(engine, log)}")


def _ending(code: int) -> str:
    """Return the end of a process in words; `code` is its exit code, or the negative number of a signal."""
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL (too little memory?)"
    return f"ended with exit code {code}"


def _remedy(engine: TinkerEngine, log: Path) -> str:
    output = log.read_text("utf-8", "replace")
    hint = next((f": {remedy}" for sign, remedy in engine.hints.items() if sign in output), "")
    return f"{hint}\n{_tail(log)}"


def _tail(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()[-_LOG_LINES:]
    return "\n".join([f"  {line}" for line in lines] or ["  no output"])


def _served_models(url: str, key: str) -> list[str]:
    """Return the names of the models that a service says it serves."""
    address, headers = f"{url}/api/v1/get_server_capabilities", {"X-API-Key": key}
    try:
        answer = httpx.get(address, headers=headers, timeout=30).raise_for_status()
        return [model["model_name"] for model in answer.json()["supported_models"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise WorldError(f"{url} does not say which models it serves: {error}") from error


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop an engine and all processes that it started."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
            if signal_number == signal.SIGTERM:
                time.sleep(_POLL_SECONDS)  # its children end after it
