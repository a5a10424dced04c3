"""One model behind one limit: concurrent calls, and retries of transient failures.

All callers of a model share its `LimitedModel`. Knows no roles and no episodes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from rolegraph.engine.errors import ModelError, UsageError
from rolegraph.engine.models.types import Completion, LogprobScorer, Model, Request
from rolegraph.engine.records import CallDone, Observer
from rolegraph.engine.records.schema import LOGPROBS
from rolegraph.engine.spec import ModelRef
from rolegraph.engine.vocabulary import Function, ToolError

_logger = logging.getLogger(__name__)
ATTEMPTS = 4
"""Largest number of attempts at a call, if its failures are transient."""
FIRST_WAIT = 0.5
LONGEST_WAIT = 8.0
"""Longest wait in seconds between attempts. The wait doubles each time, plus up to as much at random, so that
callers spread out."""

LONGEST_ASKED = 60.0
"""Longest `Retry-After` of a server in seconds that is obeyed; a longer one counts as this many."""

A = TypeVar("A")
T = TypeVar("T")


class LimitedModel:
    """A model with at most `concurrency` calls at a time. Whoever opened the model closes it."""

    def __init__(self, model: Model, concurrency: int) -> None:
        self.model = model
        self._slots = asyncio.Semaphore(concurrency)
        self._warned: set[str] = set()
        """Warnings that were logged, for all models behind the limit."""

    def with_model(self, model: Model) -> LimitedModel:
        """Return a LimitedModel for another model, such as newer weights, that shares this model's limit on
        calls."""
        limited_model = copy(self)
        limited_model.model = model
        return limited_model

    async def complete(
        self,
        request: Request,
        seconds: float | None = None,
        observe: Observer | None = None,
    ) -> tuple[Completion, float, float]:
        """Answer a request; retry it while its failures are transient.

        Numbers that no record can hold are left out of the answer; the first of them cause a warning.

        Args:
            request: The request.
            seconds: Time limit of each attempt; the wait for a free slot does not count.
            observe: Function that receives a CallDone for each attempt.

        Returns:
            The answer, the last attempt's start on the monotonic clock, and its duration in seconds.

        Raises:
            ModelError: The model refused, or failed `ATTEMPTS` times.
            TimeoutError: The attempt took longer than `seconds`.
        """
        answer, start_time, duration = await self._call(self.model.complete, request, seconds, observe)
        answer = answer.checked()
        if answer.unusable_numbers and "unusable numbers" not in self._warned:
            self._warned.add("unusable numbers")
            _logger.warning(
                "the answer to %s has the %s, which no record can hold: such numbers are missing, and later "
                "ones are only counted",
                request.id,
                answer.unusable_numbers[0],
            )
        return answer, start_time, duration

    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> Sequence[float]:
        """Return the natural log-probabilities of given response tokens, [T], at temperature 1.

        Raises:
            ModelError: The model refused, failed `ATTEMPTS` times, or returned another number of values.
            UsageError: The model's provider scores no given tokens.
        """
        model = self.model
        if not isinstance(model, LogprobScorer):
            raise UsageError("this model gives no log-probabilities of given tokens, so it cannot teach")
        tokens = (prompt_ids, response_ids)
        logprobs, *_ = await self._call(lambda tokens: model.logprobs(*tokens), tokens)
        if len(logprobs) != len(response_ids) or not LOGPROBS.holds(logprobs):
            raise ModelError(
                f"the model gave no log-probability for each of {len(response_ids)} tokens: there are "
                f"{len(logprobs)}, and some may be infinite or positive"
            )
        return logprobs

    async def _call(
        self,
        call: Callable[[A], Awaitable[T]],
        argument: A,
        seconds: float | None = None,
        observe: Observer | None = None,
    ) -> tuple[T, float, float]:
        attempt = 1
        while True:
            async with self._slots:
                start_time, is_answered = time.monotonic(), False
                try:
                    async with asyncio.timeout(seconds):
                        answer = await call(argument)
                    is_answered = True
                    return answer, start_time, time.monotonic() - start_time
                except ModelError as error:
                    if not error.transient or attempt == ATTEMPTS:
                        raise
                    delay = backoff(attempt, error.after)
                finally:
                    if observe is not None and isinstance(argument, Request):
                        observe(CallDone(argument.id, time.monotonic() - start_time, is_answered))
            await asyncio.sleep(delay)
            attempt += 1


def left_out(models: Iterable[tuple[ModelRef, LimitedModel]]) -> dict[str, tuple[str, ...]]:
    """Return the fields of requests that servers have refused, by model."""
    left_out = {str(ref): tuple(sorted(getattr(m.model, "left_out", ()))) for ref, m in models}
    return {name: fields for name, fields in left_out.items() if fields}


async def call_tool(function: Function, arguments: Mapping[str, Any], seconds: float | None) -> Any:
    """Call a tool's function; retry it while its failures are transient.

    Args:
        function: The function.
        arguments: The function's arguments.
        seconds: Time limit of each attempt; None for no limit.

    Raises:
        ToolError: The tool cannot do its work, or failed `ATTEMPTS` times.
        TimeoutError: An attempt took longer than `seconds`.
    """
    attempt = 1
    while True:
        try:
            async with asyncio.timeout(seconds):
                return await function.call(arguments)
        except ToolError as error:
            if error.retry_headers is None or attempt == ATTEMPTS:
                raise
            seconds_to_wait = backoff(attempt, retry_after(error.retry_headers))
        await asyncio.sleep(seconds_to_wait)
        attempt += 1


def backoff(attempt: int, asked: float | None = None) -> float:
    """Return the seconds to wait before the next attempt of a failed call; grows with each attempt.

    Args:
        attempt: The attempt's number, from 1.
        asked: Seconds that the server asked for; the wait is at least as long, up to `LONGEST_ASKED`.
    """
    delay = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (attempt - 1))
    return max(delay, min(asked or 0.0, LONGEST_ASKED)) + delay * random.random()


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait by `retry-after-ms`, else by `Retry-After` (a number or a date).

    None if neither header has a known form.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        seconds = _seconds(headers.get(name, "").strip())
        if seconds is not None:
            return max(0.0, seconds * unit)
    return None


def _seconds(text: str) -> float | None:
    """Return the seconds that a text states as a number, or that remain until the date in it."""
    try:
        number = float(text)
    except ValueError:
        try:
            return parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, OverflowError, OSError):
            return None
    return number if math.isfinite(number) else None
