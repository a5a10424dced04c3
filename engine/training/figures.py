"""Figures of a set of episodes: what validation, the live table and comparisons show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rolegraph.engine.compile import Plan
from rolegraph.engine.records import Episode
from rolegraph.engine.training.advantages import Metrics
from rolegraph.engine.training.credit import own_rewards

if TYPE_CHECKING:
    from rolegraph.engine.training.policies import UpdateResult


def episode_figures(plan: Plan, episode: Episode) -> Metrics:
    """`correct` and the spec's metrics of one episode; those of a role that was skipped are left out."""
    return {
        "correct": float(episode.is_correct),
        **{name: episode.metrics[name] for name in plan.metrics if name in episode.metrics},
    }


def figures(plan: Plan, episodes: Sequence[Episode], prefix: str) -> Metrics:
    """Means over episodes under `prefix`: `correct`, the spec's metrics, and `reward/{role}`."""
    values: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode_figures(plan, episode).items():
            values.setdefault(name, []).append(value)
    means = {f"{prefix}/{name}": sum(found) / len(found) for name, found in values.items()}
    for name, rewards in rewards_by_role(plan, episodes).items():
        means[f"{prefix}/reward/{name}"] = sum(rewards) / len(rewards)
    return means


def failures(episodes: Sequence[Episode]) -> Metrics:
    """`failures/{role}/{name}`: how many trajectories failed, and how."""
    counts = Counter(
        f"failures/{t.name}/{t.failure.name.value}"
        for episode in episodes
        for t in episode.trajectories
        if t.failure is not None
    )
    return {name: float(count) for name, count in counts.items()}


def rewards_by_role(plan: Plan, episodes: Sequence[Episode]) -> Mapping[str, list[float]]:
    """Each role's rewards: its trajectories', or what its turns earned themselves where they are compared.

    Roles without a reward are left out.
    """
    by_turn = {role.name for role in plan.trained.values() if role.compares_turns}
    rewards: dict[str, list[float]] = {}
    for episode in episodes:
        for t in episode.trajectories:
            if t.name in by_turn:
                rewards.setdefault(t.name, []).extend(own_rewards(t))
            elif t.reward is not None:
                rewards.setdefault(t.name, []).append(t.reward)
    return {name: earned for name, earned in rewards.items() if earned}


def update_figures(updates: Mapping[str, UpdateResult], *, several: bool) -> Metrics:
    """`loss/{role}/mean`, `kl/{role}` and `optim/grad_norm` of an update, by policy.

    Where there are `several` policies, each has its own `optim/{grad_norm,loss,kl}/{policy}`.
    """
    metrics: Metrics = {}
    tokens: Counter[str] = Counter()
    for policy, updated in updates.items():
        for role, value in updated.loss.items():
            metrics[f"loss/{role}/mean"] = metrics.get(f"loss/{role}/mean", 0.0) + value
        for role, value in updated.kl.items():
            before, own = tokens[role], updated.tokens[role]
            tokens[role] += own
            metrics[f"kl/{role}"] = (metrics.get(f"kl/{role}", 0.0) * before + value * own) / (before + own)
        if updated.grad_norm is not None:
            metrics[f"optim/grad_norm/{policy}" if several else "optim/grad_norm"] = updated.grad_norm
        if several:
            metrics[f"optim/loss/{policy}"] = sum(updated.loss.values())
        if several and (whole := sum(updated.tokens.values())):
            sums = [value * updated.tokens[role] for role, value in updated.kl.items()]
            metrics[f"optim/kl/{policy}"] = sum(sums) / whole
    return metrics


def response_tokens(episodes: Sequence[Episode]) -> Metrics:
    """How much the models wrote: `tokens/response` in all, `tokens/per_response` in the mean of their calls.

    A model that says nothing of its tokens is left out.
    """
    steps = [step for episode in episodes for t in episode.trajectories for step in t.steps]
    lengths = [step.response_tokens for step in steps if step.response_tokens]
    total = float(sum(lengths))
    return {"tokens/response": total, "tokens/per_response": total / max(1, len(lengths))}
