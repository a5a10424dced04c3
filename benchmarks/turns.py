"""What a turn costs in large episodes: a tree, a loop and skipped turns beside a flat role, on a stub model.

    python benchmarks/turns.py                 # ratios of time and of memory, side by side in one run
    python benchmarks/turns.py --repetitions 9

The shapes take turns in one process, so that a busy machine slows them alike, and medians count. Memory is
the peak of what Python allocates for one episode, in a run of its own. Exit code 1 where a bound is passed: a
turn of the tree and of the loop costs at most twice one of the flat role, whose 1,000 prompts differ; 1,000
turns of which 990 are skipped cost at most three times an episode of 10, also where each is skipped by its
number alone. A condition that reads `self` and others is asked of each instance, which is shown and not
bounded.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import tempfile
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import click
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.models import Completion, LimitedModel, Request
from rolegraph.engine.records import Episode
from rolegraph.engine.run import EpisodeJob, Isolation, run_episode

TASK = {"id": "t", "question": "Which?"}
OWN = "{{ task.question }} You are {{ self.index }}."


@dataclass(frozen=True, slots=True)
class Shape:
    """A workflow, and how many of its turns are taken."""

    name: str
    roles: dict[str, dict[str, object]]
    taken: int
    loops: dict[str, dict[str, object]]


def shape(name: str, taken: int, loops: dict[str, dict[str, object]] | None = None, **roles: object) -> Shape:
    return Shape(name, roles, taken, loops or {})  # pyright: ignore[reportArgumentType]


def role(prompt: str = OWN, **keys: object) -> dict[str, object]:
    return {"prompt": prompt, **keys}


FLAT = shape("flat: 1,000 instances", 1000, a=role(count=1000))
TREE = shape(
    "tree: 10 x 10 x 10",
    1110,
    a=role(count=10),
    b=role("{{ a.action }} {{ self.index }}", needs={"a": "each"}, count=10),
    c=role("{{ b.action }} {{ self.index }}", needs={"b": "each"}, count=10),
)
LOOP = shape(
    "loop: 300 rounds with `last`",
    300,
    {"l": {"roles": ["a"], "times": 300}},
    a=role("{{ task.question }} {{ a.action }}", needs={"a": "previous"}),
)
TEN = shape("an episode of 10", 10, a=role(count=10))
SKIPPED = shape(
    "1,000 turns, 990 skipped",
    10,
    a=role(count=10),
    b=role(count=990, needs=["a"], when='a[0].action == "no"'),
)
NUMBERED = shape("the same, by number", 10, a=role(count=1000, when="self.index <= 10"))
ASKED = shape(
    "the same, each asked for itself", 10, a=role(count=1000, when='task.id == "t" and self.index <= 10')
)
ENDED = shape(
    "1,000 rounds, ended after 10",
    10,
    {"l": {"roles": ["a"], "times": 1000, "until": "a.round == 10"}},
    a=role("{{ task.question }} {{ a.action }}", needs={"a": "previous"}),
)
SHAPES = (FLAT, TREE, LOOP, TEN, SKIPPED, NUMBERED, ASKED, ENDED)
RATIOS = (
    (TREE, FLAT, "for each turn", 2.0),
    (LOOP, FLAT, "for each turn", 2.0),
    (SKIPPED, TEN, "for each episode", 3.0),
    (NUMBERED, TEN, "for each episode", 3.0),
    (ENDED, TEN, "for each episode", 3.0),
)
"""Each with what it is compared with, of what, and the bound."""


class Stub:
    """Answers at once."""

    async def complete(self, request: Request) -> Completion:
        return Completion("yes")

    async def aclose(self) -> None: ...


def plan_of(shape: Shape) -> Plan:
    spec = {"rolegraph": 2, "name": "shape", "roles": shape.roles, "loops": shape.loops}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.yaml"
        path.write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
        return compile_file(path)


async def episodes(plan: Plan, shape: Shape, count: int) -> None:
    """Run some, one after the other, and check that each took the turns that it should."""
    model = LimitedModel(Stub(), 10_000)
    models = [model] * len(plan.endpoints)
    for rollout in range(count):
        isolation = Isolation(plan.imports)
        job = EpisodeJob(TASK, rollout, 0)
        episode: Episode = await run_episode(plan, job, models, isolation=isolation)
        assert sum(len(t.steps) for t in episode.trajectories) == shape.taken, shape.name


def seconds(plan: Plan, shape: Shape) -> float:
    """Of one episode, over enough of them to be measured."""
    count = max(1, 1000 // shape.taken)
    gc.collect()
    start = time.perf_counter()
    asyncio.run(episodes(plan, shape, count))
    return (time.perf_counter() - start) / count


def memory(plan: Plan, shape: Shape) -> int:
    """The peak of one episode, in bytes."""
    asyncio.run(episodes(plan, shape, 1))
    gc.collect()
    tracemalloc.start()
    asyncio.run(episodes(plan, shape, 1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--repetitions", type=click.IntRange(min=1), default=7, show_default=True)
def main(repetitions: int) -> None:
    plans = {shape.name: plan_of(shape) for shape in SHAPES}
    rounds: dict[str, list[float]] = {shape.name: [] for shape in SHAPES}
    for turn in range(repetitions + 1):
        for one in SHAPES[:: -1 if turn % 2 else 1]:
            measured = seconds(plans[one.name], one)
            if turn:  # the first warms up
                rounds[one.name].append(measured)
    peaks = {shape.name: memory(plans[shape.name], shape) for shape in SHAPES}
    for one in SHAPES:
        took = statistics.median(rounds[one.name])
        click.echo(
            f"{one.name:32} {took * 1e3:8.2f} ms an episode {took / one.taken * 1e6:7.1f} µs a turn taken "
            f"{peaks[one.name] / one.taken / 1024:7.2f} KiB a turn taken"
        )
    click.echo()
    over = False
    for one, other, unit, bound in RATIOS:
        per = (one.taken, other.taken) if unit == "for each turn" else (1, 1)
        pairs = zip(rounds[one.name], rounds[other.name], strict=True)
        time_ratio = statistics.median((mine / per[0]) / (theirs / per[1]) for mine, theirs in pairs)
        memory_ratio = (peaks[one.name] / per[0]) / (peaks[other.name] / per[1])
        over |= max(time_ratio, memory_ratio) > bound
        click.echo(
            f"{one.name:32} against {other.name:22} {unit}: time {time_ratio:.2f}, "
            f"memory {memory_ratio:.2f} (at most {bound:g})"
        )
    sys.exit(1 if over else 0)


if __name__ == "__main__":
    main()
