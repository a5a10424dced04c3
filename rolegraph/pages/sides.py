"""Sides of a comparison: the settings of a run, and the metrics of each task.

Episodes are read one at a time and reduced to numbers; their index entries are kept, so that the few that are
shown can be read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rolegraph.engine.compile.leaving import DisclosureRule, read_rule, without_hidden
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import Episode, RunFolder, RunInfo
from rolegraph.engine.records.episodes import EpisodeFile, IndexEntry, read_episodes
from rolegraph.engine.records.means import TOKENS_IN, TOKENS_OUT, figures_with_rewards, means_by_task
from rolegraph.engine.spec.yaml_source import parse_yaml
from rolegraph.engine.training.analysis.constants import AnswerTally, beside_rewards
from rolegraph.engine.training.analysis.intervals import ByTask
from rolegraph.pages.run_folders import distinct_ends


@dataclass(frozen=True, slots=True)
class SideResults:
    """Results of one side of a comparison: its episodes' metrics by task, and index entries."""

    what: str
    """Description of the episodes, such as `validation, step 10`."""
    file: EpisodeFile
    entries: Mapping[tuple[str, int], IndexEntry]
    """Index entry of each episode, by task and rollout."""
    tasks: Mapping[str, Mapping[str, Any]]
    """Row of each task, by its id."""
    figures: Mapping[str, ByTask]
    """Mean over the rollouts of each task, for `correct`, metrics, `reward/{role}`, tokens, and
    `answers/same/{role}` and `answers/constant/{role}` of roles with discrete answers."""
    tokens_in: int
    """Number of prompt tokens of all episodes."""
    tokens_out: int
    calls: int
    """Number of model calls, without retries."""
    rule: DisclosureRule
    """Rule for what may leave of the episodes."""

    def rollouts(self, task: str) -> list[IndexEntry]:
        """Return the index entries of a task, in the order of the rollouts."""
        return [entry for (name, _), entry in sorted(self.entries.items()) if name == task]

    def read(self, entry: IndexEntry) -> Episode:
        """Read an episode without what may not leave; raises DataError where the file no longer has it."""
        return without_hidden(self.file.read(entry), self.rule)


@dataclass(frozen=True, slots=True)
class Side:
    """Run, training or spec that is compared."""

    name: str
    """Name of the side in the comparison."""
    hash: str
    spec: Mapping[str, Any]
    """Resolved spec."""
    templates: Mapping[str, str]
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings of the run, such as model and seed."""
    results: SideResults | None = None
    """Results; None for a spec, and without episodes."""
    other: SideResults | None = None
    """Results of a training's other validation: that of the best checkpoint if `results` are of the last,
    else that of the last. None for a run, and if both are the same.
    """
    seconds: float | None = None
    """Time that a run's episodes took, or a training that was not resumed, in seconds; None where unknown."""
    training: Path | None = None
    """Folder of a training; None for a run and a spec."""
    trained: Sequence[str] = ()
    """Names of the roles that the training trains."""


def side_names(paths: Sequence[str]) -> list[str]:
    """Return a name for each side: the last part of its path, with as many parts before as set it apart."""
    names = distinct_ends([Path(path).resolve() for path in paths])
    earlier_counts = [names[:index].count(name) for index, name in enumerate(names)]
    return [f"{name} ({n + 1})" if n else name for name, n in zip(names, earlier_counts, strict=True)]


def read_side(name: str, path: Path, *, best: bool = False) -> Side:
    """Read the folder of a run or training.

    The results of a training are those of its last validation. The best checkpoint was chosen by its own
    validation, whose results are too good for that reason.

    Args:
        name: Name of the side.
        path: The folder.
        best: True to take the validation of a training's best checkpoint, if the training has one.

    Raises:
        UsageError: The folder is not one of a run.
        DataError: The folder is damaged.
    """
    folder = RunFolder(path)
    info = folder.info()
    side = _side(name, folder, info, folder.compared_files(best=best))
    return replace(side, seconds=info.duration, training=path if info.kind == "train" else None)


