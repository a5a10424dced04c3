"""HTTP connections of the service, which bound headers and trailers before the key is asked for."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rolegraph.engine.limits.service import HEADER_BYTES, HEADER_SECONDS


class BoundedConnection(HttpToolsProtocol):
    """Connection that closes when the headers of a request are too long, or not complete in time."""

    _left = 0
    """Bytes that may come before the next part of a body: of headers, or of trailers after the body."""
    _limit: asyncio.TimerHandle | None = None
    """Timer that closes the connection while headers are incomplete."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # as its base
        """Wait for the first request."""
        super().connection_made(transport)
        self._expect_headers()

    def on_message_begin(self) -> None:
        """Wait for the headers of a request that has begun."""
        super().on_message_begin()
        self._expect_headers()

    def on_headers_complete(self) -> None:
        """Take a request."""
        self._expect_no_headers()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        super().on_body(body)
        self._left = HEADER_BYTES.most

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        self._left -= len(data)
        super().data_received(data)
        if self._left < 0:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        super().connection_lost(exc)
        self._expect_no_headers()

    def _expect_headers(self) -> None:
        if self._limit is None:
            self._left = HEADER_BYTES.most
            self._limit = self.loop.call_later(HEADER_SECONDS.most, self.transport.close)

    def _expect_no_headers(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
