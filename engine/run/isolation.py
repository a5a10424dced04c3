"""Runs a function in a process of its own, and stops it when its time is up.

For rewards that may be slow or hang: a thread cannot be stopped, a process can. Workers start when the first
call comes, never see the environment's keys, and end with their parent, however it ends. What a function
raises, returns or does to its process is the business of its own call: the workers serve the next one.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import spawn
from multiprocessing.context import SpawnContext, SpawnProcess
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]
from pebble import ProcessExpired, ProcessPool

from rolegraph.engine.vocabulary import Import
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS, describe_error
from rolegraph.engine.vocabulary.permissions import is_secret

T = TypeVar("T")

WORKERS = max(2, (os.cpu_count() or 2) // 2)
START_SECONDS = 60.0
"""What a worker may take to start and to load the function, beyond the call's own limit."""
LOOK_SECONDS = 1.0
"""How often who waits for an answer looks whether its workers are still there."""


class CallTimeout(Exception):
    """The time of a call is up."""


class Isolation:
    """A pool of worker processes that know `imports`; use it as an async context manager.

    Event loops of several threads may share one.
    """

    def __init__(self, imports: Sequence[Import] = ()) -> None:
        self._imports = tuple(imports)
        self._pool: ProcessPool | None = None
        self._closed = False
        self._starting = threading.Lock()
        self._slots = _Slots(WORKERS)

    async def run(self, function: Callable[..., T], *arguments: Any, limit: float) -> T:
        """The function's result; raises what it raises, or LimitError after `limit` seconds.

        The time starts when a worker has loaded the function. Function and arguments must be picklable, or
        be of the main module, which is sent by value. A worker that dies raises RuntimeError.
        """
        call = _Call(_pickled((function, arguments)))
        async with self._slots:
            try:
                answer = await self._answer(call, limit)
            except BrokenProcessPool:  # before anyone had begun it: idle workers were killed, say
                answer = await self._answer(call, limit)
        result, problem = cast("tuple[T, Exception | None]", pickle.loads(answer))
        if problem is not None:
            raise problem
        return result

    async def _answer(self, call: _Call, limit: float) -> bytes:
        pool = self._ready()
        future: Any = pool.schedule(_perform, args=(call,), timeout=limit)
        answer: asyncio.Future[bytes] = asyncio.wrap_future(future)
        try:
            async with asyncio.timeout(limit + START_SECONDS):
                while not (await asyncio.wait({answer}, timeout=LOOK_SECONDS))[0]:
                    if not pool.active:  # it broke just as it took the call, which nobody will answer
                        raise BrokenProcessPool
            return answer.result()
        except TimeoutError as error:
            raise CallTimeout(f"{limit:g} s") from error
        except ProcessExpired as error:
            raise RuntimeError(f"the process that ran it died with exit code {error.exitcode}") from error
        finally:
            answer.cancel()

    def _ready(self) -> ProcessPool:
        """The pool, or a new one where it broke: an idle worker was killed, say."""
        with self._starting:
            if self._closed:  # what still waited for its turn starts nothing again
                raise RuntimeError("the workers are gone")
            if self._pool is not None and not self._pool.active:
                self._pool.join()  # ends the workers that are left of it, in a tenth of a second
                self._pool = None
            if self._pool is None:
                context: Any = _Context()
                # What the main module holds is sent by value: a script that is imported again would run
                # again.
                arguments = os.getpid(), [wanted for wanted in self._imports if wanted.module != "__main__"]
                self._pool = ProcessPool(
                    max_workers=WORKERS,
                    initializer=_prepare,
                    initargs=arguments,
                    context=context,
                )
            return self._pool

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._starting:
            self._closed = True
        if self._pool is not None:
            self._pool.stop()
            await asyncio.to_thread(self._pool.join)


class _Slots:
    """What asyncio.Semaphore is to one event loop, for the loops of all threads; first come, first served."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn: Future[None] = Future()
            self._waiting.append(turn)
        try:
            await asyncio.wrap_future(turn)
        except asyncio.CancelledError:
            if not turn.cancel():  # it came just before
                self._release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        with self._lock:
            while self._waiting:
                turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                    return
            self._free += 1


class _Process(SpawnProcess):
    """A process that does not run the main module's file again, guarded by `if __name__ …` or not."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # the name is multiprocessing's
        _starting.worker = True
        try:
            return SpawnProcess._Popen(process_obj)
        finally:
            _starting.worker = False


class _Context(SpawnContext):
    """Spawned, for the parent has threads; forked, a worker could hang on a lock of theirs."""

    Process = _Process


_pickled = cast("Callable[[object], bytes]", cloudpickle.dumps)  # pyright: ignore[reportUnknownMemberType]
_starting = threading.local()
_preparation_data = spawn.get_preparation_data


def _without_main(name: str) -> dict[str, Any]:
    data = dict(_preparation_data(name))
    if getattr(_starting, "worker", False):
        data.pop("init_main_from_name", None)
        data.pop("init_main_from_path", None)
    return data


spawn.get_preparation_data = _without_main


class _Call:
    """A function and its arguments, pickled, so that a worker can fail to load them and live."""

    def __init__(self, pickled: bytes) -> None:
        self.pickled = pickled

    def __reduce__(self) -> tuple[Callable[[bytes], object], tuple[bytes]]:
        return _load, (self.pickled,)


def _load(pickled: bytes) -> object:
    try:
        return pickle.loads(pickled)
    except Exception as error:
        return error


def _perform(call: Any) -> bytes:
    """In the worker: make the call. The pickled pair of result and exception, one of them None."""
    try:
        if isinstance(call, Exception):
            raise call
        function, arguments = call
        return pickle.dumps((function(*arguments), None))
    except FOREIGN_ERRORS as error:
        return pickle.dumps((None, _portable(error)))


def _portable(error: BaseException) -> Exception:
    """The exception, or, where it would not survive the way to the parent, one that says the same."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = None
    if isinstance(error, Exception) and type(copy) is type(error) and str(copy) == str(error):
        return error
    return RuntimeError(describe_error(error))


def _prepare(parent: int, imports: Sequence[Import]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ends at once, also inside a library's C code
    for name in filter(is_secret, [*os.environ]):
        del os.environ[name]
    if sys.platform == "linux":
        # PR_SET_PDEATHSIG: the kernel ends this process when its parent is gone.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    else:
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    for wanted in imports:
        wanted.ensure()


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
