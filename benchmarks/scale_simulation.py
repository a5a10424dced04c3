"""Discrete-event simulation of a run, of a run on a Ray cluster, and of a training with staleness.

The times are those that `scale_constants` measures; nothing here is fitted to a rate. A process is a thread
that computes one thing at a time (Python's interpreter lock) on one of its machine's cores, in turns of first
come, first served. Waiting for a model takes no core.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import simpy

Process = Generator[Any, Any, None]
Latency = Callable[[random.Random], float]
"""Function that draws the seconds of a call, without the work of client and server."""


@dataclass(frozen=True)
class Call:
    """One model call."""

    latency: Latency
    client: float = 0.0
    """CPU seconds in the process that makes the episode: half before the answer, half after it."""
    server: float = 0.0
    """CPU seconds in a server that shares the machine; 0 for a server elsewhere."""
    transit: float = 0.0
    """Seconds on the way in which no process computes: wake-ups and the network."""


@dataclass(frozen=True)
class Work:
    """CPU seconds of one episode beside its calls, and its calls."""

    stages: Sequence[int]
    """Number of calls that run side by side, for each stage of calls that wait for one another."""
    call: Call
    episode: float
    """Scheduling and building, in the process that makes the episode: half at its start, half at its end."""
    keep: float = 0.0
    """Serialising and writing, in the command."""


@dataclass(frozen=True)
class Cluster:
    """Ray nodes, each with one worker."""

    nodes: int
    send: float
    """CPU seconds of the command for a job that it sends and an episode that it receives: half each."""
    serve: float
    """CPU seconds of the worker for the same: half each."""
    transit: float = 0.0
    """Seconds of a message on its way."""

    def jobs(self, slots: int) -> int:
        """Return the largest number of jobs that a worker holds, as `WorkerSetup.jobs`."""
        return slots + max(1, slots // 8)


class Thread:
    """Process that computes one thing at a time, on one of a machine's cores."""

    def __init__(self, env: simpy.Environment, cores: simpy.Resource | None) -> None:
        self.env, self.cores, self.busy = env, cores, 0.0
        self._lock = simpy.Resource(env, 1)

    def compute(self, seconds: float) -> Process:
        """Compute for some seconds when the thread and a core are free."""
        if seconds <= 0:
            return
        with self._lock.request() as turn:
            yield turn
            if self.cores is None:
                yield self.env.timeout(seconds)
            else:
                with self.cores.request() as core:
                    yield core
                    yield self.env.timeout(seconds)
        self.busy += seconds


@dataclass(frozen=True)
class RunOutcome:
    """Ends of a run's episodes, and the seconds that the command computed."""

    ends: Sequence[float]
    """Seconds from the start at which the command had each episode, in order."""
    command: float
    """CPU seconds of the command."""

    def rate(self, skip: float = 0.0) -> float:
        """Return the episodes a second after a leading fraction of the episodes."""
        first = int(len(self.ends) * skip)
        began = self.ends[first - 1] if first else 0.0
        return (len(self.ends) - first) / (self.ends[-1] - began)

    @property
    def load(self) -> float:
        """Fraction of one core that the command computed."""
        return self.command / self.ends[-1]


