"""Who may come in: what each call has to bring before anything of it is read.

A web page that the person looks at can make its browser call a service of this machine. It cannot set the
Host that the browser sends, nor leave out the Origin, nor know the key.
"""

from __future__ import annotations

import hmac
import socket
from collections.abc import Mapping
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from rolegraph.engine.local.service.calls import Refusal, shape_of

HEALTH = "/api/v1/healthz"
SIGNED = "/api/v1/files/"
"""Below it, a signature in the address stands in for the key."""


class Admission:
    """Refuses calls to another host's name, of another site's page, and without the key.

    The health check needs no key, and an address that is signed none but its signature. `host` is the
    address that is listened at.
    """

    def __init__(self, app: ASGIApp, api_key: str, host: str) -> None:
        self._app, self._key = app, api_key.encode()
        self._names = {"localhost", host.lower(), socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] == "http":
            fault = self._fault(scope["path"], scope["headers"])
            if fault is not None:
                await shape_of(scope["path"])(fault)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _fault(self, path: str, listed: list[tuple[bytes, bytes]]) -> Refusal | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in listed}
        hosts = [value.decode("latin-1") for name, value in listed if name == b"host"]
        if len(hosts) != 1 or not self._is_ours(_name(hosts[0])):
            return Refusal(403, "call this service by an address, as localhost, or by this machine's name")
        if not _same_site(headers, hosts[0]):
            return Refusal(403, "this service answers no page of another site")
        open = path == HEALTH or path.startswith(SIGNED)
        if not open and not hmac.compare_digest(_key(headers).encode("latin-1"), self._key):
            return Refusal(401, "this service needs its key, in the header X-API-Key or as a bearer's")
        return None

    def _is_ours(self, name: str) -> bool:
        """Whether a name is one that nobody else can have made to lead here."""
        try:
            return bool(ip_address(name))
        except ValueError:
            return name in self._names


def _name(host: str) -> str:
    """A Host without its port, and an address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def _same_site(headers: Mapping[str, str], host: str) -> bool:
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        return False
    return headers.get("sec-fetch-site", "none") in ("none", "same-origin")


def _key(headers: Mapping[str, str]) -> str:
    return headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
