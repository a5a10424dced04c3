"""`rolegraph eval`: trained weights against the model that they came from, on the same tasks and seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.errors import UsageError
from engine.records import Episode, Note, Observer
from engine.training.compare import Interval, by_task, difference, interval
from rolegraph.running import blocking, nobody
from rolegraph.workflow import OpenWorkflow, Workflow


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of both sides, with 95 % confidence intervals over the tasks."""

    base: Interval
    checkpoint: Interval
    difference: Interval
    """Paired by task."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What weights came to beside their base model."""

    figures: Mapping[str, Compared]
    """`correct`, the spec's metrics, and `reward/{role}`."""
    tasks: int
    episodes: int
    """Of each side."""

    def to_json(self) -> bytes:
        """All of it, for a file."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Evaluation:
        """Read what `to_json` wrote; raises ValueError for something else."""
        from pydantic import TypeAdapter

        return TypeAdapter(Evaluation).validate_json(text)

    def __str__(self) -> str:
        wide = max(map(len, self.figures), default=0)
        lines = [
            f"{name:<{wide}}  {row.base.mean:6.3f} -> {row.checkpoint.mean:6.3f}  "
            f"{row.difference.mean:+.3f} [{row.difference.low:+.3f}, {row.difference.high:+.3f}]"
            for name, row in self.figures.items()
        ]
        return "\n".join([*lines, f"{self.tasks} tasks, {self.episodes} episodes each side"])


async def evaluate_async(
    flow: Workflow,
    checkpoint: str | Path,
    *,
    tasks: int = 128,
    rollouts: int = 4,
    seed: int = 0,
    observe: Observer | None = None,
) -> Evaluation:
    """Compare trained weights with their base model on a workflow's validation tasks.

    `checkpoint` is a training's folder, for its best weights, or a tinker:// path. `rollouts` are episodes of
    each of `tasks` tasks, with the same seeds on both sides. Raises UsageError (no validation data, no such
    weights) and WorldError.
    """
    flow.check_allowed()
    if "validation" not in flow.plan.data:
        raise UsageError(f"{flow.name} has no validation data to compare on")
    told = observe or nobody
    told(Note("starting the model …"))
    count = rollouts * len(flow.tasks("validation", tasks))

    async def episodes(opened: OpenWorkflow) -> list[Episode]:
        stream = opened.stream(
            "validation", limit=tasks, rollouts=rollouts, seed=seed, concurrency=256, observe=observe
        )
        return [episode async for episode in stream]

    async with flow.open() as base:
        trained = await base.trained(checkpoint)
        told(Note("the base model …", episodes=count))
        before = await episodes(base)
        told(Note("the checkpoint …", episodes=count))
        after = await episodes(trained)
    was, now = by_task(flow.plan, before), by_task(flow.plan, after)
    figures = {
        name: Compared(interval(was[name]), interval(now[name]), difference(now[name], was[name]))
        for name in was
        if name in now
    }
    return Evaluation(figures, len({episode.task_id for episode in after}), len(after))


evaluate = blocking(evaluate_async)
