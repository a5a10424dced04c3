"""Processes that run rewards and tools with a time limit, and are killed when the time is up.

A thread cannot be stopped; a process can. Workers start at the first call, see no secrets of the environment
and never search the current folder or the script's for modules. An exception, an odd result or the death of a
worker fails its own call only. `serve` is the worker's side.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

from rolegraph.engine.vocabulary import Import
from rolegraph.engine.vocabulary.children import child_environment
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS, describe_error

T = TypeVar("T")

WORKERS = max(2, (os.cpu_count() or 2) // 2)
START_SECONDS = 60.0
"""Seconds that a worker may take to start and to load the function, before the call's own limit begins."""

# -P: Python would put the current folder first, where a random.py would replace the standard library's.
_COMMAND = (sys.executable, "-P", "-c", "from rolegraph.engine.run.isolation import serve; serve()")

_dumps = cast("Callable[[object], bytes]", cloudpickle.dumps)  # pyright: ignore[reportUnknownMemberType]


class CallTimeout(Exception):
    """A call that exceeded its time limit."""


class Isolation:
    """A pool of at most `WORKERS` processes, in which rewards that may hang run under a time limit.

    The processes import `imports`. Use the pool as an async context manager.

    Event loops of several threads may share one.
    """

    def __init__(self, imports: Sequence[Import] = ()) -> None:
        # Functions of the main module are sent by value: importing a script again would run it again.
        self._imports = tuple(wanted for wanted in imports if wanted.module != "__main__")
        self._environment = child_environment(own_code=bool(imports))
        # Each thread waits for one worker. PR_SET_PDEATHSIG counts the thread that started a worker as its
        # parent, so these threads live as long as the pool.
        self._threads = ThreadPoolExecutor(WORKERS, "isolation")
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._busy: dict[_Call, _Worker] = {}
        self._closed = False

    async def run(self, function: Callable[..., T], *arguments: Any, limit: float) -> T:
        """Call a function in a worker and return its result.

        Args:
            function: What to call. It and the arguments are pickled; those of the main module by value.
            *arguments: The function's positional arguments.
            limit: Seconds that the call may take once a worker has loaded the function.

        Raises:
            CallTimeout: The call took longer; its worker was killed.
            RuntimeError: The worker died, the pool is closed, or the exception cannot be pickled.
            Exception: Any exception of the function itself.
        """
        call = _Call(_dumps((function, arguments)), limit)
        try:
            answer = await asyncio.wrap_future(self._threads.submit(self._answer, call))
        except asyncio.CancelledError:
            self._cancel(call)
            raise
        result, error = cast("tuple[T, Exception | None]", pickle.loads(answer))
        if error is not None:
            raise error
        return result

    def _answer(self, call: _Call) -> bytes:
        """Send the call to a worker and return the pickled pair of result and exception. Blocks."""
        worker = self._take(call)
        answered = False
        try:
            answer = worker.answer(call)
            answered = True
            return answer
        finally:
            with self._lock:
                del self._busy[call]
                if answered and not self._closed and not call.cancelled:
                    self._idle.append(worker)
                else:
                    worker.kill()

    def _take(self, call: _Call) -> _Worker:
        with self._lock:
            if self._closed or call.cancelled:
                raise RuntimeError("the isolation pool is closed")
            idle = [worker for worker in self._idle if worker.is_alive]
            worker = idle.pop() if idle else _Worker(self._imports, self._environment)
            self._idle = idle
            self._busy[call] = worker
        return worker

    def _cancel(self, call: _Call) -> None:
        with self._lock:
            call.cancelled = True
            if call in self._busy:
                self._busy[call].kill()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            workers = (*self._idle, *self._busy.values())
            for worker in workers:
                worker.kill()
        if workers:  # most runs need none, and end without waiting for a thread
            await asyncio.to_thread(self._threads.shutdown)


class _Call:
    """A pickled call: so that a worker survives the failure to load it."""

    def __init__(self, pickled: bytes, limit: float) -> None:
        self.pickled, self.limit = pickled, limit
        self.cancelled = False


class _Worker:
    """The parent's side of one worker process."""

    def __init__(self, imports: Sequence[Import], environment: Mapping[str, str]) -> None:
        self._connection, there = Pipe()
        with there:
            self._process = subprocess.Popen(
                [*_COMMAND, str(there.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[there.fileno()],
                start_new_session=True,  # Ctrl-C reaches the parent alone; `kill` reaches children as well
            )
        self._connection.send_bytes(pickle.dumps(imports))

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def answer(self, call: _Call) -> bytes:
        """Wait for the worker to load the call, then for its answer; raises CallTimeout or RuntimeError."""
        answer = b""
        try:
            self._connection.send_bytes(call.pickled)
            for seconds in (START_SECONDS, call.limit):
                if not self._connection.poll(seconds):
                    raise CallTimeout(f"{call.limit:g} s")
                answer = self._connection.recv_bytes()
        except (EOFError, OSError):
            code = self._process.wait()
            raise RuntimeError(f"the process that ran it died with exit code {code}") from None
        return answer

    def kill(self) -> None:
        """Kill the process and what it has started, and wait for it to end."""
        with suppress(ProcessLookupError):
            if self.is_alive:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def serve() -> None:
    """Answer calls in a worker until the parent is gone: the command line has the pipe and the parent."""
    descriptor, parent = map(int, sys.argv[1:])
    os.set_inheritable(descriptor, False)
    if sys.platform == "linux":
        # PR_SET_PDEATHSIG: also ends a call in C code, which notices no closed pipe.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    with suppress(EOFError, OSError):
        connection = Connection(descriptor)
        imports: Sequence[Import] = pickle.loads(connection.recv_bytes())
        sys.path += [root for wanted in imports if (root := _package_root(wanted)) not in (None, *sys.path)]
        while True:
            connection.send_bytes(_perform(connection, imports))


def _perform(connection: Connection, imports: Sequence[Import]) -> bytes:
    """Load a call, say so with an empty message, and make it; return the pickled result and exception."""
    pickled, loaded = connection.recv_bytes(), False
    try:
        for wanted in imports:
            wanted.ensure()
        function, arguments = pickle.loads(pickled)
        connection.send_bytes(b"")
        loaded = True
        return pickle.dumps((function(*arguments), None))
    except FOREIGN_ERRORS as error:
        if not loaded:
            connection.send_bytes(b"")
        return pickle.dumps((None, _portable(error)))


def _package_root(wanted: Import) -> str | None:
    """Return the folder that must be on the module path to import `wanted`; None if it is no part of a
    package."""
    if wanted.file is None or "." not in wanted.module:
        return None
    file = Path(wanted.file)
    depth = wanted.module.count(".") + (file.stem == "__init__")
    return str(file.parents[depth])


def _portable(error: BaseException) -> Exception:
    """Return the exception, or a RuntimeError with its words where it would not survive pickling."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = None
    if isinstance(error, Exception) and type(copy) is type(error) and str(copy) == str(error):
        return error
    return RuntimeError(describe_error(error))
