"""A spec in a stage of imitation: the targets of its roles, and the number of rollouts. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rolegraph.engine.spec.models import Spec
from rolegraph.engine.spec.role import Role
from rolegraph.engine.spec.train import BEST, Stage
from rolegraph.engine.vocabulary import ItemCall


def targets_of(spec: Spec, stage: Stage) -> Mapping[str, str]:
    """Return the target of each trained role that imitates in a stage."""
    trained_roles = {name: role for name, role in spec.roles.items() if role.is_trained}
    if not stage.imitation:
        return {name: BEST for name, role in trained_roles.items() if role.reward is not None}
    return {name: target for name, target in stage.imitation.items() if name in trained_roles}


def spec_in_stage(spec: Spec, stage: Stage) -> Spec:
    """Return the spec with the estimators and signals of a stage; its graph is the same.

    Args:
        spec: The spec, which may be that of a step (`StepNumbers.spec_at`).
        stage: One of its stages.
    """
    targets = targets_of(spec, stage)
    roles = {name: _imitating(role, targets[name]) for name, role in spec.roles.items() if name in targets}
    demonstrated = {name for name, target in targets.items() if target != BEST}
    trained_roles = {name for name, role in spec.roles.items() if role.is_trained}
    train = {
        # Rollouts of one task would have one prompt and one demonstration.
        "rollouts": stage.rollouts or (1 if demonstrated >= trained_roles else spec.train.rollouts),
        # A demonstration is imitated on every task, whatever the rewards there.
        "refill": 0 if demonstrated else spec.train.refill,
    }
    updates = {"roles": {**spec.roles, **roles}, "train": spec.train.model_copy(update=train)}
    return spec.model_copy(update=updates)


def _imitating(role: Role, target: str) -> Role:
    """Return a role that learns only from a target, with the loss of its estimator or signal."""
    settings: dict[str, object] = {"estimator": ItemCall(BEST), "signal": None, "loss": None}
    if target != BEST:
        options = {"demonstration": target}
        settings |= {"estimator": None, "signal": ItemCall("imitation", options=options)}
        # The demonstration replaces an answer that failed, so it is neither masked nor asked for again.
        settings["on_failure"] = role.on_failure.model_copy(update={"retry": 0, "then": "zero"})
    return role.model_copy(update=settings)
