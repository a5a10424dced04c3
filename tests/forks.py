"""Commands in child processes that are forks of one process, which has imported the command already.

A command that starts anew imports for two seconds, most of them Tinker's SDK. `python -m tests.forks NUMBER
SERVICE` is the process that forks, whose commands start local services by `launcher.SERVICE`; each request on
its socket has a command line and the files for the output.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn, Self

ROOT = Path(__file__).parents[1]
MODULE = "tests.forks"
"""The module whose process forks."""
LONGEST = 1 << 17
"""Bytes of a request."""
IMPORTED = (
    "rolegraph.cli.run_",
    "rolegraph.cli.train_",
    "rolegraph.engine.models.openai",
    "rolegraph.engine.models.tinker",
    "rolegraph.engine.run",
    "transformers",
)
"""Modules that most commands use."""


class ForkedCommand:
    """Child process that runs `rolegraph WORDS` in a session of its own.

    Its standard output and standard error go to the given file descriptors, or to temporary files.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        self.words = words
        self.returncode: int | None = None
        self._files = [tempfile.TemporaryFile("w+", encoding="utf-8") for _ in range(2)]  # noqa: SIM115
        outputs = [
            file.fileno() if given is None else given
            for given, file in zip((stdout, stderr), self._files, strict=True)
        ]
        self._status, status = os.pipe()
        request = json.dumps({"words": words, "cwd": str(cwd), "env": {**env}}).encode()
        socket.send_fds(_forking_process(), [request], [*outputs, status])
        os.close(status)
        self.pid = self._number()

    def _number(self) -> int:
        return int.from_bytes(os.read(self._status, 4), "little", signed=True)

    def wait(self) -> int:
        """Wait for the end and return the exit code, or the negative number of the signal."""
        if self.returncode is None:
            self.returncode = self._number()
            os.close(self._status)
        return self.returncode

    def poll(self, seconds: float = 0) -> int | None:
        """Return the exit code, or None for a process that still runs after some seconds."""
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            self.wait()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self) -> tuple[str, str]:
        """Wait for the end and return what was written to the temporary files."""
        self.wait()
        said, noted = map(_whole, self._files)
        return said, noted

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()


def run_forked(
    words: Sequence[str], *, cwd: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `rolegraph WORDS` in a forked process."""
    command = ForkedCommand(words, cwd=cwd, env=env)
    said, noted = command.communicate()
    return subprocess.CompletedProcess(words, command.wait(), said, noted)


def _whole(file: IO[str]) -> str:
    with file:
        file.seek(0)
        return file.read()


@cache
def _forking_process() -> socket.socket:
    """Start the process that forks, which ends with this one, and return the socket for requests."""
    from rolegraph.local import launcher
    from tests.cli.conftest import ENVIRONMENT

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(theirs.fileno()), json.dumps(launcher.SERVICE)],
            cwd=ROOT,
            env=ENVIRONMENT,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def main() -> None:
    """Import what commands use, and serve requests until the socket closes."""
    import rolegraph as rg
    from rolegraph.local import launcher

    launcher.SERVICE = (*json.loads(sys.argv[2]),)
    for name in IMPORTED:
        with contextlib.suppress(ImportError):  # of an extra
            importlib.import_module(name)
    rg.load("solver_judge")
    gc.freeze()  # no collection copies the pages that the forks share
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        while True:
            request, files, *_ = socket.recv_fds(requests, LONGEST, 3)
            if not request:
                return
            if os.fork() == 0:
                requests.close()
                watch(json.loads(request), *files)
            for file in files:
                os.close(file)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def watch(request: Mapping[str, Any], stdout: int, stderr: int, status: int) -> NoReturn:
    """Fork the command, and write its process id and then its exit code to `status`, in four bytes each."""
    if (command := os.fork()) == 0:
        os.close(status)
        become(request, stdout, stderr)
    os.close(stdout)
    os.close(stderr)
    os.write(status, command.to_bytes(4, "little", signed=True))
    code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    os.write(status, code.to_bytes(4, "little", signed=True))
    os._exit(0)


def become(request: Mapping[str, Any], stdout: int, stderr: int) -> NoReturn:
    """Run a command in this process, as `python -m rolegraph` does."""
    from rolegraph.cli.main import main as command

    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    stdin = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((stdin, stdout, stderr)):
        os.dup2(file, number)
        os.close(file)
    # As Python itself opens them: closing the object leaves the number open.
    sys.stdout = open(1, "w", 1 if os.isatty(1) else -1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.argv[1:] = request["words"]
    command()
    raise AssertionError("the command exits")


if __name__ == "__main__":
    main()
