"""Grouping hook for rLLM's trainers: groups by the spec, advantages by our estimators.

As soon as one step of a batch has an advantage, rLLM's synchronous tinker backend computes no others, and
drops every trajectory without one. The hook gets all episodes of a batch, and sets each role's advantages.
rLLM's asynchronous trainer ignores such hooks.
"""
# rLLM is on no registry, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import rllm.types as theirs
from rllm.trainer.algorithms.transform import (
    _default_traj_grouping_hook as group_as_rllm,  # pyright: ignore[reportPrivateUsage]
)

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.records import GroupKey
from rolegraph.engine.training.advantages.estimates import Estimates, estimate
from rolegraph.engine.training.advantages.group_metrics import reward_metrics
from rolegraph.integrations.rllm.convert import group_from_rllm
from rolegraph.integrations.rllm.estimators import roles_by_name

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupingHook:
    """Callable for rLLM's `traj_grouping_hook`, which groups trajectories and sets advantages by the spec."""

    plan: Plan
    figures: dict[str, float] = field(default_factory=dict[str, float], compare=False)
    """Metrics `reward/*`, `advantage/*` and `batch/*` of the last training batch, because rLLM computes no
    such metrics if steps have advantages."""

    def __call__(
        self, episodes: list[theirs.Episode], transform_config: Any, compact_filtering_config: Any = None
    ) -> list[theirs.TrajectoryGroup]:
        """Group a batch's trajectories, and set the advantages of their steps in place.

        Masked trajectories, untrained roles and groups below the estimator's minimum are left out. Each
        advantage is multiplied by its role's weight. Validation groups get no advantages, because rLLM reads
        only their rewards.

        Args:
            episodes: The episodes of rLLM.
            transform_config: The TransformConfig of rLLM.
            compact_filtering_config: The CompactFilteringConfig of rLLM.

        Raises:
            AdvantageError: As `estimate` does.
        """
        estimators = {name: role.estimator for name, role in self.plan.trained.items()}
        groups_by_key = _regrouped(
            group_as_rllm(episodes, transform_config, compact_filtering_config), roles_by_name(self.plan)
        )
        if any(not episode.metadata.get("validation") for episode in episodes):
            # Groups that skips and failures made too small for their estimator have no advantages.
            groups_by_key = {
                key: group
                for key, group in groups_by_key.items()
                if len(group.trajectories) >= self.plan.trained[key.role].min_group
            }
            groups = [group_from_rllm(key, group) for key, group in groups_by_key.items()]
            estimates = estimate(groups, estimators)
            for (key, group), (values, _, tokens) in zip(
                groups_by_key.items(), estimates.groups, strict=True
            ):
                weight = self.plan.trained[key.role].spec.weight
                for index, trajectory in enumerate(group.trajectories):
                    for step_no, step in enumerate(trajectory.steps):
                        values_T = [weight * value for value in tokens[index][step_no]] if tokens else None
                        step.advantage = weight * values[index] if values_T is None else values_T
            self.figures.clear()
            # Rewards of all roles, also of those whose advantages a signal sets.
            for role in {key.role: None for key in groups_by_key}:
                rewards = [float(m.reward or 0.0) for g in groups if g.role == role for m in g.members]
                self.figures.update(reward_metrics(role, np.array(rewards)))
            self.figures.update(estimates.metrics)
            _log_advantages(
                estimates, {name: role.spec.learns_from for name, role in self.plan.trained.items()}
            )
        return list(groups_by_key.values())


def _regrouped(
    groups: Iterable[theirs.TrajectoryGroup], roles: Mapping[str, RolePlan]
) -> dict[GroupKey, theirs.TrajectoryGroup]:
    """Return rLLM's trajectories in new groups by task, role, policy and round, without masked trajectories
    and untrained roles."""
    groups_by_key: dict[GroupKey, theirs.TrajectoryGroup] = {}
    for group in groups:
        for trajectory, metadata in zip(group.trajectories, group.metadata, strict=True):
            info: Mapping[str, Any] = trajectory.metadata or {}
            if trajectory.name not in roles or info.get("masked"):
                continue
            key = GroupKey(str(metadata.get("task_id", group.task_id)), roles[trajectory.name].name)
            key = key._replace(**info.get("group", {}))
            if key not in groups_by_key:
                group_id = ":".join(map(str, (key.task, key.role, *key.apart.values())))
                groups_by_key[key] = theirs.TrajectoryGroup(trajectories=[], group_id=group_id, metadata=[])
            groups_by_key[key].trajectories.append(trajectory)
            groups_by_key[key].metadata.append(metadata)
    return groups_by_key


def _log_advantages(estimated: Estimates, sources: dict[str, str]) -> None:
    for warning in estimated.warnings[:8]:
        log.warning(warning.text)
    for role, source in sources.items():
        figures = [
            f"{name} {estimated.metrics[key]:.4g}"
            for name in ("mean", "std", "fraction_zero")
            if (key := f"advantage/{role}/{name}") in estimated.metrics
        ]
        log.info("%s: advantages by %s: %s", role, source, ", ".join(figures) or "none")
