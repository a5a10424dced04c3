"""Metrics of roles and policies in a training step, each with its labels in the live table, line and report.

A row is all that a metric needs to be shown; a row with `measure` is computed from a role's answers, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rolegraph.engine.records import Trajectory
from rolegraph.engine.records.means import EqualFigures
from rolegraph.engine.training.advantages.group_metrics import KL
from rolegraph.engine.training.analysis.constants import CONSTANT, SAME
from rolegraph.engine.training.analysis.outcomes import GroupOutcome


class StepMetric(NamedTuple):
    """Metric of each role, or of each policy, in a training step, and its labels.

    An empty label leaves the metric out of the place that the label is for.
    """

    name: str
    """Name in `metrics.jsonl`, with `{}` for the role or policy."""
    column: str = ""
    """Heading of its column in the live table."""
    form: str = ".3f"
    """Format of a value; `.0%` marks a share, from 0 to 1."""
    chart: str = ""
    """Title of its chart in the report."""
    line: str = ""
    """Words before the value in the line of a step."""
    rare: str = ""
    """Name of the metric that decides whether the column is shown: in some role it must differ from 0. Empty
    always shows the column."""
    measure: Callable[[Sequence[Trajectory]], float | None] | None = None
    """Function from a role's trajectories in a batch to the value; None for a metric that is computed
    elsewhere."""


def _tokens_per_response(trajectories: Sequence[Trajectory]) -> float | None:
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    lengths = [step.response_tokens for step in steps if step.response_tokens]
    return sum(lengths) / len(lengths) if lengths else None


def _entropy(trajectories: Sequence[Trajectory]) -> float | None:
    """Return the mean of -log p over sampled tokens, in nats: an estimate of the policy's entropy."""
    logprobs = [logp for trajectory in trajectories for step in trajectory.steps for logp in step.logprobs]
    return -sum(logprobs) / len(logprobs) if logprobs else None


_ADDED, _IMITATION, _CONSTANT = "signal/{}/advantage/std", "imitation/{}/loss", CONSTANT + "{}"
RARE_OUTCOMES = (GroupOutcome.EQUAL, GroupOutcome.FAILED, GroupOutcome.SMALL)
"""Outcomes that are shown only where a group has them."""


def _outcome(outcome: GroupOutcome) -> StepMetric:
    """Return the metric of the share of a role's groups with an outcome."""
    name = outcome.metric("{}")
    rare_name = name if outcome in RARE_OUTCOMES else ""
    return StepMetric(name, outcome.removesuffix(" rewards"), ".0%", rare=rare_name)


_TARGETS = "Imitation: -log p of a target token (nats)"
ROLE_METRICS = (
    StepMetric("reward/{}/mean", "reward"),
    StepMetric(_CONSTANT, "constant", rare=_CONSTANT),
    StepMetric(SAME + "{}", "commonest", ".0%", "Share of the commonest answer", rare=_CONSTANT),
    StepMetric("advantage/{}/std", "advantage ±"),
    StepMetric(_ADDED, "signal ±", rare=_ADDED),
    StepMetric(_IMITATION, "imitation", ".3f", _TARGETS, "imitation loss", _IMITATION),
    *(_outcome(outcome) for outcome in GroupOutcome if outcome is not GroupOutcome.NEITHER),
    StepMetric("kl/{}", KL, "z.4f", KL),
    StepMetric("loss/{}/mean", chart="Loss"),
    StepMetric("entropy/{}", chart="Entropy of sampled tokens (nats)", measure=_entropy),
    StepMetric("tokens/per_response/{}", chart="Mean tokens of a response", measure=_tokens_per_response),
    StepMetric("truncated/{}", chart="Truncated answers"),
)
"""Metrics of roles, in the order of columns and charts."""
POLICY_METRICS = (
    StepMetric("optim/loss/{}", "loss", "z.4f", "Loss of each policy"),
    StepMetric("optim/kl/{}", KL, "z.4f", f"{KL} of each policy"),
    StepMetric("optim/grad_norm/{}", "grad norm", chart="Gradient norm"),
    StepMetric("optim/learning_rate/{}", "learning rate", ".2g", "Learning rate"),
)
"""Metrics of policies. With a single policy, the names end without `/{}`, and the first two do not exist."""


def equal_figures(lines: Sequence[Mapping[str, float]], names: Sequence[str]) -> list[tuple[str, ...]]:
    """Group the names of a training's metrics: names with equal values at every step share a tuple.

    Args:
        lines: Metrics of the steps.
        names: Names of the episodes' metrics, and `reward/{role}`.
    """
    names_by_split = [
        {f"validation/{name}": name for name in names},
        {batch_key(name): name for name in names},
    ]
    rows = (
        {name: round(line[key], 9) for key, name in names_by_key.items() if key in line}
        for line in lines
        for names_by_key in names_by_split
    )
    return EqualFigures(names, rows).groups


def batch_key(figure: str) -> str:
    """Return the name that an episode metric has in `metrics.jsonl` for a training batch."""
    return f"{figure}/mean" if figure.startswith("reward/") else f"episode/{figure}"
