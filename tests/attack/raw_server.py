"""Server that writes its responses byte by byte, as no library does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Serve healthy checks, and one answer to all else; yield the URL."""
    ready, ports, loops = (
        threading.Event(),
        list[int](),
        list[tuple[asyncio.AbstractEventLoop, asyncio.Event]](),
    )

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # the client has gone
            head = await reader.readuntil(b"\r\n\r\n")
            if b"healthz" in head.split()[1]:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            else:
                await answer(writer)
            await writer.drain()
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


def dripping(start: bytes) -> Answer:
    """Return an answer that begins with bytes and goes on with one at a time."""

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.05)

    return drip
