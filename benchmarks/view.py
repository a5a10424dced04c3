"""How long pages of `rolegraph view` take on a run of many episodes: the first, filters, an episode.

    python benchmarks/view.py [--episodes 10000] [--keep FOLDER]
    python benchmarks/view.py --keep FOLDER --against DIR    # the first page alone, beside another checkout

The run is of solver_judge on recorded answers (those of the parity test), in the shipped model's tokens, by
the engine itself. The pages come from the command in a process of its own; a time is that of one request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import httpx

import rolegraph as rg
from rolegraph.api.jobs import describe
from rolegraph.engine.models import Completion, LimitedModel, Request
from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.engine.records import RunFolder
from rolegraph.engine.records.episodes import EpisodeWriter
from rolegraph.engine.run import Isolation, jobs, run_episode, run_jobs
from rolegraph.engine.shipped import model_folder

RECORDED = Path(__file__).parent.parent / "tests" / "data" / "rllm_solver_judge_replay.json"
ROLLOUTS = 4


class Recorded:
    """Answers a call with what was recorded for its task, in tokens."""

    def __init__(self, cases: list[dict[str, Any]]) -> None:
        self.cases = cases
        self.tokenizer = load_tokenizer(model_folder(None))
        self.known: dict[str, tuple[int, ...]] = {}

    async def complete(self, request: Request) -> Completion:
        task, rollout, (role, index, _), *_ = request.id
        case = self.cases[(int(task) + rollout) % len(self.cases)]
        text: str = case["judge_response"] if role == "judge" else case["solver_responses"][index - 1]
        asked = "\n".join(str(message["content"]) for message in request.messages)
        ids, chance = self.ids(text), random.Random(f"{task} {rollout} {role} {index}")
        return Completion(
            text, prompt_ids=self.ids(asked), response_ids=ids, logprobs=[-chance.expovariate(2) for _ in ids]
        )

    def ids(self, text: str) -> tuple[int, ...]:
        if text not in self.known:
            self.known[text] = tuple(self.tokenizer.encode(text, add_special_tokens=False))
        return self.known[text]

    async def aclose(self) -> None: ...


async def write(folder: Path, episodes: int) -> None:
    """A run of so many episodes."""
    cases: list[dict[str, Any]] = json.loads(RECORDED.read_text())
    count = -(-episodes // ROLLOUTS)
    tasks = [{**cases[n % len(cases)]["task"], "id": str(n)} for n in range(count)]
    flow, run = rg.load("solver_judge"), RunFolder(folder)
    run.begin(describe(flow, "run", seed=0), flow.plan.resolved)
    models, isolation = [LimitedModel(Recorded(cases), 128)] * len(flow.plan.endpoints), Isolation()
    todo = jobs(tasks, ROLLOUTS)
    with run.ending(), EpisodeWriter(run.episodes) as writer:
        made = run_jobs(todo, lambda job: run_episode(flow.plan, job, models, isolation=isolation))
        async for episode in made:
            writer.append(episode)


def first_page(folder: Path, checkout: Path) -> tuple[float, float, float]:
    """Wall-clock and CPU seconds of a checkout's command until the first page has come, and peak in MB."""
    began = perf_counter()
    words = [sys.executable, "-P", "-m", "rolegraph", "view", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    httpx.get(process.stdout.readline().strip(), trust_env=False, timeout=600).raise_for_status()
    wall = perf_counter() - began
    process.terminate()
    _, _, used = os.wait4(process.pid, 0)
    peak = used.ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)
    return wall, used.ru_utime + used.ru_stime, peak


def compare(folder: Path, checkouts: Sequence[Path], repetitions: int = 3) -> None:
    """Print the medians of checkouts that take turns."""
    turns = [[first_page(folder, checkout) for checkout in checkouts] for _ in range(repetitions)]
    for checkout, rows in zip(checkouts, zip(*turns, strict=True), strict=True):
        wall, cpu, peak = (median(values) for values in zip(*rows, strict=True))
        print(f"{checkout.name:34} {wall:7.3f} s, CPU {cpu:.3f} s, peak {peak:,.0f} MB")


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The command on a run; the address that it prints."""
    began = perf_counter()
    command = [sys.executable, "-m", "rolegraph", "view", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        print(f"{'the command, until it serves':34} {perf_counter() - began:7.3f} s")
        yield address
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--against", type=Path, help="another checkout of Rolegraph")
    parser.add_argument("--keep", type=Path, help="a folder for the run; one that holds it is used again")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = given.keep or Path(temporary) / "run"
        if not (folder / "run.json").exists():
            began = perf_counter()
            asyncio.run(write(folder, given.episodes))
            print(f"{'writing the run':34} {perf_counter() - began:7.3f} s")
        size = (folder / "episodes.jsonl").stat().st_size
        print(f"{given.episodes:,} episodes, {size / 1e6:,.0f} MB")
        if given.against:
            compare(folder, [given.against, Path(__file__).parents[1]])
            return
        pages = {
            "role and failure": "?role=solver&failure=any",
            "reward, lowest first": "?role=judge&low=1&sort=low",
            "task": "?task=999",
            "text that many have": "?text=answer",
            "text that few have": "?text=First+try.&task=24",
            "text that none has": "?text=no+such+words+anywhere",
            "text that is a key": "?text=logprobs",
            "the last page": f"?from={given.episodes - 50}",
            "an episode": f"/episodes/{given.episodes // 2}",
        }
        with serving(folder) as address, httpx.Client(trust_env=False, timeout=120) as client:
            for name, query in {"the first page": "", **pages}.items():
                times: list[float] = []
                for _ in range(1 if name == "the first page" else 3):
                    began = perf_counter()
                    client.get(address + query).raise_for_status()
                    times.append(perf_counter() - began)
                print(f"{name:34} {median(times):7.3f} s")


if __name__ == "__main__":
    main()
