"""Local services that are forks of one process, which has loaded torch and transformers already.

A service that starts anew takes four seconds of CPU time, a fork 0.4. `launcher.SERVICE` names this file in
place of the service's module. `python -I -S tests/forked_services.py NAME SOCKET OWNER OPTIONS` asks the
process at the socket for a fork that serves at its own input and output, passes signals on, and ends as the
fork ends. A fork whose client has ended is killed. The first client starts the process that forks, which
ends with the process OWNER.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

IMPORTED = (
    "rolegraph.local.service.__main__",
    "rolegraph.local.service.server",
    "transformers.models.llama.modeling_llama",
)
NAME = "rolegraph.local.service"
"""Word by which tests find a service among processes."""
LONGEST = 1 << 17
"""Bytes of a request."""


def command(folder: Path) -> tuple[str, ...]:
    """Return the words for `launcher.SERVICE`, with a socket in a folder that ends with this process."""
    return ("-I", "-S", __file__, NAME, str(folder / "services"), str(os.getpid()))


def ask(path: str, owner: str, options: str) -> None:
    """Let a forked service run in place of this process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        with Path(f"{path}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not Path(path).exists():
                start(path, owner)
            connection.connect(path)
        request = json.dumps({"options": options, "cwd": str(Path.cwd()), "env": {**os.environ}}).encode()
        socket.send_fds(connection, [request], [0, 1, 2])
        service = int(connection.recv(16))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.kill(service, number))
        code = int(connection.recv(16))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def start(path: str, owner: str) -> None:
    """Start the process that forks, and wait until it listens."""
    subprocess.run(
        ["sh", "-c", '"$@" &', "sh", sys.executable, "-P", __file__, path, owner],  # no child of this process
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # no threads before a fork
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
    )
    while not Path(path).exists():
        time.sleep(0.02)


def main(path: str, owner: int) -> None:
    """Import what a service uses, and fork one for each client until the owner has ended."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # no collection copies the pages that the forks share
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{path}.new")
        listener.listen()
        Path(f"{path}.new").rename(path)
        ends = os.pidfd_open(owner)
        while ends not in select.select([listener, ends], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                watch(connection)
            connection.close()
            while reaped():
                pass


def reaped() -> bool:
    """Return True if a child had ended."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def watch(connection: socket.socket) -> NoReturn:
    """Fork the service, send its process id and its exit code; kill it if the client ends before it."""
    request, files, *_ = socket.recv_fds(connection, LONGEST, 3)
    if (service := os.fork()) == 0:
        connection.close()
        become(json.loads(request), files)
    for file in files:
        os.close(file)
    connection.send(b"%d" % service)
    ended = os.pidfd_open(service)
    if ended not in select.select([connection, ended], [], [])[0]:
        os.kill(service, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(service, 0)[1])
    with contextlib.suppress(OSError):  # of a client that has ended
        connection.send(b"%d" % code)
    os._exit(0)


def become(request: Mapping[str, Any], files: Sequence[int]) -> NoReturn:
    """Serve in this process, as `python -m rolegraph.local.service OPTIONS` does."""
    from rolegraph.local.service.__main__ import main as service

    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, closefd=False)  # noqa: SIM115
    sys.argv = ["service", request["options"]]
    code = 0
    try:
        service()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == NAME:
        ask(*sys.argv[2:])
    else:
        main(sys.argv[1], int(sys.argv[2]))
