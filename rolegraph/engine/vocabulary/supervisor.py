"""Supervisor of programs: when a program has ended, every process that it started is ended, and its files are
deleted.

With arguments, `PARENT PREFIX WORD…`, it runs one command and ends with the command's status, or when the
process PARENT is gone. PREFIX begins the name of a temporary folder for the command; if it is empty, the
command runs in the current folder. On systems other than Linux, a process that left the command's process
group is not ended.

Without arguments it is the server in a container: it runs one script after the other as the user `nobody`.
In: a JSON line with `script`, `seconds`, `memory` (bytes) and `most` (characters). Out: a JSON line, `[end of
the output, stopped in time]`.

The container gets this file as text; it imports nothing of ours.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path

NOBODY = 65534
"""Id of the user and the group `nobody`."""
INTERPRETER = 64 << 20
"""Bytes of address space of CPython itself, added to a program's memory."""
LARGEST_FILE = 32 << 20
"""Bytes of the largest file that a script may write."""
CONTAINED = os.getpid() == 1
"""True in a container of its own, where everything that a script leaves behind may be killed and deleted."""
PARENT_CHECK_SECONDS = 0.25
"""Seconds between checks that the parent is still running."""


def confine(memory: int) -> None:
    """Set resource limits in the child process and switch it to the user `nobody`."""
    resource.setrlimit(resource.RLIMIT_AS, (memory + INTERPRETER, memory + INTERPRETER))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    if CONTAINED:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def run(script: str, seconds: float, memory: int, most: int) -> tuple[str, bool]:
    """Run a script in a child process; return (end of its output, True if it hit its time limit)."""
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            [sys.executable, "-I", "-"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.DEVNULL,
            cwd="/tmp",
            env={"PYTHONHASHSEED": "0", "HOME": "/tmp"},
            start_new_session=True,
            preexec_fn=lambda: confine(memory),
        )
        is_over_time = False
        try:
            child.communicate(script.encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            is_over_time = True
        finally:
            end(child)
        output.seek(0, os.SEEK_END)
        output.seek(max(0, output.tell() - 4 * most))
        return output.read().decode("utf-8", "replace")[-most:], is_over_time


def end(child: "subprocess.Popen[bytes]") -> None:
    """Kill a child's process group and every process left below this one; in a container clear /tmp as
    well."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if CONTAINED:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # all but this process, even those that fork without end
        with suppress(ChildProcessError):
            while True:  # orphans are this process's children now, and stay as zombies until they are reaped
                os.waitpid(-1, 0)
        for path in Path("/tmp").iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    # The children of a child that was killed are this process's children then.
    while killed_pids := [pid for pid in children() if kill(pid)]:
        for pid in killed_pids:
            os.waitpid(pid, 0)


def kill(pid: int) -> bool:
    """Kill a child with its process group; return False if it is gone or another user's."""
    for send in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            send(pid, signal.SIGKILL)
            return True
    return False


def children() -> "list[int]":
    """Return the ids of this process's children; empty on a system without /proc."""
    pids: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            parent = (folder / "stat").read_bytes().rpartition(b")")[2].split()[1]
            if int(parent) == os.getpid():
                pids.append(int(folder.name))
    return pids


def adopt_orphans() -> None:
    """Make this process the parent of every process below it whose own parent ends (Linux only)."""
    if sys.platform == "linux" and not CONTAINED:
        import ctypes

        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def supervise(parent: int, prefix: str, command: "list[str]") -> int:
    """Run a command; return its status once its processes have ended and its folder is deleted."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_CHECK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    def stop(number: int, frame: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=watch, daemon=True).start()
    temporary = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) if prefix else None
    with temporary or nullcontext() as folder:
        try:
            child = subprocess.Popen(command, cwd=folder, start_new_session=True)
        except OSError as error:
            sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
            return 127
        try:
            null_device = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):  # the command's alone, so that they close when it closes them
                os.dup2(null_device, stream)
            return child.wait()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            end(child)


def serve() -> None:
    """Run the script of each line of the standard input."""
    if CONTAINED:
        Path("/tmp").chmod(0o1777)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(**json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    adopt_orphans()
    if sys.argv[1:]:
        status = supervise(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
        if status < 0:  # ended by a signal, as this process then is
            signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
            os.kill(os.getpid(), -status)
        sys.exit(status)
    serve()
