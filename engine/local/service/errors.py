"""Errors that a client's request can end in, each with the HTTP status of its response."""

from __future__ import annotations


class RequestError(ValueError):
    """A request that cannot be carried out as it is: the client's mistake."""

    status = 400


class NotFoundError(RequestError):
    """A request for a model, session, checkpoint or file that does not exist."""

    status = 404


class GoneError(RequestError):
    """A request for a session or result that has ended."""

    status = 410


class QueueFull(RequestError):
    """A request beyond the number that a client may have open at a time."""

    status = 429


class TransportError(RequestError):
    """A request refused for how it was sent (its size, media type or duration), with the status for that."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class OperationCancelled(Exception):
    """An operation that its client has cancelled."""
