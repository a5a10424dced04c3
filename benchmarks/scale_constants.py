"""CPU seconds and bytes of an episode's parts, each measured alone.

Times are of the process's CPU, not of the clock: a part is done for a few hundred episodes, several times,
and the median counts. No figure is derived from a rate that `scale_simulation` has to reproduce.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import os
import pickle
import random
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import mean, median
from time import process_time
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
from long_run import SPEC as LONG_RUN
from stub import ANSWERS, task

import rolegraph as rg
from rolegraph import api
from rolegraph.api import jobs as api_jobs
from rolegraph.cli.display import Display
from rolegraph.engine.compile import Plan
from rolegraph.engine.models import Completion, LimitedModel, Request
from rolegraph.engine.records import Episode
from rolegraph.engine.records.episodes import EpisodeFile, EpisodeWriter, index_path, read_episodes
from rolegraph.engine.records.jsonl import json_line
from rolegraph.engine.run import EpisodeJob, Isolation, jobs, missing, run_episode, run_jobs, scheduler
from rolegraph.engine.training.advantages.ledger import Ledger, Membership, add_advantages, credit_rows
from rolegraph.engine.training.policies.batches import policy_batches

T = TypeVar("T")
ROLLOUTS = 4
IN_FLIGHT = 64
VOCABULARY, PROMPT_TOKENS, ANSWER_KINDS = 150_000, 200, 97


@dataclass(frozen=True)
class Load:
    """Kind of episode."""

    name: str
    solvers: int
    """Instances of the solver; with more than one, a judge reads them. 0: one role that asks no model."""
    tokens: int
    """Tokens of an answer; a prompt has 200. 0: texts without tokens."""
    episodes: int
    """Episodes of one repetition."""

    @property
    def calls(self) -> int:
        """Model calls of an episode."""
        return self.solvers + (self.solvers > 1)

    @property
    def stages(self) -> tuple[int, ...]:
        """Numbers of calls side by side, in order."""
        return (self.solvers, 1) if self.solvers > 1 else (1,) * self.solvers


NO_MODEL = Load("no model", 0, 0, 1000)
ONE_TEXT = Load("1 call, texts", 1, 0, 500)
TEXTS = Load("3 calls, texts", 2, 0, 500)
ONE = Load("1 call, 1,000 tokens", 1, 1000, 200)
SHORT = Load("3 calls, 100 tokens each", 2, 100, 200)
LONG = Load("3 calls, 1,000 tokens each", 2, 1000, 100)
LOADS = (NO_MODEL, ONE_TEXT, TEXTS, SHORT, LONG, ONE)


@dataclass(frozen=True)
class Parts:
    """CPU microseconds and bytes of one episode."""

    run: float
    """Scheduling the roles and building the episode, with a model that answers at once."""
    build: float
    """Building the episode alone, contained in `run`."""
    line: float
    """JSON line of the episode."""
    write: float
    """Appending the line, and an entry to the index."""
    events: float
    """Log and progress of the command."""
    read: float
    """Reading the episode from its line, as `report` and an index that is missing do."""
    index: float
    """Reading its entry of the index, as `view` and `--resume` do."""
    pickle: float
    """Pickling the episode, as the worker of a cluster does."""
    unpickle: float
    """Unpickling it, as the command does."""
    advantages: float
    """Groups, advantages, and their record in the episode; 0 for a role without a model."""
    data: float
    """Training data of the episode."""
    wire: float
    """Encoding the training data for the service, as the SDK does."""
    line_bytes: float
    index_bytes: float
    gzip_bytes: float
    """Bytes of the line if the file were compressed by gzip at level 6; Rolegraph writes it uncompressed."""
    job_bytes: float
    """Pickled job."""
    episode_bytes: float
    """Pickled episode."""
    wire_bytes: float
    """Encoded training data."""
    entry_memory: float
    """Bytes of memory of an entry of the index, as `view` holds one for each episode."""

    @property
    def make(self) -> float:
        """CPU microseconds of the command for an episode that it makes and keeps."""
        return self.run + self.keep

    @property
    def keep(self) -> float:
        """CPU microseconds of serialising, writing and showing."""
        return self.line + self.write + self.events

    @property
    def prepare(self) -> float:
        """CPU microseconds between the last answer of a batch and its update."""
        return self.advantages + self.line + self.write + self.data + self.wire


def median_of(measured: Sequence[T]) -> T:
    """Return the median of each field of dataclasses of one class."""
    kind: Any = type(measured[0])
    rows = [asdict(one) for one in measured]  # pyright: ignore[reportArgumentType]
    return kind(**{field.name: median(row[field.name] for row in rows) for field in fields(kind)})


def cpu_us(work: Callable[[], object], items: int, repetitions: int = 3) -> float:
    """Return the median CPU microseconds of `work` for each of its items."""
    times: list[float] = []
    for _ in range(repetitions):
        gc.collect()
        began = process_time()
        work()
        times.append((process_time() - began) / items * 1e6)
    return median(times)


class Answers:
    """Model that answers at once, right or wrong at random, with tokens and log-probabilities."""

    def __init__(self, load: Load, latency: float = 0.0) -> None:
        self.latency = latency
        chance = random.Random(0)
        # Unlike answers, as pickle stores an object once, and gzip finds what it has seen.
        self.answers = [_answer(load.tokens, chance) for _ in range(ANSWER_KINDS if load.tokens else 1)]

    async def complete(self, request: Request) -> Completion:
        """Answer a request."""
        if self.latency:
            await asyncio.sleep(self.latency)
        number, rollout, (role, index, _), *_ = request.id
        right = ANSWERS[role] if rollout % 2 else "<answer>0</answer>"
        place = (int(number[1:]) * ROLLOUTS + rollout) * 3 + index + 2 * (role == "judge")
        answer = self.answers[place % len(self.answers)]
        return answer._replace(text=f"{answer.text}\n{right}")

    async def aclose(self) -> None:
        """Close nothing."""


def _answer(tokens: int, chance: random.Random) -> Completion:
    """Return an answer of some tokens, each a word of its text."""
    words = ("sum", "of", "the", "numbers", "is", "not", "target", "so", "try", "times", "minus", "again")

    def ids(count: int) -> tuple[int, ...]:
        return tuple(chance.randrange(VOCABULARY) for _ in range(count))

    return Completion(
        " ".join(chance.choice(words) for _ in range(tokens)),
        prompt_ids=ids(PROMPT_TOKENS if tokens else 0),
        response_ids=ids(tokens),
        # Services give 32-bit floats, whose text in JSON has up to 20 characters.
        logprobs=tuple(float(np.float32(-chance.expovariate(2))) for _ in range(tokens)),
    )


def flow_of(load: Load, folder: Path) -> rg.Workflow:
    """Return the workflow of a load."""
    if not load.solvers:
        (folder / "no_model.yaml").write_text(LONG_RUN, encoding="utf-8")
        return rg.load(folder / "no_model.yaml")
    name = "solver_only" if load.solvers == 1 else "solver_judge"
    return rg.load(name, f"roles.solver.count={load.solvers}")


async def make(plan: Plan, load: Load, answers: Answers) -> list[Episode]:
    """Make the episodes of a load in this process."""
    models = [LimitedModel(answers, IN_FLIGHT * max(1, load.solvers))] * len(plan.endpoints)
    async with Isolation() as isolation:
        planned = jobs((task(number) for number in range(load.episodes // ROLLOUTS)), ROLLOUTS, 0)
        made = run_jobs(
            missing(planned, ()),
            lambda job: run_episode(plan, job, models, isolation=isolation, observe=api_jobs.ignore_event),
            min(load.episodes, IN_FLIGHT),
        )
        return [episode async for episode in made]


def build_us(plan: Plan, load: Load, answers: Answers) -> float:
    """Return the CPU microseconds of building each episode, within a run of them all."""
    took, assemble = 0.0, scheduler.assemble

    def timed(*arguments: Any, **options: Any) -> Episode:
        nonlocal took
        began = time.thread_time()
        episode = assemble(*arguments, **options)
        took += time.thread_time() - began
        return episode

    with patch.object(scheduler, "assemble", timed):
        episodes = asyncio.run(make(plan, load, answers))
    return took / len(episodes) * 1e6


def measure_parts(load: Load) -> Parts:
    """Measure the parts of one kind of episode."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flow, answers = flow_of(load, folder), Answers(load)
        plan = flow.plan
        episodes = asyncio.run(make(plan, load, answers))
        n = len(episodes)
        run = cpu_us(lambda: asyncio.run(make(plan, load, answers)), n)
        built = median(build_us(plan, load, answers) for _ in range(3))
        lines = [json_line(episode.to_dict()) for episode in episodes]
        line = cpu_us(lambda: [json_line(episode.to_dict()) for episode in episodes], n)
        file = folder / "episodes.jsonl"
        kept = cpu_us(lambda: write(file, episodes), n)
        pickled = [pickle.dumps(episode, protocol=5) for episode in episodes]
        tracemalloc.start()
        entries = [*EpisodeFile(file).entries()]
        memory = tracemalloc.get_traced_memory()[0] / n
        tracemalloc.stop()
        del entries
        learning = measure_learning(plan, episodes) if load.tokens else (0.0, 0.0, 0.0, 0.0)
        return Parts(
            run=run,
            build=built,
            line=line,
            write=max(0.0, kept - line),
            events=cpu_us(lambda: show(flow, folder, episodes), n),
            read=cpu_us(lambda: [*read_episodes(file)], n),
            index=cpu_us(lambda: [*EpisodeFile(file).entries()], n),
            pickle=cpu_us(lambda: [pickle.dumps(episode, protocol=5) for episode in episodes], n),
            unpickle=cpu_us(lambda: [pickle.loads(text) for text in pickled], n),
            advantages=learning[0],
            data=learning[1],
            wire=learning[2],
            line_bytes=sum(map(len, lines)) / n,
            index_bytes=index_path(file).stat().st_size / n,
            gzip_bytes=len(gzip.compress(b"".join(lines), 6)) / n,
            job_bytes=len(pickle.dumps(EpisodeJob(task(0), 0, 0), protocol=5)),
            episode_bytes=sum(map(len, pickled)) / n,
            wire_bytes=learning[3],
            entry_memory=memory,
        )


