"""Commonest answer of a role, and the score that always giving one and the same answer would get. Pure.

A role that says one label to everything can score well. Its accuracy means little without these two metrics.
They mean little themselves where each task has an answer of its own, so such roles have none: answers count
as discrete if the parser allows only some words, if there are few different ones, or if one of them is given
on most tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from statistics import fmean

from rolegraph.engine.records import Episode, Trajectory
from rolegraph.engine.training.analysis.intervals import ByTask
from rolegraph.engine.vocabulary import short_repr

SAME, CONSTANT = "answers/same/", "answers/constant/"
"""Beginnings of the metrics' names; the role's name follows."""
MOST_ANSWERS = 1_000
"""Different answers beyond which a role's answers are not discrete, and are no longer kept."""

MOST_CANDIDATES = 20
"""Commonest answers among which the best constant answer is searched."""


@dataclass(frozen=True, slots=True)
class ConstantAnswers:
    """Commonest answer of a role, and the best of its answers if it were given on every task."""

    commonest: str
    same: ByTask
    """Share of the commonest answer among a task's answers."""
    best: str = ""
    """Answer that would score most as a constant; empty for a role without rewards."""
    scores: ByTask = field(default_factory=dict[str, float])
    """Reward of `best` on each task. If the parser allows only some words, it is computed; else it is a lower
    bound: on a task where `best` was never given, 0 or the role's lowest reward below 0."""

    @property
    def share(self) -> float:
        """Share of the commonest answer, a mean over tasks."""
        return fmean(self.same.values())

    @property
    def reward(self) -> float | None:
        """Reward of the best constant answer, a mean over tasks; None for a role without rewards."""
        return fmean(self.scores.values()) if self.scores else None

    def metrics(self, role: str) -> dict[str, ByTask]:
        """Return by name, then task, the share of the commonest answer and the reward of the best constant
        answer."""
        metrics = {f"{SAME}{role}": self.same, f"{CONSTANT}{role}": self.scores}
        return {name: values for name, values in metrics.items() if values}


@dataclass(slots=True)
class _Given:
    """Number of times that an answer was given on one task, with the sum, minimum and maximum of its
    rewards."""

    n: int = 0
    total: float = 0.0
    low: float = float("inf")
    high: float = float("-inf")

    def add(self, reward: float) -> None:
        self.n += 1
        self.total += reward
        self.low, self.high = min(self.low, reward), max(self.high, reward)


class AnswerTally:
    """Answers of one role with their rewards, by task; trajectories are added, and not kept.

    Args:
        words: All answers that the role's parser allows; empty where it allows any.
    """

    def __init__(self, words: Sequence[str] = ()) -> None:
        self._words = words
        self._tasks: dict[str, dict[str, _Given]] = {}
        self._counts: dict[str, int] = {}
        self._of_words: dict[str, dict[str, list[float]]] = {}
        """Recorded rewards that each word would have earned, by word, then task."""
        self._rewards: set[float] = set()
        """Different rewards, up to three."""
        self._lowest = 0.0
        self._is_open = False

    def add(self, task: str, trajectory: Trajectory) -> None:
        """Count a trajectory's answers on a task with their rewards, one for each turn that gave a usable
        answer."""
        for step in trajectory.steps:
            for word, reward in step.metadata.get("word_rewards", {}).items():
                self._of_words.setdefault(word, {}).setdefault(task, []).append(reward)
        for answer, reward in () if self._is_open else _answers(trajectory):
            self._counts[answer] = self._counts.get(answer, 0) + 1
            answer_counts = self._tasks.setdefault(task, {}).setdefault(answer, _Given())
            answer_counts.add(0.0 if reward is None else reward)
            if reward is not None:
                self._lowest = min(self._lowest, reward)
                if len(self._rewards) < 3:
                    self._rewards.add(reward)
        if len(self._counts) > MOST_ANSWERS:
            self._is_open = True
            self._tasks.clear()

    @property
    def share(self) -> float | None:
        """Share of the most common answer on a task, a mean over tasks; None for fewer than two tasks."""
        return fmean(self._same().values()) if len(self._tasks) > 1 else None

    @property
    def result(self) -> ConstantAnswers | None:
        """Commonest answer, best constant answer and their metrics; None where the answers are not
        discrete."""
        if not self._is_discrete():
            return None
        commonest_answers, shares = self._commonest(), self._same()
        if not self._rewards:
            return ConstantAnswers(commonest_answers, shares)
        scores: dict[str, ByTask] = {
            word: {task: fmean(rewards) for task, rewards in task_rewards.items()}
            for word, task_rewards in self._of_words.items()
        }
        if not scores:
            candidates = nlargest(MOST_CANDIDATES, self._counts, key=lambda answer: self._counts[answer])
            scores = {answer: self._scores(answer, by_task=self._by_task) for answer in candidates}
        best_answer = max(scores, key=lambda it: (fmean(scores[it].values()), self._counts.get(it, 0)))
        return ConstantAnswers(commonest_answers, shares, best_answer, scores[best_answer])

    def _commonest(self) -> str:
        return max(self._counts, key=lambda answer: self._counts[answer])

    def _same(self) -> ByTask:
        answer = self._commonest()
        return {
            task: answers[answer].n / sum(count.n for count in answers.values()) if answer in answers else 0.0
            for task, answers in self._tasks.items()
        }

    def _is_discrete(self) -> bool:
        if len(self._tasks) < 2:
            return False
        if self._words or 2 * len(self._counts) <= len(self._tasks):
            return True
        shares = self._same().values()
        return fmean(shares) >= 0.5 and sum(share > 0 for share in shares) > len(shares) / 2

    @property
    def _by_task(self) -> bool:
        """True if an answer's reward follows from the task, and not from the turn, as a validator's does.

        A validator that is never wrong also has one reward for each answer to a task. But if its turns read
        different picks, two of its words have the highest reward on that task.
        """
        return all(
            all(counts.low == counts.high for counts in answers.values())
            and (not self._words or self._right(answers) < 2)
            for answers in self._tasks.values()
        )

    def _right(self, answers: Mapping[str, _Given]) -> int:
        """Count the different answers to a task that have the highest reward that the role ever got."""
        return sum(counts.high == max(self._rewards) for counts in answers.values())

    def _scores(self, answer: str, *, by_task: bool) -> ByTask:
        """Return by task the mean reward that a role would have, had each turn given this answer."""
        return {
            task: answers[answer].total / answers[answer].n
            if by_task and answer in answers
            else sum(self._instead(answer, other, counts) for other, counts in answers.items())
            / sum(counts.n for counts in answers.values())
            for task, answers in self._tasks.items()
        }

    def _instead(self, answer: str, other: str, given: _Given) -> float:
        """Estimate the summed reward of the turns that answered `other`, if they had answered `answer`."""
        if answer == other:
            return given.total
        if len(self._words) == 2 and len(self._rewards) == 2:  # of two words, exactly one is right
            return given.n * sum(self._rewards) - given.total
        return given.n * self._lowest


