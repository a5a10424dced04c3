"""Registration of our estimators with rLLM's trainers, with the roles' weights."""

# rLLM is absent where types are checked, so what comes of its modules is unknown there.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.records import GroupKey
from rolegraph.engine.training.advantages.estimates import call_estimator
from rolegraph.integrations.rllm.convert import group_from_rllm


def register(custom: Mapping[str, RolePlan]) -> None:
    """Register the estimator of each role with rLLM, by its name in the estimator map."""
    if not custom:
        return
    from rllm.trainer.algorithms.advantage import register_rllm_adv_estimator

    for name, role in custom.items():
        register_rllm_adv_estimator(name)(as_rllm(role))


def as_rllm(role: RolePlan) -> Callable[..., tuple[Any, Any]]:
    """Return a role's estimator with rLLM's signature: from (rewards_P_G, config) to (advantages, returns).

    The advantages are multiplied by the role's weight; the returns are equal to them.
    """
    estimator, weight = role.estimator, role.spec.weight
    assert estimator is not None, "advantages of a signal are not registered"
    compute = estimator.compute

    def advantages(
        rewards: Any, algorithm_config: object, *, traj_groups: Any, **_: object
    ) -> tuple[Any, Any]:
        labels = [f"the task {group.task_id}" for group in traj_groups]
        name = f"the estimator {estimator.name} of {role.name}"
        groups = [group_from_rllm(GroupKey(group.task_id, role.name), group) for group in traj_groups]
        values = call_estimator(compute, "advantages", name, rewards, groups, labels)
        weighted = [weight * advantages_G for advantages_G in values]
        return weighted, weighted

    return advantages
