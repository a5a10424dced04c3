"""Makes hostile input of every kind from honest input; looks for what ends in neither a result nor a fault.

    python benchmarks/fuzz --minutes 5 --seed 0

An input must end in a result, or in an error of the family with a place: a diagnostic with its line, a file
and line, a `prompt_error`, a parse failure, an episode with a failure in it, a refusal below 500. A find is
anything else that is raised, a file that is written outside of the folder, a diagnostic without a place, one
that no terminal should be given, more than `SECONDS`, or more than `MEMORY` beyond what the process had. Each
find is written as a line of JSON: its kind, what came of it, the input. The same seed makes the same inputs,
in the same order.

`mutating` and `inputs` make inputs of what is in `honest` and `odd`; the `judge_…` say what comes of them.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

os.environ["MALLOC_ARENA_MAX"] = "1"
sys.path.insert(1, str(Path(__file__).parents[2]))
sys.path.insert(1, str(Path(__file__).parent))

import inputs
import judge_kept
import judge_models
import judge_resumed
import judge_said
import judge_written
import probes
from inputs import Make
from watching import written_within

SECONDS = 10.0
"""Of this process's work: no input is worth more."""
WAIT = 60.0
"""By the clock, for what waits rather than works, on a machine that others use too."""
MEMORY = 200 << 20
"""Bytes that an input may take."""
ROOM = 4 << 30
"""Bytes of address space beyond what the process began with, so that a bomb does not take the machine.

Libraries that are loaded later reserve some two of these four."""
Judge = Callable[[str], str]


class Kind(NamedTuple):
    """A kind of input."""

    make: Make
    judge: Judge
    weight: int
    """How often it is made, beside the others: what costs less is made more often."""
    first: Callable[[], Sequence[str]] = tuple
    """Inputs that are judged before any are drawn."""
    memory: int = MEMORY
    """Bytes that an input may take."""


KINDS: dict[str, Kind] = {
    "spec": Kind(inputs.spec, judge_written.spec, 3),
    "override": Kind(inputs.override, judge_written.override, 3),
    "spec tests": Kind(inputs.spec_tests, judge_written.spec_tests, 8),
    "template": Kind(inputs.prompt, judge_written.prompt, 16),
    "expression": Kind(inputs.condition, judge_written.condition, 100),
    "rows": Kind(inputs.rows, judge_written.rows, 20),
    "corpus": Kind(inputs.corpus, judge_written.corpus, 5),
    "episodes": Kind(inputs.episode, judge_kept.episodes, 90),
    "replay": Kind(inputs.episode, judge_kept.replay, 70),
    "view": Kind(inputs.view, judge_kept.view, 1),
    "report": Kind(inputs.report, judge_kept.report, 2),
    "compare": Kind(inputs.compare, judge_kept.compare, 1),
    "leaving": Kind(inputs.leaving, judge_kept.leaving, 1),
    "chat": Kind(inputs.chat, judge_said.chat, 20),
    "answer": Kind(inputs.answer, judge_said.answer, 70),
    "reply": Kind(inputs.reply, judge_said.reply, 60),
    "key": Kind(inputs.key, judge_said.key, 5),
    "tool": Kind(inputs.tool, judge_said.tool, 3),
    "vocabulary": Kind(inputs.vocabulary, judge_said.vocabulary, 6),
    "mcp": Kind(inputs.mcp, judge_said.mcp, 1),
    "observation": Kind(inputs.observation, judge_said.observation, 10),
    "resumed": Kind(inputs.resumed, judge_resumed.resumed, 20),
    "model": Kind(inputs.model, judge_models.model, 8, memory=2 * MEMORY),
    "weights": Kind(inputs.weights, judge_models.weights, 8, memory=2 * MEMORY),
    "limit": Kind(probes.draw, probes.judge, 20, probes.all_sizes, 2 * MEMORY),
}


def served() -> dict[str, Kind]:
    """The local service's kind; importing it takes seconds."""
    from judge_served import client

    return {"body": Kind(inputs.body, client().judge, 6)}


class Hang(BaseException):
    """An input took too long."""


