"""Costs of long answers: measured points of 1,000 and 8,000 tokens, their simulation, and memory of `train`.

    python benchmarks/scale_tokens.py                    # Markdown tables; a few minutes
    python benchmarks/scale_tokens.py --json FILE        # writes them to a file, too

A stub in a process of its own answers with ids and log-probabilities in the form of vLLM's after a time, as
`calls.py` has it. A call's CPU time is measured alone, and the point is a run of the Python API with 64 in
flight, which writes its episodes. Both have the command's garbage collector, and take turns. Trainings run
in a process each against a scripted Tinker service; an episode's memory is the difference of their peaks.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time

import click
from calls import __file__ as stub_file
from cluster import SPEC as ONE_CALL
from scale_constants import cpu_us, process_cpu, write
from scale_live import drive
from scale_plans import number, table
from scale_simulation import Call, Work, simulate_run, uniform

import rolegraph as rg
from rolegraph import api
from rolegraph.local.launcher import BASE_MODEL

TOKENS = (5, 1000, 8000)
DELAYS = {5: 1.0, 1000: 2.0, 8000: 5.0}
"""Mean seconds of an answer, drawn from half to one and a half of them.

64 in flight take a fifth of a core, so that it is free beside other work."""
EPISODES = {5: 640, 1000: 512, 8000: 256}
IN_FLIGHT, CORES = 64, 2
WAVES, SKIPPED = 3, 0.25
"""Rounds of all calls in flight, and the fraction of a run's episodes before its rate is measured."""
COLLECTOR = 100_000
"""The command's threshold of the youngest generation."""
TRAINED = """
rolegraph: 2
name: tokens
data: {train: {countdown: {count: 1000}}, validation: {countdown: {count: 8}}}
roles:
  solver: {prompt: "{{ task.question }}", parser: text, reward: "1", estimator: reinforce}
"""
BATCHES = {1000: (64, 320), 8000: (16, 64)}
"""Episodes of a step of two trainings, by tokens of an answer."""
KEY = "tml-benchmark"


@dataclass(frozen=True)
class Stub:
    """Running stub of `calls.py`."""

    pid: int
    url: str
    tinker_url: str


@contextmanager
def stub(delay: float) -> Generator[Stub]:
    """Start a stub whose answers take a time."""
    command = [sys.executable, stub_file, "--serve", f"--delay={delay}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            port, tinker_url = process.stdout.readline().decode().split()
            yield Stub(process.pid, f"http://127.0.0.1:{port}/v1", tinker_url)
        finally:
            process.terminate()


@dataclass(frozen=True)
class Point:
    """A run against the stub, and what its constants predict."""

    tokens: int
    call: float
    """CPU seconds of a call in the client, with scheduling and building its episode."""
    server: float
    """CPU seconds of a call in the stub."""
    keep: float
    """CPU seconds of writing an episode."""
    rate: float
    """Measured episodes a second."""
    cpu: float
    """Measured CPU seconds of an episode."""
    simulated: float
    """Simulated episodes a second."""

    @property
    def predicted(self) -> float:
        """Predicted CPU seconds of an episode."""
        return self.call + self.keep


def measure_calls(spec: Path, tokens: int) -> tuple[float, float]:
    """Return the CPU seconds of a call in the client and in the stub.

    With as many in flight as the point has, since a call costs more where more connections are open.
    """
    with stub(DELAYS[tokens]) as it:

        async def calls() -> tuple[float, float]:
            async with loaded(spec, tokens, it).open() as opened:
                await drive(opened, IN_FLIGHT, IN_FLIGHT)
                own, serving, count = process_time(), process_cpu(it.pid), WAVES * IN_FLIGHT
                await drive(opened, count, IN_FLIGHT)
                return (process_time() - own) / count, (process_cpu(it.pid) - serving) / count

        return asyncio.run(calls())


def loaded(spec: Path, tokens: int, it: Stub) -> rg.Workflow:
    """Load a spec with the stub's answers of some tokens."""
    return rg.load(spec, f"sampling.max_tokens={tokens + 1}", model=f"openai:{tokens}", base_url=it.url)


def measure_point(spec: Path, tokens: int) -> Point:
    """Measure the constants of answers of some tokens, and the run that they have to predict."""
    episodes, marks = EPISODES[tokens], list[tuple[float, float]]()

    def observe(event: api.Event) -> None:
        if isinstance(event, api.EpisodeDone):
            marks.append((time.perf_counter(), process_time()))

    call, server = measure_calls(spec, tokens)
    with stub(DELAYS[tokens]) as it, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rg.run(
            loaded(spec, tokens, it),
            limit=episodes,
            concurrency=IN_FLIGHT,
            out=folder / "run",
            observe=observe,
            progress=False,
        )
        made = [*itertools.islice(rg.read_episodes(folder / "run"), IN_FLIGHT)]
        keep = cpu_us(lambda: write(folder / "again.jsonl", made), len(made)) / 1e6
    # Without the start: the run opens its model and its connections.
    first = int(episodes * SKIPPED)
    seconds, used = (end - start for start, end in zip(marks[first - 1], marks[-1], strict=True))
    rate, cpu = (episodes - first) / seconds, used / (episodes - first)
    latency = uniform(0.5 * DELAYS[tokens], 1.5 * DELAYS[tokens])
    work = Work((1,), Call(latency, call, server), 0.0, keep)
    simulated = simulate_run(work, episodes=episodes, slots=IN_FLIGHT, cores=CORES).rate(SKIPPED)
    click.echo(f"{tokens:,} tokens: {(call + keep) / cpu:.2f} {simulated / rate:.2f} ", err=True)
    return Point(tokens, call, server, keep, rate, cpu, simulated)


def train(spec: str, url: str, tokens: int, episodes: int, peak: multiprocessing.Queue[float]) -> None:
    """Train for two steps, and report the peak memory of this process in MB."""
    os.environ["TINKER_API_KEY"] = KEY
    words = (
        f"sampling.max_tokens={tokens + 1}",
        "train.steps=2",
        f"train.batch_size={episodes // 8}",
        "train.rollouts=8",
        "train.validation={every: 0, tasks: 1, rollouts: 1}",
        "model.concurrency=16",
    )
    gc.set_threshold(COLLECTOR)
    flow = rg.load(spec, *words, model=f"tinker:{BASE_MODEL}", base_url=url)
    with tempfile.TemporaryDirectory() as folder:
        rg.train(flow, out=Path(folder) / "run", progress=False)
    peak.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)


