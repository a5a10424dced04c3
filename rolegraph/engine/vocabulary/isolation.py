"""Processes that compute on untrusted values, such as rewards, with limits of time and memory.

A thread cannot be stopped; a process can. Workers start at the first call, see no secrets of the environment
and never search the current folder or the script's for modules. An exception, an odd result or the death of a
worker fails its own call only. The time of a call is processor time, because on a busy machine an honest call
may take any time by the clock. `serve` is the worker's side.
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
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from functools import cache, partial, reduce
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, TypeVar, cast

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

from rolegraph.engine.errors import FOREIGN_ERRORS, describe_error, mark_place
from rolegraph.engine.limits.tools import CALL_MEMORY
from rolegraph.engine.vocabulary import Import
from rolegraph.engine.vocabulary.children import child_environment

T = TypeVar("T")

WORKERS = max(2, (os.cpu_count() or 2) // 2)
START_SECONDS = 300.0
"""Longest time in seconds, by the clock, for a worker to start and load a function; a call's own limit begins
afterwards."""
PATIENCE = 10.0
"""Ratio of a call's longest time by the clock to its limit, since a call may sleep, wait for a child process,
or get only a tenth of a processor."""
_LOOK_SECONDS = 0.05
"""Shortest interval in seconds between two readings of a worker's processor time."""

_dumps = cast("Callable[[object], bytes]", cloudpickle.dumps)  # pyright: ignore[reportUnknownMemberType]


class CallLimit(Exception):
    """A call that exceeded a limit, which its text names, such as `took longer than 10 s`."""


class CallTimeout(CallLimit):
    """A call that exceeded its time limit."""


class Isolation(AbstractAsyncContextManager["Isolation"]):
    """A pool of processes, in which calls run under limits of time and memory.

    The processes import `imports`. Use the pool as an async context manager.

    Event loops of several threads may share one pool.
    """

    def __init__(self, imports: Sequence[Import] = (), workers: int = WORKERS, **options: Any) -> None:
        """Create a pool of worker processes, which start when they are needed.

        Args:
            imports: The modules that the processes import.
            workers: Largest number of processes. A single process keeps the changes that calls make to its
                modules.
            **options: Options of `subprocess.Popen`; `env` is added to `child_environment`.
        """
        # Functions of the main module are sent by value: importing a script again would run it again.
        kept_imports = tuple(needed_import for needed_import in imports if needed_import.module != "__main__")
        # With one hash seed, sets of text have the same order in all workers.
        environment = {"PYTHONHASHSEED": "0", **child_environment(own_code=bool(imports))}
        options["env"] = {**environment, **options.get("env", {})}
        self._start = partial(_Worker, kept_imports, options)
        # Each thread waits for one worker. PR_SET_PDEATHSIG counts the thread that started a worker as its
        # parent, so these threads live as long as the pool.
        self._threads = ThreadPoolExecutor(workers, "isolation")
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._busy: dict[Call, _Worker] = {}
        self._closed = False

    async def run(
        self, function: Callable[..., T], *arguments: Any, limit: float, memory: int = CALL_MEMORY.most
    ) -> T:
        """Call a function in a worker and return its result.

        Args:
            function: The function. It and the arguments are pickled; objects of the main module by value.
            *arguments: The function's positional arguments.
            limit: Seconds of processor time that the call may take once a worker has loaded the function; by
                the clock, `PATIENCE` times as many.
            memory: Bytes that the call may take besides the worker's libraries; enforced only on Linux.

        Raises:
            CallLimit: The call exceeded a limit; its worker was killed.
            RuntimeError: The worker died, the pool is closed, or the exception cannot be pickled.
            Exception: Any exception of the function itself.
        """
        call = self.submit(function, *arguments, limit=limit, memory=memory)
        try:
            return await asyncio.wrap_future(call.future)
        except asyncio.CancelledError:
            self._cancel(call)
            raise

    def run_blocking(self, function: Callable[..., T], *arguments: Any, limit: float) -> T:
        """Call a function in a worker process under limits, and block until its result; Ctrl-C cancels the
        call."""
        call = self.submit(function, *arguments, limit=limit)
        try:
            return call.future.result()
        except BaseException:  # Ctrl-C among them
            self._cancel(call)
            raise

    def submit(
        self, function: Callable[..., Any], *arguments: Any, limit: float, memory: int = CALL_MEMORY.most
    ) -> Call:
        """Queue a call of a function in a worker process under limits; return the Call, whose `future` has
        the result."""
        call = Call(_dumps((function, arguments)), limit, memory)
        call.future = self._threads.submit(self._answer, call)
        return call

    def _answer(self, call: Call) -> Any:
        """Run a queued call in an idle or new worker; return or raise its result. Blocks."""
        with self._lock:
            if self._closed or call.is_cancelled:
                raise RuntimeError("the isolation pool is closed")
            idle_workers = [worker for worker in self._idle if worker.is_alive]
            worker = self._busy[call] = idle_workers.pop() if idle_workers else self._start()
            self._idle = idle_workers
        answer = b""
        try:
            answer = worker.answer(call)
        finally:
            with self._lock:
                del self._busy[call]
                if not answer or self._closed or call.is_cancelled:
                    worker.kill()
                else:
                    self._idle.append(worker)
        result, error = cast("tuple[Any, Exception | None]", pickle.loads(answer))
        if error is not None:
            raise error
        return result

    def _cancel(self, call: Call) -> None:
        with self._lock:
            call.is_cancelled = True
            if call in self._busy:
                self._busy[call].kill()

    async def __aexit__(self, *_: object) -> None:
        if self.close():  # most runs need no worker, and end without waiting for a thread
            await asyncio.to_thread(self._threads.shutdown)

    def close(self) -> bool:
        """Kill all workers; return True if there were any."""
        with self._lock:
            self._closed = True
            workers = (*self._idle, *self._busy.values())
            for worker in workers:
                worker.kill()
        return bool(workers)


