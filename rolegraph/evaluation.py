"""`rolegraph eval`: trained weights against the model that they came from, on the same tasks and seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import Note, Observer, RunFolder, RunInfo, Task, read_episodes
from rolegraph.engine.records.jsonl import write_whole
from rolegraph.engine.training.compare import Interval, by_task, difference, interval
from rolegraph.running import RunJob, blocking, finished_in, info_of_run, new_folder, nobody
from rolegraph.workflow import Workflow

EVALUATION = "evaluation.json"
"""In an evaluation's folder: what it came to, when it is done."""
SIDES = {"base": "the base model …", "checkpoint": "the checkpoint …"}
"""The folders in it, a run of each side, and what is said while it is made."""


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A figure of both sides, with 95 % confidence intervals over the tasks."""

    base: Interval
    checkpoint: Interval
    difference: Interval
    """Paired by task."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What weights came to beside their base model."""

    figures: Mapping[str, ComparedFigure]
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

        from rolegraph.engine.records.jsonl import parse_json

        return TypeAdapter(Evaluation).validate_python(parse_json(text))

    def __str__(self) -> str:
        wide = max(map(len, self.figures), default=0)
        lines = [
            f"{name:<{wide}}  {row.base.mean:6.3f} -> {row.checkpoint.mean:6.3f}  "
            f"{row.difference.mean:+.3f} [{row.difference.low:+.3f}, {row.difference.high:+.3f}]"
            for name, row in self.figures.items()
        ]
        return "\n".join([*lines, f"{self.tasks} tasks, {self.episodes} episodes each side"])


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """An evaluation that is about to be made, or to go on; see `begin_evaluation`."""

    flow: Workflow
    checkpoint: str
    folder: Path
    sides: tuple[RunJob, RunJob]
    """That of the base model, and that of the checkpoint."""

    async def run(self, observe: Observer | None = None) -> Evaluation:
        """Evaluate; raises as `evaluate` does."""
        told = observe or nobody
        told(Note("starting the model …"))
        async with self.flow.open() as base:
            trained = await base.trained(self.checkpoint)
            for side, opened, what in zip(self.sides, (base, trained), SIDES.values(), strict=True):
                with side.begun(observe) as (noted, writer):
                    noted(Note(what, episodes=side.episodes - side.done))
                    await side.fill(opened, writer, noted, observe, concurrency=256)
        was, now = (by_task(self.flow.plan, [*read_episodes(side.folder.episodes)]) for side in self.sides)
        figures = {
            name: ComparedFigure(interval(was[name]), interval(now[name]), difference(now[name], was[name]))
            for name in was
            if name in now
        }
        found = Evaluation(figures, len(self.sides[1].tasks), self.sides[1].episodes)
        write_whole(self.folder / EVALUATION, found.to_json())
        return found


async def evaluate_async(
    flow: Workflow,
    checkpoint: str | Path,
    *,
    tasks: int = 128,
    rollouts: int = 4,
    seed: int = 0,
    out: str | Path | None = None,
    observe: Observer | None = None,
) -> Evaluation:
    """Compare trained weights with their base model on a workflow's validation tasks.

    `checkpoint` is a training's folder, for its best weights, or a tinker:// path. `rollouts` are episodes of
    each of `tasks` tasks, with the same seeds on both sides. `out` is a folder to keep them in: `base` and
    `checkpoint` are runs, `evaluation.json` is what is returned; without it nothing is kept. Raises
    UsageError (no validation data, no such weights, a folder that holds an evaluation) and WorldError.
    """
    with TemporaryDirectory(prefix="rolegraph-") as scratch:
        begun = begin_evaluation(
            flow, checkpoint, tasks=tasks, rollouts=rollouts, seed=seed, out=out or scratch
        )
        return await begun.run(observe)


evaluate = blocking(evaluate_async)


def begin_evaluation(
    flow: Workflow,
    checkpoint: str | Path,
    *,
    tasks: int = 128,
    rollouts: int = 4,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
) -> EvaluationJob:
    """What `evaluate` is about to do, before any of it is done: arguments and errors as there.

    The default folder is `runs/NAME-eval-TIME`. With `resume`, episodes that `out` holds already are not made
    again; raises UsageError where they are of another spec, seed or checkpoint.
    """
    flow.check_allowed()
    if "validation" not in flow.plan.data:
        raise UsageError(f"{flow.name} has no validation data to compare on")
    folder = Path(out) if out else new_folder(f"{flow.name}-eval")
    rows = flow.tasks("validation", tasks)
    info = info_of_run(flow, "validation", tasks, rollouts, seed)
    base, trained = (
        _side(flow, RunFolder(folder / name), own, rows, resume=resume)
        for name, own in zip(
            SIDES, (info, info.model_copy(update={"checkpoint": str(checkpoint)})), strict=True
        )
    )
    return EvaluationJob(flow, str(checkpoint), folder, (base, trained))


def _side(flow: Workflow, folder: RunFolder, info: RunInfo, rows: Sequence[Task], *, resume: bool) -> RunJob:
    if not (resume and folder.info_file.exists()):
        folder.check_new("run")
        return RunJob(flow, folder, info, rows, finished=(), resumed=False)
    begun = folder.info()
    if (begun.seed, begun.checkpoint) != (info.seed, info.checkpoint):
        raise UsageError(
            f"{folder.path} was begun with the seed {begun.seed} and {begun.checkpoint or 'the base model'}; "
            "an evaluation goes on only as it began"
        )
    folder.check_same(info, flow.plan.resolved)
    return RunJob(flow, folder, info, rows, finished_in(folder), resumed=True)
