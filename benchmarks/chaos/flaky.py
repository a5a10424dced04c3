"""HTTP servers that fail on purpose: in place of a model, or in front of a service that works.

Each request may meet a fault, drawn from a seeded generator. In half of the cases the request has taken
effect by then, and only its answer is lost. A server can be dead for a while, and come back at its address.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

Answer = Callable[[bytes, bytes], Awaitable[bytes]]
"""A request's head and body to the bytes of its answer, head and all."""

FAULTS = (
    "429 with Retry-After",
    "500",
    "503",
    "half-closed",
    "reset",
    "slow",
    "HTML with 200",
    "half a JSON with 200",
    "empty with 200",
)
GARBAGE = FAULTS[6:]
SLOW_SECONDS = 1.0


def response(status: int, body: bytes, kind: str = "application/json", more: str = "") -> bytes:
    """The bytes of an answer, after which the connection ends."""
    head = (
        f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
    )
    return f"{head}{more}\r\n".encode() + body


class Flaky:
    """A server on a port of this machine, in a thread of its own. `share` of its answers are faults."""

    def __init__(self, answer: Answer, seed: int, share: float, garbage: float = 1.0) -> None:
        self.faults: Counter[str] = Counter()
        self.answered = 0
        self.share = share
        self._answer, self._rng = answer, random.Random(seed)
        self._kinds = [kind for kind in FAULTS if kind not in GARBAGE or self._rng.random() < garbage]
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self.back = threading.Event()
        """Set while the server listens."""
        self.back.set()
        self.port = 0
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._do(self._listen())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, reuse_address=True)
        self.port = self._server.sockets[0].getsockname()[1]

    def die_for(self, seconds: float) -> None:
        """Be dead, with every connection that was open, and come back; returns at once."""
        self.faults["dead"] += 1
        self.back.clear()

        async def die() -> None:
            assert self._server is not None
            self._server.close()
            for writer in [*self._open]:
                writer.transport.abort()
            await asyncio.sleep(seconds)
            await self._listen()
            self.back.set()

        asyncio.run_coroutine_threadsafe(die(), self._loop)

    def close(self) -> None:
        """End it."""

        async def end() -> None:
            if self._server is not None:
                self._server.close()
            for writer in [*self._open]:
                writer.transport.abort()

        self._do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
            body = await reader.readexactly(int(length or 0))
            fault = self._rng.choice(self._kinds) if self._rng.random() < self.share else ""
            if fault:
                self.faults[fault] += 1
            # A slow answer is a right one; the other faults may come before the request takes effect.
            if fault not in ("", "slow") and self._rng.random() < 0.5:
                answer = response(200, b'{"a": "' + b"x" * 99 + b'"}')
            else:
                answer = await self._answer(head, body)
                self.answered += not fault
            await self._send(writer, fault, answer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, fault: str, answer: bytes) -> None:
        match fault:
            case "429 with Retry-After":
                answer = response(429, b'{"error": {"message": "later"}}', more="retry-after: 1\r\n")
            case "500" | "503":
                answer = response(int(fault), b'{"error": {"message": "overloaded"}}')
            case "half-closed":
                answer = answer[: len(answer) // 2]
            case "reset":
                sock: socket.socket = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
                return writer.transport.abort()
            case "slow":
                await asyncio.sleep(SLOW_SECONDS)
            case "HTML with 200":
                answer = response(200, b"<html><body>Bad gateway</body></html>", "text/html")
            case "half a JSON with 200":
                answer = response(200, b'{"id": "1", "choices": [{"ind')
            case "empty with 200":
                answer = response(200, b"")
            case _:
                pass
        writer.write(answer)
        await writer.drain()


async def scripted(head: bytes, body: bytes) -> bytes:
    """A model: the same words to the same prompt and seed, after a moment."""
    if head.startswith(b"GET"):
        return response(
            200, json.dumps({"object": "list", "data": [{"id": "tiny", "object": "model"}]}).encode()
        )
    asked = json.loads(body)
    return await chat(f"<answer>{1 + (asked.get('seed') or 0) % 2}</answer>")


async def chat(text: str) -> bytes:
    """Return a chat completion, after a moment."""
    await asyncio.sleep(0.03)
    said = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "tiny", "choices": [said]}
    return response(200, json.dumps(answer).encode())


def in_front_of(url: str) -> Answer:
    """What a service answers, handed on; a dead one drops the connection."""
    host, _, port = url.removeprefix("http://").partition(":")

    async def forward(head: bytes, body: bytes) -> bytes:
        lines = [
            line for line in head.split(b"\r\n") if not line.lower().startswith((b"connection:", b"host:"))
        ]
        lines[1:1] = [b"connection: close", f"host: {host}:{port}".encode()]
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(b"\r\n".join(lines) + body)
            return await reader.read()
        finally:
            writer.close()

    return forward
