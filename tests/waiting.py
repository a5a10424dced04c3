"""To wait for what happens in another process, rather than for seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def until(holds: Callable[[], object]) -> None:
    """Wait for it, however long it takes."""
    while not holds():  # noqa: ASYNC110  # nothing here is told of it
        await asyncio.sleep(0.02)


def soon(holds: Callable[[], bool], seconds: float = 300.0) -> bool:
    """Whether it comes true; the seconds only end what hangs."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()
