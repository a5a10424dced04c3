"""How much of an endpoint's answer is read, whatever it sends: it is held as a whole, and read as JSON.

A server is asked for what is not packed, because a thousand bytes that are may hold a million. Knows no HTTP
library: the client's own is one or another, depending on its version.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from typing import Any

from rolegraph.engine.limits.answers import COMPLETION_BYTES, COMPLETION_PARTS
from rolegraph.engine.records.jsonl import parts_of

PLAIN = "identity"


class ResponseRejected(Exception):
    """An answer that is not read to its end."""


async def bound(response: Any) -> None:
    """Let a response be read up to the limits; raises Refused for one that is packed."""
    packed: str = response.headers.get("content-encoding", PLAIN)
    if packed != PLAIN:
        raise ResponseRejected(f"it packs its answers ({packed[:40]!r}), and was asked not to")
    stream: object = response.stream
    response.stream = _kind_of(type(stream))(stream)


class _Bounded:
    """A stream that ends in Refused where it goes past the limits."""

    def __init__(self, stream: Any) -> None:
        self._within = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = parts = 0
        async for chunk in self._within:
            size, parts = size + len(chunk), parts + parts_of(chunk)
            for limit, found in ((COMPLETION_BYTES, size), (COMPLETION_PARTS, parts)):
                if found > limit.most:
                    raise ResponseRejected(limit.exceeded("its answer has"))
            yield chunk

    async def aclose(self) -> None:
        await self._within.aclose()


@cache
def _kind_of(stream: type) -> type[_Bounded]:
    """The library takes only what is a stream of its own."""
    base = next(kind for kind in stream.__mro__ if kind.__name__ == "AsyncByteStream")
    return type("Bounded", (_Bounded, base), {})
