"""Summary of a training's episodes for the report: outcomes of groups, and a few sample episodes.

Episodes are read one at a time, so that gigabytes of them fit in memory. A group is the set of trajectories
that training compared: the trajectories of a role on one task in one step, or their turns of one round or
prompt, without masked ones; `rolegraph.engine.training.analysis.outcomes` classifies it. This file knows no
HTML.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rolegraph.engine.compile.leaving import DisclosureRule, read_rule, without_hidden
from rolegraph.engine.errors import DataError
from rolegraph.engine.records import Episode, RunFolder, Split, Trajectory, read_episodes
from rolegraph.engine.records.credit import CreditRow
from rolegraph.engine.records.numbers import number
from rolegraph.engine.training.analysis.changes import Validations, read_validations
from rolegraph.engine.training.analysis.intervals import ByTask, interval
from rolegraph.engine.training.analysis.outcomes import Outcomes, advantages, group_results
from rolegraph.pages.recorded_credit import recorded_rows
from rolegraph.pages.report.heaviest import HeavyTurn, TurnKey, heaviest_turn

SAMPLES = 2
"""Number of best and of worst episodes shown for each role, each of another task."""
MOST_TASKS = 12
"""Number of rows in a role's table."""
MOST_TEXT = 12_000
"""Number of characters shown of a prompt or response."""
_WHOLE_STEP = "Groups over all tasks of a step"
"""Text in place of a question, for groups of `over: batch`."""


@dataclass(frozen=True, slots=True)
class TaskGroups:
    """Outcomes of the groups on one task over the whole training."""

    task: str
    """`id` of the task; empty for groups over several tasks."""
    question: str
    outcomes: Outcomes = field(default_factory=Outcomes)

    @property
    def barren(self) -> int:
        """Number of the task's groups without a gradient, such as groups in which all answers failed."""
        return sum(count for outcome, count in self.outcomes.items() if not outcome.moves)


@dataclass(slots=True)
class RoleGroups:
    """Answers of a role over the whole training, and its groups by step and by task."""

    role: str
    answers: int = 0
    """Number of the role's trajectories."""
    failures: Counter[str] = field(default_factory=Counter[str])
    """Number of failures by name."""
    steps: dict[int, Outcomes] = field(default_factory=dict[int, Outcomes])
    tasks: dict[str, TaskGroups] = field(default_factory=dict[str, TaskGroups])

    @property
    def seen(self) -> int:
        """Number of the role's groups over the whole training."""
        return sum(task.outcomes.total() for task in self.tasks.values())

    @property
    def barren(self) -> int:
        """Number of the role's groups without a gradient, such as groups with equal rewards under GRPO."""
        return sum(task.barren for task in self.tasks.values())

    @property
    def barren_percent(self) -> str:
        """Percentage of the role's groups that have no gradient, as text."""
        return f"{100 * self.barren / self.seen:.0f}"

    @property
    def barren_tasks(self) -> list[TaskGroups]:
        """Tasks with groups without a gradient, at most MOST_TASKS, those with most such groups first."""
        rows = sorted(self.tasks.values(), key=lambda row: (-row.barren, row.outcomes.total(), row.task))
        return [row for row in rows[:MOST_TASKS] if row.barren]


SampleSide = Literal["best", "worst"]
_SIDES: Mapping[SampleSide, int] = {"best": -1, "worst": 1}
"""Sign for each side by which values are multiplied before they are sorted in ascending order."""


class SampleReason(NamedTuple):
    """Reason to show an episode as a sample: a role instance in it is among the best or worst of a step."""

    side: SampleSide
    instance: str
    measure: Literal["advantage", "reward"]
    value: float
    """Reward, or mean advantage over tokens."""


@dataclass(frozen=True, slots=True)
class SampleEpisode:
    """Episode to show as a sample, with the reasons."""

    episode: Episode
    reasons: Sequence[SampleReason]


