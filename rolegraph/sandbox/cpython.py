"""Full CPython for a model's programs: in a container, or at a SandboxFusion server.

There a program has all of Python, and with it ways to cheat: it shares its process with the harness, so it
can read a test or forge a result. Monty's programs cannot (see `process`).
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from rolegraph.engine.connections import client_options, route
from rolegraph.engine.errors import SandboxError, UsageError, WorldError, os_errors_as, printable
from rolegraph.engine.limits.tools import PROGRAM_ERROR, PROGRAM_REPLY, PROGRAM_TEXT
from rolegraph.engine.vocabulary.children import SUPERVISOR
from rolegraph.engine.vocabulary.replies import RejectedReply, bound_replies
from rolegraph.sandbox.process import ProgramLimits

START_SECONDS = 60.0
"""Largest number of seconds for the start of a container."""
PAUSE = 1.0
"""Seconds before a second attempt after a container or a server failed."""
MARGIN = 10.0
"""Seconds after a program's own time limit until its server counts as dead."""
NO_RESULT = "its process wrote no result that can be read"


class ScriptOutput(NamedTuple):
    """Output of a script that ran in a container to its end."""

    text: str
    """Standard output; of a longer output, only the last `_MOST` characters."""
    too_long: bool
    """True if the script was stopped at its time limit."""


class CPythonProcess(AbstractContextManager["CPythonProcess"]):
    """CPython in a container that runs pieces of code one after the other with the same globals.

    Each piece runs in a new process, in which the earlier pieces run first.
    """

    def __init__(self, interpreter: str, limits: ProgramLimits) -> None:
        self._interpreter, self._limits = interpreter, limits
        self._steps: list[tuple[str, Mapping[str, Any]]] = []

    def __exit__(self, *_: object) -> None:
        """Do nothing: no process outlives a call of `run`."""

    def run(self, code: str, /, **inputs: Any) -> tuple[str | None, str]:
        """Run code and return the value of its last expression, a text or None, and the printed text.

        Raises:
            SandboxError: The code raised an exception or exceeded a limit, or its result cannot be read.
            WorldError: The container or the server does not answer.
        """
        self._steps.append((code, inputs))
        # The mark tells the result from what the program prints.
        mark = secrets.token_hex(16)
        script = f"{_text('driver.py')}\nrun({json.dumps(self._steps)!r}, {mark!r})\n"
        try:
            output = _run_script(self._interpreter, script, self._limits)
        except WorldError:  # a container died, or a server restarts
            time.sleep(PAUSE)
            output = _run_script(self._interpreter, script, self._limits)
        if output.too_long:
            raise SandboxError(f"took longer than {self._limits.seconds:g} s")
        _, separator, result = output.text.rpartition(mark)
        if not separator:
            raise SandboxError("its process ended: it may have used more memory than it has")
        try:
            value, printed, error = _RESULT.validate_json(result)
        except ValidationError:  # a program that finds the mark can write anything behind it
            raise SandboxError(NO_RESULT) from None
        if error is not None:
            raise SandboxError(error[: PROGRAM_ERROR.most], printed)
        return value, printed

    def explain(self, error: SandboxError, code: str) -> SandboxError:
        """Return the error unchanged: CPython has all parts of Python that Monty lacks."""
        return error

    def stop(self) -> None:
        """Do nothing: a running script ends at its time limit."""


@cache
def require_image(engine: str, image: str) -> None:
    """Raise UsageError if docker or podman is not installed, or does not have the image."""
    if shutil.which(engine) is None:
        raise UsageError(f"{engine} is not installed, which --allow python={engine}:{image} names")
    inspection = subprocess.run(
        [engine, "image", "inspect", "--", image], capture_output=True, text=True, check=False
    )
    if inspection.returncode != 0:
        reason = (inspection.stderr.strip().splitlines() or [""])[-1]
        raise UsageError(
            f"{engine} cannot use the image {image} ({reason}); to fetch it: {engine} pull {image}"
        )


def _run_script(interpreter: str, script: str, limits: ProgramLimits) -> ScriptOutput:
    """Run a script in a free or new container, or at a server.

    Args:
        interpreter: URL of a server, or engine and image of a container.
        script: The script.
        limits: Its limits.
    """
    if interpreter.startswith("http"):
        return _at_server(interpreter, script, limits)
    pool = _pool(interpreter)
    try:
        container = pool.get_nowait()
    except Empty:
        container = _Container(interpreter)
    output = container.run(script, limits)
    pool.put(container)  # not after an error: its container may be in any state
    return output


@cache
def _pool(interpreter: str) -> SimpleQueue[_Container]:
    """Return the queue of an interpreter's free containers; containers end with this process, as their input
    closes."""
    return SimpleQueue()


