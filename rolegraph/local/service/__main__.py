"""The service as the launcher's child process: `python -P -m rolegraph.local.service OPTIONS`.

OPTIONS is JSON; the key is in the environment. The process ends when its parent does, however the parent
ended, and deletes its temporary folder; a service that is lent to commands outlives it once it is ready. It
ignores Ctrl-C and SIGHUP, which the terminal sends to it too, and SIGTERM, which a job scheduler sends to
every process: the parent decides, and may save a checkpoint first.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

from rolegraph.engine.errors import RolegraphError
from rolegraph.local.launcher import KEY_VARIABLE, ServiceOptions
from rolegraph.local.service.parent import exit_with_parent
from rolegraph.local.service.serving import launch

_COLLECTION_THRESHOLD = 50_000


def main() -> None:
    """Serve until the parent has ended; print the port when the service is ready."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Most objects of torch and transformers stay. Collecting among them took a tenth of the start.
    gc.set_threshold(_COLLECTION_THRESHOLD)
    options = ServiceOptions(**json.loads(sys.argv[1]))
    if options.lent_at is None:  # a lent service has no parent to end it
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    socket_path = Path(options.lent_at) if options.lent_at else None
    # A service that is lent to commands stays once its socket is there.
    watch_parent = partial(exit_with_parent, lambda: socket_path is not None and socket_path.exists())
    try:
        launch(options, os.environ.pop(KEY_VARIABLE), lambda port, _: [str(port)], as_child=watch_parent)
    except RolegraphError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
