"""Tests that each answer of a hostile MCP server becomes the result of the call or a named tool error."""

from __future__ import annotations

import asyncio
import gzip
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rolegraph.engine.limits import Limit
from rolegraph.engine.limits.tools import MCP_BYTES, TOOL_FUNCTIONS
from rolegraph.engine.run.tools import CallResult, OpenTools, call_all
from rolegraph.engine.vocabulary import ItemCall, ToolCall, ToolError, tools
from tests.models.edges import served

pytest.importorskip("mcp", reason="needs the extra `mcp`")
ROOT = Path(__file__).parents[2]
COMES = {
    "honest": "42",
    "huge": "Error: huge gave more than 400,000 characters (limit: tool_text)",
    "many": "a\na\na",
    "escapes": "\0 \x1b[31m \u202e <script>",
    "image": "[image]",
    "audio": "[audio]",
    "blob": "[file:///etc/passwd]",
    "nothing": "",
    "error": "Error: \x1b[31mno",
    "silent_error": "Error: silent_error failed",
    "hologram": "Error: hologram gave what is no result of the protocol",
    "number": "Error: number gave what is no result of the protocol",
    "deep": "Error: deep gave neither text nor a JSON value: it is nested too deeply",
    "structured": '{"a": [1, null]}',
    "large": "Error: rejected response: the response has more than 4,000,000 bytes (limit: mcp_bytes)",
    "pattern": '{"a": "aaaa',
}


@contextmanager
def hostile(listing: str) -> Iterator[str]:
    """Start a hostile server in a child process and yield its URL."""
    command = [sys.executable, "-m", "tests.attack.mcp_server", listing]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp/"
        finally:
            process.kill()


async def ask(url: str, *names: str, seconds: float = 60.0) -> list[CallResult]:
    """Call tools of a server one after the other in one turn and return the results."""
    opened = OpenTools("x")
    try:
        tool = tools.build(ItemCall.parse({"mcp": url, "timeout": seconds}))
        functions = await opened.named_functions([tool])
        return [(await call_all(functions, [ToolCall(name, {})], None))[0] for name in names]
    finally:
        await opened.close()


def test_whatever_a_server_answers_is_the_call_s_result_or_its_error() -> None:
    with hostile("plain") as url:
        came = asyncio.run(ask(url, *COMES, "honest_2", "\x1b[31m\0"))
        said = [result.message["content"] for result in came]
        for (name, start), text in zip(COMES.items(), said, strict=False):
            assert text.startswith(start), name
            assert "\n" not in text or name == "many", name
        assert said[-2] == "42", "a second function of one name has one of its own"
        assert said[-1].startswith("Error: ")
        (never, after) = asyncio.run(ask(url, "never", "honest", seconds=1.0))
        assert never.message["content"].startswith("Error: ")
        assert "timed out" in never.message["content"].lower()
        assert after.message["content"] == "42"
        (dead, *_) = asyncio.run(ask(url, "dies", seconds=1.0))
        assert dead.message["content"].startswith("Error: ")


@pytest.mark.parametrize(
    ("listing", "limit"), [("endless", TOOL_FUNCTIONS), ("stuck", TOOL_FUNCTIONS), ("wordy", MCP_BYTES)]
)
def test_a_server_that_lists_tools_for_ever_is_a_tool_error(listing: str, limit: Limit) -> None:
    with hostile(listing) as url, pytest.raises(ToolError, match=rf"{url} .*limit: {limit.name}"):
        asyncio.run(ask(url, "honest"))


async def endless(beginning: bytes, part: bytes) -> AsyncGenerator[bytes, None]:
    yield beginning
    while True:
        yield part
        await asyncio.sleep(0)


NOTE = b'data: {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}'
UNBOUNDED: Mapping[str, tuple[Callable[[], Response], str]] = {
    "packed": (
        lambda: Response(gzip.compress(b"{}"), 200, {"content-encoding": "gzip"}, "application/json"),
        "Content-Encoding is 'gzip', although 'identity' was requested",
    ),
    "packed_events": (
        lambda: Response(gzip.compress(b"{}"), 200, {"content-encoding": "gzip, gzip"}, "text/event-stream"),
        "Content-Encoding is 'gzip, gzip', although 'identity' was requested",
    ),
    "endless": (
        lambda: StreamingResponse(endless(b'{"a": "', b"a" * 60_000), media_type="application/json"),
        "limit: mcp_bytes",
    ),
    "lists": (
        lambda: StreamingResponse(endless(b'{"a": ', b"[" * 60_000), media_type="application/json"),
        "limit: completion_parts",
    ),
    "line": (
        lambda: StreamingResponse(endless(b"data: ", b"a" * 60_000), media_type="text/event-stream"),
        "limit: mcp_bytes",
    ),
    "lines": (
        lambda: StreamingResponse(endless(b"", b"data:\n" * 10_000), media_type="text/event-stream"),
        "limit: mcp_bytes",
    ),
    "refused": (lambda: Response("busy", 503), "HTTP status 503"),
    "notes": (
        lambda: StreamingResponse(endless(b"", (NOTE + b"\n\n") * 100), media_type="text/event-stream"),
        "limit: mcp_bytes",
    ),
}
"""Responses to calls of tools without a bound, each with a part of the error."""


async def unbounded(request: Request) -> Response:
    """Speak as much of the protocol as a client needs, and answer calls as `UNBOUNDED` says."""
    if request.method != "POST":
        return Response(status_code=405)
    message = await request.json()
    if "id" not in message:
        return Response(status_code=202)
    match message["method"], message.get("params", {}).get("name"):
        case "initialize", _:
            information = {"name": "unbounded", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": information}
        case "tools/list", _:
            listed = [{"name": name, "inputSchema": {"type": "object"}} for name in (*UNBOUNDED, "honest")]
            result = {"tools": listed}
        case _, "honest":
            result = {"content": [{"type": "text", "text": "42"}]}
        case _, name:
            return UNBOUNDED[name][0]()
    return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result})


@pytest.mark.parametrize("name", UNBOUNDED)
def test_a_response_without_a_bound_is_an_error_of_its_own_call_alone(name: str) -> None:
    methods = ["GET", "POST", "DELETE"]
    with served(Starlette(routes=[Route("/mcp", unbounded, methods=methods)])) as url:
        first, second = asyncio.run(ask(f"{url}/mcp", name, "honest"))
    error = first.message["content"]
    assert error.startswith("Error: ")
    if error != "Error: SSE stream ended without a response":  # a limit of 1 MB in mcp 2.0
        assert error.startswith("Error: rejected response: ")
        assert UNBOUNDED[name][1] in error
    assert second.message["content"] == "42"
