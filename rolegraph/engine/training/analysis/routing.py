"""Metrics of routes that roles choose, and of defaults that stand in for unreadable answers. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rolegraph.engine.compile import Plan
from rolegraph.engine.records import Episode
from rolegraph.engine.records.info import RoleInfo
from rolegraph.engine.vocabulary import short_repr

DEFAULTS, PAID, ROUTE = "defaults/{}", "defaults/reward/{}", "route/{}/"
"""Names of the metrics: number of answers replaced by the role's default, their mean reward, share of each
route."""
ROUTES, VALIDATION = "route/", "validation/"
MOST_ROUTES = 20
"""Number of different actions of a routing role whose shares are shown."""


@dataclass(slots=True)
class RouteTally:
    """Counts of the answers of roles with a default, and of roles whose actions decide which role is
    asked."""

    plan: Plan
    answers: Counter[str] = field(default_factory=Counter[str])
    """Number of trajectories by role."""
    defaults: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Rewards of the unreadable answers of each role with a default; 0 for an answer without a reward."""
    routes: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    """Number of turns by action, with defaults, of each role whose actions decide which role is asked."""

    def add(self, episode: Episode) -> None:
        """Count an episode's trajectories."""
        for trajectory in episode.trajectories:
            name = trajectory.name
            self.answers[name] += 1
            if name in self.plan.defaults and trajectory.failed_by == "form":
                self.defaults.setdefault(name, []).append(trajectory.reward or 0.0)
            if name in self.plan.routers:
                actions = (str(step.action) for step in trajectory.steps if step.action is not None)
                self.routes.setdefault(name, Counter()).update(actions)

    def metrics(self) -> dict[str, float]:
        """Return `defaults/{role}`, `defaults/reward/{role}` and `route/{role}/{answer}`, a share of the
        turns."""
        metrics: dict[str, float] = {}
        for name, rewards in self.defaults.items():
            metrics[DEFAULTS.format(name)] = float(len(rewards))
            metrics[PAID.format(name)] = sum(rewards) / len(rewards)
        for name, action_counts in self.routes.items():
            commonest = action_counts.most_common(MOST_ROUTES)
            metrics |= {ROUTE.format(name) + action: n / action_counts.total() for action, n in commonest}
        return metrics


def route_metrics(plan: Plan, episodes: Iterable[Episode]) -> dict[str, float]:
    """Return the metrics of a RouteTally of some episodes."""
    tally = RouteTally(plan)
    for episode in episodes:
        tally.add(episode)
    return tally.metrics()


def route_shares(plan: Plan, episodes: Iterable[Episode]) -> dict[str, float]:
    """Return the shares of the routes alone, `route/{role}/{answer}`, of some episodes."""
    metrics = route_metrics(plan, episodes)
    return {name: share for name, share in metrics.items() if name.startswith(ROUTES)}


def shares_of(role: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each route of a role, by answer."""
    prefix = ROUTE.format(role)
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}


def routes_of(role: str, metrics: Mapping[str, float]) -> str:
    """Return the shares of a role's routes, such as `'hard' 98 %, 'easy' 2 %`; empty without routes."""
    sorted_shares = sorted(shares_of(role, metrics).items(), key=lambda it: -it[1])
    return ", ".join(f"{short_repr(answer)} {share:.0%}" for answer, share in sorted_shares)


def route_remarks(
    roles: Mapping[str, RoleInfo], answers: Mapping[str, float], metrics: Mapping[str, float]
) -> Iterator[tuple[str, str]]:
    """Yield (role, remark) for each role with many defaults, and for each role that was never asked, with the
    cause.

    Args:
        roles: The roles of the run.
        answers: Number of answers by role.
        metrics: Metrics of a RouteTally.
    """
    for name, info in roles.items():
        if count := metrics.get(DEFAULTS.format(name)):
            share_of_answers = f"{count:.0f} of {answers.get(name, count):.0f} answers"
            earned = f"which earned {metrics[PAID.format(name)]:.3f} in the mean"
            yield name, f"the default {short_repr(info.default)} stood in for {share_of_answers}, {earned}"
        if info.when and not answers.get(name):
            words = re.findall(r"\w+", info.when)
            routing_roles = ((router, routes_of(router, metrics)) for router in roles if router in words)
            shares = "; ".join(f"{router}: {routes}" for router, routes in routing_roles if routes)
            yield name, f"never asked: `when: {info.when}` never held" + (f" ({shares})" if shares else "")


class LastRoutes(NamedTuple):
    """Shares of the routes at the end of a training."""

    shares: Mapping[str, float]
    """Shares by name, `route/{role}/{answer}`."""
    where: str = ""
    """Description of the episodes, such as `the validation of step 30`; empty without routes."""


def last_routes(lines: Iterable[Mapping[str, float]]) -> LastRoutes:
    """Return the route shares of the last validation; without a validation, those of the last training
    batch."""
    step_lines = [line for line in lines if line["step"]]
    for prefix, kind in ((VALIDATION, "validation"), ("", "training batch")):
        for line in reversed(step_lines):
            names = [name for name in line if name.startswith(prefix + ROUTES)]
            if names:
                shares = {name.removeprefix(prefix): line[name] for name in names}
                return LastRoutes(shares, f"the {kind} of step {line['step']:.0f}")
    return LastRoutes({})


def summed_routes(lines: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the metrics of a training: defaults of all steps, and the last routes."""
    metrics = dict(last_routes(lines).shares)
    summed_rewards: dict[str, float] = {}
    for line in (line for line in lines if line["step"]):
        for name, value in line.items():
            if name.startswith("defaults/reward/"):
                role = name.removeprefix("defaults/reward/")
                summed_rewards[role] = summed_rewards.get(role, 0.0) + value * line[DEFAULTS.format(role)]
            elif name.startswith("defaults/"):
                metrics[name] = metrics.get(name, 0.0) + value
    return metrics | {
        PAID.format(role): total / metrics[DEFAULTS.format(role)] for role, total in summed_rewards.items()
    }
