"""Stand-in for a hosted Tinker service: a proxy that answers with its refusals in front of a local service.

The refusals are scripted by the number of a request, never by time. Their forms are those that the SDK
(tinker 0.38) handles: `_exceptions.py`, `lib/api_future_impl.py`, `lib/internal_client_holder.py`.
"""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolegraph.local.launcher import LocalService
from tests.models.edges import served

KEY, RENEWED = "tml-hosted-first", "tml-hosted-renewed"
FROM_NOW_ON = 10**9
_HOP = {"host", "connection", "content-length", "transfer-encoding", "x-api-key", "authorization"}


class Fault(NamedTuple):
    """Answer in place of the service's to the requests of one path with the ordinals `first` to `last`."""

    path: str
    """End of the path, such as `asample`; empty for every path."""
    first: int
    """Ordinal of the first request, from 1."""
    last: int
    status: int
    detail: str
    headers: Mapping[str, str] = {}

    def response(self) -> Response:
        """Return the answer in the hosted form of an error."""
        return JSONResponse({"detail": self.detail}, self.status, {**self.headers})


class Hosted:
    """Proxy in front of a local service, with keys, refusals and a queue of its own."""

    def __init__(self, service: LocalService) -> None:
        self._upstream, self._key = service.base_url, service.api_key
        self._client: httpx.AsyncClient | None = None
        self.base_url = ""
        self.keys = {KEY}
        """Keys that are accepted now."""
        self.expires_after: tuple[str, int] | None = None
        """Path and number of its requests after which `RENEWED` is the only key."""
        self.faults: list[Fault] = []
        self.queue = 0
        """Number of polls for which each result is kept in the queue."""
        self.config: dict[str, Any] = {}
        """Answer to `client/config`; `pjwt_auth_enabled` lets the SDK exchange its key for a token."""
        self.requests: Counter[str] = Counter()
        """Number of requests by the last part of their path."""
        self.refused: Counter[int] = Counter()
        """Number of answers of faults and keys, by status."""
        self._polls: Counter[str] = Counter()

    @property
    def waits(self) -> int:
        """Number of polls that were answered with the queue's state."""
        return self._polls.total()

    async def answer(self, request: Request) -> Response:
        """Answer one request: by the keys, by a fault, by the queue, or by the service."""
        path, body = request.url.path.removeprefix("/api/v1/"), await request.body()
        name = path.rpartition("/")[2]
        self.requests[name] += 1
        if path == "healthz":
            return await self._forward(request, body)
        refusal = self._refusal(request, path, name)
        if refusal is not None:
            self.refused[refusal.status_code] += 1
            return refusal
        if path == "client/config":
            return JSONResponse(self.config)
        if path == "auth/token":
            return JSONResponse({"jwt": _token(request.headers["x-api-key"])})
        if name == "retrieve_future" and self._queued(json.loads(body)["request_id"]):
            state = "paused_capacity" if self.waits % 2 else "paused_rate_limit"
            return JSONResponse({"type": "try_again", "queue_state": state}, 408)
        return await self._forward(request, body)

    def _refusal(self, request: Request, path: str, name: str) -> Response | None:
        if self.expires_after is not None:
            expiring, number = self.expires_after
            if name == expiring and self.requests[name] > number:
                self.keys = {RENEWED}
        given = request.headers.get("x-api-key", "")
        is_token = given.startswith("eyJ")
        if (_subject(given) if is_token else given) not in self.keys:
            error = {"www-authenticate": 'Bearer error="invalid_token"'} if is_token else {}
            return JSONResponse({"detail": "Invalid API key"}, 401, error)
        for fault in self.faults:
            number = self.requests[name] if fault.path else self.requests.total()
            if name.endswith(fault.path) and fault.first <= number <= fault.last:
                return fault.response()
        return None

    def _queued(self, request_id: str) -> bool:
        is_queued = self._polls[request_id] < self.queue
        self._polls[request_id] += is_queued
        return is_queued

    async def _forward(self, request: Request, body: bytes) -> Response:
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=None, trust_env=False)
        headers = {name: value for name, value in request.headers.items() if name not in _HOP}
        url = f"{self._upstream}{request.url.path}"
        answer = await self._client.request(
            request.method,
            url,
            params=request.query_params,
            content=body,
            headers={**headers, "x-api-key": self._key},
        )
        kept = {
            name: value
            for name, value in answer.headers.items()
            if name not in (*_HOP, "content-encoding", "date", "server")
        }
        return Response(answer.content, answer.status_code, kept)


def _token(key: str) -> str:
    now = time.time()
    parts: tuple[dict[str, Any], ...] = ({"alg": "none"}, {"sub": key, "iat": now, "exp": now + 3600}, {})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts)


def _subject(token: str) -> str:
    return json.loads(base64.urlsafe_b64decode(token.split(".")[1]))["sub"]


@contextmanager
def hosted(service: LocalService) -> Generator[Hosted]:
    """Serve a stand-in for a hosted service in front of `service` for the time of the block."""
    proxy = Hosted(service)
    methods = ["GET", "POST", "DELETE", "PUT"]
    with served(Starlette(routes=[Route("/{path:path}", proxy.answer, methods=methods)])) as proxy.base_url:
        yield proxy