@dataclass(eq=False)
class Call:
    """One function call for a worker process, with its limits and the future of its result."""

    pickled: bytes
    """Function and arguments, pickled separately, so that a worker survives an error in loading them."""
    limit: float
    memory: int
    future: Future[Any] = field(init=False)
    """Result of the call."""
    is_cancelled: bool = False


class _Worker:
    """The parent's side of one worker process."""

    def __init__(self, imports: Sequence[Import], options: Mapping[str, Any]) -> None:
        self._connection, worker_end = Pipe()
        code = "from rolegraph.engine.vocabulary.isolation import serve; serve()"
        with worker_end:
            # -P: Python would put the current folder first, where a random.py would replace the standard
            # library's. -u: what a call prints would be lost with a worker that is killed.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-u", "-c", code, str(worker_end.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=[worker_end.fileno()],
                start_new_session=True,  # Ctrl-C reaches the parent alone; `kill` reaches children as well
                **options,
            )
        self._connection.send_bytes(pickle.dumps(imports))

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def answer(self, call: Call) -> bytes:
        """Send a call to the worker and return its pickled answer; raises CallLimit or RuntimeError."""
        answer, is_expired = b"", threading.Event()

        def expire() -> None:
            is_expired.set()
            self.kill()

        # `poll` has a limit, but a worker that is stopped (SIGSTOP) empties no pipe: a long message to it, or
        # a half-sent answer, would block for ever.
        watch = threading.Timer(START_SECONDS + PATIENCE * call.limit + 1, expire)
        watch.daemon = True
        watch.start()
        try:
            self._connection.send((call.memory, call.pickled))
            if not self._connection.poll(START_SECONDS):
                raise CallTimeout(f"took longer than {call.limit:g} s")
            answer = self._connection.recv()
            if isinstance(answer, float):  # the function is loaded
                self._await(call, answer)
                answer = self._connection.recv()
        except (EOFError, OSError):
            code = self._process.wait()
            if is_expired.is_set():
                raise CallTimeout(f"took longer than {call.limit:g} s") from None
            raise RuntimeError(f"the process that ran it died with exit code {code}") from None
        finally:
            watch.cancel()
        if not answer:
            raise CallLimit(f"took more than {call.memory:,} bytes of memory ({CALL_MEMORY.label})")
        return answer

    def _await(self, call: Call, began: float) -> None:
        """Wait until a call has an answer; raises CallTimeout if it exceeds its time.

        Args:
            call: The call.
            began: Processor time of the worker at the start of the call, in seconds.
        """
        end_time, pause_seconds = time.monotonic() + PATIENCE * call.limit, call.limit
        while not self._connection.poll(pause_seconds):
            seconds_left = call.limit - (_processor_seconds(self._process.pid) - began)
            seconds_to_end = end_time - time.monotonic()
            if min(seconds_left, seconds_to_end) <= 0:
                raise CallTimeout(f"took longer than {call.limit:g} s")
            pause_seconds = min(max(seconds_left, _LOOK_SECONDS), seconds_to_end)

    def kill(self) -> None:
        """Kill the worker's process group, and wait for the process to end."""
        with suppress(ProcessLookupError):
            if self.is_alive:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@cache
