"""`rolegraph eval`: trained weights compared with their base model, on the same tasks and seeds."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import ConfigDict, TypeAdapter

from rolegraph.api import jobs
from rolegraph.api.running import RunJob, finished_in
from rolegraph.api.workflow import Workflow, endpoints_with, open_source
from rolegraph.engine.errors import DataError, UsageError, os_errors_as
from rolegraph.engine.models.checkpoints import with_base
from rolegraph.engine.records import Note, Observer, RunFolder, RunInfo, Task, read_episodes
from rolegraph.engine.records.confined import write_whole
from rolegraph.engine.records.folder import INFO
from rolegraph.engine.records.jsonl import read_record
from rolegraph.engine.records.means import EqualFigures
from rolegraph.engine.records.ownership import FolderKind
from rolegraph.engine.records.summary import Summarized, Summary
from rolegraph.engine.records.writer_lock import sole_writer
from rolegraph.engine.shipped import model_folder
from rolegraph.engine.training.analysis.compare import by_task
from rolegraph.engine.training.analysis.intervals import ByTask, Interval, difference, interval, interval_cell

EVALUATION = "evaluation.json"
"""File in an evaluation's folder with the result; it is written when the evaluation is finished."""
SIDES = {"base": "the base model …", "checkpoint": "the checkpoint …"}
"""Progress note of each side, by the name of its folder in an evaluation's folder; each folder is a run's."""
CONCURRENCY = 256
"""Default number of episodes in flight; high, because an evaluation is read as a whole, not episode by
episode."""


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A metric of both sides, with 95 % confidence intervals over the tasks."""

    base: Interval
    checkpoint: Interval
    difference: Interval
    """Checkpoint minus base, paired by task."""


@dataclass(frozen=True, slots=True)
class SideAnswers:
    """Numbers of answers and failures of one side of an evaluation: `base` or `checkpoint`."""

    asked: int = 0
    """Number of trajectories that asked a model."""
    answered: int = 0
    """Number of the trajectories whose model answered."""
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of failures by `role/name`."""
    messages: Mapping[str, str] = field(default_factory=dict[str, str])
    """First message of each kind of failure."""
    remarks: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of trajectories by `role/remark`, such as `solver/truncated`."""

    @property
    def is_silent(self) -> bool:
        """True if no model call was answered."""
        return self.asked > 0 and not self.answered


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation(Summarized):
    """Result of an evaluation: the metrics of trained weights and of their base model."""

    __pydantic_config__ = ConfigDict(defer_build=True)  # most commands build no validator

    figures: Mapping[str, ComparedFigure]
    """`correct`, the spec's metrics, and `reward/{role}`; a side without a metric has n = 0."""
    tasks: int
    episodes: int
    """Number of episodes of each side."""
    sides: Mapping[str, SideAnswers] = field(default_factory=dict[str, SideAnswers])
    """Answers of `base` and `checkpoint`; empty in files of earlier versions."""

    @property
    def unanswered(self) -> list[str]:
        """Names of the sides (`base`, `checkpoint`) whose models answered no call."""
        return [name for name, side in self.sides.items() if side.is_silent]

    def summary(self) -> Summary:
        """Return the number of tasks, and each figure of both sides with its difference."""
        cells = {name: (it, name.startswith("answers/") and name) for name, it in self.figures.items()}
        rows: list[tuple[str, ...]] = []
        for names in EqualFigures(self.figures, [cells]).groups:
            it = self.figures[names[0]]
            sides = (interval_cell(side, tasks=self.tasks) for side in (it.base, it.checkpoint))
            rows.append(("\n= ".join(names), *sides, interval_cell(it.difference, is_difference=True)))
        title = f"{self.tasks} tasks, {self.episodes} episodes each side"
        return Summary(title, ("figure", "base", "checkpoint", "difference"), rows)

    def to_json(self) -> bytes:
        """Return the evaluation as the JSON of `evaluation.json`."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def read(cls, folder: Path) -> Evaluation:
        """Read the `evaluation.json` of a finished evaluation's folder.

        Raises:
            DataError: The file is missing, unreadable or damaged.
        """
        with os_errors_as(DataError, f"cannot read {folder / EVALUATION}"):
            return read_record(folder / EVALUATION, _EVALUATION.validate_python, "a valid evaluation")


_EVALUATION = TypeAdapter(Evaluation)


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """An evaluation that is ready to start or to continue; `create` makes it, `run` does it."""

    flow: Workflow
    checkpoint: str
    folder: Path
    sides: tuple[RunJob, RunJob]
    """The run of the base model, and the run of the checkpoint."""

    @classmethod
    def create(
        cls,
        flow: Workflow,
        checkpoint: str | Path,
        *,
        tasks: int = 128,
        rollouts: int = 4,
        seed: int = 0,
        out: str | Path | None = None,
        resume: bool = False,
    ) -> EvaluationJob:
        """Prepare an evaluation; nothing is written yet.

        Args:
            flow: The workflow. If its spec names no model, both sides use the checkpoint's.
            checkpoint: Folder of a training, for its best weights, or a `tinker://` path.
            tasks: Largest number of validation tasks, at least 1.
            rollouts: Episodes of each task and side, at least 1.
            seed: Seed of all draws, the same for both sides.
            out: Folder of the evaluation; by default `runs/NAME-eval-TIME`.
            resume: True to keep the episodes that `out` already holds, and make only the missing ones.

        Returns:
            The job.

        Raises:
            SpecError: The spec asks for a permission that `allow` does not give.
            UsageError: No validation data; or `out` holds an evaluation, or with `resume` an evaluation of
                another spec, seed or checkpoint.
        """
        flow = _on_base(flow, str(checkpoint))
        flow.check_allowed()
        if "validation" not in flow.plan.data:
            raise UsageError(f"{flow.name} has no validation data to compare on")
        folder = Path(out) if out else jobs.new_folder(f"{flow.name}-eval")
        rows = flow.tasks("validation", tasks)
        info = jobs.describe(flow, "run", seed=seed, split="validation", limit=tasks, rollouts=rollouts)
        infos = (info, info.model_copy(update={"checkpoint": str(checkpoint)}))
        base_run, checkpoint_run = (
            _side(flow, RunFolder(folder / name), info, rows, resume=resume)
            for name, info in zip(SIDES, infos, strict=True)
        )
        return cls(flow, str(checkpoint), folder, (base_run, checkpoint_run))

    async def run(self, observe: Observer | None = None) -> Evaluation:
        """Run the missing episodes of both sides, write them, and return the comparison of the sides.

        Args:
            observe: Function that is called with each event, such as an episode that is on disk.

        Returns:
            The metrics of both sides.

        Raises:
            UsageError: No such weights or model, or no key for it.
            WorldError: The service does not answer, or the disk is full.
        """
        with sole_writer(self.folder, EVALUATED, (self.folder / name for name in (EVALUATION, *SIDES))):
            (observe or jobs.ignore_event)(Note("starting the model …"))
            async with self.flow.open() as base_flow:
                trained = await base_flow.trained(self.checkpoint)
                for side, opened, note in zip(self.sides, (base_flow, trained), SIDES.values(), strict=True):
                    with side.open_folder(observe) as (notify, writer):
                        notify(Note(note, episodes=side.episodes - side.done))
                        await side.write_missing(opened, writer, notify, concurrency=CONCURRENCY)
            return self._write_results()

    def _write_results(self) -> Evaluation:
        (base_answers, recorded), (after_answers, replayed) = (
            _results(self.flow, side.folder.episodes) for side in self.sides
        )
        answers = dict(zip(SIDES, (base_answers, after_answers), strict=True))
        figures: dict[str, ComparedFigure] = {}
        for name in dict.fromkeys([*recorded, *replayed]):
            means = recorded.get(name, {}), replayed.get(name, {})
            figures[name] = ComparedFigure(*map(interval, means), difference=difference(means[1], means[0]))
        task_count, episode_count = len(self.sides[1].tasks), self.sides[1].episodes
        evaluation = Evaluation(figures, task_count, episode_count, answers)
        write_whole(self.folder / EVALUATION, evaluation.to_json())
        return evaluation


EVALUATED = FolderKind(
    "an evaluation",
    {
        EVALUATION: _EVALUATION.validate_python,
        **{f"{side}/{INFO}": RunInfo.model_validate for side in SIDES},
    },
    re.compile("|".join(SIDES)),
)
"""Kind of the folder of an evaluation."""


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

    Args:
        flow: The workflow.
        checkpoint: Folder of a training, for its best weights, or a `tinker://` path.
        tasks: Largest number of validation tasks, at least 1.
        rollouts: Episodes of each task and side, at least 1.
        seed: Seed of all draws, the same for both sides.
        out: Folder to keep the episodes in, as the runs `base` and `checkpoint` beside `evaluation.json`;
            None keeps nothing.
        observe: Function that is called with each event, such as the end of an episode.

    Returns:
        The metrics of both sides and their differences, with 95 % intervals over the tasks.

    Raises:
        SpecError: The spec asks for a permission that `allow` does not give.
        UsageError: No validation data, no such weights or model, no key, or `out` holds an evaluation.
        WorldError: The service does not answer, or the disk is full.
    """
    with TemporaryDirectory(prefix="rolegraph-") as scratch_folder:
        job = EvaluationJob.create(
            flow, checkpoint, tasks=tasks, rollouts=rollouts, seed=seed, out=out or scratch_folder
        )
        return await job.run(observe)


