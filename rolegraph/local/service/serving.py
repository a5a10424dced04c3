"""Serving of a local model folder in this process, for `rolegraph serve` and the launcher's child.

A child that stays is lent to one command after the other, through a Unix socket that only its user can open.
A loan lasts as long as the command's connection. The command sends one line of JSON, and gets one:
`{"process": PID, "state_dir": FOLDER or null}` is answered with the fields of a LocalService, with
`{"error": TEXT}`, or with `{"busy": true}` while another command has the loan. `{"stop": true}` is answered
with `{"busy": true}` or with the end of the service.

torch is imported when the model is loaded, not with this module.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolegraph.engine.errors import UsageError, WorldError, os_errors_as
from rolegraph.engine.records.confined import below, check
from rolegraph.local.launcher import LocalService, ServiceOptions, check_model_folder, model_name
from rolegraph.local.service.sessions import is_running
from rolegraph.serving.server import bounded_server, listen

if TYPE_CHECKING:
    from rolegraph.local.service.server import Service

_BORROWER_CHECK_SECONDS = 1.0


def serve(options: ServiceOptions, api_key: str | None = None) -> None:
    """Serve a model at the Tinker API and at OpenAI's (/v1) until interrupted.

    Args:
        options: Options of the service.
        api_key: Key that clients must send; None draws one, which is printed.

    Raises:
        UsageError: The folder holds no model, no header can carry the key, the state folder cannot be
            created, or `any_key` is set and other machines can connect.
        WorldError: The address is not free.
    """
    if options.any_key and not _is_loopback(options.host):
        raise UsageError(
            f"--any-key takes requests of this machine alone: --host {options.host} is no loopback address"
        )
    folder = Path(options.model_dir)
    check_model_folder(folder)
    from rolegraph.engine.models.keys import header_value  # not for the child process, which starts faster

    given_key = header_value("ROLEGRAPH_SERVE_KEY", api_key or "")
    # Exits through the `finally` clauses, so that a temporary folder is deleted.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    name, key = model_name(folder, options.name), given_key or f"tml-{secrets.token_hex(16)}"

    def ready(port: int, folder: str) -> list[str]:
        message = f"serving {name} at http://{options.host}:{port} (Ctrl-C stops it); checkpoints in {folder}"
        hint = f"its key is {key}: put it in TINKER_API_KEY, or in OPENAI_API_KEY for /v1"
        any_key_warning = ["/v1 takes any key, so every user of this machine can sample from the model"]
        return [message, *([] if given_key else [hint]), *(any_key_warning if options.any_key else [])]

    launch(options, key, ready)


def _is_loopback(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def open_state_dir(folder: Path | None) -> AbstractContextManager[str]:
    """Create the folder of the checkpoints; None creates a temporary folder, deleted at the end of the
    block."""
    if folder is None:
        return tempfile.TemporaryDirectory(prefix="rolegraph-", ignore_cleanup_errors=True)
    with os_errors_as(UsageError, f"cannot keep checkpoints in {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        check(below(folder))
    return nullcontext(str(folder))


def launch(
    options: ServiceOptions,
    api_key: str,
    ready: Callable[[int, str], Sequence[str]],
    as_child: Callable[[Callable[[], None]], None] | None = None,
) -> None:
    """Load a model, print the lines of `ready`, and serve the model until stopped.

    Args:
        options: The model's folder, the address, and the options of the service.
        api_key: The key that clients must send.
        ready: Function that returns the lines, from the port and the folder of the checkpoints.
        as_child: Function for a child process, which leaves SIGINT and SIGTERM as they are; called before the
            model is loaded, with a function that deletes a temporary folder and unnamed checkpoints.

    Raises:
        UsageError: The model cannot be loaded, or the folder of the checkpoints cannot be created.
        WorldError: The address is not free.
    """
    with ExitStack() as temporary_folders, ExitStack() as stack:
        state_dir = Path(options.state_dir) if options.state_dir else None
        folder = temporary_folders.enter_context(open_state_dir(state_dir))
        if as_child is not None:
            as_child(temporary_folders.close)
        listener = stack.enter_context(listen(options.host, options.port))

        from rolegraph.local.service.backend import Backend
        from rolegraph.local.service.checkpoints import CheckpointStore
        from rolegraph.local.service.decoder import check_decoding
        from rolegraph.local.service.local_model import LocalModel
        from rolegraph.local.service.memory import account, placement
        from rolegraph.local.service.server import Service

        model_dir, port = Path(options.model_dir), listener.getsockname()[1]
        has_gpu = placement(bf16=options.bf16)[0].type == "cuda"
        if has_gpu or as_child is None:  # the start of a child on a CPU is not to wait for it
            memory = account(model_dir, bf16=options.bf16)
            if has_gpu:
                memory.check()
            sys.stderr.write("\n".join([*memory.lines(), ""]))
        model, name = (
            LocalModel(model_dir, options.threads, options.bf16),
            model_name(model_dir, options.name),
        )
        check_decoding(model)
        resolved_folder = str(model_dir.resolve())
        checkpoints = CheckpointStore(Path(folder), name, model_dir)
        backend = Backend(model, checkpoints, name, {str(model_dir), resolved_folder})
        stack.callback(backend.close)
        temporary_folders.callback(backend.forget_all)
        temporary_folders.callback(checkpoints.finish_writing)
        service = Service(backend, tokenizer=resolved_folder, silent=options.silent)
        app = service.app(api_key, options.host, any_key=options.any_key)
        server = bounded_server(app, takes_signals=as_child is None)

        def stop() -> None:
            server.should_exit = True

        async def serve_until_stopped() -> None:
            if options.lent_at is not None:
                stack.callback(Path(options.lent_at).unlink, missing_ok=True)
                address = LocalService(f"http://{options.host}:{port}", name, api_key, os.getpid())
                await Lender(service, address, options.idle_seconds, stop).listen(options.lent_at)
            sys.stdout.write("\n".join([*ready(port, folder), ""]))
            sys.stdout.flush()
            if options.lent_at is not None:
                _leave_terminal()
            watch = asyncio.create_task(service.sessions.watch())
            await server.serve(sockets=[listener])
            watch.cancel()

        asyncio.run(serve_until_stopped())


def _leave_terminal() -> None:
    """Detach this process from its command: working folder `/`, standard output and error to the null
    device."""
    os.chdir("/")
    with Path(os.devnull).open("w") as null_device:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(null_device.fileno(), stream.fileno())


class Lender:
    """Leases of one service to commands; calls `stop` after `seconds` without a lease."""

    def __init__(
        self, service: Service, address: LocalService, seconds: float, stop: Callable[[], None]
    ) -> None:
        self._service, self._address, self._seconds, self._stop = service, address, seconds, stop
        self._end: asyncio.TimerHandle | None = None
        """Timer that ends the service; None while the service is lent."""
        self._settled = asyncio.Event()
        """Event that is cleared when a command's loan ends, and set once that command's sessions have
        ended."""
        self._settled.set()

    async def listen(self, path: str) -> None:
        """Listen for commands at a Unix socket and lend them the service; call from the service's event
        loop."""
        await asyncio.start_unix_server(self._answer, path)
        self._wait_for_command()

    def _wait_for_command(self) -> None:
        self._end = asyncio.get_running_loop().call_later(self._seconds, self._stop)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError):  # the command has ended, or the peer is another program
            request: dict[str, Any] = json.loads(await reader.readline())
            await self._settled.wait()
            if self._end is None:
                await _send(writer, {"busy": True})
            else:
                self._end.cancel()
                self._end = None
                if request.get("stop"):
                    self._stop()
                    return  # the connection closes with the process
                await self._lend(request, reader, writer)
        writer.close()

    async def _lend(
        self, request: Mapping[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            state_dir, process = request["state_dir"], int(request["process"])
            with open_state_dir(Path(state_dir) if state_dir else None) as folder:
                try:
                    backend = self._service.backend
                    await backend.compute(partial(backend.checkpoints.move_to, Path(folder)))
                    await _send(writer, asdict(self._address))
                    await _until_over(reader, process)
                finally:
                    self._settled.clear()
                    for session in self._service.sessions.open():
                        await self._service.sessions.finish(session)
        except (UsageError, WorldError) as error:
            await _send(writer, {"error": str(error)})
        finally:
            self._wait_for_command()
            self._settled.set()


async def _send(writer: asyncio.StreamWriter, answer: Mapping[str, Any]) -> None:
    writer.write(json.dumps(answer).encode() + b"\n")
    await writer.drain()


async def _until_over(reader: asyncio.StreamReader, process: int) -> None:
    """Wait until the command that borrowed the service closes its connection or its process ends.

    A process that the command forked may hold a copy of the connection.
    """
    while is_running(process):
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1), _BORROWER_CHECK_SECONDS)
            return
