"""Exit of a child process after its parent's end, `kill -9` included."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

_PARENT_CHECK_SECONDS = 1.0


def exit_with_parent(stays: Callable[[], bool], clean_up: Callable[[], None]) -> None:
    """Start threads that exit the process when its parent has ended.

    The parent's end of standard input closes with the parent, unless a process that it forked still holds a
    copy; so the parent's process id is watched as well.

    Args:
        stays: Function that is called when the parent has ended; if it returns True, the process goes on.
        clean_up: Function that is called before the process exits.
    """
    parent = os.getppid()

    def wait_for_input_to_close() -> None:
        os.read(sys.stdin.fileno(), 1)

    def wait_for_new_parent() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_SECONDS)

    def exit_after(wait: Callable[[], None]) -> None:
        wait()
        if not stays():
            clean_up()
            os._exit(0)

    for wait_for_end in (wait_for_input_to_close, wait_for_new_parent):
        threading.Thread(target=exit_after, args=(wait_for_end,), daemon=True).start()
