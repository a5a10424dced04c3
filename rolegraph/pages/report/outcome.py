"""Outcome of a training: each figure before and after, with the interval of the change, and each role's part.

The change is that of the validation from its first to its last step, paired by task. The best checkpoint is
chosen by these tasks, which favours its figure; so that figure is shown beside the change and never in place
of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rolegraph.engine.records.numbers import number
from rolegraph.engine.training.analysis.changes import Validations
from rolegraph.engine.training.analysis.constants import CONSTANT, SAME
from rolegraph.engine.training.analysis.intervals import Interval, difference
from rolegraph.engine.training.analysis.outcomes import GroupOutcome, Outcomes
from rolegraph.engine.training.analysis.routing import last_routes, route_remarks, routes_of, summed_routes
from rolegraph.pages.report.charts import share_bar
from rolegraph.pages.report.digest import Digest, RoleGroups
from rolegraph.pages.report.panels import OUTCOMES
from rolegraph.pages.report.reading import Point, RunRecord

COLLAPSED, UNKNOWN = "Collapsed", "Not validated twice"


@dataclass(frozen=True, slots=True)
class FigureChange:
    """Values of a training's figure (metric) at the first, the last and the best step."""

    names: Sequence[str]
    """Names of the figures that share these values at every step."""
    points: Sequence[Point]
    """(step, mean) of each validation; in a training without validation, of each batch."""
    is_validated: bool
    best: Point
    """Point at the best step of the training; the largest value if the best step lacks the figure."""
    at_checkpoint: bool
    """True if `best` is at the training's best step, which is chosen by the first figure."""
    change: Interval | None
    """Change from the first to the last validation, paired by task; None without two validations."""
    greedy: Sequence[Point]
    """(step, value) at temperature 0, before the first and after the last step; empty if not measured."""

    @property
    def first(self) -> Point:
        """Step and mean of the first validation or batch."""
        return self.points[0]

    @property
    def last(self) -> Point:
        """Step and mean of the last validation or batch."""
        return self.points[-1]

    @property
    def sign(self) -> int:
        """1 for a rise beyond chance, -1 for such a fall, 0 otherwise."""
        return self.change.sign if self.change else 0


class RewardPoint(NamedTuple):
    """Mean reward of a role at a step."""

    step: int
    mean: float
    n: int
    """Number of rewards in the mean, of trajectories or turns; 0 if not recorded."""


class RoleSummary(NamedTuple):
    """Outcome of a training for a role: rewards at the first and last step, group outcomes, failures."""

    role: str
    is_trained: bool
    is_validated: bool
    """True if the rewards are of the validation, which needs two validated steps; else they are of the
    training."""
    rewards: Sequence[RewardPoint]
    """Rewards of each step."""
    answers: int
    """Number of the role's trajectories in the training's episodes."""
    failures: Counter[str]
    """Number of failures in training, by the failure's name."""
    groups: Outcomes
    constant: float | None
    """Reward of the best constant answer at the last step; None if the role's answers are not discrete."""
    same: float | None
    """Share of the commonest answer, from 0 to 1, at the same step."""
    routes: str = ""
    """Shares of the role's answers in the last validation or batch, if they decide which role is asked; else
    empty."""
    remarks: Sequence[str] = ()
    """Clauses about the role's default, or the cause why it was never asked."""

    @property
    def failed(self) -> int:
        """Number of failed answers."""
        return self.failures.total()

    @property
    def commonest_failure(self) -> str:
        """Most frequent failure, as words; empty without failures."""
        return self.failures.most_common(1)[0][0].replace("_", " ") if self.failures else ""

    @property
    def is_unusable(self) -> bool:
        """True where every answer failed and no group had a gradient."""
        moving_groups = sum(count for outcome, count in self.groups.items() if outcome.moves)
        return self.is_trained and 0 < self.answers <= self.failed and not moving_groups

    @property
    def taught(self) -> int:
        """Number of the role's groups whose advantages differ."""
        return self.groups[GroupOutcome.TAUGHT]

    @property
    def other_groups(self) -> str:
        """Numbers of the role's other groups by outcome, as text."""
        others = ((outcome, n) for outcome, n in self.groups.most_common() if n)
        return ", ".join(f"{n} {outcome}" for outcome, n in others if outcome is not GroupOutcome.TAUGHT)

    @property
    def bar(self) -> str:
        """Bar of the groups by outcome, as SVG."""
        label = f"{self.taught} of {self.groups.total()} groups taught {self.role}; {self.other_groups}"
        return share_bar(label, [(kind, self.groups[outcome]) for outcome, kind in OUTCOMES.items()])

    @property
    def beside(self) -> str:
        """Sentence on the reward of the best constant answer and the share of the commonest answer; empty if
        not measured."""
        if self.constant is None or self.same is None:
            return ""
        return (
            f"Always giving one answer would get {number(self.constant)}; its commonest answer was "
            f"{self.same:.0%} of all."
        )


def figure_changes(run: RunRecord, validations: Validations) -> list[FigureChange]:
    """Return each figure of the validation, or in a training without validation of the batches; equal figures
    share an item."""
    changes: list[FigureChange] = []
    for names in run.figures:
        name = names[0]
        validations_ = run.series(f"validation/{name}")
        if points := validations_ or run.series(f"episode/{name}"):
            best_point = next((point for point in points if point[0] == run.best), None)
            largest_point = max(points, key=lambda point: point[1])
            steps = validations.get(name, {})
            end_values = [steps.get(int(points[end][0]), {}) for end in (0, -1)]
            change = difference(end_values[1], end_values[0]) if validations_ and len(points) > 1 else None
            changes.append(
                FigureChange(
                    names,
                    points,
                    bool(validations_),
                    best_point or largest_point,
                    best_point is not None,
                    change if change and change.n else None,
                    run.series(f"greedy/{name}"),
                )
            )
    return changes


def role_summaries(run: RunRecord, digest: Digest) -> list[RoleSummary]:
    """Return the outcome of each role; empty before the first step."""
    if not run.done:
        return []
    summaries = [_role_summary(run, name, digest.roles) for name in run.info.roles]
    routes = summed_routes(run.lines)
    remarks: dict[str, list[str]] = {}
    for name, text in route_remarks(run.info.roles, {it.role: it.answers for it in summaries}, routes):
        remarks.setdefault(name, []).append(text)
    step_range = last_routes(run.lines).where
    route_texts = {it.role: f"{of} in {step_range}" for it in summaries if (of := routes_of(it.role, routes))}
    return [
        it._replace(routes=route_texts.get(it.role, ""), remarks=remarks.get(it.role, [])) for it in summaries
    ]


def _role_summary(run: RunRecord, name: str, groups: Mapping[str, RoleGroups]) -> RoleSummary:
    is_validated = len(run.series(f"validation/reward/{name}")) > 1
    prefix = "validation/" if is_validated else ""
    mean_key, n_key = ("reward/{}", "n/reward/{}") if is_validated else ("reward/{}/mean", "reward/{}/n")
    sizes = dict(run.series(prefix + n_key.format(name)))
    role = groups.get(name, RoleGroups(name))
    return RoleSummary(
        role=name,
        is_trained=run.info.roles[name].trainable,
        is_validated=is_validated,
        rewards=[
            RewardPoint(int(step), value, int(sizes.get(step, 0)))
            for step, value in run.series(prefix + mean_key.format(name))
        ],
        answers=role.answers,
        failures=role.failures,
        groups=sum(role.steps.values(), Outcomes()),
        constant=run.latest(f"{prefix}{CONSTANT}{name}"),
        same=run.latest(f"{prefix}{SAME}{name}"),
    )
