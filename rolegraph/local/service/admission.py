"""Checks of every request before its body is read: host, origin and key.

A web page can make the browser of its visitor call a service on this machine. The page cannot choose the Host
header that the browser sends, cannot leave out Origin, and does not know the key.
"""

from __future__ import annotations

import hmac
import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from rolegraph.local.service.endpoints import error_response
from rolegraph.local.service.errors import RequestError

HEALTH = "/api/v1/healthz"
SIGNED = "/api/v1/files/"
"""Prefix of URLs that carry a signature in place of the key."""
OPENAI = "/v1/"
"""Prefix of URLs that accept any key where the service was started with `any_key`."""


class Admission:
    """ASGI middleware that refuses requests for another host, from another site's page, or without the key.

    The health check needs no key, a signed URL only its signature; with `any_key`, OpenAI's API accepts any
    key. `host` is the address that the service listens at.
    """

    def __init__(self, app: ASGIApp, api_key: str, host: str, any_key: bool = False) -> None:
        self._app, self._key = app, api_key.encode()
        self._keyless = (SIGNED, OPENAI) if any_key else (SIGNED,)
        self._names = {"localhost", host.lower(), socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refused request with an error, or pass an accepted one on to the application."""
        if scope["type"] == "http":
            try:
                self._check(scope["path"], Headers(scope=scope))
            except RequestError as error:
                await error_response(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, path: str, headers: Headers) -> None:
        """Raise RequestError if a request is refused."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_own(hosts[0]):
            message = "call this service by an address, as localhost, or by this machine's name"
            raise RequestError(message, status=403)
        origin_host = headers.get("origin", f"://{hosts[0]}").partition("://")[2]
        if origin_host != hosts[0] or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise RequestError("this service answers no page of another site", status=403)
        needs_no_key = path == HEALTH or path.startswith(self._keyless)
        key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if not needs_no_key and not hmac.compare_digest(key.encode("latin-1"), self._key):
            message = "this service needs its key, in the header X-API-Key or as a bearer's"
            raise RequestError(message, status=401)

    def _is_own(self, host: str) -> bool:
        """Return True if `host` is an IP address or a name of this service.

        Other names may come from a foreign DNS record that points to this machine.
        """
        try:
            host_name = urlsplit(f"//{host}").hostname or ""
            return host_name in self._names or bool(ip_address(host_name))
        except ValueError:
            return False
