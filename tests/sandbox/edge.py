"""A sandbox for one piece of asynchronous work, and a look at the processes that it has."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from rolegraph.engine.sandbox import PythonSandbox

T = TypeVar("T")


def within(
    work: Callable[[PythonSandbox], Awaitable[T]],
    *,
    seconds: float = 30.0,
    memory: int = 64 << 20,
    processes: int | None = None,
) -> T:
    async def run() -> T:
        async with PythonSandbox(seconds=seconds, memory=memory, processes=processes) as python:
            return await work(python)

    return asyncio.run(run())


def interpreters(parent: int | None = None) -> set[int]:
    """The processes that run a program for this one, or for `parent`; only Linux has the /proc it reads."""
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return {pid for pid in pids if alive(pid, child_of=parent or os.getpid())}


def alive(pid: int, child_of: int | None = None) -> bool:
    """Whether a process runs a program, of anyone or of one parent."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    except OSError:  # gone meanwhile
        return False
    state, parent = rest.split()[:2]
    return name == "monty" and state != "Z" and child_of in (None, int(parent))


def environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()
