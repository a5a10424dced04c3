"""Recorded episodes of a run or a training: rows of metrics, selected by an expression of the language."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rolegraph.engine.errors import RolegraphError, SpecError, UsageError
from rolegraph.engine.plugins import optional_plugin
from rolegraph.engine.prompts import Expression, PromptError, TemplateScope
from rolegraph.engine.prompts.checks import TemplateFault
from rolegraph.engine.prompts.templates import compile_expression
from rolegraph.engine.records import Episode, RunFolder, Trajectory
from rolegraph.engine.records.credit import CreditRow
from rolegraph.engine.records.episodes import EpisodeFile, IndexEntry
from rolegraph.engine.records.folder import RunPart
from rolegraph.engine.records.info import Checkpoint, Control
from rolegraph.engine.records.means import figures_with_rewards
from rolegraph.engine.records.summary import Rows, Summarized, Summary
from rolegraph.engine.spec.diagnostics import Diagnostic, Place
from rolegraph.engine.training.advantages.finished import recorded_view
from rolegraph.engine.training.analysis.role_metrics import equal_figures
from rolegraph.engine.training.analysis.verdict import training_verdict
from rolegraph.engine.vocabulary import TURN_FIELDS, UNKNOWN, View, Views

OF_EPISODE = ("correct", "rollout", "step")
"""Names of an episode's own values in a filter expression."""
Row = TypeVar("Row")


class EpisodeTest(NamedTuple):
    """Filter of recorded episodes: an expression over the last turns of the roles, and the roles that it
    reads."""

    expression: Expression
    roles: Sequence[str]

    def holds(self, episode: Episode, step: int = 0) -> bool:
        """Return True if the expression is true for an episode; False if it is false or unknown.

        Raises:
            UsageError: The expression cannot be computed for the episode.
        """
        turns = {
            name: Views([_turn(it) for it in episode.trajectories if it.name == name]) for name in self.roles
        }
        correct = UNKNOWN if episode.metadata.get("undecided") else episode.is_correct
        values = {"correct": correct, "rollout": episode.rollout, "step": step, "task": episode.task}
        try:
            return self.expression.truth({**values, **turns}) is True
        except PromptError as error:
            label = f"{episode.task_id}:{episode.rollout}"
            raise UsageError(f"{self.expression.source!r} cannot be computed for {label}: {error}") from error


def episode_test(source: str, roles: Mapping[str, int], episodes: Iterable[Episode]) -> EpisodeTest:
    """Compile a filter of episodes, such as `not judge.right and any(solver.right)`.

    Args:
        source: The expression. It may read the last turns of roles, `task`, and the names in `OF_EPISODE`.
        roles: Largest number of instances of each role in an episode.
        episodes: Recorded episodes, which are read until each task field of the expression was met.

    Raises:
        SpecError: The expression has a fault, such as a field that no task has; the message points at it.
    """
    scope = TemplateScope(
        roles,
        tuple(roles),
        None,
        fields=TURN_FIELDS,
        text="a filter",
        is_condition=True,
        values=tuple(name for name in OF_EPISODE if name not in roles),
        is_after=True,
    )
    expression, faults = compile_expression(source, scope)
    fields: dict[str, None] = {}
    missing_names = {name for name in (expression.mentions if expression else ()) if name.startswith("task.")}
    for episode in episodes if missing_names else ():
        fields |= dict.fromkeys(episode.task)
        missing_names -= {f"task.{name}" for name in episode.task}
        if not missing_names:
            break
    if missing_names and fields:
        expression, faults = compile_expression(source, replace(scope, columns=tuple(fields)))
    if expression is None:
        raise SpecError([_diagnostic(source, fault) for fault in faults])
    return EpisodeTest(expression, tuple(roles))


def _diagnostic(source: str, fault: TemplateFault) -> Diagnostic:
    column = max(source.find(fault.word, fault.position), 0) + 1
    fault_place = Place("where", 1, column, source, max(1, len(fault.word)))
    return Diagnostic(fault.message, fault_place, hint=fault.hint)


def most_instances(entries: Iterable[IndexEntry]) -> dict[str, int]:
    """Return the largest number of instances of each role in an episode, at least 1."""
    largest_counts: dict[str, int] = {}
    for index_entry in entries:
        for name, role in index_entry.roles.items():
            largest_counts[name] = max(largest_counts.get(name, 1), role.count)
    return largest_counts


