"""Plumbing that all endpoints share: reading bodies, and error responses of the Tinker and OpenAI shapes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolegraph.engine.limits import Limit
from rolegraph.local import limits
from rolegraph.local.service.errors import NotFoundError, RequestError
from rolegraph.serving.chat_bodies import RequestBody, without_effect
from rolegraph.serving.limits import NAME

B = TypeVar("B", bound=RequestBody)

JSON, PROTOBUF = "application/json", "application/x-protobuf"
IGNORED = "x-rolegraph-without-effect"
"""Response header that names the fields of the request that have no effect."""
_CODES = {401: "invalid_api_key", 404: "not_found", 429: "rate_limit_exceeded"}
"""OpenAI's error codes by status."""
_CLIENT_CLOSED = 499
"""Status of a response that no client reads (nginx's)."""
_logger = logging.getLogger(__name__)


def error_response(error: RequestError, path: str = "") -> Response:
    """Return an error response in the shape of OpenAI's API if `path` is below /v1, else of Tinker's."""
    content = {"error": openai_error(error)} if _is_openai(path) else {"detail": str(error)}
    # The rest of a body that is too long is not read, so the connection cannot be used again.
    headers = {"connection": "close"} if error.status in (408, 413) else {}
    return JSONResponse(content, error.status, headers)


def openai_error(error: RequestError) -> Mapping[str, Any]:
    """Return an error as the value of `error` in an answer of OpenAI's API."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {
        "message": str(error),
        "type": "rate_limit_error" if error.status == 429 else kind,
        "param": error.param,
        "code": error.code or _CODES.get(error.status),
    }


def _is_openai(path: str) -> bool:
    return path == "/v1" or path.startswith("/v1/")


async def _handle(request: Request, error: Exception) -> Response:
    """Convert an exception of an endpoint to an HTTP response with the error in the API's form."""
    path = request.url.path
    if isinstance(error, ClientDisconnect):
        return Response(status_code=_CLIENT_CLOSED)
    if isinstance(error, HTTPException):  # of the router: an unknown path or method
        error = NotFoundError(f"{request.method} {path[: NAME.most]} is not served by this local service")
    return error_response(request_error(error, path), path)


_HANDLED = (RequestError, ValidationError, ClientDisconnect, HTTPException, Exception)
ERROR_HANDLERS = dict.fromkeys(_HANDLED, _handle)
"""Starlette's `exception_handlers` of an application with these endpoints."""


def json_route(path: str, kind: type[B], call: Callable[[B], Awaitable[object]]) -> Route:
    """Return the route of a POST endpoint below /api/v1.

    Args:
        path: Path below /api/v1.
        kind: Class of the body.
        call: Function that gets the parsed body and returns JSON or a Response.
    """

    async def endpoint(request: Request) -> Response:
        body = await read_body(request, kind)
        answer = await call(body)
        if not isinstance(answer, Response):
            answer = JSONResponse(answer)
        if ignored_fields := ", ".join(sorted(without_effect(body) - {"type"})):
            answer.headers[IGNORED] = ignored_fields
        return answer

    return Route(f"/api/v1/{path}", endpoint, methods=["POST"])


def request_error(error: Exception, path: str) -> RequestError:
    """Convert any error to a RequestError; an unexpected error is logged and gets status 500."""
    match error:
        case RequestError():
            return error
        case ValidationError():
            return _body_error(error, status=400 if _is_openai(path) else 422)
        case _:
            _logger.error("%s failed", path, exc_info=error)
            return RequestError(f"{type(error).__name__}: {error}", status=500)


def _body_error(error: ValidationError, *, status: int) -> RequestError:
    # Of a union, pydantic reports an error for each member. The member that was meant is the one of which
    # only a bound is exceeded, or else the one in which the error lies deepest.
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    first_error = max(errors, key=lambda each: (each["type"] == "value_error", len(each["loc"])))
    field = ".".join(str(part) for part in first_error["loc"] if _is_in_body(part))[: NAME.most]
    message = first_error["msg"].removeprefix("Value error, ")
    return RequestError(f"{field}: {message}" if field else message, status=status, param=field or None)


def _is_in_body(part: str | int) -> bool:
    """Return True if a part of a pydantic error's path is a key or index of the body, False for the name of a
    type."""
    # Names of members are those of types, or such as `constrained-str` and `list[int]`.
    return isinstance(part, int) or (part.isidentifier() and part not in ("str", "int"))


async def read_body(request: Request, kind: type[B]) -> B:
    """Return the request's JSON body, validated as `kind`.

    Raises:
        ValidationError: The body does not fit.
        RequestError: As `read_bytes` does.
    """
    return kind.model_validate_json(await read_bytes(request))


async def read_bytes(request: Request, media: str = JSON, limit: Limit = limits.BODY_BYTES) -> bytes:
    """Return the request's body.

    Raises:
        RequestError: The body has another media type, is encoded, longer than `limit`, or too slow.
            (Another site's page can send only the media types of forms without a CORS preflight.)
    """
    _check_length(int(request.headers.get("content-length") or 0), limit)
    if encoding := request.headers.get("content-encoding"):
        message = f"a body in {encoding[:40]} is not served here; client/config does not ask for it"
        raise RequestError(message, status=415)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = bytearray()
    try:
        async with asyncio.timeout(limits.BODY_SECONDS.most):
            async for chunk in request.stream():
                if chunk and media_type != media:
                    message = f"a body of type {media_type[:80] or 'none'} is not served here; {media} is"
                    raise RequestError(message, status=415)
                _check_length(len(body) + len(chunk), limit)
                body += chunk
    except TimeoutError as error:
        message = f"the body did not arrive within {limits.BODY_SECONDS}"
        raise RequestError(message, status=408) from error
    return bytes(body)


def _check_length(length: int, limit: Limit) -> None:
    if length > limit.most:
        raise RequestError(f"{limit.exceeded('a body of')} is not served here", status=413)