def simulate_run(
    work: Work,
    *,
    episodes: int,
    slots: int,
    cluster: Cluster | None = None,
    cores: int | None = None,
    calls: int | None = None,
    seed: int = 0,
) -> RunOutcome:
    """Simulate `rolegraph run`, in one process or on a cluster.

    Args:
        work: Times of an episode.
        episodes: Number of episodes.
        slots: Episodes in flight at most; on a cluster, on each node.
        cluster: Workers that make the episodes; None makes them in the command.
        cores: Cores that all processes share; None gives each process a core of its own.
        calls: Model calls in flight at most, in each process that makes episodes; None sets no limit.
        seed: Seed of the latencies.

    Returns:
        The ends of the episodes, and the load of the command.
    """
    env, chance = simpy.Environment(), random.Random(seed)
    machine = simpy.Resource(env, cores) if cores else None
    command, server = Thread(env, machine), Thread(env, machine)
    makers = [Thread(env, machine) for _ in range(cluster.nodes)] if cluster else [command]
    places = [simpy.Resource(env, slots) for _ in makers]
    limits = [simpy.Resource(env, calls) if calls else None for _ in makers]
    held = [0] * len(makers)
    numbers, ends = itertools.count(), list[float]()

    def call(number: int) -> Process:
        limit, it = limits[number], work.call
        turn = limit.request() if limit else None
        if turn is not None:
            yield turn
        yield from makers[number].compute(it.client / 2)
        yield env.timeout(it.latency(chance) + it.transit)
        yield from server.compute(it.server)
        yield from makers[number].compute(it.client / 2)
        if limit is not None and turn is not None:
            limit.release(turn)

    def episode(number: int) -> Process:
        yield from makers[number].compute(work.episode / 2)
        for side_by_side in work.stages:
            yield env.all_of([env.process(call(number)) for _ in range(side_by_side)])
        yield from makers[number].compute(work.episode / 2)

    def remote(on: Cluster) -> Process:
        number = min(range(len(held)), key=held.__getitem__)
        held[number] += 1
        yield from command.compute(on.send / 2)
        yield env.timeout(on.transit)
        yield from makers[number].compute(on.serve / 2)
        with places[number].request() as slot:
            yield slot
            yield from episode(number)
        yield from makers[number].compute(on.serve / 2)
        yield env.timeout(on.transit)
        yield from command.compute(on.send / 2)
        held[number] -= 1

    def loop() -> Process:
        while next(numbers) < episodes:
            yield from remote(cluster) if cluster else episode(0)
            yield from command.compute(work.keep)
            ends.append(env.now)

    in_flight = cluster.nodes * cluster.jobs(slots) if cluster else slots
    for _ in range(min(in_flight, episodes)):
        env.process(loop())
    env.run()
    return RunOutcome(ends, command.busy)


@dataclass(frozen=True)
class Engine:
    """Sampling engines whose speed is shared by all answers in flight."""

    tokens: float
    """Tokens a second of all engines together, with many answers in flight."""
    single: float
    """Tokens a second of one answer, at most."""
    lengths: Latency
    """Function that draws the tokens of an answer."""


class SharedEngine:
    """Engines in a simulation: each answer in flight gets the same part of the speed, and at most its own."""

    def __init__(self, env: simpy.Environment, engine: Engine) -> None:
        self.env, self.engine, self.sampled = env, engine, 0.0
        self._waiting: list[tuple[float, int, simpy.Event]] = []
        """Answers in flight, by the number of tokens for each answer at which they end."""
        self._each, self._at, self._numbers = 0.0, 0.0, itertools.count()
        self._woken = env.event()
        env.process(self._work())

    def answer(self, tokens: float) -> simpy.Event:
        """Start an answer, and return the event of its end."""
        self._advance()
        ended = self.env.event()
        heapq.heappush(self._waiting, (self._each + tokens, next(self._numbers), ended))
        self.sampled += tokens
        # An answer more makes the others slower, so that a timer which runs ends early, and is set again.
        if self._waiting[0][2] is ended:
            self._woken.succeed()
            self._woken = self.env.event()
        return ended

    @property
    def _speed(self) -> float:
        return min(self.engine.single, self.engine.tokens / max(1, len(self._waiting)))

    def _advance(self) -> None:
        self._each += (self.env.now - self._at) * self._speed
        self._at = self.env.now

    def _work(self) -> Process:
        while True:
            if not self._waiting:
                yield self._woken
                continue
            left = (self._waiting[0][0] - self._each) / self._speed
            timer = self.env.timeout(max(0.0, left))
            yield timer | self._woken
            self._advance()
            while self._waiting and self._waiting[0][0] <= self._each + 1e-6:
                heapq.heappop(self._waiting)[2].succeed()


@dataclass(frozen=True)
class Learning:
    """Times of a training's step beside its rollouts."""

    prepare: float
    """CPU seconds of the command for each episode between the last answer and the update: advantages,
    writing, training data."""
    update: float
    """Seconds in which the training service updates a batch, and gives the new weights to the sampler."""


