"""Metrics of one training step, from its ledger and its datums. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rolegraph.engine.compile import Plan
from rolegraph.engine.records.credit import CreditRow
from rolegraph.engine.training.advantages.group_metrics import Metrics, reward_metrics
from rolegraph.engine.training.advantages.ledger import Ledger
from rolegraph.engine.training.analysis.metrics import (
    answer_metrics,
    failures,
    gradient_shares,
    mean_metrics,
    response_tokens,
    rewards_by_role,
)
from rolegraph.engine.training.analysis.outcomes import outcome_metrics
from rolegraph.engine.training.analysis.routing import route_metrics
from rolegraph.engine.training.policies.batches import RoleBatch


def batch_metrics(ledger: Ledger, rows: Iterable[CreditRow], plan: Plan) -> Metrics:
    """Return the metrics of all episodes of a step: groups, advantages, rewards, failures, outcomes.

    Args:
        ledger: The step's ledger, with advantages.
        rows: The rows of its credit.
        plan: The plan of the step.
    """
    episodes = ledger.episodes
    metrics = {**ledger.group_metrics, **ledger.estimates.metrics, **ledger.signals.metrics}
    metrics |= _own_rewards(ledger, plan, metrics)
    metrics |= mean_metrics(plan, episodes, "episode") | failures(episodes) | response_tokens(episodes)
    metrics |= outcome_metrics(rows) | answer_metrics(ledger.roles, episodes) | route_metrics(plan, episodes)
    metrics["staleness/mean"] = _staleness(ledger)
    metrics |= {f"schedule/{path}": value for path, value in plan.scheduled.items()}
    if ledger.kept is not None:
        metrics |= {"refill/drawn": float(len(ledger.tasks)), "refill/kept": float(len(ledger.kept))}
    return metrics


def _own_rewards(ledger: Ledger, plan: Plan, other_metrics: Metrics) -> Metrics:
    """Return `reward/{role}/n` of each role, and `reward/{role}/*` of roles whose rewards `other_metrics`
    does not have.

    For a role that compares turns, `other_metrics` measures the credit of the turns instead of their rewards.
    """
    metrics: Metrics = {}
    for name, rewards in rewards_by_role(plan, ledger.episodes).items():
        by_turn = name in ledger.roles and ledger.roles[name].compares_turns
        n = sum(len(group.places) for group in ledger.groups if group.role == name)
        if by_turn or f"reward/{name}/mean" not in other_metrics:
            n = len(rewards)
            metrics |= reward_metrics(name, np.array(rewards))
        metrics[f"reward/{name}/n"] = float(n)
    return metrics


def datum_metrics(data: Mapping[str, Sequence[RoleBatch]], rates: Mapping[str, float], plan: Plan) -> Metrics:
    """Return the metrics of an update's datums, by policy, and its learning rates: `optim/*`."""
    batches = [batch for policy in data for batch in data[policy]]
    metrics = {"optim/data": float(sum(len(batch.data) for batch in batches))} | gradient_shares(data, plan)
    for name, rate in rates.items():
        metrics[f"optim/learning_rate/{name}" if len(rates) > 1 else "optim/learning_rate"] = rate
    return metrics | _merging(batches)


def rewritten_roles(data: Mapping[str, Sequence[RoleBatch]]) -> list[str]:
    """Return the roles whose earlier turns the chat template re-rendered in other tokens than were
    sampled."""
    roles = (batch.role for batches in data.values() for batch in batches if batch.rewritten)
    return list(dict.fromkeys(roles))


def _merging(batches: Iterable[RoleBatch]) -> Metrics:
    """Return `optim/steps/{role}` and `optim/data/{role}` of roles some of whose steps were merged into one
    datum."""
    by_role: dict[str, list[RoleBatch]] = {}
    for batch in batches:
        by_role.setdefault(batch.role, []).append(batch)
    metrics: Metrics = {}
    for role, role_batches in by_role.items():
        step_count = sum(batch.steps for batch in role_batches)
        datum_count = sum(len(batch.data) for batch in role_batches)
        if step_count > datum_count or any(batch.rewritten for batch in role_batches):
            metrics |= {f"optim/steps/{role}": float(step_count), f"optim/data/{role}": float(datum_count)}
    return metrics


def _staleness(ledger: Ledger) -> float:
    """Return the mean number of updates between the weights that sampled a step and the current weights; 0 if
    unknown."""
    trajectories = [trajectory for episode in ledger.episodes for trajectory in episode.trajectories]
    counts = [
        version - step.weight_version
        for trajectory in trajectories
        if (version := ledger.version(trajectory)) is not None
        for step in trajectory.steps
        if step.weight_version is not None
    ]
    return sum(counts) / len(counts) if counts else 0.0
