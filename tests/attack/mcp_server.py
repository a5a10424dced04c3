"""Hostile MCP server on the protocol's SDK: `python -m tests.attack.mcp_server LISTING` prints its port.

The tools are named by the keys of `ANSWERS` and by `ENDING`. With LISTING `endless` the server
lists new tools on every page, with `stuck` the same page again and again, and with `wordy` a page of 1 MB.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import Any

import uvicorn
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.routing import Mount


def text(said: str) -> types.TextContent:
    return types.TextContent(type="text", text=said)


def nested(levels: int) -> Any:
    made: Any = "end"
    for _ in range(levels):
        made = {"a": made}
    return made


BLOB = types.BlobResourceContents(uri="file:///etc/passwd", blob="AAAA")  # pyright: ignore[reportArgumentType]
IMAGE = types.ImageContent(type="image", data="AAAA", mimeType="image/png")
AUDIO = types.AudioContent(type="audio", data="AAAA", mimeType="audio/x")
ANSWERS: dict[str, types.CallToolResult] = {
    "honest": types.CallToolResult(content=[text("42")]),
    "huge": types.CallToolResult(content=[text("a" * 1_000_001)]),
    "many": types.CallToolResult(content=[text("a")] * 20_000),
    "escapes": types.CallToolResult(content=[text("\0 \x1b[31m \u202e <script>")]),
    "image": types.CallToolResult(content=[IMAGE]),
    "audio": types.CallToolResult(content=[AUDIO]),
    "blob": types.CallToolResult(content=[types.EmbeddedResource(type="resource", resource=BLOB)]),
    "nothing": types.CallToolResult(content=[]),
    "error": types.CallToolResult(content=[text("\x1b[31mno")], isError=True),
    "silent_error": types.CallToolResult(content=[], isError=True),
    "hologram": types.CallToolResult.model_construct(
        content=[types.TextContent.model_construct(type="hologram", text="x")], isError=False  # pyright: ignore
    ),
    "number": types.CallToolResult.model_construct(content=7, isError=False),  # pyright: ignore
    "deep": types.CallToolResult(content=[], structuredContent=nested(80)),
    "structured": types.CallToolResult(content=[], structuredContent={"a": [1, None]}),
    "large": types.CallToolResult(content=[text("a" * 4_000_000)]),
    "pattern": types.CallToolResult(content=[], structuredContent={"a": "a" * 40 + "!"}),
}  # fmt: skip
ENDING = ("dies", "never")
CATASTROPHIC = {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}


def server(listing: str) -> Server[Any]:
    made: Server[Any] = Server("hostile")

    async def listed(request: types.ListToolsRequest) -> types.ServerResult:
        names = [*ANSWERS, *ENDING, "honest", "\x1b[31m\0"]
        cursor = None
        if listing in ("endless", "stuck"):
            page = int((request.params and request.params.cursor) or 0)
            names = [f"tool_{page * 100 + n}" for n in range(100)]
            cursor = str(page + 1) if listing == "endless" else "0"
        described = "\x1b[31m"
        if listing == "wordy":
            names, described, cursor = ["honest"], "a" * 1_000_000, "0"
        page_of = [
            types.Tool(
                name=name,
                description=described,
                inputSchema={"type": "object"},
                outputSchema=CATASTROPHIC if name == "pattern" else None,
            )
            for name in names
        ]
        return types.ServerResult(types.ListToolsResult(tools=page_of, nextCursor=cursor))

    async def called(request: types.CallToolRequest) -> types.ServerResult:
        match request.params.name:
            case "dies":
                os._exit(3)
            case "never":
                await asyncio.Event().wait()
            case name:
                return types.ServerResult(ANSWERS[name])
        raise AssertionError

    made.request_handlers[types.ListToolsRequest] = listed
    made.request_handlers[types.CallToolRequest] = called
    return made


async def main(listing: str) -> None:
    manager = StreamableHTTPSessionManager(server(listing))
    app = Starlette(routes=[Mount("/mcp", manager.handle_request)])
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    async with manager.run():
        await uvicorn.Server(uvicorn.Config(app, log_level="critical")).serve([listener])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
