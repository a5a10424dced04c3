"""Trainings whose rollouts wait for updates, and ones whose rollouts do not, with answers of unlike length.

    python benchmarks/overlap.py                 # a Markdown table
    python benchmarks/overlap.py --steps 20

One service in this process answers a call after a second or up to ten, drawn by the seed of the call, as
answers whose lengths are 1 to 10 take on an engine of many slots. Each training has as many slots as a batch
has calls. The trainings take turns; a cell is the median of their rates.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import click
import uvicorn

import rolegraph as rg
from rolegraph import api
from rolegraph.local.launcher import BASE_MODEL
from rolegraph.local.service.backend import Backend
from rolegraph.local.service.batcher import SampleJob
from rolegraph.local.service.checkpoints import CheckpointStore
from rolegraph.local.service.local_model import LocalModel
from rolegraph.local.service.server import Service
from rolegraph.local.service.serving import listen

KEY = "tml-benchmark"
TASKS, ROLLOUTS, SOLVERS = 4, 4, 2
SHORTEST, LONGEST = 1.0, 10.0
"""Seconds of an answer."""


class UnevenBackend(Backend):
    """Backend whose answers take unlike times."""

    async def sample(self, job: SampleJob) -> SampleJob:
        seconds = random.Random(repr(job.requests[0].seed)).uniform(SHORTEST, LONGEST)
        await asyncio.sleep(seconds)
        return await super().sample(job)


@contextmanager
def serving(states: Path) -> Generator[str]:
    """Serve the shipped model in a thread, and give the URL."""
    folder = Path(BASE_MODEL)
    backend = UnevenBackend(LocalModel(folder, 1), CheckpointStore(states, str(folder), folder), str(folder))
    app = Service(backend, tokenizer=str(folder)).app(KEY, "127.0.0.1")
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
            backend.close()


def rate(
    url: str, staleness: int, steps: int, seed: int, out: Path, observe: api.Observer | None = None
) -> tuple[float, float]:
    """Train, and return the episodes a second of the steps after the first, and their mean lag in updates."""
    words = (
        f"train.staleness={staleness}",
        f"train.steps={steps}",
        f"train.batch_size={TASKS}",
        f"train.rollouts={ROLLOUTS}",
        "train.validation={every: 0, tasks: 1, rollouts: 1}",
        f"model.concurrency={SOLVERS * TASKS * ROLLOUTS}",
        "sampling.max_tokens=32",
    )
    flow = rg.load("solver_only", *words, base_url=url)
    lines = rg.train(flow, out=out / f"staleness-{staleness}-{seed}", seed=seed, observe=observe).metrics
    # The last step validates, and the first has nothing to overlap with.
    steady = [line for line in lines if 1 < line["step"] < steps]
    seconds = sum(line["time/step"] for line in steady)
    lag = statistics.mean(line["staleness/mean"] for line in steady)
    return len(steady) * TASKS * ROLLOUTS / seconds, lag


@click.command(help=__doc__)
@click.option("--steps", default=10, help="Steps of a training.")
@click.option("--repetitions", default=3)
def main(steps: int, repetitions: int) -> None:
    os.environ["TINKER_API_KEY"] = KEY
    rates: dict[int, list[float]] = {0: [], 1: [], 2: []}
    lags: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as name, serving(Path(name) / "states") as url:
        for seed in range(repetitions):
            for staleness, found in rates.items():
                each, lags[staleness] = rate(url, staleness, steps, seed, Path(name))
                found.append(each)
    print("| staleness | episodes a second | of the waiting training | updates behind, mean |")
    print("| --- | --- | --- | --- |")
    for staleness, found in rates.items():
        ratio = statistics.median(one / zero for one, zero in zip(found, rates[0], strict=True))
        print(f"| {staleness} | {statistics.median(found):.2f} | {ratio:.2f} | {lags[staleness]:.2f} |")


if __name__ == "__main__":
    main()
