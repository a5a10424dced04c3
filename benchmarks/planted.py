"""Faults planted one at a time in a copy of the tree, and whether `fuzz` and `chaos` find them.

    python benchmarks/planted.py --minutes 5 [NAME ...]

A fault replaces one piece of source by another. The program that should find it runs on the copy until its
first find, in an environment whose `rolegraph` is the copy. Without a fault both programs must find nothing;
`none fuzz` and `none chaos` check that. Exit code 1 where a fault is missed or no longer fits the source.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = ("engine", "roles", "specs", "prompts", "rolegraph", "benchmarks", "tests", "pyproject.toml")
GRACE = 120
"""Seconds that a program may take beyond its minutes, to set up and to end its last trial."""


class Fault(NamedTuple):
    """A piece of source and what stands in its place."""

    name: str
    program: str
    """`fuzz` or `chaos`."""
    file: str
    old: str
    new: str


FAULTS: Sequence[Fault] = (
    Fault(
        "a writer holds back its newest line",
        "chaos",
        "engine/records/jsonl.py",
        "            if os.write(self._file, line) < len(line):",
        "            held, self.held = getattr(self, 'held', b''), line\n"
        "            if os.write(self._file, held) < len(held):",
    ),
    Fault(
        "a lock does not lock",
        "chaos",
        "engine/records/writer_lock.py",
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)",
    ),
    Fault(
        "the rest of a killed write stays",
        "chaos",
        "engine/records/jsonl.py",
        "                os.ftruncate(self._file, whole)\n        except",
        "                pass\n        except",
    ),
)


def plant(fault: Fault, folder: Path) -> bool:
    """Replace a fault's source in a copy of the tree; return False where it is not there exactly once."""
    file = folder / fault.file
    text = file.read_text()
    if text.count(fault.old) != 1:
        return False
    file.write_text(text.replace(fault.old, fault.new))
    return True


def copy_tree(folder: Path) -> Path:
    """Copy the tree, with an environment whose `rolegraph` is the copy; return its interpreter."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("*.pyc"))
        else:
            shutil.copy(ROOT / name, folder / name)
    venv.create(folder / ".venv", symlinks=True)
    (packages,) = (folder / ".venv").glob("lib/python*/site-packages")
    ours = [entry for entry in sys.path if entry.endswith("site-packages")]
    (packages / "planted.pth").write_text("\n".join([str(folder), *ours]) + "\n")
    return folder / ".venv" / "bin" / "python"


def search(program: str, python: Path, folder: Path, minutes: float) -> tuple[bool, str]:
    """Run a program on a copy until its first find; return whether it found one, and its last lines."""
    words = (str(folder / "benchmarks" / program), "--first", "--minutes", str(minutes))
    with (folder / "log.txt").open("w+") as log:
        process = subprocess.Popen([python, *words], cwd=folder, stdout=log, stderr=log)
        try:
            code = process.wait(60 * minutes + GRACE)
        except subprocess.TimeoutExpired:
            process.terminate()
            code = process.wait()
        log.seek(0)
        said = log.read()
    if "Traceback" in said and "find" not in said:
        return False, said[-2_000:]
    return code == 1, said[-2_000:]


def main() -> None:
    parser = argparse.ArgumentParser(description="do the programs find planted faults?")
    parser.add_argument("--minutes", type=float, default=5.0, help="of each fault")
    parser.add_argument("--verbose", action="store_true", help="show the last lines of each program")
    parser.add_argument("names", nargs="*", help="parts of names; all by default")
    given = parser.parse_args()
    none = [Fault(f"none {program}", program, "", "", "") for program in ("fuzz", "chaos")]
    wanted = [
        fault for fault in (*none, *FAULTS) if not given.names or any(n in fault.name for n in given.names)
    ]
    missed = 0
    print("| planted | program | found | seconds |\n| --- | --- | --- | ---: |", flush=True)
    for fault in wanted:
        with tempfile.TemporaryDirectory(prefix="planted-") as temporary:
            folder = Path(temporary)
            python = copy_tree(folder)
            fits = not fault.file or plant(fault, folder)
            began = time.monotonic()
            found, said = search(fault.program, python, folder, given.minutes) if fits else (False, "")
            seconds = time.monotonic() - began
            missed += found != bool(fault.file)
            result = ("yes" if found else "no") if fits else "does not fit the source"
            print(f"| {fault.name} | {fault.program} | {result} | {seconds:.0f} |", flush=True)
            if given.verbose:
                print(said, flush=True)
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
