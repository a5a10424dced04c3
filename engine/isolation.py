"""Runs a function in a process of its own, and stops it when its time is up.

For rewards that may be slow or hang: a thread cannot be stopped, a process can. Workers start when the first
call comes, never see the environment's keys, and end with their parent, however it ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from pebble import ProcessExpired, ProcessPool

T = TypeVar("T")

WORKERS = max(2, (os.cpu_count() or 2) // 2)
START_SECONDS = 10.0
"""What a worker may take to start, beyond the call's own limit."""


class Isolation:
    """A pool of worker processes; use it as an async context manager."""

    def __init__(self) -> None:
        self._pool: ProcessPool | None = None
        self._slots = asyncio.Semaphore(WORKERS)

    async def run(self, function: Callable[..., T], *arguments: Any, limit: float) -> T:
        """The function's result; raises what it raises, or TimeoutError after `limit` seconds.

        Function and arguments must be picklable. A worker that dies raises RuntimeError.
        """
        async with self._slots:
            first = self._pool is None
            if self._pool is None:
                self._pool = ProcessPool(
                    max_workers=WORKERS,
                    initializer=_prepare,
                    initargs=(os.getpid(),),
                    context=cast("Any", multiprocessing.get_context("spawn")),
                )
            seconds = limit + (START_SECONDS if first else 0.0)
            future: Any = self._pool.schedule(function, args=arguments, timeout=seconds)
            try:
                return await asyncio.wrap_future(future)
            except ProcessExpired as error:
                raise RuntimeError(f"the process that ran it died with exit code {error.exitcode}") from error
            except CancelledError:
                future.cancel()
                raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.stop()
            await asyncio.to_thread(self._pool.join)
            self._pool = None


def _prepare(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in [name for name in os.environ if name.endswith(("_KEY", "_TOKEN", "_SECRET"))]:
        del os.environ[name]
    if sys.platform == "linux":
        # PR_SET_PDEATHSIG: the kernel ends this process when its parent is gone.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
