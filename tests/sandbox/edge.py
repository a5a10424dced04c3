"""Helpers that run work in a sandbox and find the interpreter processes of the sandbox."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from rolegraph.sandbox import PythonSandbox

T = TypeVar("T")


def within(
    work: Callable[[PythonSandbox], Awaitable[T]],
    *,
    seconds: float = 30.0,
    memory: int = 64 << 20,
    processes: int = 0,
) -> T:
    async def run() -> T:
        return await work(PythonSandbox(seconds=seconds, memory=memory, processes=processes))

    return asyncio.run(run())


def interpreters(parent: int | None = None) -> set[int]:
    """Return the pids of the interpreters whose parent is `parent`, by default this process (Linux only)."""
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return {pid for pid in pids if alive(pid, child_of=parent or os.getpid())}


def alive(pid: int, child_of: int | None = None) -> bool:
    """Return True if a process is a running interpreter, and a child of `child_of` if given."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    except OSError:  # the process has ended
        return False
    state, parent = rest.split()[:2]
    return name == "monty" and state != "Z" and child_of in (None, int(parent))


def environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()
