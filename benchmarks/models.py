"""Stub models: one answers at once or after a time, one keeps everybody waiting, one takes notes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import sha256

from stub import ANSWERS


class Stub:
    """Answers after `latency` seconds, or at once. Counts the calls."""

    def __init__(self, latency: float) -> None:
        self.latency = latency
        self.calls = 0

    async def __call__(self, role: str, prompt: str) -> str:
        self.calls += 1
        if self.latency:
            await asyncio.sleep(self.latency)
        return ANSWERS[role]


class Held:
    """Holds the first `waiting` calls until all of them are under way, and then calls `gathered` once."""

    def __init__(self, waiting: int, gathered: Callable[[], None]) -> None:
        self.waiting, self.gathered = waiting, gathered
        self.calls = 0
        self.open = asyncio.Event()

    async def __call__(self, role: str, prompt: str) -> str:
        self.calls += 1
        if self.calls == self.waiting:
            self.gathered()
            self.open.set()
        await self.open.wait()
        return ANSWERS[role]


class Noting:
    """Answers at once and remembers what it was asked."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    async def __call__(self, role: str, prompt: str) -> str:
        self.prompts.append(prompt)
        return ANSWERS[role]

    def digest(self) -> str:
        """The same for the same prompts in any order."""
        return sha256("\0".join(sorted(self.prompts)).encode()).hexdigest()