def write(file: Path, episodes: Sequence[Episode]) -> None:
    """Write episodes to a new file."""
    file.unlink(missing_ok=True)
    with EpisodeWriter(file) as writer:
        for episode in episodes:
            writer.append(episode)


def show(flow: rg.Workflow, folder: Path, episodes: Sequence[Episode]) -> None:
    """Count and log episodes as the command does."""
    display = Display(api.RunJob.create(flow, limit=1, out=folder / "run"), floors={})
    with api_jobs.logged(folder / "log.txt", display.observe) as observe:
        for episode in episodes:
            observe(api.EpisodeDone(episode, finished=True))


def waiting_call(load: Load = ONE_TEXT, seconds: float = 0.02) -> float:
    """Return the CPU seconds by which a call that waits costs more than one that is answered at once."""
    with tempfile.TemporaryDirectory() as name:
        plan = flow_of(load, Path(name)).plan

        def took(latency: float) -> float:
            answers = Answers(load, latency)
            return cpu_us(lambda: asyncio.run(make(plan, load, answers)), load.episodes, 5)

        return max(0.0, took(seconds) - took(0.0)) / 1e6


def measure_learning(plan: Plan, episodes: Sequence[Episode]) -> tuple[float, float, float, float]:
    """Return the CPU microseconds of advantages, training data and its encoding, and the encoded bytes."""
    from tinker.proto.request_conv import forward_backward_request_to_proto
    from tinker.types import ForwardBackwardInput, ForwardBackwardRequest

    def learn() -> Ledger:
        ledger = add_advantages(Membership(plan.trained, plan.policy_of).add(episodes).ledger())
        for _ in (*credit_rows(ledger), *ledger.filled_episodes()):
            pass
        return ledger

    ledger, n = learn(), len(episodes)
    roles = [role for roles in policy_batches(ledger).values() for role in roles]

    def encode() -> list[bytes]:
        requests = (
            ForwardBackwardRequest(
                forward_backward_input=ForwardBackwardInput(data=role.data, loss_fn="importance_sampling"),
                model_id="model",
                seq_id=1,
            )
            for role in roles
        )
        return [forward_backward_request_to_proto(request).SerializeToString() for request in requests]

    return (
        cpu_us(learn, n),
        cpu_us(lambda: policy_batches(ledger), n),
        cpu_us(encode, n),
        sum(map(len, encode())) / n,
    )


