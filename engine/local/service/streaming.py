"""Streaming of answers while they are sampled: increments of text, and server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.responses import StreamingResponse

from rolegraph.engine.local.service.batcher import SampleJob
from rolegraph.engine.local.service.endpoints import openai_error, request_error
from rolegraph.engine.local.service.sampling import SampleRequest


class StreamDelta(NamedTuple):
    """Increment of an answer: new text of each part, positions of new tokens, and True at the end."""

    parts: Sequence[str]
    tokens: slice
    ended: bool


@dataclass(slots=True)
class StreamState:
    """One answer while it is sampled, with the text and the number of tokens that have been sent.

    `read` converts the tokens so far, and whether they are complete, to the answer's parts, such as reasoning
    and text. Parts only grow, except for an end that may be the beginning of a mark (a stop text or a tag),
    which is held back.
    """

    sample: SampleRequest
    read: Callable[[SampleRequest, Sequence[int], bool], tuple[str, ...]]
    marks: tuple[str, ...]
    tokens: int = 0
    ended: bool = False
    sent: list[str] = field(default_factory=list[str])

    def delta(self) -> StreamDelta | None:
        """Return the text and tokens sampled since the last call; None if there are none.

        The compute thread appends meanwhile: a token, its log-probability, then the reason of the end. So the
        reason is read first and the log-probabilities are counted.
        """
        ended = self.sample.reason is not None
        count = len(self.sample.logprobs)
        if self.ended or (count <= self.tokens and not ended):
            return None
        self.ended = ended
        parts = self.read(self.sample, self.sample.tokens[:count], ended)
        settled = parts if ended else [_without_open_end(part, self.marks) for part in parts]
        self.sent = self.sent or [""] * len(parts)
        new = [part[len(sent) :] for part, sent in zip(settled, self.sent, strict=True)]
        self.sent = [sent + more for sent, more in zip(self.sent, new, strict=True)]
        tokens, self.tokens = slice(self.tokens, count), max(count, self.tokens)
        return StreamDelta(new, tokens, ended)


def _without_open_end(text: str, marks: Sequence[str]) -> str:
    """Return a text without an end that may be the beginning of a mark or of a character."""
    text = text.rstrip("\ufffd")
    starts = [
        size
        for mark in marks
        for size in range(1, min(len(mark), len(text) + 1))
        if text.endswith(mark[:size])
    ]
    return text[: len(text) - max(starts, default=0)]


async def ticks_while_sampling(
    sample: Callable[[SampleJob], Coroutine[Any, Any, object]], job: SampleJob
) -> AsyncGenerator[None, None]:
    """Sample a job, yielding whenever there may be new tokens and once at the end.

    Closing the generator cancels the sampling. Raises whatever `sample` raises.
    """
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    job.progress = lambda: loop.call_soon_threadsafe(changed.set)
    sampling = asyncio.ensure_future(sample(job))
    sampling.add_done_callback(lambda _: changed.set())
    try:
        while not sampling.done():
            await changed.wait()
            changed.clear()
            yield
        await sampling
        yield
    finally:
        sampling.cancel()


def events(chunks: AsyncGenerator[Mapping[str, Any], None]) -> StreamingResponse:
    """Return a response of server-sent events, ended as by OpenAI; an error is sent as the last event."""

    async def lines() -> AsyncGenerator[str, None]:
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield _event(chunk)
        except Exception as error:
            yield _event({"error": openai_error(request_error(error, "/v1"))})
            return
        yield "data: [DONE]\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


def _event(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, allow_nan=False)}\n\n"
