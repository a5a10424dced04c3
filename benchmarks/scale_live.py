"""Constants that need a second process, and the measured points that the simulation has to reproduce.

Calls go to an OpenAI-compatible stub in a process of its own, jobs to Ray's test cluster, trainings to the
local service in this process. Constants are CPU seconds of the processes; only where no process computes, as
while a message is on its way, is a constant a time of the clock.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import process_time
from unittest.mock import patch

import overlap
from cluster import SPEC as ONE_CALL
from cluster import block_seconds, cluster, stub
from long_run import SPEC as LONG_RUN
from long_run import measured as long_run
from overhead import measure as overhead
from scale_constants import descendants, process_cpu
from scenarios import ROLEGRAPH, Scenario

import rolegraph as rg
from rolegraph import api
from rolegraph.engine.run import EpisodeJob, EpisodeMaker, run_jobs
from rolegraph.integrations.ray.cluster import open_on_ray
from rolegraph.local.launcher import running

KEY = "tml-benchmark"
LATENCY = 0.05
"""Seconds of a call to the stub, in points."""
LONG_TASKS = 1000
"""Tasks of the long run."""
RUNS, IN_FLIGHT, WAIT = 2000, 128, 0.02
"""Load of the point of `overhead.py`."""


@dataclass(frozen=True)
class Client:
    """A call through the openai client to a stub that answers at once, in CPU seconds."""

    episode: float
    """Episode of one call, in the process that makes it."""
    server: float
    """The call, in the stub."""
    transit: float
    """Seconds of the clock that an episode takes beyond the latency and the work of both."""


@dataclass(frozen=True)
class Transport:
    """A job that is sent over Ray, and an episode that comes back ready-made, in CPU seconds."""

    command: float
    worker: float
    transit: float
    """Seconds of the clock in which neither computes, half of a round trip of one job in flight."""


@dataclass(frozen=True)
class Update:
    """A step of `overlap.py` whose answers take no time, in CPU seconds of the one process."""

    rollout: float
    """Rollouts: client and service."""
    update: float
    """Advantages, update and new weights."""


async def drive(maker: EpisodeMaker, episodes: int, in_flight: int) -> None:
    """Make episodes of a task each."""
    tasks = ({"id": str(n), "question": "3 + 4?", "nums": [3, 4], "target": 7} for n in range(episodes))
    async for _ in run_jobs((EpisodeJob(task, 0, 0) for task in tasks), maker.make, in_flight):
        pass


@contextmanager
def loaded(spec: str, url: str | None = None) -> Iterator[rg.Workflow]:
    """Load a spec from its text, with the stub at a URL as its model."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "spec.yaml"
        file.write_text(spec, encoding="utf-8")
        yield rg.load(file, model="openai:tiny" if url else None, base_url=url)


def measure_client(latency: float, in_flight: int, episodes: int) -> Client:
    """Measure a call to a stub that answers after `latency` seconds, with so many calls in flight."""

    async def measure(flow: rg.Workflow, server: int) -> Client:
        async with flow.open() as opened:
            await drive(opened, in_flight, in_flight)
            began, own, of_server = time.perf_counter(), process_time(), process_cpu(server)
            await drive(opened, episodes, in_flight)
            client, serving = process_time() - own, process_cpu(server) - of_server
            took = (time.perf_counter() - began) / episodes * in_flight
            waited = took - latency - (client + serving) / episodes
            return Client(client / episodes, serving / episodes, max(0.0, waited))

    with stub(latency) as url, loaded(ONE_CALL, url) as flow:
        return asyncio.run(measure(flow, descendants("spawn_main")[-1]))


class WaitingMaker:
    """Maker whose episodes take a time, and no work: each is the same small one."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def make(self, job: EpisodeJob, observe: rg.Observer | None = None) -> rg.Episode:
        """Wait, and return an episode of the job's task."""
        await asyncio.sleep(self.seconds)
        return rg.Episode(job.task["id"], job.rollout, job.task, ())


@asynccontextmanager
async def waiting_maker(seconds: float) -> AsyncGenerator[WaitingMaker]:
    """Open a WaitingMaker, in a worker."""
    yield WaitingMaker(seconds)


@contextmanager
def nodes_of(number: int) -> Iterator[str]:
    """Start a Ray cluster of some nodes, whose workers can import this module."""
    here = Path(__file__).parent
    paths = os.pathsep.join(map(str, (here, here.parent)))
    with patch.dict(os.environ, PYTHONPATH=paths), cluster(number) as address:
        yield address