class StepSamples:
    """Selection of the few best and worst episodes of each role in a step.

    Episodes are ranked by mean advantage, or by reward where a role has no advantages.
    """

    def __init__(self, split: Split, step: int, rule: DisclosureRule) -> None:
        self.split, self.step, self._rule = split, step, rule
        self._kept: defaultdict[tuple[str, str], list[tuple[SampleReason, Episode]]] = defaultdict(list)
        """Episodes with their reasons, by role and side."""

    def add(self, episode: Episode) -> None:
        """Keep an episode if it is among the SAMPLES best or worst of a role, at most one for each task."""
        for trajectory in episode.trajectories:
            values = advantages(trajectory.steps)
            if values:
                measure, value = "advantage", sum(values) / len(values)
            elif trajectory.reward is not None:
                measure, value = "reward", trajectory.reward
            else:
                continue
            name = instance(episode, trajectory)
            for side, sign in _SIDES.items():
                kept_samples = self._kept[trajectory.name, side]
                candidates = [*kept_samples, (SampleReason(side, name, measure, value), episode)]
                best_by_task: dict[str, tuple[SampleReason, Episode]] = {}
                for item in sorted(candidates, key=lambda item: sign * item[0].value):
                    best_by_task.setdefault(item[1].task_id, item)
                kept_samples[:] = islice(best_by_task.values(), SAMPLES)

    @property
    def samples(self) -> list[SampleEpisode]:
        """Copies of the selected episodes without what may not leave the run; each has all its reasons."""
        episodes: dict[int, tuple[Episode, list[SampleReason]]] = {}
        for _, kept_samples in sorted(self._kept.items(), key=lambda item: item[0][1]):
            for reason, episode in kept_samples:
                episodes.setdefault(id(episode), (episode, []))[1].append(reason)
        visible_episodes = (
            (without_hidden(episode, self._rule), reasons) for episode, reasons in episodes.values()
        )
        return [SampleEpisode(episode, tuple(reasons)) for episode, reasons in visible_episodes]


Bands = Mapping[str, Sequence[tuple[float, float, float]]]
"""(step, low, high) of the 95 % interval over the validation tasks at each step, by figure."""


@dataclass(frozen=True, slots=True)
class Digest:
    """Summary of all episodes of a training for its report: groups by role, samples to show, unreadable
    episodes."""

    roles: Mapping[str, RoleGroups]
    """Answers and groups of each role, by the role's name."""
    samples: Sequence[StepSamples] = ()
    unreadable: int = 0
    """Number of broken lines, not counting an incomplete last line."""
    validations: Validations = field(default_factory=dict[str, Mapping[int, ByTask]])
    """Figures of the validation tasks, by figure, step and task."""
    heaviest: Mapping[int, HeavyTurn] = field(default_factory=dict[int, HeavyTurn])
    """Turn with the largest share of a gradient, by step."""

    @property
    def groups(self) -> tuple[RoleGroups, ...]:
        """Roles that have groups."""
        return tuple(role for role in self.roles.values() if role.tasks)


def read_digest(folder: Path, trained: Collection[str], rule: DisclosureRule) -> Digest:
    """Read every episode of a training once; raises DataError where a file cannot be read.

    Args:
        folder: Folder of the training.
        trained: Names of the trained roles.
        rule: Rule for what may leave the run: outcomes are counted with all fields, and episodes shown
            without hidden ones.
    """
    run = RunFolder(folder)
    damaged_lines: list[DataError] = []
    by_role = {role: RoleGroups(role) for role in trained}
    samples: dict[str, StepSamples] = {}
    heaviest: dict[int, HeavyTurn] = {}
    for step, path in run.episodes_files("train"):
        best_samples = StepSamples("train", step, rule)
        questions, answers = dict[str, str](), dict[TurnKey, tuple[str, str]]()
        for episode in read_episodes(path, damaged_lines.append):
            best_samples.add(episode)
            questions.setdefault(episode.task_id, question(rule.visible(episode.task), episode.task_id))
            for trajectory in episode.trajectories:
                role = by_role.setdefault(trajectory.name, RoleGroups(trajectory.name))
                role.answers += 1
                role.failures.update([trajectory.failure.name.value] if trajectory.failure else [])
                name, quotes = instance(episode, trajectory), rule.may_quote(trajectory.name)
                for call in trajectory.steps:
                    call_place = episode.task_id, episode.rollout, trajectory.node._replace(round=call.round)
                    answers[call_place] = name, "" if quotes else plain_answer(call.action)
        rows = run.credit_rows(step, damaged_lines.append)
        if rows is None:
            rows = [*recorded_rows(read_episodes(path, lambda _: None), trained)]
        if heavy_turn := heaviest_turn(rows, rule):
            credit = heavy_turn.credit._replace(step=step)  # rows of earlier versions have no step
            call_place = credit.task, credit.rollout, credit.node
            name, answer = answers.get(call_place, (str(credit.node), ""))
            asked_text = questions.get(credit.task, credit.task)
            heaviest[step] = heavy_turn._replace(credit=credit, name=name, question=asked_text, answer=answer)
        for name, task, outcome in group_results(rows):
            role = by_role.setdefault(name, RoleGroups(name))
            task_text = questions.get(task, task) if task else _WHOLE_STEP
            task_groups = role.tasks.setdefault(task, TaskGroups(task, task_text))
            for counts in (role.steps.setdefault(step, Outcomes()), task_groups.outcomes):
                counts[outcome] += 1
        if best_samples.samples:
            samples["train"] = best_samples
    validation = run.validation
    validation_rule = rule if validation is run else read_rule(validation)
    for step, path in reversed(validation.episodes_files("validation")):
        best_samples = StepSamples("validation", step, validation_rule)
        for episode in read_episodes(path, damaged_lines.append):
            best_samples.add(episode)
        if best_samples.samples:
            samples["validation"] = best_samples
            break
    return Digest(by_role, tuple(samples.values()), len(damaged_lines), read_validations(run), heaviest)


