"""One model behind one limit: how many calls are under way, and how often a passing failure is tried again.

Whoever calls a model in a run calls it through here, so that its limit is one. Knows no roles, no episodes.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TypeVar

from rolegraph.engine.errors import ModelError, UsageError
from rolegraph.engine.models.types import Completion, LogprobScorer, Model, Request
from rolegraph.engine.records import CallDone, Observer

ATTEMPTS = 4
"""Calls in all when each fails in a way that may pass."""
FIRST_WAIT = 0.5
LONGEST_WAIT = 8.0
"""Seconds between attempts: doubled each time, and up to as much again at random, so that many do not come
back at once."""

LONGEST_ASKED = 60.0
"""Seconds that a server may ask to be left alone for; one that asks for more is asked again after so many."""

Clock = Callable[[], float]
"""Seconds, as the event loop counts them."""

A = TypeVar("A")
T = TypeVar("T")


class LimitedModel:
    """A model, at most `concurrency` calls at a time; `model` is closed by whoever opened it."""

    __slots__ = ("_slots", "model")

    def __init__(self, model: Model, concurrency: int) -> None:
        self.model = model
        self._slots = _Slots(concurrency)

    def instead(self, model: Model) -> LimitedModel:
        """Another model behind the same limit: newer weights, say."""
        limited = LimitedModel(model, 1)
        limited._slots = self._slots
        return limited

    def complete(
        self,
        request: Request,
        timeout: float | None = None,
        observe: Observer | None = None,
        clock: Clock | None = None,
    ) -> Coroutine[None, None, tuple[Completion, float, float]]:
        """The answer to a request, when it began on the event loop's clock, which who has it hands over,
        and the seconds that it took; raises ModelError or TimeoutError.

        Neither the time nor `timeout`, which are of one call, count the wait for a free slot.
        """
        return self._call(self.model.complete, request, timeout, observe, clock)

    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> Sequence[float]:
        """Log-probabilities of given response tokens, [T]; raises ModelError, or UsageError without any."""
        return (await self._call(self._score, (prompt_ids, response_ids), None, None, None))[0]

    async def _score(self, tokens: tuple[Sequence[int], Sequence[int]]) -> Sequence[float]:
        if not isinstance(self.model, LogprobScorer):
            raise UsageError("this model gives no log-probabilities of given tokens, so it cannot teach")
        return await self.model.logprobs(*tokens)

    async def _call(
        self,
        call: Callable[[A], Awaitable[T]],
        argument: A,
        seconds: float | None,
        observe: Observer | None,
        clock: Clock | None,
    ) -> tuple[T, float, float]:
        attempt, slots = 1, self._slots
        if clock is None:
            clock = asyncio.get_running_loop().time
        while True:
            if slots.free:
                slots.free -= 1
            else:
                await slots.wait()
            start, answered = clock(), False
            try:
                if seconds is None:
                    answer = await call(argument)
                else:
                    async with asyncio.timeout(seconds):
                        answer = await call(argument)
                answered = True
                return answer, start, clock() - start
            except ModelError as error:
                if not error.transient or attempt == ATTEMPTS:
                    raise
                wait = backoff(attempt, error.after)
            finally:
                slots.release()
                if observe is not None and isinstance(argument, Request):
                    observe(CallDone(argument.id, clock() - start, answered))
            await asyncio.sleep(wait)
            attempt += 1


class _Slots:
    """An asyncio.Semaphore of whose free slots one is taken without a coroutine, as nearly every call takes
    one. While any is free nobody waits: who waits is given the slot itself, first come, first served.
    """

    __slots__ = ("_waiting", "free")

    def __init__(self, free: int) -> None:
        self.free = free
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait to be given a slot."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came just before
                self.release()
            raise

    def release(self) -> None:
        """Give a slot to who has waited longest, or free it."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1


def backoff(attempt: int, asked: float | None = None) -> float:
    """Seconds to wait after the attempt of that number, from 1; no less than a server asked for."""
    wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (attempt - 1))
    return max(wait, min(asked or 0.0, LONGEST_ASKED)) + wait * random.random()
