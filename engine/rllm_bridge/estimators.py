"""Who learns how, in rLLM's words: the map from role to estimator, and what rLLM has to be taught for it.

Pure, and without rLLM.
"""

from __future__ import annotations

from rolegraph.engine.backends import Backend
from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.vocabulary import Estimator

KNOWN_ESTIMATORS = frozenset({"grpo", "reinforce", "reinforce_plus_plus_baseline", "prpo", "rloo"})
"""Those that rLLM has itself (`rllm/trainer/algorithms/config.py`, rLLMAdvantageEstimator)."""


BATCH_WIDE = frozenset({"reinforce_plus_plus_baseline", "prpo"})
"""Estimators that look at a role's whole batch."""


def name_of(role: RolePlan, number: int) -> str:
    """What a trajectory is called there, or a turn of that round: rLLM compares what has one name."""
    apart = role.compares_turns and role.spec.group != "task"
    return f"{role.name}@{number}" if apart else role.name


def roles_by_name(plan: Plan) -> dict[str, RolePlan]:
    """The trained roles by what rLLM knows them by: by their own names in groups that our hook has made."""
    return {
        name: role
        for role in plan.trained.values()
        for name in (role.name, *(name_of(role, number) for number in range(1, role.rounds + 1)))
    }


def estimator_map(plan: Plan, backend: Backend) -> dict[str, str | tuple[str, str]]:
    """The estimator of what has each name; on tinker with its loss, where rLLM would choose another.

    Empty on fireworks, whose trainer cannot take what rLLM makes of a map (it iterates over datums that come
    as a dict by role then): there our grouping hook sets the advantages of every role.
    """
    estimators: dict[str, str | tuple[str, str]] = {}
    for known, role in roles_by_name(plan).items() if backend != "fireworks" else ():
        name = estimator_name(plan, role)
        default_loss = "ppo" if name == "grpo" else "importance_sampling"
        needs_loss = backend == "tinker" and role.loss.name != default_loss
        estimators[known] = (name, role.loss.name) if needs_loss else name
    return estimators


def custom_estimators(plan: Plan, backend: Backend) -> dict[str, Estimator]:
    """What has to be registered with rLLM before it trains, by the names of the estimator map."""
    if backend == "fireworks":
        return {}
    named = ((estimator_name(plan, role), role.estimator) for role in plan.trained.values())
    return {name: estimator for name, estimator in named if estimator is not None and "/" in name}


def hook_reasons(plan: Plan, backend: Backend) -> dict[str, str]:
    """The roles whose advantages rLLM would get wrong by itself, so that our grouping hook sets them."""
    reasons: dict[str, str] = {}
    for role in plan.asking:
        if not role.spec.is_trained:
            reasons[role.name] = "is not trained"
        elif is_precomputed(role):
            reasons[role.name] = "brings its own advantages"
        elif role.spec.on_failure.then == "mask":
            reasons[role.name] = "masks its failures"
        elif role.compares_turns and role.spec.group == "prompt":
            reasons[role.name] = "compares turns that share a prompt"
        elif role.compares_turns and role.spec.group == "turn" and estimator_name(plan, role) in BATCH_WIDE:
            reasons[role.name] = "looks at all its turns, and not at each round alone"
        elif _may_be_too_few(plan, role):
            reasons[role.name] = "may be skipped, which leaves groups too small to compare"
        elif backend == "fireworks":
            reasons[role.name] = "has an estimator of its own, which fireworks cannot be given"
    return reasons


def _may_be_too_few(plan: Plan, role: RolePlan) -> bool:
    """Whether turns need not run that a group may be made of."""
    if role.estimator is None or role.estimator.min_group < 2:
        return False
    # Whoever took a first turn is compared by the task, however soon its loop ends.
    return any(
        block.may_skip and (block.round == 1 or role.spec.group != "task")
        for block in plan.blocks
        if plan.roles[block.role] is role
    )


def estimator_name(plan: Plan, role: RolePlan) -> str:
    """An estimator as rLLM knows it: by its own name, or by one for this role (`opo/judge`)."""
    estimator = role.estimator
    if estimator is None:
        raise AssertionError(f"{role.name} is trained without an estimator")
    same = estimator.name != "grpo" or estimator.options.get("std", True) == deviation(plan)
    return (
        estimator.name
        if estimator.compute is None or (estimator.name in KNOWN_ESTIMATORS and same)
        else f"{estimator.name}/{role.name}"
    )


def is_precomputed(role: RolePlan) -> bool:
    """Whether a role's steps carry their advantages already."""
    return role.estimator is not None and role.estimator.compute is None


def deviation(plan: Plan) -> bool | None:
    """Whether GRPO divides by the deviation: rLLM has one answer for all roles, here the first one's."""
    grpo = [
        role.estimator for role in plan.trained.values() if role.estimator and role.estimator.name == "grpo"
    ]
    return bool(grpo[0].options.get("std", True)) if grpo else None
