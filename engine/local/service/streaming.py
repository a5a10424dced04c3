"""Answers while they are drawn: what of a text can be told already, and server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.responses import StreamingResponse

from rolegraph.engine.local.service.calls import fault_of, openai_error
from rolegraph.engine.local.service.sampling import SampleRequest

Draw = Callable[[Callable[[], None]], Coroutine[Any, Any, object]]
"""Draws sequences; calls what it is given when there are new tokens, from any thread."""


class StreamDelta(NamedTuple):
    """What is new of an answer."""

    parts: list[str]
    tokens: slice
    ended: bool


@dataclass(slots=True)
class StreamState:
    """One answer while it is drawn, and how much of it has been told.

    `read` makes tokens, and whether they are all, an answer's parts, as its reasoning and its text; each
    grows with the tokens, but for an end that may turn out to be one of the `marks`, which are no part's own.
    """

    sample: SampleRequest
    read: Callable[[Sequence[int], bool], tuple[str, ...]]
    marks: tuple[str, ...]
    tokens: int = 0
    told: list[str] = field(default_factory=list[str])

    def news(self) -> StreamDelta | None:
        """What is new of each part and of the tokens, and whether that was all; None where nothing is.

        Meanwhile they are drawn, on another thread: a token, its log-probability, then why it is the last.
        """
        ended = self.sample.reason is not None
        drawn = len(self.sample.logprobs)
        if drawn <= self.tokens and not ended:
            return None
        parts = self.read(self.sample.tokens[:drawn], ended)
        sure = parts if ended else [_sure(part, self.marks) for part in parts]
        self.told = self.told or [""] * len(parts)
        new = [part[len(told) :] for part, told in zip(sure, self.told, strict=True)]
        self.told = [told + more for told, more in zip(self.told, new, strict=True)]
        tokens, self.tokens = slice(self.tokens, drawn), max(drawn, self.tokens)
        return StreamDelta(new, tokens, ended)


def _sure(text: str, marks: Sequence[str]) -> str:
    """`text` without an end that could be the start of a mark, or of a character."""
    text = text.rstrip("\ufffd")
    starts = [
        size
        for mark in marks
        for size in range(1, min(len(mark), len(text) + 1))
        if text.endswith(mark[:size])
    ]
    return text[: len(text) - max(starts, default=0)]


async def while_drawn(draw: Draw) -> AsyncGenerator[None, None]:
    """Goes on whenever there may be new tokens, and once at the end. Raises what the drawing raises.

    Left early, it ends the drawing.
    """
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def progress() -> None:
        loop.call_soon_threadsafe(changed.set)

    drawing = asyncio.ensure_future(draw(progress))
    drawing.add_done_callback(lambda _: changed.set())
    try:
        while not drawing.done():
            await changed.wait()
            changed.clear()
            yield
        await drawing
        yield
    finally:
        drawing.cancel()


def events(chunks: AsyncGenerator[Mapping[str, Any], None]) -> StreamingResponse:
    """Chunks as server-sent events, as OpenAI ends them; a failure is the last of them."""

    async def lines() -> AsyncGenerator[str, None]:
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield _event(chunk)
        except Exception as error:
            yield _event({"error": openai_error(fault_of(error, "/v1"))})
            return
        yield "data: [DONE]\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


def _event(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, allow_nan=False)}\n\n"
