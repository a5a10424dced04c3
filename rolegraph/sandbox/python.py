"""Concurrent runs of a model's programs, each in its own process.

A thread waits for each process, so that any thread can stop a run by killing its process.
"""

from __future__ import annotations

import ast
import asyncio
import keyword
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic_core import from_json, to_jsonable_python

from rolegraph.engine.errors import SandboxError, UsageError
from rolegraph.engine.limits.tools import PROGRAM_DEPTH, PROGRAM_TEXT
from rolegraph.engine.vocabulary import MONTY
from rolegraph.sandbox import inside
from rolegraph.sandbox.cpython import NO_RESULT, CPythonProcess, require_image
from rolegraph.sandbox.gaps import parse_program
from rolegraph.sandbox.process import ProgramLimits, SandboxProcess, require_monty

SECONDS = 5.0
MEMORY = 64 << 20


class ProgramResult(NamedTuple):
    """Value and output of a program."""

    value: Any
    """Value of the program's last expression as JSON data, with other objects as text; None without an
    expression.

    The value is cut after PROGRAM_TEXT, about 10,000 characters, and marked.
    """
    output: str
    """Printed text, cut in the same way as `value`."""


class PythonSandbox:
    """Sandbox that runs programs; event loops of several threads may share one.

    Args:
        seconds: Wall-clock limit of each program.
        memory: Memory limit of each program in bytes.
        interpreter: The interpreter of Python, as for `open_process`.
        processes: Largest number of concurrent programs; 0 for the number of processors, so that concurrent
            programs do not use up each other's time limits.
    """

    def __init__(
        self, *, seconds: float = SECONDS, memory: int = MEMORY, interpreter: str = MONTY, processes: int = 0
    ) -> None:
        self._interpreter = interpreter
        self._limits = ProgramLimits(seconds, memory)
        self._threads = ThreadPoolExecutor(processes or max(2, os.cpu_count() or 2))

    async def run(self, code: str, inputs: Mapping[str, Any] = MappingProxyType({})) -> ProgramResult:
        """Run a program as soon as a process is free.

        Args:
            code: The program.
            inputs: Values of global variables by name, as plain data.

        Raises:
            SandboxError: The program raised an exception or exceeded a limit.
            WorldError: The container or the server of the interpreter fails.
            UsageError: An input is not plain data or its name not an identifier, or the interpreter is not
                installed.
        """
        names = program_names(inputs)
        process = open_process(self._interpreter, self._limits)
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, _run_once, process, code, names)
        finally:
            process.stop()  # it still runs if the caller was cancelled


Process = SandboxProcess | CPythonProcess


def open_process(interpreter: str, limits: ProgramLimits) -> Process:
    """Return a process that has not started yet; it is a context manager.

    Args:
        interpreter: `monty`, or CPython as docker:IMAGE, podman:IMAGE or the URL of a SandboxFusion server.
        limits: Limits of each piece of code.

    Raises:
        UsageError: The interpreter is not installed.
    """
    require_interpreter(interpreter)
    return SandboxProcess(limits) if interpreter == MONTY else CPythonProcess(interpreter, limits)


def require_interpreter(interpreter: str) -> None:
    """Raise UsageError if an interpreter is missing, or the engine or image of its containers."""
    engine = interpreter.partition(":")[0]
    if interpreter == MONTY:
        require_monty()
    elif engine in ("docker", "podman"):
        require_image(engine, interpreter.partition(":")[2])


def execute_program(process: Process, code: str, names: Mapping[str, Any]) -> ProgramResult:
    """Run a program and return the value of its last expression and its output.

    The program's definitions stay in `process`, in the global mapping `names`, for later code.

    Raises:
        SandboxError: The program raised an exception or exceeded a limit.
        UnsupportedProgram: The interpreter lacks a part of Python that the program needs.
    """
    harness_code = f"{_inside()}\nexecute(code, end, names, {PROGRAM_TEXT.most}, {PROGRAM_DEPTH.most})"
    code = code.replace("\r\n", "\n").replace("\r", "\n")
    start = _last_expression(code)
    try:
        value, output = process.run(harness_code, code=code[:start], end=code[start:], names=dict(names))
    except SandboxError as error:
        raise process.explain(error, code) from None
    try:
        return ProgramResult(from_json(value or ""), output)
    except (ValueError, TypeError):  # forged by the program, which shares a process of CPython with `inside`
        raise SandboxError(NO_RESULT) from None


def _last_expression(code: str) -> int:
    """Return the position in `code` of its final expression; the length of `code` if its last statement is no
    expression."""
    tree = parse_program(code)
    if tree is None or not tree.body or not isinstance(tree.body[-1], ast.Expr):
        return len(code)
    lines_before = code.encode().split(b"\n")[: tree.body[-1].lineno]
    lines_before[-1] = lines_before[-1][: tree.body[-1].col_offset]
    start = len(b"\n".join(lines_before).decode())
    # A semicolon behind the expression means that it is no value.
    return len(code) if parse_program(f"({code[start:]}\n)") is None else start


def evaluate(
    code: str, inputs: Mapping[str, Any], *, seconds: float = SECONDS, interpreter: str = MONTY
) -> ProgramResult:
    """Run one program in the calling thread, with the arguments and errors of `PythonSandbox.run`."""
    process = open_process(interpreter, ProgramLimits(seconds, MEMORY))
    return _run_once(process, code, program_names(inputs))


def _run_once(process: Process, code: str, names: Mapping[str, Any]) -> ProgramResult:
    with process:
        return execute_program(process, code, names)


def program_names(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the globals of a program, with copies of the inputs.

    Raises:
        UsageError: An input is not plain data, or its name is no identifier.
    """
    for name in inputs:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise UsageError(f"input {name!r} is not a Python identifier")
    try:
        return {"__name__": "__main__", **to_jsonable_python(dict(inputs))}
    except ValueError as error:
        raise UsageError(f"input is not plain data: {error}") from error


@cache
def _inside() -> str:
    return Path(inside.__file__).read_text(encoding="utf-8")