def measure_training(spec: Path, tokens: int) -> tuple[float, float]:
    """Return the peak memory of `train` in MB at no episode, and the kB that each episode of a step adds."""
    context, peaks = multiprocessing.get_context("spawn"), list[float]()
    for episodes in BATCHES[tokens]:
        with stub(0.0) as it:
            queue = context.Queue()
            process = context.Process(target=train, args=(str(spec), it.tinker_url, tokens, episodes, queue))
            process.start()
            peaks.append(queue.get())
            process.join()
    few, many = BATCHES[tokens]
    slope = (peaks[1] - peaks[0]) / (many - few)
    return peaks[0] - slope * few, slope * 1e3


def points_table(rounds: list[list[Point]]) -> str:
    """Return a row for each length: medians of the rounds, and of their ratios."""
    head = ["answer", "call, ms", "writing, ms", "run, CPU ms an episode", "predicted / measured"]
    rows = [[*head, "episodes/s", "simulated", "simulated / measured"]]
    for points in zip(*rounds, strict=True):

        def middle(name: str, points: tuple[Point, ...] = points) -> float:
            return statistics.median(getattr(it, name) for it in points)

        ratios = [
            statistics.median(it.predicted / it.cpu for it in points),
            statistics.median(it.simulated / it.rate for it in points),
        ]
        rows.append(
            [
                f"{points[0].tokens:,} tokens",
                *(number(middle(name) * 1e3) for name in ("call", "keep", "cpu")),
                f"{ratios[0]:.2f}",
                number(middle("rate")),
                number(middle("simulated")),
                f"{ratios[1]:.2f}",
            ]
        )
    return table(rows)


def memory_table(memory: Mapping[int, Sequence[float]]) -> str:
    """Return a row for each length: MB of `train` without episodes, and kB of each episode of a step."""
    rows = [["an answer of", "MB without episodes", "kB an episode of a step"]]
    for tokens, (fixed, each) in memory.items():
        rows.append([f"{tokens:,} tokens", f"{fixed:.0f}", f"{each:.0f}"])
    return table(rows)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--rounds", default=3, show_default=True, help="Rounds of points.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the points and the memory.")
def main(rounds: int, file: Path | None) -> None:
    os.environ.setdefault("OPENAI_API_KEY", KEY)
    gc.set_threshold(COLLECTOR)
    logging.disable(logging.WARNING)  # the stub's answers are all equal
    with tempfile.TemporaryDirectory() as folder:
        spec, trained = Path(folder) / "spec.yaml", Path(folder) / "trained.yaml"
        spec.write_text(ONE_CALL, encoding="utf-8")
        trained.write_text(TRAINED, encoding="utf-8")
        points = [[measure_point(spec, tokens) for tokens in TOKENS] for _ in range(rounds)]
        memory = {tokens: measure_training(trained, tokens) for tokens in BATCHES}
    click.echo(points_table(points) + "\n")
    click.echo(memory_table(memory))
    if file is not None:
        kept = {"rounds": [[asdict(it) for it in each] for each in points], "memory": memory}
        file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