@dataclass(frozen=True)
class TrainingOutcome:
    """Times of a training's steps."""

    seconds: Sequence[float]
    """Seconds of each step."""
    lags: Sequence[float]
    """Updates by which the weights that sampled a step's batch were behind."""
    batch: int
    """Episodes of a step."""
    sampling: float
    """Fraction of the sampler's slots that were in use, or of its engines' speed."""
    updating: float
    """Fraction of the time in which the service updated."""
    command: float
    """Fraction of the time in which the command computed."""

    def steady(self) -> range:
        """Return the positions of all steps but the first and the last."""
        return range(1, len(self.seconds) - 1)

    @property
    def rate(self) -> float:
        """Episodes a second of the steps between the first and the last."""
        seconds = [self.seconds[place] for place in self.steady()]
        return len(seconds) * self.batch / sum(seconds)

    @property
    def lag(self) -> float:
        """Mean number of updates behind of the steps between the first and the last."""
        return mean(self.lags[place] for place in self.steady())


def simulate_training(
    work: Work,
    learning: Learning,
    *,
    batch: int,
    steps: int,
    slots: int,
    staleness: int = 0,
    engine: Engine | None = None,
    cores: int | None = None,
    seed: int = 0,
) -> TrainingOutcome:
    """Simulate the loop of `rolegraph train`: rollouts, advantages, update, new weights.

    A step starts the batches of up to `staleness` steps ahead, waits for its own, and learns from it; the
    batches ahead are sampled meanwhile, in the slots that are free.

    Args:
        work: Times of an episode; `keep` is left out, as a step writes its episodes in `prepare`.
        learning: Times of an update.
        batch: Episodes of a step, P·K.
        steps: Number of steps.
        slots: Calls that the sampler answers at a time.
        staleness: Batches that are sampled ahead.
        engine: Engines that sample the answers, in place of the latency of `work.call`.
        cores: Cores of the command's machine; None gives the command a core of its own.
        seed: Seed of the latencies.

    Returns:
        The seconds and the lag of each step, and how much of the time each part was in use.
    """
    env, chance = simpy.Environment(), random.Random(seed)
    command = Thread(env, simpy.Resource(env, cores) if cores else None)
    sampler = simpy.Resource(env, slots)
    seconds, lags, sampled = list[float](), list[float](), [0.0]
    engines = SharedEngine(env, engine) if engine else None

    def call() -> Process:
        with sampler.request() as slot:
            yield slot
            began = env.now
            yield from command.compute(work.call.client / 2)
            if engines is not None:
                yield engines.answer(engines.engine.lengths(chance))
            else:
                yield env.timeout(work.call.latency(chance) + work.call.transit)
            yield from command.compute(work.call.client / 2)
            sampled[0] += env.now - began

    def episode() -> Process:
        yield from command.compute(work.episode / 2)
        for side_by_side in work.stages:
            yield env.all_of([env.process(call()) for _ in range(side_by_side)])
        yield from command.compute(work.episode / 2)

    def loop() -> Process:
        launched, pending = 0, list[tuple[int, simpy.Event]]()
        for step in range(1, steps + 1):
            began = env.now
            while launched < min(step + staleness, steps):
                launched += 1
                made = env.all_of([env.process(episode()) for _ in range(batch)])
                pending.append((step - 1, made))
            version, made = pending.pop(0)
            yield made
            yield from command.compute(learning.prepare * batch)
            yield env.timeout(learning.update)
            lags.append(step - 1 - version)
            seconds.append(env.now - began)

    env.run(env.process(loop()))
    whole = env.now
    return TrainingOutcome(
        seconds,
        lags,
        batch,
        sampling=engines.sampled / engines.engine.tokens / whole if engines else sampled[0] / slots / whole,
        updating=learning.update * steps / whole,
        command=command.busy / whole,
    )


def constant(seconds: float) -> Latency:
    """Return a latency that is always the same."""
    return lambda _: seconds


def uniform(shortest: float, longest: float) -> Latency:
    """Return a latency that is uniform between two bounds, in seconds."""
    return lambda chance: chance.uniform(shortest, longest)


def answer_lengths(mean_tokens: float, spread: float, most: int) -> Callable[[random.Random], float]:
    """Return a function that draws lengths of answers in tokens: log-normal, cut at `most`.

    Args:
        mean_tokens: Mean of the lengths before the cut.
        spread: Standard deviation of their natural logarithm.
        most: Largest number of tokens, as of `sampling.max_tokens`.
    """
    center = math.log(mean_tokens) - spread**2 / 2
    return lambda chance: min(float(most), chance.lognormvariate(center, spread))
