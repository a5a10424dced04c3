"""Limits on the size of an endpoint's response, which is held in memory as a whole and read as JSON.

Compressed responses are rejected, because a thousand compressed bytes may hold a million. Imports no HTTP
library: which one the OpenAI client uses depends on its version.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from typing import Any

from rolegraph.engine.limits.answers import COMPLETION_BYTES, COMPLETION_PARTS
from rolegraph.engine.records.jsonl import parts_of

PLAIN = "identity"


class ResponseRejected(Exception):
    """A response that is not read to its end."""


async def bound(response: Any) -> None:
    """Limit how much of a response can be read; raises ResponseRejected for a compressed one."""
    encoding: str = response.headers.get("content-encoding", PLAIN)
    if encoding != PLAIN:
        raise ResponseRejected(f"Content-Encoding is {encoding[:40]!r}, although {PLAIN!r} was requested")
    stream: object = response.stream
    response.stream = _kind_of(type(stream))(stream)


class _Bounded:
    """A stream that raises ResponseRejected where it exceeds the limits."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = parts = 0
        async for chunk in self._stream:
            size, parts = size + len(chunk), parts + parts_of(chunk)
            for limit, found in ((COMPLETION_BYTES, size), (COMPLETION_PARTS, parts)):
                if found > limit.most:
                    raise ResponseRejected(limit.exceeded("the response has"))
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


@cache
def _kind_of(stream: type) -> type[_Bounded]:
    """Return a subclass of the HTTP library's own stream type, which is all that the library accepts."""
    base = next(kind for kind in stream.__mro__ if kind.__name__ == "AsyncByteStream")
    return type("Bounded", (_Bounded, base), {})
