"""Estimators under rLLM: the map from role to estimator, and the work of the grouping hook. Pure.

Does not import rLLM.
"""

from __future__ import annotations

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.integrations.rllm.names import Backend

KNOWN_ESTIMATORS = frozenset({"grpo", "reinforce", "reinforce_plus_plus_baseline", "prpo", "rloo"})
"""Estimators of rLLM itself (`rllm/trainer/algorithms/config.py`, rLLMAdvantageEstimator)."""

PRECOMPUTED = "precomputed"
"""rLLM's name for advantages that the steps already carry, as a signal sets them."""
PER_GROUP = frozenset({"grpo", "reinforce", "rloo", "opo", "best"})
"""Estimators that read one group at a time. Every other estimator may compare a role's whole batch."""


def is_batch_wide(role: RolePlan) -> bool:
    """Return True if a role's estimator may compare its whole batch, not one group at a time."""
    return role.estimator is not None and role.estimator.name not in PER_GROUP


def takes_estimators(backend: Backend) -> bool:
    """Return True if the backend's trainer accepts an estimator for each role; otherwise our grouping hook
    computes the advantages."""
    return backend != "fireworks"  # which iterates over datums that a map turns into a dict by role


def name_of(role: RolePlan, number: int) -> str:
    """Return rLLM's group name of a role in round `number`: `judge`, or `judge@2` if its turns are compared
    round by round."""
    is_per_round = role.compares_turns and role.groupings[0].by != "task"
    return f"{role.name}@{number}" if is_per_round else role.name


def roles_by_name(plan: Plan) -> dict[str, RolePlan]:
    """Return the trained roles by every group name that they have under rLLM, such as `judge` and
    `judge@2`."""
    return {
        name: role
        for role in plan.trained.values()
        for name in (role.name, *(name_of(role, number) for number in range(1, role.rounds + 1)))
    }


def default_loss(estimator: str) -> str:
    """Return the loss that rLLM's tinker backend uses with an estimator (`tinker_policy_trainer.py`)."""
    return "ppo" if estimator == "grpo" else "importance_sampling"


def estimator_map(plan: Plan, backend: Backend) -> dict[str, str | tuple[str, str]]:
    """Return the estimator of each group name under rLLM, for `traj_group_adv_estimator_map`.

    Args:
        plan: The plan.
        backend: Name of the backend.

    Returns:
        The estimator's name, or (estimator, loss) if rLLM would choose another loss. Empty on a backend that
        accepts no such map; there our grouping hook sets the advantages of every role.
    """
    estimators: dict[str, str | tuple[str, str]] = {}
    for name, role in roles_by_name(plan).items() if takes_estimators(backend) else ():
        estimator = estimator_name(plan, role)
        needs_loss = backend == "tinker" and role.loss.name != default_loss(estimator)
        estimators[name] = (estimator, role.loss.name) if needs_loss else estimator
    return estimators


def custom_estimators(plan: Plan, backend: Backend) -> dict[str, RolePlan]:
    """Return the roles whose estimators must be registered with rLLM before it trains, by the estimator's
    rLLM name.

    Empty if the backend accepts no estimators.
    """
    if not takes_estimators(backend):
        return {}
    named_roles = ((estimator_name(plan, role), role) for role in plan.trained.values())
    return {name: role for name, role in named_roles if "/" in name}


def hook_reasons(plan: Plan, backend: Backend) -> dict[str, str]:
    """Return, by role, the reason why our grouping hook must compute the advantages instead of rLLM."""
    reasons: dict[str, str] = {}
    for role in plan.asking:
        if not role.spec.is_trained:
            reasons[role.name] = "is not trained"
        elif not role.compares_rewards:
            reasons[role.name] = "brings its own advantages"
        elif role.spec.on_failure.then == "mask":
            reasons[role.name] = "masks its failures"
        elif role.groupings[0].by == "prompt":
            reasons[role.name] = "compares turns that share a prompt"
        elif role.groupings[0].by == "turn" and is_batch_wide(role):
            reasons[role.name] = "compares all its turns, not each round alone"
        elif _may_be_too_few(plan, role):
            reasons[role.name] = "may be skipped, which leaves groups too small to compare"
        elif not takes_estimators(backend):
            reasons[role.name] = f"has an estimator of its own, which {backend} does not take"
    return reasons


def _may_be_too_few(plan: Plan, role: RolePlan) -> bool:
    """Return True if skipped turns may shrink a group below the number of members that its estimator
    needs."""
    if role.min_group < 2:
        return False
    # A role with a first turn is in its task's group, however soon its loop ends.
    return any(
        block.may_skip and (block.round == 1 or role.groupings[0].by != "task")
        for block in plan.blocks
        if plan.roles[block.role] is role
    )


def estimator_name(plan: Plan, role: RolePlan) -> str:
    """Return the name of a role's estimator under rLLM.

    Args:
        plan: The plan.
        role: The role.

    Returns:
        The estimator's own name if rLLM has the same estimator; a name such as `opo/judge` if we register it,
        also for a role with a weight; `PRECOMPUTED` for a role with only a signal.
    """
    estimator = role.estimator
    if estimator is None:
        return PRECOMPUTED
    is_same_option = estimator.name != "grpo" or estimator.options.get("std", True) == deviation(plan)
    is_same_option = is_same_option and role.spec.weight == 1.0
    is_known = estimator.name in KNOWN_ESTIMATORS and is_same_option
    return estimator.name if is_known else f"{estimator.name}/{role.name}"


def deviation(plan: Plan) -> bool | None:
    """Return the option `std` of the first role with GRPO, because rLLM has one setting; None without
    GRPO."""
    grpo_estimators = [
        role.estimator for role in plan.trained.values() if role.estimator and role.estimator.name == "grpo"
    ]
    return bool(grpo_estimators[0].options.get("std", True)) if grpo_estimators else None
