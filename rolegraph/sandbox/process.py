"""One process of the interpreter Monty, with its limits; the only file that imports Monty.

Monty is a Python interpreter in Rust without access to files, network, processes or objects of the host. It
starts in milliseconds, so each program has its own process, with an empty environment.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import threading
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple, Self

from rolegraph.engine.errors import SandboxError, UnsupportedProgram, WorldError
from rolegraph.engine.limits.tools import PROGRAM_ERROR, PROGRAM_TEXT
from rolegraph.engine.vocabulary import require_library
from rolegraph.sandbox.gaps import needs_cpython
from rolegraph.sandbox.inside import CUT

_POLICY = {"sleep": "zero", "random_start": {"seed": 0}}
"""Options of Monty: sleeps end at once, because other programs wait; random numbers are seeded, so that runs
repeat."""
_LOOKING = threading.Lock()
"""Lock for the first search of Monty's library for its binary by `sysconfig`, which is not thread-safe."""


class ProgramLimits(NamedTuple):
    """Time and memory limits of a program."""

    seconds: float
    """Wall-clock time in seconds, more than 0 and at most 3,600."""
    memory: int
    """Memory in bytes, at least 1 MiB."""


def require_monty() -> None:
    """Raise UsageError if Monty is not installed."""
    require_library("pydantic_monty", "sandbox", "programs in the sandbox")


class SandboxProcess:
    """Monty process that runs pieces of code one after the other with the same globals; a context manager.

    `stop` may be called from another thread, also before the process starts.
    """

    def __init__(self, limits: ProgramLimits) -> None:
        self._limits = limits
        self._monty: Any = None
        self._session: Any = None
        self._opened = ExitStack()
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._stopped = False

    def __enter__(self) -> Self:
        require_monty()
        self._monty = importlib.import_module("pydantic_monty")
        limit_options = {"max_feed_duration_secs": self._limits.seconds, "max_memory": self._limits.memory}
        with ExitStack() as opened:
            try:
                # Not AsyncMonty, whose threads sometimes abort a host that exits soon after.
                with _LOOKING:
                    pool = self._monty.Monty(max_processes=1)
                opened.enter_context(pool)
                self._session = opened.enter_context(pool.checkout(limits=limit_options, os_policy=_POLICY))
            except self._monty.MontyError as error:
                raise SandboxError(self._problem(error)) from error
            except (OSError, RuntimeError) as error:
                raise WorldError(f"the sandbox did not start: {error}") from error
            with self._lock:
                self._pid = self._session.worker_pid
                if self._stopped:
                    raise SandboxError("was stopped before it started")
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._pid = None
        self._opened.close()

    def run(self, code: str, /, **inputs: Any) -> tuple[Any, str]:
        """Run code with the globals of earlier calls; return (value of its last expression, printed text).

        The value should be a string: a container would be rebuilt here in a shape that the program chose.

        Raises:
            SandboxError: The code raised an exception or exceeded a limit.
        """
        printed = _OutputBuffer()
        try:
            return self._session.feed_run(code, inputs=inputs, print_callback=printed), printed.text
        except self._monty.MontyError as error:
            problem = self._problem(error)
        raise SandboxError(problem, printed.text)  # without its cause, which may be large

    def explain(self, error: SandboxError, code: str) -> SandboxError:
        """Return an UnsupportedProgram if `error` may come from a part of Python that Monty lacks, else the
        error unchanged."""
        if isinstance(error, UnsupportedProgram) or not needs_cpython(str(error), code):
            return error
        message = f"{error}; Monty, the interpreter, is a subset of Python and cannot run this program"
        return UnsupportedProgram(message, error.output)

    def stop(self) -> None:
        """Kill the process; if it has not started yet, prevent its start."""
        with self._lock:
            self._stopped = True
            if self._pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)

    def _problem(self, error: Any) -> str:
        """Return one line that describes an error of the interpreter."""
        time_message = f"took longer than {self._limits.seconds:g} s"
        if isinstance(error, self._monty.MontyCrashedError):
            return time_message if error.timed_out else "the process that ran it died"
        message = str(error.display("type-msg")).partition("\n")[0]
        lines = [frame.line for frame in error.traceback() if frame.filename == "<string>"]
        if message.startswith("TimeoutError: feed time limit exceeded"):
            return time_message
        if _TOO_MUCH.match(message):
            return f"used more than {self._limits.memory / (1 << 20):g} MB"
        message, replaced_count = _IN_SOURCE.subn(r" (line \1)", message)
        line_note = f" (line {lines[-1]})" if lines and not replaced_count else ""
        longest_text = PROGRAM_ERROR.most
        return (message if len(message) <= longest_text else message[:longest_text] + CUT) + line_note


_TOO_MUCH = re.compile("MemoryError: (memory limit exceeded|the worker exceeded its memory limit)")
_IN_SOURCE = re.compile(r" \(<string>, line (\d+)\)$")


class _OutputBuffer:
    """Callback that collects a program's output, cut after PROGRAM_TEXT characters."""

    def __init__(self) -> None:
        self.text = ""

    def __call__(self, stream: str, text: str) -> None:
        room = PROGRAM_TEXT.most - len(self.text)
        if room >= 0:
            self.text += text if len(text) <= room else text[:room] + CUT
