"""`rolegraph doctor` against services that drip, redirect or answer with anything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.cli.conftest import Command

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
KEY = "tml-of-this-test-4711"


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Serve healthy checks, and one answer to all else; yield the URL."""
    ready, ports, loops = (
        threading.Event(),
        list[int](),
        list[tuple[asyncio.AbstractEventLoop, asyncio.Event]](),
    )

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"healthz" in head.split()[1]:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            else:
                await answer(writer)
            await writer.drain()
        except OSError:
            pass  # the client has gone
        finally:
            writer.close()

    async def main() -> None:
        over = asyncio.Event()
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        loops.append((asyncio.get_running_loop(), over))
        ready.set()
        await over.wait()

    thread = threading.Thread(target=asyncio.run, args=[main()], daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        loop, over = loops[0]
        loop.call_soon_threadsafe(over.set)
        thread.join()


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


async def elsewhere(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n"
    )


@pytest.mark.parametrize("answer", [drip, elsewhere])
def test_a_service_that_never_opens_a_session_has_a_deadline(
    answer: Answer, rolegraph: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tinker")
    monkeypatch.setattr("rolegraph.engine.models.tinker._OPEN_SECONDS", 2.0)
    with serving(answer) as url:
        ended = rolegraph("doctor", "--base-url", url, TINKER_API_KEY=KEY)
    assert ended.returncode == 1
    assert url in ended.stderr
    assert "Traceback" not in ended.stderr and KEY not in ended.stderr
