"""Change of a training from the first validation to the last, paired by task: its main metric, and the
rewards of trained roles.

The best checkpoint is chosen by these tasks, so that its figure is no part of the change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, TypeAlias

from rolegraph.engine.records import RunFolder, RunInfo
from rolegraph.engine.records.episodes import EpisodeFile
from rolegraph.engine.records.means import means_by_task
from rolegraph.engine.training.analysis.divergence import Line
from rolegraph.engine.training.analysis.intervals import ByTask, Interval, difference
from rolegraph.engine.training.analysis.role_metrics import equal_figures

WORDS = {1: "Rose", -1: "Fell", 0: "Cannot tell whether it changed"}
"""Verdict on the change of a metric, by the sign of the change's interval."""
Validations: TypeAlias = Mapping[str, Mapping[int, ByTask]]
"""Mean over each task's episodes, by metric (`reward/{role}` included), step and task."""


class TrainingChange(NamedTuple):
    """Change of a training's main metric between two validations, and of the rewards of roles that changed
    beyond chance."""

    names: Sequence[str]
    """Name of the main metric, and names of the metrics that equal it at every step."""
    over: Interval
    """Change of the main metric."""
    steps: tuple[int, int]
    """Steps of the first and of the last validation."""
    moved: Mapping[str, Interval]
    """Change of each trained role's reward whose interval leaves out 0, by role. A reward that equals the
    main metric on every task is left out."""

    @property
    def sign(self) -> int:
        """1 for a training that improved, -1 for a training that got worse, 0 if neither or both are
        shown."""
        signs = {change.sign for change in self.moved.values()}
        return self.over.sign or (signs.pop() if len(signs) == 1 else 0)

    @property
    def words(self) -> str:
        """Verdict such as "Rose"; if only rewards of roles changed, the verdict on each of these roles."""
        if self.moved and not self.over.sign:
            return " and ".join(f"{role} {WORDS[change.sign].lower()}" for role, change in self.moved.items())
        return WORDS[self.over.sign]

    @property
    def record(self) -> dict[str, Any]:
        """Return plain data: the sentence, the metrics, the steps, and each change with its interval and
        n."""
        return {
            "text": str(self),
            "figures": [*self.names],
            "steps": [*self.steps],
            "change": asdict(self.over),
            "moved": {role: asdict(change) for role, change in self.moved.items()},
        }

    def __str__(self) -> str:
        role_changes = "".join(f"; reward/{role} {change.signed}" for role, change in self.moved.items())
        first_step, last_step = self.steps
        extent = f"over {self.over.n} validation tasks, step {first_step} to {last_step}"
        return f"{self.words}: {' = '.join(self.names)} {self.over.signed} {extent}{role_changes}"


def training_change(info: RunInfo, lines: Sequence[Line], validations: Validations) -> TrainingChange | None:
    """Return the change of a training's main metric; None unless two validations measured it.

    Args:
        info: The training's run.json.
        lines: Metrics of its steps, oldest first.
        validations: Its validations; the first and the last suffice.
    """
    keys = ("validation/{}", "episode/{}")
    groups = equal_figures(lines, info.metric_names)
    shown_groups = (g for g in groups if any(key.format(g[0]) in line for key in keys for line in lines))
    names = next(shown_groups, ("",))
    end_steps = validated_ends(lines, names[0])
    if end_steps is None:
        return None
    first_means, last_means = (validations.get(names[0], {}).get(step, {}) for step in end_steps)
    if not (change := difference(last_means, first_means)).n:
        return None
    changes: dict[str, Interval] = {}
    for role in info.trained_roles:
        role_means = [validations.get(f"reward/{role}", {}).get(step, {}) for step in end_steps]
        change_of_role = difference(role_means[1], role_means[0])
        if change_of_role.sign and role_means != [first_means, last_means]:
            changes[role] = change_of_role
    return TrainingChange(names, change, end_steps, changes)


def recorded_change(folder: RunFolder, info: RunInfo, lines: Sequence[Line]) -> TrainingChange | None:
    """Return the change of a training, read from the first and the last validation in its folder.

    Args:
        folder: Folder of the training.
        info: Its run.json.
        lines: Metrics of its steps, oldest first.

    Raises:
        DataError: A file cannot be read.
    """
    steps = [int(line["step"]) for line in lines if any(key.startswith("validation/") for key in line)]
    return training_change(info, lines, read_validations(folder, {*steps[:1], *steps[-1:]}))


def validated_ends(lines: Sequence[Line], figure: str) -> tuple[int, int] | None:
    """Return the first and the last step whose validation measured a metric; None if there are not two such
    steps."""
    steps = [int(line["step"]) for line in lines if f"validation/{figure}" in line]
    return (steps[0], steps[-1]) if len(steps) > 1 else None


def read_validations(run: RunFolder, steps: Collection[int] | None = None) -> Validations:
    """Return the metrics of a training's validations by task, from the index of their episodes.

    Figures of a workflow that validates the training beside the first are `NAME/figure`. Broken lines are
    left out.

    Args:
        run: Folder of the training.
        steps: Steps to read; None for all.

    Raises:
        DataError: A file cannot be read.
    """
    figures: dict[str, dict[int, ByTask]] = {}
    for index, folder in enumerate(run.validations() or [run]):
        prefix = f"{folder.path.name}/" if index else ""
        for step, path in folder.episodes_files("validation"):
            if steps is None or step in steps:
                entries = EpisodeFile(path).entries(lambda _: None)
                rows = ((entry.task, entry.figures_with_rewards) for entry in entries)
                for name, values in means_by_task(rows).items():
                    figures.setdefault(prefix + name, {})[step] = values
    return figures
