"""Event loop on a virtual clock, which stands still during work and jumps to the next timer when idle."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")


class Hangs(AssertionError):
    """Deadlock: every task waits for another task, and no timer is set."""


class VirtualClock(asyncio.SelectorEventLoop):
    """Event loop on virtual time: a sleep returns at once, and a deadlock raises Hangs."""

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
    """Run a coroutine on virtual time; return its result and the virtual seconds that have passed."""
    with asyncio.Runner(loop_factory=VirtualClock) as runner:
        time = runner.get_loop().time
        with mock.patch("time.monotonic", time):
            return runner.run(work), time()


def longest(seconds: Mapping[str, float], after: Mapping[str, list[str]]) -> float:
    """Return the duration of the critical path; each item starts when all of `after[item]` have ended."""
    ends: dict[str, float] = {}
    for name, own in seconds.items():
        ends[name] = own + max((ends[before] for before in after.get(name, [])), default=0.0)
    return max(ends.values())
