"""The one thread that computes: operations, their owners in turn, and steps of sampling between.

Everything that touches torch runs here, so that nothing else waits for it and nothing in it needs a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from rolegraph.engine.local.service.batcher import Batcher, SampleJob
from rolegraph.engine.local.service.rounds import FairQueue

T = TypeVar("T")


class Worker:
    """A thread that works until it is closed."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._work = FairQueue[Callable[[], None]]()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._thread.start()

    def submit(self, owner: str, operation: Callable[[], T]) -> Future[T]:
        """Carry out an operation after those of its owner that came before it."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(operation())
            except BaseException as error:
                future.set_exception(error)

        with self._changed:
            self._work.add(owner, work)
            self._changed.notify()
        return future

    def sample(self, job: SampleJob) -> None:
        """Take a job on; its `done` tells when it is finished."""
        self._batcher.add(job)
        with self._changed:
            self._changed.notify()

    def close(self) -> None:
        """Stop; what is being computed is finished first."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or bool(self._work) or self._batcher.busy)
                if self._closed:
                    return
                work = self._work.take() if self._work else None
            if work:
                work()
            if self._batcher.busy:
                self._batcher.step()
