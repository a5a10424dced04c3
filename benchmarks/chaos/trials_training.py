"""Trainings that are broken: by a flaky service and by kills of themselves, by kills of their service."""

from __future__ import annotations

import json
import math
import os
import random
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from counting import Count, said_in
from flaky import Flaky, in_front_of
from processes import Place, kill, wait_until
from trials import one_writes

from rolegraph.engine.records import read_episodes
from rolegraph.local.launcher import BASE_MODEL, running

SMALL = (
    "train.batch_size=2",
    "train.rollouts=4",
    "train.steps=3",
    "train.learning_rate=0.002",
    "train.checkpoint_every=1",
    "train.validation={every: 3, tasks: 2, rollouts: 1}",
    "sampling.max_tokens=32",
)
KILLS = 3
TOLERANCE = 1e-3
"""How far metrics may differ: batches differ in their float noise, and Adam passes it on."""
CLOCKED = ("time/", "tokens/per_second")
FAULTY = 0.04
KEY = "tml-chaos"
TRIES = 12


class Trainings:
    """Trainings on one service, through a server that fails; and what an unbroken one measures."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.number = folder, 0
        self._stack = ExitStack()
        folder.mkdir()
        os.environ["OMP_NUM_THREADS"] = "1"
        service = self._stack.enter_context(running(BASE_MODEL, state_dir=folder / "weights", threads=1))
        self.key = service.api_key
        # Garbage ends the SDK's patience at once: less of it.
        self.server = Flaky(in_front_of(service.base_url), seed, 0.0, garbage=0.35)
        self._stack.callback(self.server.close)
        place = Place(folder / "whole")
        out = place.folder / "run"
        process = place.start(*self.command(out, self.server.url), TINKER_API_KEY=self.key)
        assert process.wait() == 0, place.said()
        self.whole, self.episodes = metrics(out), ids(out)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def command(self, out: Path, url: str) -> tuple[str, ...]:
        """The words that begin a training, or take it up."""
        begun = (out / "run.json").exists()
        words = ("train", "--resume") if begun else ("train", "solver_judge", *SMALL)
        return (*words, "--base-url", url, "--out", str(out))

    def _place(self) -> Place:
        self.number += 1
        return Place(self.folder / str(self.number))

    def trial(self, count: Count, rng: random.Random) -> None:
        """One training, killed a few times while calls of it fail, and then left to end."""
        place = self._place()
        out = place.folder / "run"
        self.server.share, before = FAULTY, self.server.faults.copy()
        for _ in range(KILLS):
            before_it = len(place.told())
            process = place.start(*self.command(out, self.server.url), TINKER_API_KEY=self.key)
            wait_until(process, out / "metrics.jsonl", rng.randrange(1, len(self.whole) + 1), 60.0)
            time.sleep(rng.random() * 2)
            count.of["kills"] += kill(process)
            self._keeps(count, out, place.told(before_it))
        if rng.random() < 0.5:
            self.server.die_for(10.0)
        self._finish(place, out, self.server.url)
        faults = self.server.faults - before
        count.faults.update(faults)
        count.of.update(trials=1, faults=faults.total())
        self._judge(count, place, out)

    def without_service(self, count: Count, rng: random.Random) -> None:
        """A training whose service is killed, and begun anew at the same address."""
        place = self._place()
        out = place.folder / "run"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = ("serve", "--port", str(port), "--state-dir", str(place.folder / "weights"), "--threads", "1")
        url = f"http://127.0.0.1:{port}"
        service = place.start(*words, ROLEGRAPH_SERVE_KEY=KEY)
        wait_until(service, place.logs[-1], 1, 120.0)
        for _ in range(2):
            before_it = len(place.told())
            process = place.start(*self.command(out, url), TINKER_API_KEY=KEY)
            wait_until(process, out / "metrics.jsonl", rng.randrange(1, len(self.whole)), 120.0)
            time.sleep(rng.random())
            count.of["kills"] += kill(service)
            service = place.start(*words, ROLEGRAPH_SERVE_KEY=KEY)
            wait_until(service, place.logs[-1], 1, 120.0)
            process.wait()
            self._keeps(count, out, place.told(before_it))
        self._finish(place, out, url, KEY)
        count.of["kills"] += kill(service)
        count.of.update(trials=1)
        self._judge(count, place, out)

    def own_service(self, count: Count, rng: random.Random) -> None:
        """A run that starts a service for itself, killed a few times: the service ends with the run.

        In half of the trials it stays for the next command, and ends when it is told to.
        """
        place, stays = self._place(), rng.choice(["0", "300"])
        out = place.folder / "run"
        words = ("run", "solver_judge", "sampling.max_tokens=16", "--model", "local", "--limit", "4")
        for _ in range(KILLS):
            begun = (out / "run.json").exists()
            process = place.start(
                *(("run", "--resume") if begun else words), "--out", str(out), ROLEGRAPH_WARM=stays
            )
            wait_until(process, out / "episodes.jsonl", rng.randrange(4), 60.0)
            time.sleep(rng.random() * 2)
            count.of["kills"] += kill(process)
            count.keeps(place, out / "episodes.jsonl")
        begun = (out / "run.json").exists()
        process = place.start(
            *(("run", "--resume") if begun else words), "--out", str(out), ROLEGRAPH_WARM=stays
        )
        assert process.wait() == 0, place.said()
        count.keeps(place, out / "episodes.jsonl")
        assert place.start("serve", "--stop").wait() == 0, place.said()
        found = said_in(out / "episodes.jsonl")
        count.of["trials"] += 1
        count.of["lost"] += 4 - len(found)
        count.episodes(out / "episodes.jsonl", found)
        count.leave(place)

    def pair(self, count: Count, rng: random.Random) -> None:
        """Two commands on one folder, of which one trains."""
        place = self._place()
        out = place.folder / "run"
        self.server.share = 0.0
        begun = place.start(*self.command(out, self.server.url), TINKER_API_KEY=self.key)
        wait_until(begun, out / "metrics.jsonl", rng.randrange(1, len(self.whole)), 60.0)
        count.of["kills"] += kill(begun)
        words, before_both = self.command(out, self.server.url), len(place.told())
        both = [place.start(*words, TINKER_API_KEY=self.key) for _ in range(2)]
        count.of["other"] += not one_writes(both[0], both[1], place)
        self._keeps(count, out, place.told(before_both))
        self._finish(place, out, self.server.url)
        count.of.update(trials=1)
        self._judge(count, place, out)

    def _keeps(self, count: Count, out: Path, told: list[str]) -> None:
        """Count the steps that a command told as finished whose metrics or episodes the folder lacks."""
        steps = {int(line.removeprefix("step ")) for line in told if line.startswith("step ")}
        found, episodes = {int(line["step"]) for line in metrics(out)}, ids(out)
        count.of["told"] += len(steps)
        for step in steps:
            file = f"train-{step:06}.jsonl"
            whole = {*episodes.get(file, [])} == {*self.episodes.get(file, [])}
            count.of["lost"] += step not in found or not whole

    def _finish(self, place: Place, out: Path, url: str, key: str | None = None) -> None:
        for _ in range(TRIES):
            if place.start(*self.command(out, url), TINKER_API_KEY=key or self.key).wait() == 0:
                return
            self.server.share /= 2
        raise AssertionError(f"it cannot be finished: {place.said()}")

    def _judge(self, count: Count, place: Place, out: Path) -> None:
        count.of["other"] += not same(metrics(out), self.whole)
        found = ids(out)
        count.of["episodes"] += sum(map(len, found.values()))
        for name, expected in self.episodes.items():
            there = found.get(name, [])
            count.of["lost"] += len({*expected} - {*there})
            count.of["twice"] += len(there) - len({*there})
        count.of["other"] += len({*found} - {*self.episodes})
        count.leave(place)


def metrics(out: Path) -> list[dict[str, float]]:
    """Return the whole lines of a training's metrics, without what a clock has a part in."""
    file = out / "metrics.jsonl"
    text = file.read_text() if file.exists() else ""
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [{k: v for k, v in line.items() if not k.startswith(CLOCKED)} for line in lines]


def same(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> bool:
    """Whether two trainings measured the same."""
    if len(ours) != len(theirs):
        return False
    for one, other in zip(ours, theirs, strict=True):
        keys = {*one} | {*other}
        wrong = [key for key in keys if not close(one.get(key), other.get(key))]
        if wrong:
            print(
                f"  differs at step {one.get('step')}:",
                {key: (one.get(key), other.get(key)) for key in wrong[:4]},
            )
            return False
    return True


def close(one: float | None, other: float | None) -> bool:
    return (
        one is not None
        and other is not None
        and math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    )


def ids(out: Path) -> dict[str, list[str]]:
    """The episodes of each step, by file."""
    files = sorted(path for path in (out / "episodes").glob("*.jsonl") if ".index" not in path.name)
    return {path.name: [episode.id for episode in read_episodes(path)] for path in files}
