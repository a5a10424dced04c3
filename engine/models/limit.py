"""One model behind one limit: how many calls are under way, and how often a passing failure is tried again.

Used by the scheduler for each model of a plan. Knows nothing of roles or episodes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from time import perf_counter

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from engine.errors import ModelError
from engine.models.types import Completion, Model, Request

ATTEMPTS = 4
"""Calls in all when each fails in a way that may pass."""
FIRST_WAIT = 0.5
LONGEST_WAIT = 8.0
"""Seconds between attempts: doubled each time, plus up to as much again at random."""


class Gate:
    """A model, at most `concurrency` calls at a time."""

    def __init__(self, model: Model, concurrency: int) -> None:
        self._model = model
        self._slots = asyncio.Semaphore(concurrency)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Seconds spent in calls, by role; waiting for a slot not counted."""

    async def complete(self, request: Request, seconds: float | None) -> Completion:
        """Answer one request; raises ModelError or TimeoutError.

        `seconds` is for one call and does not count the wait for a free slot.
        """
        try:
            return await self._once(request, seconds)
        except ModelError as error:
            if not error.transient:
                raise
        await asyncio.sleep(FIRST_WAIT)
        return await retrying(ATTEMPTS - 1, 2 * FIRST_WAIT)(self._once, request, seconds)

    async def _once(self, request: Request, seconds: float | None) -> Completion:
        await self._slots.acquire()
        start = perf_counter()
        try:
            if seconds is None:
                return await self._model.complete(request)
            async with asyncio.timeout(seconds):
                return await self._model.complete(request)
        finally:
            self.seconds[request.role] += perf_counter() - start
            self._slots.release()

    async def aclose(self) -> None:
        """Let go of the model's connections."""
        await self._model.aclose()


def retrying(attempts: int = ATTEMPTS, first_wait: float = FIRST_WAIT) -> AsyncRetrying:
    """Calls a function again when it raises a ModelError that may pass; the last one goes through."""
    return AsyncRetrying(
        retry=retry_if_exception(_may_pass),
        stop=stop_after_attempt(attempts),
        wait=wait_exponential_jitter(initial=first_wait, max=LONGEST_WAIT, jitter=FIRST_WAIT),
        reraise=True,
    )


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, ModelError) and error.transient
