"""The server of the viewer, the local service and agents' endpoints, with clients that send without end."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from rolegraph.engine.limits import Limit
from rolegraph.engine.records import Message
from rolegraph.engine.vocabulary import AgentAnswer, Function
from rolegraph.integrations.agent.endpoint import AgentEndpoint
from rolegraph.serving import server as http_server
from tests.cli.conftest import ENVIRONMENT
from tests.pages.view.runs import write_run

HOST = b"HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKED = b"POST / " + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
SENT = 64
"""Megabytes that a client tries to send; the buffers of a socket take a few of them."""


@asynccontextmanager
async def viewer(folder: Path) -> AsyncGenerator[int]:
    """Start `rolegraph view` and yield its port."""
    words = ("-m", "rolegraph", "view", str(folder / "run"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=subprocess.PIPE, env=ENVIRONMENT, cwd=folder
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        yield int(line.partition("127.0.0.1:")[2].partition("/")[0])
    finally:
        process.kill()
        await process.communicate()


@asynccontextmanager
async def endpoint(_: Path) -> AsyncGenerator[int]:
    """Open the endpoint of an agent program and yield its port."""

    async def ask(messages: Sequence[Message], functions: Sequence[Function]) -> AgentAnswer:
        raise AssertionError("no request is complete")

    async with AgentEndpoint(ask) as opened:
        yield int(opened.url.rpartition(":")[2].partition("/")[0])


def sent_before_close(port: int, begun: bytes, more: bytes) -> int:
    """Send `begun`, then `more` again and again; return the megabytes sent until the connection is closed."""
    part, sent = more * (2**20 // len(more)), 0
    with closing(socket.create_connection(("127.0.0.1", port))) as raw, suppress(OSError):
        raw.sendall(begun)
        while sent < SENT:
            raw.sendall(part)
            sent += 1
    return sent


@pytest.mark.parametrize("server", [viewer, endpoint])
def test_headers_without_end_close_the_connection(
    server: Callable[[Path], AbstractAsyncContextManager[int]], tmp_path: Path
) -> None:
    kinds = [
        (b"GET /", b"x"),
        (b"GET / " + HOST, b"X-A: " + b"a" * 65_000 + b"\r\n"),
        (b"GET / " + HOST + b"X: ", b"x"),
        (CHUNKED + b"1;", b"x"),
        (CHUNKED + b"1\r\nx\r\n0\r\n", b"X: yyyyyyyyyyy\r\n"),
    ]

    write_run(tmp_path / "run", tasks=1)

    async def flood() -> list[int]:
        async with server(tmp_path) as port:
            return [await asyncio.to_thread(sent_before_close, port, *kind) for kind in kinds]

    assert max(asyncio.run(flood())) < SENT


def test_a_connection_without_headers_is_closed_and_one_with_a_request_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "HEADER_SECONDS", Limit("service_header_seconds", 1, "seconds"))
    released = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await released.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def talk() -> None:
        with http_server.listen("127.0.0.1", 0) as listener:
            server = http_server.bounded_server(app, takes_signals=False)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            port = listener.getsockname()[1]
            good_reader, good = await asyncio.open_connection("127.0.0.1", port)
            good.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for begun in (b"", b"GET / HTTP/1.1\r\nHost: loc"):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(begun)
                assert await reader.read() == b""  # ends only when the service closes the connection
                writer.close()
                await writer.wait_closed()
            released.set()
            assert (await good_reader.read(12)) == b"HTTP/1.1 204"
            good.write(b"GET / HTTP/1.1\r\n")  # a second request, whose headers never end
            rest = await good_reader.read()
            assert b"HTTP/1.1 2" not in rest
            good.close()
            await good.wait_closed()
            server.should_exit = True
            await serving

    asyncio.run(talk())
