"""Programs that a model wrote, run side by side: each in a process of its own, no more at once than fit.

A thread waits for each process, so that a run is stopped by ending its process, from any thread.
"""

from __future__ import annotations

import asyncio
import json
import keyword
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self

from pydantic_core import to_jsonable_python

from rolegraph.engine.errors import UsageError
from rolegraph.engine.limits.tools import PROGRAM_DEPTH, PROGRAM_TEXT
from rolegraph.engine.sandbox import inside
from rolegraph.engine.sandbox.process import ProgramLimits, SandboxProcess, require_monty

SECONDS = 5.0
MEMORY = 64 << 20


class ProgramResult(NamedTuple):
    """What came of a program."""

    value: Any
    """Of the expression it ends with, None where there is none. As JSON has it; other objects are their text.

    Cut after some 10,000 characters, with a mark there.
    """
    output: str
    """What it printed, cut likewise."""


class PythonSandbox:
    """Runs programs; use it as an async context manager. Event loops of several threads may share one.

    Each program has `seconds` by the clock and `memory` bytes. At most `processes` run at once, by default as
    many as there are processors, so that what each can do in its time does not hang on the others.
    """

    def __init__(
        self, *, seconds: float = SECONDS, memory: int = MEMORY, processes: int | None = None
    ) -> None:
        self._limits = ProgramLimits(seconds, memory)
        self._threads = ThreadPoolExecutor(processes or max(2, os.cpu_count() or 2))
        self._running: set[SandboxProcess] = set()

    async def run(self, code: str, inputs: Mapping[str, Any] = MappingProxyType({})) -> ProgramResult:
        """Run a program that finds `inputs`, plain data, under their names.

        It waits its turn. Raises SandboxError where the program raises or is over a limit, UsageError for
        inputs that cannot be given and where the interpreter is not installed.
        """
        require_monty()
        names = program_names(inputs)
        process = SandboxProcess(self._limits)
        self._running.add(process)
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, _alone, process, code, names)
        finally:
            process.stop()  # still at it where the caller was cancelled
            self._running.discard(process)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=False)
        for process in tuple(self._running):
            process.stop()
        await asyncio.to_thread(self._threads.shutdown)


def execute_program(process: SandboxProcess, code: str, names: Mapping[str, Any]) -> ProgramResult:
    """Run a program in a process that is new; what it defines stays there, in the mapping `names`."""
    around = f"{_inside()}\nexecute(code, names, longest, deepest)"
    value, output = process.run(
        around, code=code, names=dict(names), longest=PROGRAM_TEXT.most, deepest=PROGRAM_DEPTH.most
    )
    return ProgramResult(json.loads(value), output)


def evaluate(
    code: str, inputs: Mapping[str, Any], *, seconds: float = SECONDS, memory: int = MEMORY
) -> ProgramResult:
    """Run one program, here and now; as `PythonSandbox.run`."""
    require_monty()
    return _alone(SandboxProcess(ProgramLimits(seconds, memory)), code, program_names(inputs))


def _alone(process: SandboxProcess, code: str, names: Mapping[str, Any]) -> ProgramResult:
    with process:
        return execute_program(process, code, names)


def program_names(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The names that a program finds, with copies of their values; raises UsageError."""
    for name in inputs:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise UsageError(f"{name!r} is no name that a program could read")
    try:
        return {"__name__": "__main__", **to_jsonable_python(dict(inputs))}
    except ValueError as error:
        raise UsageError(f"a program takes plain data only: {error}") from error


@cache
def _inside() -> str:
    return Path(inside.__file__).read_text(encoding="utf-8")
