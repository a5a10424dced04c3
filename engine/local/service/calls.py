"""What every call to the service goes through: the key check, reading a body, and how a refusal looks."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar, cast

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.local.service.trainer import Missing, Refused

HEALTH = "/api/v1/healthz"
SIGNED = "/api/v1/files/"
"""Below it, a signature in the address stands in for the key."""

B = TypeVar("B", bound=BaseModel)
Endpoint = Callable[[Request], Awaitable[Response]]


class KeyCheck:
    """Refuses calls without the key, but where none is needed."""

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self._app, self._key = app, api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] == "http" and self._key and not _open(scope["path"]):
            headers = dict(scope["headers"])
            bearer = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
            given = headers.get(b"x-api-key") or bearer
            if not hmac.compare_digest(given, self._key.encode()):
                await refusal(401, "this service needs its key, in the header X-API-Key or as a bearer's")(
                    scope, receive, send
                )
                return
        await self._app(scope, receive, send)


def _open(path: str) -> bool:
    return path == HEALTH or path.startswith(SIGNED)


def guarded(do: Endpoint) -> Endpoint:
    """An endpoint that answers a refusal, or a body that does not fit, with a 4xx that says why."""

    async def endpoint(request: Request) -> Response:
        try:
            return await do(request)
        except Refused as error:
            return refusal(404 if isinstance(error, Missing) else 400, str(error))
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            return refusal(422, f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}")
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            return refusal(422, f"not JSON: {error}")

    return endpoint


def check_name(asked: str, name: str, names: frozenset[str]) -> None:
    """Raises Missing unless the model `name` goes by what was asked for, which is one of `names`."""
    if asked not in names:
        raise Missing(f"this service has no model {asked!r}; it serves {name!r}")


async def not_served(request: Request) -> Response:
    """The answer to any other call."""
    return refusal(404, f"{request.method} {request.url.path} is not served by this local service")


def refusal(status: int, message: str) -> JSONResponse:
    """A refusal as the SDK shows it."""
    return JSONResponse({"detail": message}, status_code=status)


async def read(request: Request, kind: type[B]) -> B:
    """The request's JSON body."""
    return kind.model_validate_json(await raw(request))


async def field(request: Request, name: str) -> str:
    """One text field of the request's JSON body; raises Refused."""
    body: object = json.loads(await raw(request))
    value = cast("Mapping[str, object]", body).get(name) if isinstance(body, dict) else None
    if not isinstance(value, str):
        raise Refused(f"the request has no {name}")
    return value


async def raw(request: Request) -> bytes:
    """The request's body; raises Refused for an encoded one."""
    if encoding := request.headers.get("content-encoding"):
        raise Refused(f"a body in {encoding} is not served here; client/config does not ask for it")
    return await request.body()
