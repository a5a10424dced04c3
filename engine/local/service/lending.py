"""Loans of the service to one command after the other, through a Unix socket that only its user can open.

A loan lasts as long as the command's connection. The command sends one line of JSON, and gets one:
`{"process": PID, "state_dir": FOLDER or null}` is answered with the fields of a LocalService, with
`{"error": TEXT}`, or with `{"busy": true}` while another command has the loan. `{"stop": true}` is answered
with `{"busy": true}` or with the end of the service.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rolegraph.engine.errors import UsageError
from rolegraph.engine.local.launcher import LocalService
from rolegraph.engine.local.service.server import Service
from rolegraph.engine.local.service.serving import open_state_dir
from rolegraph.engine.local.service.sessions import is_running

_CHECK_SECONDS = 1.0


class Lender:
    """Loans of one service, which calls `stop` when nobody has borrowed it for `seconds`."""

    def __init__(
        self, service: Service, address: LocalService, seconds: float, stop: Callable[[], None]
    ) -> None:
        self._service, self._address, self._seconds, self._stop = service, address, seconds, stop
        self._lent = False
        self._end: asyncio.TimerHandle | None = None

    async def listen(self, path: str) -> None:
        """Offer the service at a socket; call from the service's event loop."""
        await asyncio.start_unix_server(self._answer, path)
        self._wait_for_command()

    def _wait_for_command(self) -> None:
        self._end = asyncio.get_running_loop().call_later(self._seconds, self._stop)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError):  # the command has ended, or is none of ours
            request: dict[str, Any] = json.loads(await reader.readline())
            if self._lent:
                await _send(writer, {"busy": True})
            elif request.get("stop"):
                self._lent = True
                self._stop()
                return  # the connection closes with the process
            else:
                await self._lend(request, reader, writer)
        writer.close()

    async def _lend(
        self, request: Mapping[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._end is not None:
            self._end.cancel()
        self._lent = True
        state_dir, process = request["state_dir"], int(request["process"])
        try:
            with open_state_dir(Path(state_dir) if state_dir else None) as folder:
                try:
                    await self._service.backend.keep_checkpoints_in(Path(folder))
                    await _send(writer, asdict(self._address))
                    await _until_over(reader, process)
                finally:
                    for session in self._service.sessions.open():
                        await self._service.sessions.finish(session)
        except UsageError as error:
            await _send(writer, {"error": str(error)})
        finally:
            self._lent = False
            self._wait_for_command()


async def _send(writer: asyncio.StreamWriter, answer: Mapping[str, Any]) -> None:
    writer.write(json.dumps(answer).encode() + b"\n")
    await writer.drain()


async def _until_over(reader: asyncio.StreamReader, process: int) -> None:
    """Wait until a command has closed its connection, or its process has ended.

    A process that the command forked may hold a copy of the connection.
    """
    while is_running(process):
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1), _CHECK_SECONDS)
            return