def read_steps(name: str, path: Path, steps: Sequence[int]) -> list[Side]:
    """Read steps of a training as sides: their validations, or their training episodes where one has none.

    Args:
        name: Name of the training.
        path: Its folder.
        steps: The steps.

    Raises:
        UsageError: The folder is not one of a training, or a step has no episodes.
        DataError: The folder is damaged.
    """
    folder = RunFolder(path)
    info = folder.training()
    validations, batches = (
        dict(folder.validation.episodes_files("validation")),
        dict(folder.episodes_files("train")),
    )
    split, files = ("validation", validations) if {*steps} <= {*validations} else ("train", batches)
    if missing_steps := [step for step in steps if step not in files]:
        known_steps = ", ".join(map(str, files)) or "none"
        raise UsageError(
            f"{path} has no episodes of step {missing_steps[0]}; there are {split} episodes of {known_steps}"
        )
    return [
        _side(f"{name}, step {step}", folder, info, [(f"{split}, step {step}", files[step])])
        for step in steps
    ]


def _side(name: str, folder: RunFolder, info: RunInfo, files: Sequence[tuple[str, Path]]) -> Side:
    validation = folder.validation
    words_by_role = {name: role.answers for name, role in validation.info().roles.items()}
    rule = read_rule(validation)
    read_results = [results_of(file, split_name, words_by_role, rule) for split_name, file in files]
    results, other = (*(result if result.tasks else None for result in read_results), None, None)[:2]
    spec = _with_rate(parse_yaml(folder.spec() or "{}", str(folder.spec_file)).data, info)
    return Side(
        name, info.hash, spec, info.templates, _settings(info), results, other, trained=info.trained_roles
    )


def _with_rate(spec: Mapping[str, Any], info: RunInfo) -> Mapping[str, Any]:
    """Return a spec with the learning rate of its training, if the spec sets no rate."""
    train: Mapping[str, Any] = spec.get("train") or {}
    rates = {*info.learning_rates.values()}
    if "learning_rate" in train or len(rates) != 1:
        return spec
    return {**spec, "train": {**train, "learning_rate": rates.pop()}}


def results_of(
    file: Path, what: str, words: Mapping[str, Sequence[str]], rule: DisclosureRule
) -> SideResults:
    """Return the results of a file of episodes; raises DataError where it cannot be read.

    Args:
        file: The file.
        what: Description of the episodes.
        words: Names of the roles, each with the answers that its parser allows; empty where it allows any.
        rule: Rule for what may leave of the episodes.
    """
    episode_file = EpisodeFile(file)
    entries = {(entry.task, entry.rollout): entry for entry in episode_file.entries()}
    rows: list[tuple[str, Mapping[str, float]]] = []
    tasks: dict[str, Mapping[str, Any]] = {}
    tokens_in = tokens_out = calls = 0
    tallies = {role: AnswerTally(role_words) for role, role_words in words.items()}
    for episode in read_episodes(file):
        tasks.setdefault(episode.task_id, episode.task)
        steps = [step for t in episode.trajectories for step in t.steps]
        prompt = sum(step.prompt_tokens for step in steps)
        response = sum(step.response_tokens for step in steps)
        figures = figures_with_rewards(episode)
        rows.append((episode.task_id, {**figures, TOKENS_IN: float(prompt), TOKENS_OUT: float(response)}))
        tokens_in += prompt
        tokens_out += response
        calls += sum(not step.tool for step in steps)
        for trajectory in episode.trajectories:
            if trajectory.name in tallies:
                tallies[trajectory.name].add(episode.task_id, trajectory)
    figures = beside_rewards(means_by_task(rows), tallies)
    return SideResults(
        what=what,
        file=episode_file,
        entries=entries,
        tasks=tasks,
        figures=figures,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        calls=calls,
        rule=rule,
    )


def _settings(info: RunInfo) -> dict[str, str]:
    settings = {
        "kind": "training" if info.kind == "train" else "run",
        "model": info.model,
        "checkpoint": info.checkpoint or "",
        "seed": str(info.seed),
        "split": info.split or "",
        "tasks at most": str(info.limit or ""),
        "rollouts": str(info.rollouts or "") if info.kind == "run" else "",
        "version": info.version,
    }
    return {name: value for name, value in settings.items() if value}
