"""HTTP server of the viewer, the local service and the endpoint of an agent program.

Memory and time of a connection are limited before the application sees a request.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import nullcontext

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from rolegraph.engine.errors import WorldError
from rolegraph.serving.limits import HEADER_BYTES, HEADER_SECONDS


class BoundedConnection(H11Protocol):
    """HTTP connection that is closed if headers are too long, or if a request takes too long to arrive.

    h11 counts the bytes of headers, trailers and the lines between chunks. A body that is not read stays in
    the socket; a body that continues after its answer is discarded until the time limit.
    """

    _limit: asyncio.TimerHandle | None = None
    """Timer that closes the connection while no request is being answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # as its base
        """Start the time limit for the headers of the first request."""
        super().connection_made(transport)
        self._set_limit()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; stop the time limit when they complete the headers of a request."""
        super().data_received(data)
        self._set_limit()

    def on_response_complete(self) -> None:
        """Start the time limit for the rest of the body and the headers of the next request."""
        super().on_response_complete()
        self._set_limit()

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP with status 400; close the connection if an answer has already begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit when the connection ends."""
        super().connection_lost(exc)
        self._stop_limit()

    def _set_limit(self) -> None:
        if self.cycle and not self.cycle.response_complete:
            self._stop_limit()
        elif self._limit is None:
            self._limit = self.loop.call_later(HEADER_SECONDS.most, self.transport.close)

    def _stop_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None


def bounded_server(app: ASGIApp, *, takes_signals: bool = True) -> uvicorn.Server:
    """Return the server of an application; its `run` or `serve` takes the sockets of `listen`.

    Args:
        app: The application.
        takes_signals: True to stop the server at SIGINT and SIGTERM; False leaves the signals to the process.
    """
    config = uvicorn.Config(
        app,
        http=BoundedConnection,
        h11_max_incomplete_event_size=HEADER_BYTES.most,
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    if not takes_signals:
        server.capture_signals = nullcontext  # pyright: ignore[reportAttributeAccessIssue]
    return server


def listen(host: str, port: int) -> socket.socket:
    """Return a TCP socket that listens at an address; port 0 takes a free one.

    Raises:
        WorldError: The port is in use or not permitted.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        raise WorldError(f"cannot listen at {host}:{port}: {reason}; choose another port") from error