def shared_isolation() -> Isolation:
    """Return this process's pool for data sets, which imports no code of the user's."""
    return Isolation()


def serve() -> None:
    """Run calls in a worker process until the parent is gone.

    The command line has the pipe and the parent's process id.
    """
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
        sys.path += [root for module in imports if (root := _package_root(module)) not in (None, *sys.path)]
        libraries, modules = 0, 0
        while True:
            memory, pickled = connection.recv()
            answer = b""  # means that the memory was not enough
            try:
                for module in imports:
                    module.ensure()
                function, arguments = pickle.loads(pickled)
                if len(sys.modules) > modules:  # not at each call, or what a call leaves behind would add up
                    libraries, modules = memory_taken(), len(sys.modules)
                connection.send(sum(os.times()[:4]))  # the call's own time begins
                limit_memory(libraries + memory)
                answer = pickle.dumps((function(*arguments), None))
            except MemoryError:
                pass
            except FOREIGN_ERRORS as error:
                answer = pickle.dumps((None, _portable(error)))
            finally:
                limit_memory()
            connection.send(answer)


def _processor_seconds(process: int) -> float:
    """Return the processor time of a process in seconds; on Linux, including its children that have ended."""
    if sys.platform == "linux":
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    words = ["ps", "-o", "time=", "-p", str(process)]
    output = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    return reduce(lambda total, part: 60 * total + float(part), output.split(":"), 0.0)


def memory_taken() -> int:
    """Return the bytes of this process's writable memory; 0 if the system does not report them."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")


def limit_memory(most: int = sys.maxsize) -> None:
    """Set the limit of this process's writable memory in bytes (Linux only); the default removes the
    limit."""
    if sys.platform == "linux":  # other systems do not enforce it
        import resource

        hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
        soft_limit = most if hard_limit == resource.RLIM_INFINITY else min(most, hard_limit)
        resource.setrlimit(resource.RLIMIT_DATA, (soft_limit, hard_limit))


def _package_root(wanted: Import) -> str | None:
    """Return the folder from which a module inside a package can be imported; None for any other module."""
    if wanted.file is None or "." not in wanted.module:
        return None
    file = Path(wanted.file)
    depth = wanted.module.count(".") + (file.stem == "__init__")
    return str(file.parents[depth])


def _portable(error: BaseException) -> Exception:
    """Return an error with its place noted, or if it cannot be pickled, a RuntimeError with its text."""
    mark_place(error)
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = None
    is_same = type(copy) is type(error) and str(copy) == str(error)
    if isinstance(error, Exception) and is_same and not isinstance(error, StopIteration):
        return error  # no future can hold a StopIteration
    return RuntimeError(describe_error(error, with_place=True))
