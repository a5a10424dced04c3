"""Hostile MCP server without the protocol's SDK: `python -m tests.attack.mcp_server LISTING` prints its port.

The tools are named by the keys of `ANSWERS` and by `ENDING`. With LISTING `endless` the server
lists new tools on every page, with `stuck` the same page again and again, and with `wordy` a page of 1 MB.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def nested(levels: int) -> Any:
    made: Any = "end"
    for _ in range(levels):
        made = {"a": made}
    return made


BLOB = {"type": "resource", "resource": {"uri": "file:///etc/passwd", "blob": "AAAA"}}
ANSWERS: Mapping[str, dict[str, Any]] = {
    "honest": {"content": [text("42")]},
    "huge": {"content": [text("a" * 1_000_001)]},
    "many": {"content": [text("a")] * 20_000},
    "escapes": {"content": [text("\0 \x1b[31m \u202e <script>")]},
    "image": {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]},
    "audio": {"content": [{"type": "audio", "data": "AAAA", "mimeType": "audio/x"}]},
    "blob": {"content": [BLOB]},
    "nothing": {"content": []},
    "error": {"content": [text("\x1b[31mno")], "isError": True},
    "silent_error": {"content": [], "isError": True},
    "hologram": {"content": [{"type": "hologram", "text": "x"}]},
    "number": {"content": 7},
    "deep": {"content": [], "structuredContent": nested(80)},
    "structured": {"content": [], "structuredContent": {"a": [1, None]}},
    "large": {"content": [text("a" * 4_000_000)]},
    "pattern": {"content": [], "structuredContent": {"a": "a" * 40 + "!"}},
}
ENDING = ("dies", "never")
CATASTROPHIC = {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}


def page(listing: str, cursor: str | None) -> dict[str, Any]:
    """Return the result of `tools/list`."""
    names, described, following = [*ANSWERS, *ENDING, "honest", "\x1b[31m\0"], "\x1b[31m", None
    if listing in ("endless", "stuck"):
        number = int(cursor or 0)
        names = [f"tool_{number * 100 + n}" for n in range(100)]
        following = str(number + 1) if listing == "endless" else "0"
    if listing == "wordy":
        names, described, following = ["honest"], "a" * 1_000_000, "0"
    listed: list[dict[str, Any]] = []
    for name in names:
        tool = {"name": name, "description": described, "inputSchema": {"type": "object"}}
        listed.append(tool | ({"outputSchema": CATASTROPHIC} if name == "pattern" else {}))
    return {"tools": listed} | ({"nextCursor": following} if following else {})


def application(listing: str) -> Starlette:
    """Make the server: as much of the protocol as a client needs."""

    async def answer(request: Request) -> Response:
        if request.method != "POST":
            return Response(status_code=405)
        message: dict[str, Any] = await request.json()
        if "id" not in message:
            return Response(status_code=202)
        asked: dict[str, Any] = message.get("params") or {}
        match message["method"], asked.get("name"):
            case "initialize", _:
                information = {"name": "hostile", "version": "1"}
                capabilities: dict[str, Any] = {"tools": {}}
                result: Any = {
                    "protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": information
                }  # fmt: skip
            case "tools/list", _:
                result = page(listing, asked.get("cursor"))
            case _, "dies":
                os._exit(3)
            case _, "never":
                await asyncio.Event().wait()
                raise AssertionError
            case _, name:
                result = ANSWERS[str(name)]
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result})

    return Starlette(routes=[Route("/mcp/", answer, methods=["GET", "POST", "DELETE"])])


async def main(listing: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    await uvicorn.Server(uvicorn.Config(application(listing), log_level="critical")).serve([listener])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
