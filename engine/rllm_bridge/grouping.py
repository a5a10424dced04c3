"""Groups rLLM's episodes as rLLM does, and gives every step the advantage that our estimators compute.

rLLM's synchronous tinker backend computes no advantage at all once one step of a batch has one, and then
drops every trajectory without. Here, where all episodes of a batch are in hand, each role gets its own.
Its asynchronous trainer ignores such hooks.
"""
# rLLM is on no registry, so it is missing where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import rllm.types as theirs
from rllm.trainer.algorithms.transform import (
    _default_traj_grouping_hook as group_as_rllm,  # pyright: ignore[reportPrivateUsage]
)

from engine.compile import Plan
from engine.records import Advantage, GroupKey, TrajectoryGroup, plain_advantage
from engine.rllm_bridge.convert import trajectory_from_rllm
from engine.training.advantages import Estimated, estimate

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Grouping:
    """A `traj_grouping_hook`."""

    plan: Plan

    def __call__(
        self, episodes: list[theirs.Episode], transform_config: Any, compact_filtering_config: Any = None
    ) -> list[theirs.TrajectoryGroup]:
        """rLLM's groups, without what is masked or not trained, their advantages set in place.

        The groups of a validation get none: rLLM only wants their rewards. Raises AdvantageError.
        """
        estimators = {name: role.estimator for name, role in self.plan.trained.items() if role.estimator}
        groups = group_as_rllm(episodes, transform_config, compact_filtering_config)
        trainable = (_trainable(group, set(estimators)) for group in groups)
        kept = [group for group in trainable if group.trajectories]
        if any(not episode.metadata.get("validation") for episode in episodes):
            ours = [_group_from_rllm(group) for group in kept]
            estimated = estimate(ours, estimators)
            for group, advantages in zip(kept, estimated.advantages, strict=True):
                _set_advantages(group, advantages)
            _report(estimated, {name: estimator.name for name, estimator in estimators.items()})
        return kept


def _trainable(group: theirs.TrajectoryGroup, trained: set[str]) -> theirs.TrajectoryGroup:
    """The group without its masked trajectories; empty if its role is not trained."""
    keep = [
        group.group_role in trained and not (trajectory.metadata or {}).get("masked")
        for trajectory in group.trajectories
    ]
    if not all(keep):
        group.trajectories = [it for it, kept in zip(group.trajectories, keep, strict=True) if kept]
        group.metadata = [it for it, kept in zip(group.metadata, keep, strict=True) if kept]
    return group


def _group_from_rllm(group: theirs.TrajectoryGroup) -> TrajectoryGroup:
    rollouts = tuple(int(metadata["rollout_idx"]) for metadata in group.metadata)
    key = GroupKey(str(group.metadata[0].get("task_id", group.task_id)), group.group_role)
    return TrajectoryGroup(key, tuple(map(trajectory_from_rllm, group.trajectories)), rollouts)


def _set_advantages(group: theirs.TrajectoryGroup, advantages: Sequence[Sequence[Advantage]]) -> None:
    for trajectory, values in zip(group.trajectories, advantages, strict=True):
        for step, value in zip(trajectory.steps, values, strict=True):
            step.advantage = plain_advantage(value)


def _report(estimated: Estimated, estimators: dict[str, str]) -> None:
    for warning in estimated.warnings[:8]:
        log.warning(warning.text)
    for role, estimator in estimators.items():
        figures = [
            f"{name} {estimated.metrics[key]:.4g}"
            for name in ("mean", "std", "fraction_zero")
            if (key := f"advantage/{role}/{name}") in estimated.metrics
        ]
        log.info("%s: advantages by %s: %s", role, estimator, ", ".join(figures) or "none")