def tally_answers(episodes: Iterable[Episode], words: Mapping[str, Sequence[str]]) -> dict[str, AnswerTally]:
    """Return a tally of each role's answers.

    Args:
        episodes: Episodes of any number of tasks.
        words: Names of the roles, each with the answers that its parser allows; empty where it allows any.
    """
    tallies = {role: AnswerTally(allowed_words) for role, allowed_words in words.items()}
    for episode in episodes:
        for trajectory in episode.trajectories:
            if trajectory.name in tallies:
                tallies[trajectory.name].add(episode.task_id, trajectory)
    return tallies


def metrics_of_answers(tallies: Mapping[str, AnswerTally]) -> dict[str, ByTask]:
    """Return by name and task `answers/same/{role}` and `answers/constant/{role}` of roles with discrete
    answers."""
    results = {role: tally.result for role, tally in tallies.items()}
    return {name: by_task for role, r in results.items() if r for name, by_task in r.metrics(role).items()}


def best_constants(roles: Mapping[str, Sequence[str]], episodes: Iterable[Episode]) -> dict[str, str]:
    """Return the best constant answer of each role whose answers are discrete and have rewards.

    Args:
        roles: Names of the roles, as the `words` of `tally_answers`.
        episodes: Their episodes.
    """
    results = {role: tally.result for role, tally in tally_answers(episodes, roles).items()}
    return {role: result.best for role, result in results.items() if result and result.scores}


def is_no_better(reward: float, constant: float, n: float) -> bool:
    """Return True if a mean reward does not exceed the reward of the best constant answer beyond chance.

    Args:
        reward: Mean reward of a role.
        constant: Reward that its best constant answer would get.
        n: Number of rewards in the mean, at least 1. 1/√n bounds half the width of the 95 % interval of a
            mean of n values from 0 to 1.
    """
    return reward - constant <= 1 / math.sqrt(n)


def constant_remark(reward: float, constant: float | None, n: float | None, answer: str | None) -> str:
    """Return the words that follow a mean reward if a constant answer would get about as much.

    Args:
        reward: Mean reward of a role.
        constant: Reward of the best constant answer; None if the role's answers are not discrete.
        n: Number of rewards in the mean; None if unknown.
        answer: The best constant answer; None if unknown.

    Returns:
        Words such as "no better than always saying 'negative' (0.41)"; empty if the reward is better.
    """
    if constant is None or not n or not is_no_better(reward, constant, n):
        return ""
    quoted = "one answer" if answer is None else short_repr(answer)
    return f"no better than always saying {quoted} ({constant:.2f})"


def beside_rewards(metrics: Mapping[str, ByTask], tallies: Mapping[str, AnswerTally]) -> dict[str, ByTask]:
    """Return the metrics with those of `metrics_of_answers` added, each role's after its `reward/{role}`."""
    answer_metrics = metrics_of_answers(tallies)
    ordered: dict[str, ByTask] = {}
    for name, values in metrics.items():
        ordered[name] = values
        role = name.removeprefix("reward/")
        names = [CONSTANT + role, SAME + role] if role != name else []
        ordered |= {metric: answer_metrics[metric] for metric in names if metric in answer_metrics}
    return {**ordered, **answer_metrics}


def _answers(trajectory: Trajectory) -> list[tuple[str, float | None]]:
    """Return (answer, reward) of each usable answer of a trajectory; the reward is None for an answer without
    a reward."""
    steps = [step for step in trajectory.steps if step.action is not None and not step.masked]
    if len(steps) == 1:
        return [(str(steps[0].action), trajectory.reward)] if trajectory.failure is None else []
    has_rewards = trajectory.reward is not None
    return [(str(step.action), step.reward if has_rewards else None) for step in steps]
