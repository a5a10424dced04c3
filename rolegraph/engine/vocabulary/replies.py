"""Limits of HTTP responses, for every client of a model's endpoint, a service or a server.

A response is held in memory as a whole, a thousand compressed bytes may become a million, and some codecs
take quadratic time. So a body is requested uncompressed, counted while it arrives, and decoded only by fast
codecs.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator
from functools import cache
from typing import Any

from rolegraph.engine.limits import Limit
from rolegraph.engine.limits.answers import COMPLETION_PARTS
from rolegraph.engine.records.jsonl import parts_of

_IDENTITY = "identity"
"""The Content-Encoding of a response that is not compressed."""
_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "latin1", "windows-1252")
_CHUNK = 50
"""Bytes of memory that a chunk takes besides its content; a server may send each byte as a chunk."""


_COOKIES = 50
"""Largest number of cookies that a client keeps; a server may set new ones in each response, and each call
sends them all."""


class RejectedReply(Exception):
    """Error of reading an HTTP response that is compressed or too large."""


def bound_replies(client: Any, limit: Limit) -> None:
    """Limit the responses that an HTTP client reads, by event hooks that run before its own.

    Reading a response raises RejectedReply if it is compressed, or has more bytes than `limit` or more JSON
    values than `completion_parts`. Text in any but a few charsets is decoded as UTF-8.

    Args:
        client: An `httpx.AsyncClient`, or one of httpx2, its successor.
        limit: Largest number of bytes of a response.
    """

    async def request_identity(request: Any) -> None:
        request.headers["Accept-Encoding"] = _IDENTITY

    async def bound(response: Any) -> None:
        if len(client.cookies.jar) > _COOKIES:
            client.cookies.clear()
        media, _, options = response.headers.get("content-type", "")[:200].partition(";")
        charset = re.search(r"charset=\"?([\w-]+)", options.lower())
        is_known = charset is not None and charset[1] in _CHARSETS
        response.headers["content-type"] = f"{media}; charset={charset[1]}" if charset and is_known else media
        encoding: str = response.headers.pop("content-encoding", _IDENTITY)
        stream: object = response.stream
        response.stream = _kind_of(type(stream))(stream, limit, encoding)

    client.event_hooks["request"].insert(0, request_identity)
    client.event_hooks["response"].insert(0, bound)


async def bounded(chunks: AsyncIterable[bytes], limit: Limit, subject: str) -> AsyncIterator[bytes]:
    """Yield the chunks of a response.

    Args:
        chunks: The chunks.
        limit: Largest number of bytes of the response.
        subject: Beginning of the error's message, such as "the response has".

    Raises:
        RejectedReply: There are more bytes, or more JSON values than `completion_parts`.
    """
    size = part_count = 0
    uncounted: list[bytes] = []
    async for chunk in chunks:
        size += len(chunk) + _CHUNK
        uncounted.append(chunk)
        if (
            size > COMPLETION_PARTS.most
        ):  # each part has a byte, so that a shorter response need not be counted
            part_count += sum(map(parts_of, uncounted))
            uncounted.clear()
        for limit_, count in ((limit, size), (COMPLETION_PARTS, part_count)):
            if count > limit_.most:
                raise RejectedReply(limit_.exceeded(subject))
        yield chunk


class _BoundedStream:
    """Body of an HTTP response that raises RejectedReply if it is compressed or exceeds a number of bytes."""

    def __init__(self, stream: Any, limit: Limit, encoding: str) -> None:
        self._stream, self._limit, self._encoding = stream, limit, encoding

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._encoding != _IDENTITY:
            request_note = f"although {_IDENTITY!r} was requested"
            raise RejectedReply(f"Content-Encoding is {self._encoding[:40]!r}, {request_note}")
        async for chunk in bounded(self._stream, self._limit, "the response has"):
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


@cache
def _kind_of(stream: type) -> type[_BoundedStream]:
    """Return a bounded-stream class for a stream of an HTTP library, derived from that library's own base
    class.

    The library depends on the version of the OpenAI client, so it is found from the class `stream`.
    """
    base = next(kind for kind in stream.__mro__ if kind.__name__ == "AsyncByteStream")
    return type("Bounded", (_BoundedStream, base), {})
