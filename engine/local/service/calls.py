"""What every call to the service goes through: reading a body, and how a refusal looks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from rolegraph.engine.limits import Limit
from rolegraph.engine.limits import service as limits
from rolegraph.engine.local.service.futures import QueueFull
from rolegraph.engine.local.service.trainer import NotFoundError, RequestError

B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]

JSON, PROTOBUF = "application/json", "application/x-protobuf"
_FORMS = ("constrained-", "function-")
"""How pydantic's names of forms begin that have bounds."""
_GONE = 499
"""Nobody reads this answer."""
_logger = logging.getLogger(__name__)


class DeclinedRequest(RequestError):
    """A request that is refused for how it was sent, with the status that says so."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call is refused."""

    status: int
    message: str
    param: str | None = None
    """The field of the body that it is about."""


Shape = Callable[[Refusal], Response]
"""How a fault looks to a client."""


def as_tinker(fault: Refusal) -> Response:
    """As the Tinker SDK shows it."""
    return JSONResponse({"detail": fault.message}, fault.status, _headers(fault))


_CODES = {401: "invalid_api_key", 404: "not_found", 429: "rate_limit_exceeded"}


def as_openai(fault: Refusal) -> Response:
    """As OpenAI's clients show it."""
    return JSONResponse({"error": openai_error(fault)}, fault.status, _headers(fault))


def openai_error(fault: Refusal) -> Mapping[str, Any]:
    """What stands under `error`."""
    kind = "server_error" if fault.status >= 500 else "invalid_request_error"
    return {
        "message": fault.message,
        "type": "rate_limit_error" if fault.status == 429 else kind,
        "param": fault.param,
        "code": _CODES.get(fault.status),
    }


def _headers(fault: Refusal) -> Mapping[str, str]:
    # What is left of a body that is too long is not read: the connection ends.
    return {"connection": "close"} if fault.status in (408, 413) else {}


def shape_of(path: str) -> Shape:
    """How the faults of calls to a path look."""
    return as_openai if path == "/v1" or path.startswith("/v1/") else as_tinker


def guarded(do: Endpoint) -> Endpoint:
    """An endpoint that answers a refusal, or a body that does not fit, with a 4xx that says why."""

    async def endpoint(request: Request) -> Response:
        try:
            return await do(request)
        except ClientDisconnect:
            return Response(status_code=_GONE)
        except Exception as error:
            return shape_of(request.url.path)(fault_of(error, request.url.path))

    return endpoint


def fault_of(error: Exception, path: str) -> Refusal:
    """What a client is told of an error. One that is not foreseen is ours, and logged."""
    match error:
        case DeclinedRequest():
            return Refusal(error.status, str(error))
        case NotFoundError():
            return Refusal(404, str(error))
        case RequestError():
            return Refusal(400, str(error))
        case QueueFull():
            return Refusal(429, str(error))
        case ValidationError():
            return _misfit(error, status=400 if shape_of(path) is as_openai else 422)
        case _:
            _logger.error("%s failed", path, exc_info=error)
            return Refusal(500, f"{type(error).__name__}: {error}")


def _misfit(error: ValidationError, *, status: int) -> Refusal:
    # Of what may have several forms, the form that was meant is the one that is only past a bound, or else
    # the one in which the fault lies deepest.
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    detail = max(errors, key=lambda each: (each["type"] == "value_error", len(each["loc"])))
    where = ".".join(str(part) for part in detail["loc"] if _is_written(part))[: limits.NAME.most]
    if detail["type"] == "extra_forbidden":
        return Refusal(status, f"{where} is not served here", where)
    said = detail["msg"].removeprefix("Value error, ")
    return Refusal(status, f"{where}: {said}" if where else said, where or None)


def _is_written(part: str | int) -> bool:
    """Whether a part of a place stands in the body, rather than naming one of several forms."""
    return isinstance(part, int) or not (part in ("str", "int") or part.startswith(_FORMS) or "[" in part)


def check_name(asked: str, name: str, names: frozenset[str]) -> None:
    """Raises Missing unless the model `name` goes by what was asked for, which is one of `names`."""
    if asked not in names:
        raise NotFoundError(f"this service has no model {asked!r}; it serves {name!r}")


async def not_served(request: Request) -> Response:
    """The answer to any other call."""
    path = request.url.path[: limits.NAME.most]
    return shape_of(path)(Refusal(404, f"{request.method} {path} is not served by this local service"))


def refusal(status: int, message: str) -> Response:
    """A refusal as the SDK shows it."""
    return as_tinker(Refusal(status, message))


async def read(request: Request, kind: type[B]) -> B:
    """The request's JSON body. Raises ValidationError where it is none, and what `raw` raises."""
    return kind.model_validate_json(await raw(request))


async def raw(request: Request, media: str = JSON, limit: Limit = limits.BODY_BYTES) -> bytes:
    """The request's body. Raises Declined for another media type, an encoded one, and one that is too long.

    A page of another site can send what a form sends, and nothing else, without asking first.
    """
    said = int(request.headers.get("content-length") or 0)
    _check_length(said, limit)
    if encoding := request.headers.get("content-encoding"):
        raise DeclinedRequest(
            415, f"a body in {encoding[:40]} is not served here; client/config does not ask for it"
        )
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = bytearray()
    try:
        async with asyncio.timeout(limits.BODY_SECONDS.most):
            async for chunk in request.stream():
                if chunk and given != media:
                    raise DeclinedRequest(
                        415, f"a body of type {given[:80] or 'none'} is not served here; {media} is"
                    )
                _check_length(len(body) + len(chunk), limit)
                body += chunk
    except TimeoutError as error:
        raise DeclinedRequest(408, f"the body was not here after {limits.BODY_SECONDS}") from error
    return bytes(body)


def _check_length(length: int, limit: Limit) -> None:
    if length > limit.most:
        raise DeclinedRequest(413, f"{limit.exceeded('a body of')} is not served here")


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """What comes of the work, which is cancelled when the client hangs up. Raises ClientDisconnect."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        gone.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
