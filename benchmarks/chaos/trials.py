"""Runs that are broken: by a flaky server and by kills, by a folder that takes nothing."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from counting import Count, said_in
from flaky import Flaky, scripted
from processes import ForkedCommand, Place, kill, wait_until

TASKS, ROLLOUTS = 25, 2
KILLS = 5
"""Of one run, at most."""
DEAD_SECONDS = 10.0
FAULTY = 0.35
WORDS = ("--limit", str(TASKS), "--rollouts", str(ROLLOUTS), "--seed", "7", "--concurrency", "4")


class _Served:
    """A scripted model behind a flaky server, and what an unbroken run says."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder, self.number = folder, 0
        self.server = Flaky(scripted, seed, 0.0)
        place = Place(folder / "whole")
        process = place.start(*self.command(place.folder / "run"))
        assert process.wait() == 0, place.said()
        self.whole = said_in(place.folder / "run" / "episodes.jsonl")

    def command(self, out: Path) -> tuple[str, ...]:
        model = ("--model", "openai:tiny", "--base-url", f"{self.server.url}/v1")
        return ("run", "solver_judge", *model, *WORDS, "--out", str(out))

    def place(self) -> Place:
        self.number += 1
        return Place(self.folder / str(self.number))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.close()

    def go_on(self, out: Path) -> tuple[str, ...]:
        """The words that take a run up, or begin it where it was killed before it had begun."""
        return ("run", "--resume", "--out", str(out)) if (out / "run.json").exists() else self.command(out)

    def finish(self, place: Place, out: Path) -> None:
        """Take it up until it is whole; what the world broke is made again."""
        for more in ((), ("--retry-failed",), ("--retry-failed",), ("--retry-failed",)):
            words = self.go_on(out)
            process = place.start(*words, *(more if "--resume" in words else ()))
            code = process.wait()
            if code == 0 and more:
                return


class Runs(_Served):
    """Runs of which calls fail, and which are killed."""

    def trial(self, count: Count, rng: random.Random) -> None:
        """One run, killed a few times, and then left to end."""
        place = self.place()
        out = place.folder / "run"
        self.server.share, before = FAULTY, self.server.faults.copy()
        for _ in range(KILLS):
            process = place.start(*self.go_on(out))
            if rng.random() < 0.3:
                wait_until(process, out / "none", 1, rng.uniform(0.2, 4.0))
            else:
                wait_until(process, out / "episodes.jsonl", rng.randrange(1, TASKS * ROLLOUTS + 2), 20.0)
                time.sleep(rng.random() * 0.1)
            count.of["kills"] += kill(process)
            count.keeps(place, out / "episodes.jsonl")
        process = place.start(*self.go_on(out))
        if rng.random() < 0.3:
            time.sleep(rng.random())
            self.server.die_for(DEAD_SECONDS)
        process.wait()
        self.server.back.wait()
        count.keeps(place, out / "episodes.jsonl")
        self.server.share = 0.0
        self.finish(place, out)
        faults = self.server.faults - before
        count.faults.update(faults)
        count.of.update(trials=1, faults=faults.total())
        count.episodes(out / "episodes.jsonl", self.whole)
        count.leave(place)

    def pair(self, count: Count, rng: random.Random) -> None:
        """Two commands on one folder: one of them writes, and the other says why it does not."""
        place = self.place()
        out = place.folder / "run"
        self.server.share = 0.0
        if rng.random() < 0.5:
            begun = place.start(*self.command(out))
            wait_until(begun, out / "episodes.jsonl", rng.randrange(1, TASKS), 20.0)
            count.of["kills"] += kill(begun)
        first = place.start(*self.go_on(out))
        time.sleep(rng.choice([0.0, rng.random()]))
        count.of["other"] += not one_writes(first, place.start(*self.go_on(out)), place)
        count.keeps(place, out / "episodes.jsonl")
        self.finish(place, out)
        count.of.update(trials=1)
        count.episodes(out / "episodes.jsonl", self.whole)
        count.leave(place)


def one_writes(one: ForkedCommand, other: ForkedCommand, place: Place) -> bool:
    """Return True where one of two commands on one folder ends well, and the other well or with a reason."""
    codes = one.wait(), other.wait()
    said = [log.read_text(errors="replace") for log in place.logs[-2:]]
    good = [code == 0 or (code == 2 and "--out" in text) for code, text in zip(codes, said, strict=True)]
    if not (all(good) and 0 in codes):
        print(f"  two at once end with {codes}: {said}")
    return all(good) and 0 in codes


class Worlds(_Served):
    """Runs in folders that do not take what they write."""

    def read_only(self, count: Count, rng: random.Random) -> None:
        """A folder that may not be written, to who is no master of this machine; then it may."""
        place = self.place()
        out = place.folder / "run"
        out.mkdir(mode=0o555)
        lacks = "-dac_override,-dac_read_search,-fowner"
        before = [
            "setpriv",
            f"--bounding-set={lacks}",
            f"--inh-caps={lacks}",
            sys.executable,
            "-m",
            "rolegraph",
        ]
        done = subprocess.run(
            [*before, *self.command(out)], cwd=place.folder, capture_output=True, check=False
        )
        assert done.returncode == 1 and b"Permission denied" in done.stderr, done
        out.chmod(0o755)
        self.finish(place, out)
        count.keeps(place, out / "episodes.jsonl")
        count.of.update(trials=1, faults=1)
        count.faults["folder read-only"] += 1
        count.episodes(out / "episodes.jsonl", self.whole)
        count.leave(place)
