"""Episodes of one training step, and the stages that turn their rewards into advantages.

Each stage returns a copy of the StepBatch with one thing more: signals, groups, advantages, and then episodes
that record them. The stages stand here in the order in which training runs them; a batch without signals
starts with its groups. Datums and metrics are made of the last StepBatch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.compile.plan import TeacherKey
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.records import Episode, Note, PolicyOf, Trajectory, TrajectoryGroup
from rolegraph.engine.training.advantages.credit import NO_WEIGHTS, LossWeights, loss_weights, notes
from rolegraph.engine.training.advantages.estimates import NO_STATES, EstimatedGroups, States, estimate
from rolegraph.engine.training.advantages.group_metrics import Metrics
from rolegraph.engine.training.advantages.groups import group_episodes
from rolegraph.engine.training.advantages.recorded import advantages_by_uid, annotate, merge_details
from rolegraph.engine.training.advantages.signals import SignalResult, apply_signals
from rolegraph.engine.training.advantages.teaching import StudentChat

UNUSED = "unused"
"""Key of an episode's metadata, with `refill`: its task does not teach, or enough others did before it."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Episodes of one training step, and what the stages so far have made of them."""

    episodes: Sequence[Episode]
    roles: Mapping[str, RolePlan]
    """Trained roles."""
    policy_of: PolicyOf
    """Function from (role, instance index) to the name of the policy."""
    kept: Collection[str] | None = None
    """Tasks that the update uses; None uses all."""
    signals: SignalResult = field(default_factory=SignalResult)
    groups: Sequence[TrajectoryGroup] = ()
    group_metrics: Metrics = field(default_factory=Metrics)
    """`groups/*` metrics."""
    estimated: EstimatedGroups = field(default_factory=lambda: EstimatedGroups((), {}))
    """Advantages of `groups`."""
    weights: LossWeights = field(default_factory=lambda: NO_WEIGHTS)
    """Factors of the advantages in the loss, which steps record as `loss_weight` and datums are made with."""

    @property
    def tasks(self) -> set[str]:
        """Ids of all tasks that the step has episodes of."""
        return {episode.task_id for episode in self.episodes}

    @property
    def used_tasks(self) -> set[str]:
        """Ids of the tasks whose episodes the policy update uses."""
        return self.tasks if self.kept is None else {*self.kept}

    @property
    def used(self) -> list[Episode]:
        """Episodes that the policy update uses."""
        tasks = self.used_tasks
        return [episode for episode in self.episodes if episode.task_id in tasks]

    @property
    def warnings(self) -> list[Note]:
        """Warnings that signals and estimators gave for this step."""
        return [*self.signals.warnings, *self.estimated.warnings]


async def add_signals(
    batch: StepBatch,
    plan: Plan,
    teachers: Mapping[TeacherKey, LimitedModel],
    chats: Mapping[str, StudentChat],
) -> StepBatch:
    """Ask the teachers for advantages, token by token, as `apply_signals` does; raises its errors."""
    return replace(batch, signals=await apply_signals(plan, batch.episodes, teachers, chats))


def add_groups(batch: StepBatch) -> StepBatch:
    """Group the trajectories or turns that estimators compare."""
    groups, metrics = group_episodes(batch.episodes, batch.roles, batch.policy_of)
    return replace(batch, groups=groups, group_metrics=metrics)


def add_advantages(batch: StepBatch, states: States = NO_STATES) -> StepBatch:
    """Estimate the advantages of the groups, from the estimators' states after the step before.

    Raises:
        AdvantageError: As `estimate` does.
    """
    estimators = {name: role.estimator for name, role in batch.roles.items() if role.estimator}
    return replace(batch, estimated=estimate(batch.groups, estimators, batch.signals.advantages, states))


def annotate_episodes(
    batch: StepBatch, version: Callable[[Trajectory], int | None] | None = None
) -> StepBatch:
    """Record advantages, credit, groups and baselines in the episodes' steps.

    Args:
        batch: The batch, with the advantages of its groups.
        version: Function that returns the number of updates of a trajectory's policy, as for `annotate`.
    """
    estimated, weights = batch.estimated, loss_weights(batch.used, batch.roles, batch.policy_of)
    both = {name for name, role in batch.roles.items() if role.adds_signal}
    metadata = notes(batch.groups, estimated.baselines, weights, estimated.advantages, batch.used_tasks, both)
    details = merge_details(batch.signals.details, metadata)
    advantages = advantages_by_uid(batch.groups, estimated)
    episodes = annotate(batch.episodes, advantages, details, version, batch.signals.added)
    return replace(batch, episodes=episodes, weights=weights)


def mark_unused(batch: StepBatch) -> StepBatch:
    """Return a copy of the batch in which episodes that the update does not use are marked `unused` in
    metadata."""
    tasks, unused = batch.used_tasks, {UNUSED: True}
    episodes = [
        episode if episode.task_id in tasks else episode._replace(metadata={**episode.metadata, **unused})
        for episode in batch.episodes
    ]
    return replace(batch, episodes=episodes)