def measure_transport(address: str, latency: float, in_flight: int, episodes: int) -> Transport:
    """Measure the way of jobs over Ray to a cluster of one node, and back.

    Args:
        address: The cluster.
        latency: Seconds of an episode in the worker, which computes nothing.
        in_flight: Episodes in flight on the node.
        episodes: Number of jobs.
    """

    async def measure() -> Transport:
        opener = partial(waiting_maker, latency)
        async with open_on_ray(opener, address, slots=in_flight, observe=lambda _: None) as pool:
            (worker,) = descendants("ray::EpisodeWorker")
            await drive(pool, 2 * pool.jobs, pool.jobs)
            own, remote = process_time(), process_cpu(worker)
            await drive(pool, episodes, pool.jobs)
            command, made = process_time() - own, process_cpu(worker) - remote
            trips: list[float] = []
            for _ in range(40):
                began = time.perf_counter()
                await drive(pool, 1, 1)
                trips.append(time.perf_counter() - began - latency)
            computed = (command + made) / episodes
            waited = max(0.0, statistics.median(trips) - computed)
            return Transport(command / episodes, made / episodes, waited / 2)

    return asyncio.run(measure())


def measure_sdk(episodes: int = 400) -> float:
    """Return the CPU seconds of an episode of one call through the Tinker SDK to the local service.

    Answers have at most 32 tokens; 64 are in flight. The service is a process of its own.
    """

    async def measure(flow: rg.Workflow) -> float:
        async with flow.open() as opened:
            await drive(opened, 64, 64)
            took: list[float] = []
            for _ in range(3):
                began = process_time()
                await drive(opened, episodes, 64)
                took.append((process_time() - began) / episodes)
            return statistics.median(took)

    with running(overlap.BASE_MODEL) as local, patch.dict(os.environ, TINKER_API_KEY=local.api_key):
        words = ("roles.solver.count=1", "sampling.max_tokens=32")
        model = f"tinker:{local.model_name}"
        return asyncio.run(measure(rg.load("solver_only", *words, model=model, base_url=local.base_url)))


def measure_update(steps: int = 6) -> Update:
    """Measure the steps of a training as `overlap.py` makes them, without its waits."""
    marks: list[tuple[str, float]] = []

    def observe(event: api.Event) -> None:
        if isinstance(event, api.Note) and event.text.startswith("step "):
            marks.append((event.text.split()[2], process_time()))
        elif isinstance(event, api.StepLogged):
            marks.append(("logged", process_time()))

    with (
        tempfile.TemporaryDirectory() as name,
        overlap.serving(Path(name) / "states") as url,
        patch.multiple(overlap, SHORTEST=0.0, LONGEST=0.0),
        patch.dict(os.environ, TINKER_API_KEY=overlap.KEY),
    ):
        overlap.rate(url, 0, steps, 0, Path(name), observe)
    rollouts, others = list[float](), list[float]()
    begins = [place for place, (kind, _) in enumerate(marks) if kind == "rollouts"]
    # The first step warms up, and the last one validates.
    for place, after in pairwise(begins[1:]):
        rollouts.append(marks[place + 1][1] - marks[place][1])
        others.append(marks[after][1] - marks[place + 1][1])
    return Update(statistics.median(rollouts), statistics.median(others))


def long_run_cpu(episodes: int) -> float:
    """Return the CPU seconds of `rolegraph run` for episodes of 1,000 tasks without a model."""
    with tempfile.TemporaryDirectory() as name, patch("long_run.TASKS", LONG_TASKS):
        spec = Path(name) / "spec.yaml"
        spec.write_text(LONG_RUN, encoding="utf-8")
        return long_run(spec, episodes)[1]


def overhead_run(latency: float) -> tuple[float, float]:
    """Return the seconds and CPU seconds of a run of `overhead.py`, whose calls take `latency` seconds."""
    measured = overhead(ROLEGRAPH, Scenario("", "", RUNS, IN_FLIGHT, latency=latency))
    if isinstance(measured, str):
        sys.exit(f"overhead.py: {measured}")
    return measured["seconds"] / RUNS, measured["cpu_s"] / RUNS


def http_rate(slots: int, episodes: int) -> float:
    """Return the episodes a second of one process that asks the stub."""

    async def measure(flow: rg.Workflow) -> float:
        async with flow.open() as opened:
            await drive(opened, slots, slots)
            began = time.perf_counter()
            await drive(opened, episodes, slots)
            return episodes / (time.perf_counter() - began)

    with stub(LATENCY) as url, loaded(ONE_CALL, url) as flow:
        return asyncio.run(measure(flow))


def cluster_rate(address: str, slots: int, episodes: int) -> float:
    """Return the episodes a second of a run on a cluster, as `cluster.py` measures them."""
    with stub(LATENCY) as url, loaded(ONE_CALL, url) as flow:
        return episodes * 0.75 / block_seconds(flow, address, slots, episodes)


def overlap_rates(steps: int, seed: int) -> dict[int, tuple[float, float]]:
    """Return the episodes a second and the lag of trainings with staleness 0, 1 and 2."""
    with (
        tempfile.TemporaryDirectory() as name,
        overlap.serving(Path(name) / "states") as url,
        patch.dict(os.environ, TINKER_API_KEY=overlap.KEY),
    ):
        return {ahead: overlap.rate(url, ahead, steps, seed, Path(name)) for ahead in (0, 1, 2)}
