"""Functions for the isolation tests to run in a worker, each with a different way to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def double(number: int) -> int:
    return 2 * number


def imported() -> list[str]:
    return [*sys.modules]


def pid(seconds: float) -> int:
    """Return the worker's process id after a while, so that calls side by side need several workers."""
    time.sleep(seconds)
    return os.getpid()


def take(size: int) -> int:
    return len(bytes(size))


def sleep_in_child(started: str) -> None:
    child = subprocess.Popen(["sleep", "3600"])
    Path(started).write_text(str(child.pid))
    child.wait()


def sleep(seconds: float, started: str | None = None) -> str:
    if started:
        Path(started).write_text(str(os.getpid()))
    time.sleep(seconds)
    return "slept"


def spin_in_c() -> int:
    """Run a single C call that never checks for signals."""
    return 7**200_000_000


class Odd(Exception):
    """An exception that cannot be unpickled: it takes two arguments and keeps one."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(one + other)


def raise_value_error() -> None:
    raise ValueError("out of range")


def raise_odd() -> None:
    raise Odd("very ", "odd")


def leave() -> None:
    sys.exit(3)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def unpicklable() -> Callable[[], int]:
    return lambda: 1


def _refuse() -> None:
    raise ImportError("not on this machine")


class Refusing:
    """Object that can be pickled but raises ImportError when unpickled."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _refuse, ()


def give_refusing() -> Refusing:
    return Refusing()


def keys() -> list[str]:
    return sorted(name for name in os.environ if name.startswith("ROLEGRAPH_TEST_"))