def bands(validations: Validations) -> Bands:
    """Return the 95 % interval of each figure at each validation."""
    intervals = {
        name: {step: interval(values) for step, values in of.items()} for name, of in validations.items()
    }
    return {name: [(step, it.low, it.high) for step, it in of.items()] for name, of in intervals.items()}


def instance(episode: Episode, trajectory: Trajectory) -> str:
    """Return the name of a trajectory's role, with the instance number if the role has several."""
    has_several = sum(other.name == trajectory.name for other in episode.trajectories) > 1
    return f"{trajectory.name} {trajectory.index}" if has_several else trajectory.name


def question(task: Mapping[str, Any], task_id: str, most: int = 300) -> str:
    """Return a task's field `question`, or else its first text, or else its id, up to `most` characters."""
    candidates = (task.get("question"), *(value for name, value in task.items() if name != "id"))
    return clipped(next((it for it in candidates if isinstance(it, str) and it.strip()), task_id), most)


def clipped(value: object, most: int = MOST_TEXT, digits: int = 12) -> str:
    """Return a value as text, cut to `most` characters with a note of how many are missing.

    Floats in it have at most `digits` digits.
    """
    text = value if isinstance(value, str) else _plain_json(value, digits)
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"


_TAGGED = re.compile(r"\s*<(\w+)>(.*)</\1>\s*", re.DOTALL)


def plain_answer(action: object, most: int = 60) -> str:
    """Return an action as text of at most `most` characters, without the tag around it; `nothing` for an
    empty action."""
    if action is None:
        return "nothing"
    text = clipped(action, 2_000)
    if tag_match := _TAGGED.fullmatch(text):
        text = tag_match[2].strip()
    return text if len(text) <= most else f"{text[: most - 1]}…"


_STRING_OR_FLOAT = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)')


def _plain_json(value: object, digits: int) -> str:
    """Return a value as JSON with floats of at most `digits` digits: 0.1 + 0.2 is 0.3, and 1e-05 is 1e-5."""

    def shorter(match: re.Match[str]) -> str:
        if match[0].startswith('"'):
            return match[0]
        text = re.sub(r"e([+-])0", r"e\1", f"{float(match[0]):.{digits}g}")
        return text if {*text} & {*".e"} else f"{text}.0"

    return _STRING_OR_FLOAT.sub(shorter, json.dumps(value, ensure_ascii=False, default=str))


def credit_formula(credit: CreditRow, estimator: str | None) -> str:
    """Return the terms of an advantage as text, such as `(reward 1 − baseline 0.5) ÷ std 0.5`.

    The standard deviation by which grpo divides is not recorded: it follows from the other numbers, unless a
    signal added to the advantage of each token.
    """
    change = "no reward" if credit.reward is None else f"reward {number(credit.reward)}"
    if credit.baseline is None:
        return change
    change = f"{change} − baseline {number(credit.baseline)}"
    if estimator != "grpo" or not credit.advantage or credit.low != credit.high:
        return change
    deviation = ((credit.reward or 0.0) - credit.baseline) / credit.advantage
    return change if 0.999 < deviation < 1.001 else f"({change}) ÷ std {number(deviation)}"