evaluate = jobs.blocking(evaluate_async)


def _on_base(flow: Workflow, checkpoint: str) -> Workflow:
    """Return the workflow with the checkpoint's base model as its model; unchanged if the spec names a model
    itself."""
    trained_models = [
        endpoint.model for endpoint in endpoints_with(flow.plan, checkpoint) if endpoint.policy is not None
    ]
    base_model = next((with_base(ref) for ref in trained_models if not ref.names_model), None)
    if base_model is None or model_folder(base_model.name) == model_folder(None):
        return flow
    return open_source(replace(flow.source, model=str(base_model), base_url=base_model.base_url))


def _results(flow: Workflow, file: Path) -> tuple[SideAnswers, Mapping[str, ByTask]]:
    """Read a side's episodes; return (counts of its answers, means of its metrics by name and task).

    There are no metrics if no model call was answered.
    """
    episodes = [*read_episodes(file)]
    trajectories = [t for episode in episodes for t in episode.trajectories]
    asking_roles = {role.name for role in flow.plan.asking}
    failures = [(f"{t.name}/{t.failure.name.value}", t.failure.message) for t in trajectories if t.failure]
    answers = SideAnswers(
        asked=sum(t.name in asking_roles for t in trajectories),
        answered=sum(t.by_model for t in trajectories),
        failures=dict(Counter(name for name, _ in failures)),
        messages=dict(reversed(failures)),
        remarks=dict(Counter(f"{t.name}/{remark}" for t in trajectories for remark in t.remarks)),
    )
    return answers, {} if answers.is_silent else by_task(flow.plan, episodes)


def _side(flow: Workflow, folder: RunFolder, info: RunInfo, rows: Sequence[Task], *, resume: bool) -> RunJob:
    """Return the run of one side; it is resumed if `resume` is set and the folder already holds a run."""
    if not (resume and folder.info_file.exists()):
        folder.check_new("run")
        return RunJob(flow, folder, info, rows, finished=(), resumed=False)
    old_info = folder.info()
    if (old_info.seed, old_info.checkpoint) != (info.seed, info.checkpoint):
        raise UsageError(
            f"{folder.path} was started with the seed {old_info.seed} and "
            f"{old_info.checkpoint or 'the base model'}; neither can change"
        )
    job = RunJob(flow, folder, info, rows, finished_in(folder), resumed=True)
    folder.check_same(info, flow.plan.resolved, [job.data])
    return job
