"""The service as the launcher's child process: `python -P -m rolegraph.local.service OPTIONS`.

OPTIONS is JSON; the key is in the environment. The process ends when its parent does, however the parent
ended, and deletes its temporary folder; a service that commands borrow stays once it is ready. It ignores
Ctrl-C, which the terminal sends to it too, and SIGTERM, which a job scheduler sends to every process: the
parent decides, and may save a checkpoint first.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rolegraph.engine.errors import RolegraphError
from rolegraph.local.launcher import KEY_VARIABLE, ServiceOptions
from rolegraph.local.service.serving import launch

_PARENT_CHECK_SECONDS = 1.0
_COLLECTION_THRESHOLD = 50_000


def main() -> None:
    """Serve until the parent has ended; print the port when the service is ready."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Most objects of torch and transformers stay. Collecting among them took a tenth of the start.
    gc.set_threshold(_COLLECTION_THRESHOLD)
    options = ServiceOptions(**json.loads(sys.argv[1]))
    if options.lent_at is None:  # a lent service has no parent to end it
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    watch = partial(_watch_parent, Path(options.lent_at) if options.lent_at else None)
    try:
        launch(options, os.environ.pop(KEY_VARIABLE), lambda port, _: [str(port)], as_child=watch)
    except RolegraphError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


def _watch_parent(lent_at: Path | None, clean_up: Callable[[], None]) -> None:
    """Start threads that clean up and exit the process when its parent has ended.

    The parent's end of standard input closes with the parent, unless a process that it forked still holds a
    copy; so the parent's process id is watched as well. A service that is lent to commands stays once its
    socket is there.
    """
    parent = os.getppid()

    def wait_for_input_to_close() -> None:
        os.read(sys.stdin.fileno(), 1)

    def wait_for_new_parent() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_SECONDS)

    def exit_after(wait: Callable[[], None]) -> None:
        wait()
        if lent_at is None or not lent_at.exists():
            clean_up()
            os._exit(0)

    for wait in (wait_for_input_to_close, wait_for_new_parent):
        threading.Thread(target=exit_after, args=(wait,), daemon=True).start()


if __name__ == "__main__":
    main()
