"""Errors that a client's request can end in, each with the HTTP status of its response."""

from __future__ import annotations


class RequestError(ValueError):
    """A request that cannot be carried out as it is: the client's mistake, unless `status` says otherwise.

    `param` is the dotted path of the faulty field of the body. `code` is OpenAI's error code; by default that
    of `status`.
    """

    status = 400

    def __init__(
        self, message: str, *, status: int | None = None, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status or self.status, param, code


class NotFoundError(RequestError):
    """A request for a model, session, checkpoint or file that does not exist."""

    status = 404
