"""Polling for a condition in another process, instead of a fixed sleep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def until(holds: Callable[[], object]) -> None:
    """Wait without a time limit until `holds()` is true."""
    while not holds():  # noqa: ASYNC110  # no event to wait for: the change is in another process
        await asyncio.sleep(0.02)


def soon(holds: Callable[[], bool], seconds: float = 300.0) -> bool:
    """Wait until `holds()` is true and return True, or False after `seconds`, a limit for deadlocks."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()