class Tally:
    """What came of the inputs so far."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.seconds: Counter[str] = Counter()
        self.finds: Counter[str] = Counter()

    def table(self) -> str:
        lines = [f"{'kind':12} {'inputs':>9} {'results':>9} {'faults':>9} {'finds':>6} {'ms each':>8}"]
        for kind in dict.fromkeys(kind for kind, _ in self.counts):
            result, fault, find = (self.counts[kind, came] for came in ("result", "fault", "find"))
            total = result + fault + find
            each = 1000 * self.seconds[kind] / total
            lines.append(f"{kind:12} {total:9,} {result:9,} {fault:9,} {find:6,} {each:8.2f}")
        lines.append(
            f"{self.counts.total():,} inputs, {self.finds.total():,} finds of {len(self.finds):,} sorts"
        )
        return "\n".join([*lines, *(f"  {times:,} x {find}" for find, times in self.finds.most_common())])


def came_of(kind: Kind, text: str) -> tuple[str, str]:
    """Return what came of an input, and where, if it is a find."""
    Path("/proc/self/clear_refs").write_text("5")  # the most memory from here on
    before = _memory("VmHWM")
    _limit(SECONDS, WAIT)
    try:
        with written_within(Path.cwd()):
            came, where = kind.judge(text), ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a hang, or a panic of Rust
        _limit(0, 0)
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = re.sub(r"0x[0-9a-f]+|\d+", "#", f"{error}" if not _silent(error) else "…")[:120]
        said = said.encode(errors="backslashreplace").decode()
        return "find", f"{type(error).__name__} {Path(last.filename).name}:{last.lineno} {said}"
    finally:
        _limit(0, 0)
    if (took := _memory("VmHWM") - before) > kind.memory:
        return "find", f"{took >> 20} MB"
    return came, where


def _limit(seconds: float, wait: float) -> None:
    """What is left of both; again every second, where a library swallowed it."""
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    signal.setitimer(signal.ITIMER_REAL, wait, 1.0)


def _silent(error: BaseException) -> bool:
    try:
        return not str(error)
    except Exception:
        return True


def _memory(name: str) -> int:
    """A line of what Linux says of this process's memory, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split(maxsplit=1)[0]) << 10


def _stop(*_: object) -> None:
    raise Hang


def _leave(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    parser = argparse.ArgumentParser(description="hostile input of every kind")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", metavar="KIND", help=f"of {', '.join([*KINDS, 'body'])}")
    parser.add_argument("--first", action="store_true", help="end with the first find")
    parser.add_argument("--finds", type=Path, default=Path("finds.jsonl"), help="where finds are written")
    parser.add_argument("--again", type=Path, help="judge the finds of this file again, and make none")
    given = parser.parse_args()
    finds, end = given.finds.absolute(), time.monotonic() + 60 * given.minutes
    again = [json.loads(line) for line in given.again.read_text().splitlines()] if given.again else None
    wanted = {kind for kind, *_ in again} if again else {*(given.only or [*KINDS, "body"])}
    last = finds.with_suffix(".last")
    """The input that is being judged: what is left of one that ends the whole process."""
    logging.disable()
    signal.signal(signal.SIGALRM, _stop)
    signal.signal(signal.SIGPROF, _stop)
    signal.signal(signal.SIGTERM, _leave)
    rng, tally, told = random.Random(given.seed), Tally(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        os.chdir(folder)
        Path("tmp").mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = f"{folder}/tmp"
        judge_said.register()
        known = {**KINDS, **(served() if "body" in wanted else {})}
        resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + ROOM,) * 2)
        kinds = {name: kind for name, kind in known.items() if name in wanted}
        if again is not None:
            for kind, was, text in again:
                print(kind, was[:100], "->", *came_of(kinds[kind], text))
            return
        turns = [name for name, kind in kinds.items() for _ in range(kind.weight)]
        first = deque((name, text) for name, kind in kinds.items() for text in kind.first())
        try:
            while time.monotonic() < end and not (given.first and tally.finds):
                if first:
                    kind, text = first.popleft()
                else:
                    kind = rng.choice(turns)
                    text = kinds[kind].make(random.Random(rng.getrandbits(64)))
                last.write_text(json.dumps([kind, "it ended the process", text]) + "\n")
                began = time.perf_counter()
                came, where = came_of(kinds[kind], text)
                tally.seconds[kind] += time.perf_counter() - began
                tally.counts[kind, came] += 1
                if came == "find":
                    tally.finds[f"{kind}: {where}"] += 1
                    if tally.finds[f"{kind}: {where}"] == 1:
                        with finds.open("a") as file:
                            file.write(json.dumps([kind, where, text]) + "\n")
                if time.monotonic() - told > 60:
                    told = time.monotonic()
                    print(tally.table(), flush=True)
        except KeyboardInterrupt:
            pass
        finally:
            os.chdir("/")
    print(f"seed {given.seed}\n{tally.table()}", flush=True)
    if "limit" in kinds:
        print("limits without probes:", *probes.unprobed(), sep="\n  ")
    sys.stdout.flush()
    os._exit(tally.finds.total() > 0)  # threads of libraries wait for one another at an ordinary exit


if __name__ == "__main__":
    main()
