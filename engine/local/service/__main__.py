"""The service as the child process of a run: `python -P -m rolegraph.engine.local.service OPTIONS`.

The key is in the environment.

It ends when its parent does, however that ends, and leaves nothing behind. Ctrl-C in the terminal, which
reaches it too, is its parent's business.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rolegraph.engine.errors import RolegraphError
from rolegraph.engine.local.launcher import KEY_VARIABLE, model_name
from rolegraph.engine.local.service.serving import open_state_dir

_PARENT_CHECK_SECONDS = 1.0
_COLLECT_AFTER = 50_000
"""Objects between two searches for garbage: at Python's 700, a seventh of the time of torch's import."""


def main() -> None:
    """Serve until the parent is gone, announcing the port on standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(_COLLECT_AFTER)
    options: dict[str, Any] = json.loads(sys.argv[1])
    model_dir, state_dir = Path(options["model_dir"]), options["state_dir"]
    try:
        with contextlib.ExitStack() as stack:
            state = open_state_dir(Path(state_dir) if state_dir else None, stack)
            _watch_parent(stack.close)
            # torch takes seconds to import; the watch is on by now
            from rolegraph.engine.local.service.launch import launch

            launch(
                model_dir,
                model_name(model_dir),
                host="127.0.0.1",
                port=0,
                api_key=os.environ.pop(KEY_VARIABLE),
                state_dir=state,
                threads=options["threads"],
                child=True,
                **options["bounds"],
            )
    except RolegraphError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


def _watch_parent(clean_up: Callable[[], None]) -> None:
    """Leave when the parent is gone: there is nobody to answer.

    Its end of our standard input closes with it, unless a process that it forked still holds a copy; so its
    id is watched as well.
    """
    parent = os.getppid()

    def closed() -> None:
        os.read(sys.stdin.fileno(), 1)

    def orphaned() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_SECONDS)

    def leave_after(wait: Callable[[], None]) -> None:
        wait()
        clean_up()
        os._exit(0)

    for wait in (closed, orphaned):
        threading.Thread(target=leave_after, args=(wait,), daemon=True).start()


if __name__ == "__main__":
    main()
