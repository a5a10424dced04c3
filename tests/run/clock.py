"""An event loop whose clock stands still while something runs, and jumps when all of it waits."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    now = 0.0

    def select(
        self, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, selectors._EventMask]]:  # pyright: ignore[reportPrivateUsage]
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None:
            self.now += max(0.0, timeout)
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = _Jumping()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


def run_on_a_virtual_clock(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """What comes of it, and the seconds that it would have taken."""
    loop = _Loop()
    try:
        return loop.run_until_complete(work), loop.time()
    finally:
        loop.close()


def longest(seconds: Mapping[str, float], after: Mapping[str, list[str]]) -> float:
    """The critical path of what takes so long, each after others."""
    ends: dict[str, float] = {}
    for name, own in seconds.items():
        ends[name] = own + max((ends[before] for before in after.get(name, [])), default=0.0)
    return max(ends.values())
