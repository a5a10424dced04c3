"""The command in processes of its own: begun, killed at random moments, and what they leave behind."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from tests import forks
from tests.forks import ROOT, ForkedCommand

forks.MODULE = "benchmarks.chaos.told"
BUGS = (b"Traceback", b"internal error")
PARTS = (".*.part", ".part-*", ".rolegraph-part-*", ".writer")
GONE_SECONDS = 20.0
"""Time that processes have to end after the command that started them."""


class Place:
    """A folder to run in, with one for temporary files, whose path marks the environment of all that runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.temporary = folder, folder / "tmp"
        self.temporary.mkdir(parents=True)
        self._sockets = folder / "sockets"
        self._sockets.mkdir()
        self.logs: list[Path] = []
        self.killed = False
        """True after SIGKILL, until a command has gone on to its end: what is not whole may stay as long."""
        self._told = folder / "told.txt"
        self.seen: set[str] = set()
        """Episodes told as finished that have been counted."""

    def start(self, *words: str, **environment: str) -> ForkedCommand:
        """Begin the command with what it says in a file of its own."""
        log = self.folder / f"log-{len(self.logs)}.txt"
        self.logs.append(log)
        around = {**os.environ, "PYTHONPATH": str(ROOT), "TINKER_TELEMETRY": "0", "COLUMNS": "200"}
        around |= {"TMPDIR": str(self.temporary), "TOLD": str(self._told), "OMP_NUM_THREADS": "1"}
        # No service stays for the next command unless a trial says so.
        around |= {"XDG_RUNTIME_DIR": str(self._sockets), "ROLEGRAPH_WARM": "0"}
        with log.open("wb") as said:
            return ForkedCommand(
                words,
                cwd=self.folder,
                env={**around, **environment},
                stdout=said.fileno(),
                stderr=said.fileno(),
            )

    def running(self) -> list[int]:
        """Return the processes whose temporary files go to this place."""
        found, mark = list[int](), f"TMPDIR={self.temporary}\0".encode()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:  # it has gone
                continue
        return found

    def left(self, *, parts: bool = True) -> Mapping[str, int]:
        """Count processes, the sockets that they hold, and temporary files, after those had time to go.

        Without `parts`, what is not whole yet beside its place is left for the next command to remove.
        """
        end = time.monotonic() + GONE_SECONDS
        while (alive := self.running()) and time.monotonic() < end:
            time.sleep(0.2)
        sockets = sum(_sockets(process) for process in alive)
        for process in alive:
            os.kill(process, signal.SIGKILL)
        # PyTorch has one folder for what it compiles, whoever uses it.
        files = [file for file in self.temporary.iterdir() if not file.name.startswith("torchinductor_")]
        if parts:  # what appears whole is written beside its place first
            files += [file for form in PARTS for file in self.folder.rglob(form)]
        for file in files:
            print("  left:", file.relative_to(self.folder))
            shutil.rmtree(file, ignore_errors=True) if file.is_dir() else file.unlink()
        return {"processes": len(alive), "sockets": sockets, "temporary": len(files)}

    def told(self, since: int = 0) -> list[str]:
        """Return what commands told as finished: ids of episodes, and `step 2`; `since` skips lines."""
        return self._told.read_text().splitlines()[since:] if self._told.exists() else []

    def tracebacks(self) -> int:
        """Count the commands that printed a traceback or an internal error."""
        return sum(any(bug in log.read_bytes() for bug in BUGS) for log in self.logs)

    def text(self) -> str:
        """Return what the last command printed."""
        return self.logs[-1].read_text(errors="replace")

    def said(self) -> str:
        """The last words of the last command."""
        return self.text()[-400:]


def _sockets(process: int) -> int:
    try:
        return sum(
            str(link.readlink()).startswith("socket:") for link in Path(f"/proc/{process}/fd").iterdir()
        )
    except OSError:
        return 0


def kill(process: ForkedCommand) -> bool:
    """Kill it; whether it was still there."""
    alive = process.poll() is None
    process.kill()
    process.wait()
    return alive


def lines(file: Path) -> int:
    """How many whole lines a file has."""
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait_until(process: ForkedCommand, file: Path, count: int, seconds: float) -> None:
    """Until a file has so many lines, the process has ended, or time is up."""
    end = time.monotonic() + seconds
    while process.poll() is None and lines(file) < count and time.monotonic() < end:
        time.sleep(0.01)
