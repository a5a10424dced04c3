"""Processes that compute on strangers' values, such as rewards, with limits of time and memory.

A thread cannot be stopped; a process can. Workers start at the first call, see no secrets of the environment
and never search the current folder or the script's for modules. An exception, an odd result or the death of a
worker fails its own call only. `serve` is the worker's side.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from functools import cache, partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, TypeVar, cast

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

from rolegraph.engine.limits.tools import CALL_MEMORY
from rolegraph.engine.vocabulary import Import
from rolegraph.engine.vocabulary.children import child_environment
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS, describe_error

T = TypeVar("T")

WORKERS = max(2, (os.cpu_count() or 2) // 2)
START_SECONDS = 60.0
"""Seconds that a worker may take to start and to load the function, before the call's own limit begins."""

# -P: Python would put the current folder first, where a random.py would replace the standard library's.
# -u: what a call prints would be lost with a worker that is killed.
_COMMAND = (
    sys.executable,
    "-P",
    "-u",
    "-c",
    "from rolegraph.engine.vocabulary.isolation import serve; serve()",
)

_dumps = cast("Callable[[object], bytes]", cloudpickle.dumps)  # pyright: ignore[reportUnknownMemberType]


class CallLimit(Exception):
    """A call that exceeded a limit; its text, such as `took longer than 10 s`, says which."""


class CallTimeout(CallLimit):
    """A call that exceeded its time."""


class Isolation(AbstractAsyncContextManager["Isolation"]):
    """A pool of at most `WORKERS` processes, in which calls run under limits of time and memory.

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

    async def run(
        self, function: Callable[..., T], *arguments: Any, limit: float, memory: int = CALL_MEMORY.most
    ) -> T:
        """Call a function in a worker and return its result.

        Args:
            function: What to call. It and the arguments are pickled; those of the main module by value.
            *arguments: The function's positional arguments.
            limit: Seconds that the call may take once a worker has loaded the function.
            memory: Bytes that the call may take besides the worker's libraries; enforced on Linux alone.

        Raises:
            CallLimit: The call exceeded a limit; its worker was killed.
            RuntimeError: The worker died, the pool is closed, or the exception cannot be pickled.
            Exception: Any exception of the function itself.
        """
        call = _Call(_dumps((function, arguments)), limit, memory)
        try:
            answer = await asyncio.wrap_future(self._threads.submit(self._answer, call))
        except asyncio.CancelledError:
            self._cancel(call)
            raise
        return _result(answer)

    def run_blocking(self, function: Callable[..., T], *arguments: Any, limit: float) -> T:
        """Call a function as `run` does, while the calling thread waits."""
        call = _Call(_dumps((function, arguments)), limit, CALL_MEMORY.most)
        try:
            return _result(self._threads.submit(self._answer, call).result())
        except BaseException:  # Ctrl-C among them
            self._cancel(call)
            raise

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

    async def __aexit__(self, *_: object) -> None:
        if self.close():  # most runs need no worker, and end without waiting for a thread
            await asyncio.to_thread(self._threads.shutdown)

    def close(self) -> bool:
        """Kill all workers; return whether there are any."""
        with self._lock:
            self._closed = True
            workers = (*self._idle, *self._busy.values())
            for worker in workers:
                worker.kill()
        return bool(workers)


class _Call:
    """A pickled call: so that a worker survives the failure to load it."""

    def __init__(self, pickled: bytes, limit: float, memory: int) -> None:
        self.pickled, self.limit, self.memory = pickled, limit, memory
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
        """Wait for the worker to load the call, then for its answer; raises CallLimit or RuntimeError."""
        answer = b""
        try:
            self._connection.send((call.memory, call.pickled))
            for seconds in (START_SECONDS, call.limit):
                if not self._connection.poll(seconds):
                    raise CallTimeout(f"took longer than {call.limit:g} s")
                answer = self._connection.recv_bytes()
        except (EOFError, OSError):
            code = self._process.wait()
            raise RuntimeError(f"the process that ran it died with exit code {code}") from None
        if not answer:
            raise CallLimit(f"took more than {call.memory:,} bytes of memory ({CALL_MEMORY.label})")
        return answer

    def kill(self) -> None:
        """Kill the process and what it has started, and wait for it to end."""
        with suppress(ProcessLookupError):
            if self.is_alive:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@cache
def shared_isolation() -> Isolation:
    """Return this process's pool for data sets and chat templates, which import no code of the user's."""
    isolation = Isolation()
    atexit.register(isolation.close)
    return isolation


def _result(answer: bytes) -> Any:
    result, error = cast("tuple[Any, Exception | None]", pickle.loads(answer))
    if error is not None:
        raise error
    return result


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
        libraries, modules = 0, 0
        while True:
            memory, pickled = connection.recv()
            call = _load(pickled, imports)
            if len(sys.modules) > modules:  # not at each call, or what a call leaves behind would add up
                libraries, modules = _memory_taken(), len(sys.modules)
            connection.send_bytes(b"")
            connection.send_bytes(_perform(call, libraries + memory))


def _load(pickled: bytes, imports: Sequence[Import]) -> Callable[[], object]:
    """Return a call that was sent; if it cannot be loaded, a call that raises the reason."""
    try:
        for wanted in imports:
            wanted.ensure()
        function, arguments = pickle.loads(pickled)
    except FOREIGN_ERRORS as error:
        return partial(_raise, error)
    return partial(function, *arguments)


def _raise(error: BaseException) -> None:
    raise error


def _perform(call: Callable[[], object], memory: int) -> bytes:
    """Make a call in so many bytes of memory; return the pickled result and exception, empty for too few."""
    try:
        _limit_memory(memory)
        return pickle.dumps((call(), None))
    except MemoryError:
        return b""
    except FOREIGN_ERRORS as error:
        return pickle.dumps((None, _portable(error)))
    finally:
        _limit_memory()


def _memory_taken() -> int:
    """Return the bytes of the process's writable memory; 0 where the system does not say."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")


def _limit_memory(most: int = sys.maxsize) -> None:
    """Set the limit of the process's writable memory in bytes."""
    if sys.platform == "linux":  # other systems do not enforce it
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


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
