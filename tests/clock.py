"""A clock that stands still while there is work, and jumps to the next timer where there is none."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Hangs(AssertionError):
    """Everybody waits for somebody, and no timer will wake them."""


class VirtualClock(asyncio.SelectorEventLoop):
    """An event loop on such a clock: a sleep takes no time, and what would wait for ever raises Hangs."""

    def __init__(self) -> None:
        super().__init__(_Jumping(self))
        self.now = 0.0

    def time(self) -> float:
        return self.now


class _Jumping(selectors.SelectSelector):
    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Hangs("everybody waits for somebody")
        self.clock.now += timeout
        return ready


def run_virtually(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """What comes of it, and the seconds that it would have taken."""
    with asyncio.Runner(loop_factory=VirtualClock) as runner:
        result = runner.run(work)
        return result, runner.get_loop().time()


def longest(seconds: Mapping[str, float], after: Mapping[str, list[str]]) -> float:
    """The critical path of what takes so long, each after others."""
    ends: dict[str, float] = {}
    for name, own in seconds.items():
        ends[name] = own + max((ends[before] for before in after.get(name, [])), default=0.0)
    return max(ends.values())