class _Container:
    """A running container without network, whose server process runs scripts one after the other."""

    def __init__(self, interpreter: str) -> None:
        engine, _, image = interpreter.partition(":")
        # The server is root in the container; its scripts run as `nobody` and cannot reach it.
        flags = (
            "--rm --interactive --pull never --network none --read-only --tmpfs /tmp:size=64m --user 0 "
            "--pids-limit 128 --cpus 1 --memory 2g --memory-swap 2g --security-opt no-new-privileges "
            "--cap-drop ALL --cap-add SETUID --cap-add SETGID --cap-add KILL --cap-add DAC_OVERRIDE"
        )
        python = "python3 -I -u -c".split()
        command = [engine, "run", *flags.split(), "--", image, *python, SUPERVISOR.read_text("utf-8")]
        with os_errors_as(WorldError, f"cannot start {engine}"):
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        self._answer(START_SECONDS)  # a line once it is ready

    def run(self, script: str, limits: ProgramLimits) -> ScriptOutput:
        """Run a script.

        Raises:
            WorldError: The container does not answer.
        """
        request = {"script": script, "seconds": limits.seconds, "memory": limits.memory, "most": _MOST}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise WorldError(f"the container of {self._process.args!r:.80} has ended") from error
        return ScriptOutput(*json.loads(self._answer(limits.seconds + MARGIN)))

    def _answer(self, seconds: float) -> str:
        """Read and return the server's next line.

        If no line comes in time, the container is killed.

        Raises:
            WorldError: No line comes in time.
        """
        assert self._process.stdout is not None and self._process.stderr is not None
        kill_timer = threading.Timer(seconds, self._process.kill)
        kill_timer.start()
        line = self._process.stdout.readline()
        kill_timer.cancel()
        if not line:
            self._process.kill()
            self._process.wait()
            lines = self._process.stderr.read().strip().splitlines()
            reason = lines[-1] if lines else f"within {seconds:g} s"
            raise WorldError(f"the container did not answer: {reason}")
        return line


class _RunResult(BaseModel):
    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    stdout: str | None


class _Reply(BaseModel):
    """Fields of SandboxFusion's response that are used; other fields are ignored."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str | None = None
    run_result: _RunResult | None


def _at_server(url: str, script: str, limits: ProgramLimits) -> ScriptOutput:
    """Run a script at a SandboxFusion server (POST /run_code)."""
    import httpx  # slow to import, and needed for a server alone

    body = {
        "code": script,
        "language": "python",
        "run_timeout": limits.seconds,
        "memory_limit_MB": limits.memory >> 20,
    }
    seconds = limits.seconds + MARGIN

    async def post() -> bytes:
        # httpx has a limit for each read alone, and a server may send a byte at a time.
        async with asyncio.timeout(seconds), httpx.AsyncClient(timeout=None, **client_options(url)) as client:
            bound_replies(client, PROGRAM_REPLY)
            answer = await client.post(f"{url.rstrip('/')}/run_code", json=body)
            answer.raise_for_status()
            return answer.content

    try:
        reply = _Reply.model_validate_json(asyncio.run(post()))
    except TimeoutError as error:
        raise WorldError(f"the sandbox at {url} gave no response within {seconds:g} s") from error
    except RejectedReply as error:
        raise SandboxError(f"its output makes a response that is rejected: {error}") from error
    except httpx.HTTPError as error:
        reason = str(error) or "the connection was dropped"  # an error of a reset has no text
        raise WorldError(f"cannot reach the sandbox at {url}{route(url)}: {reason}") from error
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        field_path = ".".join(map(str, problem["loc"])) or "the response"
        raise WorldError(
            f"{url}/run_code does not answer as SandboxFusion does: {field_path}: {problem['msg']}"
        ) from error
    run_result = reply.run_result
    if run_result is None or reply.status == "SandboxError" or run_result.status == "Error":
        raise WorldError(f"the sandbox at {url} failed: {printable(reply.message or '')[:200]}")
    return ScriptOutput((run_result.stdout or "")[-_MOST:], run_result.status == "TimeLimitExceeded")


_RESULT = TypeAdapter(tuple[str | None, str, str | None], config=ConfigDict(strict=True))
"""Result of a script as `driver.py` writes it: (value, printed text, error)."""
_MOST = 8 * PROGRAM_TEXT.most + (1 << 16)
"""Largest number of characters of a script's output that are kept, from its end: the result as JSON, with
escapes."""


@cache
def _text(file: str) -> str:
    return Path(__file__).with_name(file).read_text(encoding="utf-8")
