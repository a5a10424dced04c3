"""Faults planted one at a time in a copy of the tree: does `fuzz` or `chaos` find each within five minutes?

`python benchmarks/planted.py` prints a line for each fault, with the seconds until the first find; its exit
code is the number of faults that were not found. `--only NAME` tries one fault.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MINUTES = 5


class Fault(NamedTuple):
    """A change of one line that takes a guard away, and the kind of inputs or trials that should find it."""

    name: str
    file: str
    old: str
    new: str
    kind: str
    finder: str = "fuzz"
    """The program beside this file that looks for it."""


# Both are whole where the command ends, and lack one where it is killed.
HOLDS_EPISODE = """\
        for one in self._held:
            self._append(one)
        self._episodes.close()
        self._index.close()

    _append, _held = append, ()

    def append(self, episode):
        held, self._held = self._held, (episode,)
        for one in held:
            self._append(one)
        return
"""
HOLDS_METRICS = """\
        import atexit

        if held := getattr(self, "_held", None):
            atexit.unregister(held)
            held()
        self._held = lambda: _add(self.metrics_file, json.dumps(metrics).encode() + b"\\n")
        atexit.register(self._held)
"""


FAULTS = (
    Fault("a budget without end", "engine/prompts/scope.py", "if self.left < 0:", "if False:", "limit"),
    Fault(
        "an operation without a price",
        "engine/prompts/scope.py",
        "_pay_for_numbers(scope, sign, left.bit_length()",
        "_ = (scope, sign, left.bit_length()",
        "limit",
    ),
    Fault("values that grow", "engine/spec/yaml_source.py", "raise _TooLarge(node)", "pass", "limit"),
    Fault(
        "a file of any size",
        "engine/records/files.py",
        "if len(content) > most.most:",
        "if False:",
        "limit",
    ),
    Fault(
        "a reply of any size",
        "engine/vocabulary/replies.py",
        "if found > limit.most:",
        "if False:",
        "limit",
    ),
    Fault(
        "an answer of any length",
        "engine/run/turn.py",
        "is_long = len(text) > most",
        "is_long = False",
        "limit",
    ),
    Fault(
        "sparse tensors of any size",
        "rolegraph/local/service/wire.py",
        "if sum(sparse) >",
        "if 0 * sum(sparse) >",
        "limit",
    ),
    Fault(
        "a calculator of any size",
        "roles/calculator.py",
        "if bits > CALCULATOR_BITS.most:",
        "if False:",
        "limit",
    ),
    Fault(
        "a pattern without end",
        "roles/patterns.py",
        "if spent > PATTERN_WORK.most:",
        "if False:",
        "limit",
    ),
    Fault(
        "content encoded with the template",
        "rolegraph/engine/prompts/chat.py",
        "if self._markers.named(text) == named:",
        "if True:",
        "chat",
    ),
    Fault(
        "a canary in a failure's message",
        "rolegraph/engine/compile/leaving.py",
        "return self.may_quote(role) or failure in REWARD_FAILURES",
        "return False",
        "leaving",
    ),
    Fault(
        "a key for everybody",
        "engine/models/keys.py",
        "return _origin(url) in",
        "return bool(url) or _origin(url) in",
        "reply",
    ),
    Fault(
        "a file opened with links followed",
        "engine/records/confined.py",
        "def _refuse_odd(name: str | Path, folder: int | None, path: Path) -> None:\n",
        "_SAFE = os.O_CLOEXEC\n\n\n"
        "def _refuse_odd(name: str | Path, folder: int | None, path: Path) -> None:\n    return\n",
        "resumed",
    ),
    Fault(
        "a key with a line end",
        "engine/models/keys.py",
        "    stripped = value.strip()\n",
        "    return value\n",
        "key",
    ),
    Fault(
        "an address that is not asked for",
        "rolegraph/api/trusting.py",
        "        base_url=None if typed.base_url else _foreign_url(before),\n",
        "        base_url=None,\n",
        "resumed",
    ),
    Fault(
        "an import that is not asked for",
        "rolegraph/api/trusting.py",
        "    missing = Source(\n        base_url=",
        "    if before.imports:\n        return whole\n    missing = Source(\n        base_url=",
        "resumed",
    ),
    Fault(
        "a writer that holds an episode",
        "engine/records/episodes.py",
        "        self._episodes.close()\n",
        HOLDS_EPISODE,
        "runs",
        "chaos",
    ),
    Fault(
        "a writer that holds a step",
        "engine/records/folder.py",
        '        _add(self.metrics_file, json.dumps(dict(metrics), allow_nan=False).encode() + b"\\n")\n',
        HOLDS_METRICS,
        "trainings",
        "chaos",
    ),
    Fault(
        "a folder without a lock",
        "engine/records/writer_lock.py",
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        "pairs",
        "chaos",
    ),
)


def planted(fault: Fault, folder: Path) -> Path:
    """Copy the files that git knows to a folder, with the fault in them."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target, follow_symlinks=False)
    file = folder / fault.file
    text = file.read_text()
    assert fault.old in text, f"{fault.file} has no {fault.old!r}; the fault needs another line"
    file.write_text(text.replace(fault.old, fault.new))
    return folder


def seconds_to_find(fault: Fault) -> float | None:
    """Return the seconds until a planted fault has been found; None if it has not."""
    with tempfile.TemporaryDirectory(prefix="planted-") as scratch:
        folder = planted(fault, Path(scratch) / "tree")
        words = ["--minutes", str(MINUTES), "--only", fault.kind, "--first"]
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, folder / "benchmarks" / fault.finder, *words],
            cwd=scratch,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            check=False,
        )
        # Both print their seed at the end; a program that fails exits with 1 as well.
        if done.returncode not in (0, 1) or b"seed" not in done.stdout:
            sys.exit(f"benchmarks/{fault.finder} failed: {done.stderr.decode()[-500:]}")
        return time.monotonic() - began if done.returncode == 1 else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="NAME")
    given = parser.parse_args()
    missed = 0
    for fault in FAULTS:
        if given.only in (None, fault.name):
            found = seconds_to_find(fault)
            missed += found is None
            print(
                f"{fault.name:32} {'NOT FOUND' if found is None else f'found in {found:.0f} s'}", flush=True
            )
    return missed


if __name__ == "__main__":
    sys.exit(main())