def _turn(trajectory: Trajectory) -> View:
    """Return the view of a trajectory's last turn, as an expression reads it after the episode."""
    steps = trajectory.turns[-1] if trajectory.turns else ()
    view = recorded_view(trajectory, steps, trajectory.failure and trajectory.failure.name)
    if view.ok is UNKNOWN or trajectory.reward is None:
        return view
    return view._replace(reward=trajectory.reward, right=trajectory.is_correct, terms=trajectory.terms)


class RecordedEpisode(NamedTuple):
    """Episode of a file, with its split and step in the training; in a run's folder, `split` is empty and
    `step` 0."""

    split: str
    step: int
    episode: Episode

    @property
    def row(self) -> dict[str, Any]:
        """Values by name: split, step, task and rollout, `correct`, the metrics, and each role's mean
        reward."""
        episode = self.episode
        place = {"split": self.split, "step": self.step, "task": episode.task_id, "rollout": episode.rollout}
        return {**place, **figures_with_rewards(episode)}


class Run(Summarized):
    """The folder of a run or a training, finished or in progress.

    Args:
        folder: Path of the folder.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @property
    def figures(self) -> Mapping[str, float]:
        """`episodes` (their number), `correct` (a share), the spec's metrics, `failures/{role}/{name}`."""
        return RunFolder(self.folder).info().figures

    def summary(self) -> Summary:
        """Return the folder, and a row for each metric; of a training, at its first and its last step."""
        folder, title = RunFolder(self.folder), f"Run {self.folder}"
        try:
            info = folder.info()
            if info.kind == "run":
                return Summary(f"{title}: a run of {info.name}", ("figure", "value"), [*info.figures.items()])
            lines = folder.metrics()
        except RolegraphError as error:
            return Summary(f"{title}: {error}", (), ())
        rows: list[tuple[object, ...]] = []
        for equal_names in equal_figures(lines, info.metric_names):
            for split in ("validation", "episode"):
                key = f"{split}/{equal_names[0]}"
                if values := [(int(line["step"]), line[key]) for line in lines if key in line]:
                    rows.append((f"{split}/{' = '.join(equal_names)}", *values[0], *values[-1]))
        columns = ("figure", "first step", "value", "last step", "value")
        return Summary(f"{title}: a training of {info.name}", columns, rows)

    def _repr_html_(self) -> str:
        """Return the summary as a table for a notebook, and for a training also the curve of its first
        metric."""
        table = self.summary().html()
        with suppress(RolegraphError):
            info = RunFolder(self.folder).training()
            return table + self.plot(*info.metric_names[:1]).image
        return table

    def plot(self, *figures: str, beside: Sequence[str | Path] = ()) -> Any:
        """Draw the learning curves of a training, as its report does, with a panel for each metric.

        Args:
            figures: `correct`, names of the spec's metrics, or full names of columns in `metrics`; by default
                `correct` and all metrics of the spec.
            beside: Folders of further trainings, drawn in the same panels. For several seeds of one spec, the
                mean is drawn, too.

        Returns:
            A `Drawing`, which a notebook shows; its `save("curves.svg")` or `save("curves.png")` writes a
            file, and `svg` is its text.

        Raises:
            UsageError: A training or a metric is missing, or no installed package draws curves.
            DataError: A file is damaged.
        """
        if (draw := optional_plugin("reports", "curves")) is None:
            raise UsageError("no installed package draws curves")
        return draw([self.folder, *map(Path, beside)], figures)

    def recorded(
        self, where: str = "", *, split: str | None = None, step: int | None = None, task: str | None = None
    ) -> Iterator[RecordedEpisode]:
        """Yield the recorded episodes that match, step by step.

        Args:
            where: Expression that must be true for an episode, such as `not judge.right and
                any(solver.right)`; empty for all episodes.
            split: For a training: `validation`, `train` or `greedy`; None for all.
            step: For a training: number of a step; None for all.
            task: Id of a task; None for all.

        Raises:
            SpecError: `where` has a fault.
            UsageError: `where` cannot be computed for an episode, or the folder has no such episodes.
            DataError: A file is damaged.
        """
        parts = self._parts(split, step)
        entries = [[*EpisodeFile(part.path).entries()] for part in parts]

        def read() -> Iterator[RecordedEpisode]:
            for part, file_entries in zip(parts, entries, strict=True):
                for entry in file_entries:
                    if task is None or entry.task == task:
                        yield RecordedEpisode(part.split, part.step, EpisodeFile(part.path).read(entry))

        if not where:
            yield from read()
            return
        roles = most_instances(chain.from_iterable(entries))
        test = episode_test(where, roles, (row.episode for row in read()))
        yield from (row for row in read() if test.holds(row.episode, row.step))

    def _parts(self, split: str | None, step: int | None) -> list[RunPart]:
        folder = RunFolder(self.folder)
        if folder.info().kind == "run" and (split is not None or step is not None):
            raise UsageError(f"{self.folder} is the folder of a run, which has no steps")
        parts = [part for part in folder.parts() if split in (None, part.split) and step in (None, part.step)]
        if not parts and folder.info().kind == "train":
            step_note = "" if step is None else f" of step {step}"
            raise UsageError(f"{self.folder} has no episodes{step_note}")
        return parts

    def episodes(self, where: str = "", *, split: str | None = None, step: int | None = None) -> Any:
        """Return a row of metrics for each matching episode; arguments and errors are those of `recorded`.

        Returns:
            A pandas DataFrame where pandas is installed, else a list of dicts: `split`, `step`, `task`,
                `rollout`, `correct`, the metrics, and `reward/ROLE`, the mean over the role's instances.
        """
        return as_table([episode.row for episode in self.recorded(where, split=split, step=step)])

    def credit(self, step: int | None = None) -> Any:
        """Return the credit of a training: a row for each member of a group, and for each call with a signal.

        Args:
            step: Number of a training step; None for all.

        Returns:
            A pandas DataFrame where pandas is installed, else a list of `CreditRow` with the same fields.

        Raises:
            UsageError: The folder has no credit of that step, or no credit at all.
            DataError: A file is damaged.
        """
        folder = RunFolder(self.folder)
        folder.training()
        steps = [step_number for step_number, _ in folder.episodes_files("train")] if step is None else [step]
        tables = [folder.credit_rows(step_number) for step_number in steps]
        if not (rows := [row for table in tables for row in table or ()]):
            step_note = "" if step is None else f" of step {step}"
            raise UsageError(f"{self.folder} has no credit{step_note}; trainings have it since version 0.3")
        return as_table(rows, CreditRow._fields)

    @property
    def best(self) -> str:
        """The weights with the best validation, in the form that `evaluate` and a spec's `model.checkpoint`
        accept.

        It is the training's folder if the folder holds the weights or there are several policies; else a
        `tinker://` path.
        """
        return RunFolder(self.folder).weights_to_sample()

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """The checkpoints, oldest first."""
        return RunFolder(self.folder).checkpoints()

    def metrics(self) -> Any:
        """Return the metrics of a training, a row for each step; step 0 is the validation before training.

        Returns:
            A pandas DataFrame where pandas is installed, else a list of dicts: `step`, and each metric that
            the training watched, missing if the step has no value.

        Raises:
            DataError: The file is damaged.
        """
        return as_table(RunFolder(self.folder).metrics())

    @property
    def controls(self) -> Sequence[Control]:
        """Reference values, such as the untrained model's on the validation tasks; empty without any."""
        return RunFolder(self.folder).controls()

    @property
    def verdict(self) -> Sequence[str]:
        """Sentences about roles that diverged, or whose reward is no better than that of one constant answer;
        empty without such roles."""
        folder = RunFolder(self.folder)
        return training_verdict(folder, folder.training(), folder.metrics()).remarks

    @property
    def report(self) -> Path:
        """Path of the training's page, which opens without a network."""
        return RunFolder(self.folder).report


def as_table(rows: list[Row], columns: Sequence[str] | None = None) -> Any:
    """Return rows as a pandas DataFrame where pandas is installed, else unchanged.

    Args:
        rows: The rows, mappings or tuples.
        columns: Names of the columns; None takes those of the rows.
    """
    try:
        from pandas import DataFrame  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        return Rows(rows)
    return DataFrame(rows, columns=None if columns is None else list(columns))