def process_cpu(pid: int) -> float:
    """Return the CPU seconds of a process so far, without those of threads that have ended."""
    times = [file.read_text().split()[0] for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(map(int, times)) / 1e9


def descendants(words: str) -> list[int]:
    """Return the processes below this one whose command line has some words."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                names[int(folder.name)] = (folder / "cmdline").read_text()
            except OSError:  # it has ended
                continue

    def is_below(pid: int) -> bool:
        while pid > 1 and pid != os.getpid():
            pid = parents.get(pid, 0)
        return pid == os.getpid()

    return [pid for pid, command in names.items() if words in command and is_below(pid)]


def core_share(seconds: float = 1.0) -> float:
    """Return the fraction of a core that a process gets which computes without a pause, at most 1.

    On a quiet machine it is 1; beside other work, it is the machine's share for this measurement.
    """
    began, own = time.perf_counter(), process_time()
    while time.perf_counter() - began < seconds:
        sum(range(1000))
    return min(1.0, (process_time() - own) / (time.perf_counter() - began))


def timer_lateness(seconds: float, repetitions: int = 150) -> float:
    """Return the mean seconds by which `asyncio.sleep` of an idle loop is late."""

    async def late() -> list[float]:
        lates: list[float] = []
        for _ in range(repetitions):
            began = time.perf_counter()
            await asyncio.sleep(seconds)
            lates.append(time.perf_counter() - began - seconds)
        return lates

    return mean(asyncio.run(late()))
