"""Server in a container: runs one script after the other, each in its own process as the user `nobody`.

This file is sent to the container as text; it imports nothing of ours. In: a JSON line with `script`,
`seconds`, `memory` (bytes) and `most` (characters). Out: a JSON line, `[end of the output, stopped in time]`.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

NOBODY = 65534
"""Id of the user and the group `nobody`."""
INTERPRETER = 64 << 20
"""Bytes of address space of CPython itself, added to a program's memory."""
LARGEST_FILE = 32 << 20
"""Bytes of the largest file that a script may write."""
CONTAINED = os.getpid() == 1
"""True in a container of its own, where everything that a script leaves behind may be killed and deleted."""


def confine(memory: int) -> None:
    """Set resource limits in the child process and switch it to the user `nobody`."""
    resource.setrlimit(resource.RLIMIT_AS, (memory + INTERPRETER, memory + INTERPRETER))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    if CONTAINED:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def run(script: str, seconds: float, memory: int, most: int) -> tuple[str, bool]:
    """Run a script in a child process; return the end of its output, and True if it hit its time limit."""
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
        too_long = False
        try:
            child.communicate(script.encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            too_long = True
        finally:
            end(child)
        output.seek(0, os.SEEK_END)
        output.seek(max(0, output.tell() - 4 * most))
        return output.read().decode("utf-8", "replace")[-most:], too_long


def end(child: "subprocess.Popen[bytes]") -> None:
    """Kill the script's process group; in a container also every other process and the files in /tmp."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if CONTAINED:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # all but this process
        with suppress(ChildProcessError):
            while True:  # orphans are this process's children now, and stay as zombies until they are reaped
                os.waitpid(-1, 0)
        for path in Path("/tmp").iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


if __name__ == "__main__":
    if CONTAINED:
        Path("/tmp").chmod(0o1777)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(**json.loads(line))) + "\n")
        sys.stdout.flush()
