"""A plan at one training step: the numbers of the step, and the imitation of its stage."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TypeVar, cast

from rolegraph.engine.compile import policies
from rolegraph.engine.compile.plan import Plan
from rolegraph.engine.compile.role_plan import RolePlan
from rolegraph.engine.errors import DataError
from rolegraph.engine.spec import Spec, Stage
from rolegraph.engine.spec.stages import spec_in_stage
from rolegraph.engine.vocabulary import Item, ItemCall

ItemT = TypeVar("ItemT", bound=Item)
_KEPT = 8
"""Number of plans in the cache: unfinished batches belong to several steps."""


def plan_at(plan: Plan, step: int | None) -> Plan:
    """Return a plan with its numbers in a training step, and the estimators and signals of the step's stage.

    The graph, the models and the hash are the same in every step; no file is read.

    Args:
        plan: The compiled spec.
        step: Number of the step, from 1; None for a run, an evaluation or a validation.
    """
    if step is None or (plan.numbers is None and plan.stage_at(step) is None):
        return plan
    return _at(plan, step)


@lru_cache(_KEPT)
def _at(plan: Plan, step: int) -> Plan:
    stage = plan.stage_at(step)
    if stage is not None:
        plan = replace(plan, spec=stage.spec, roles=stage.roles)
    return with_numbers(plan, step - 1, None if stage is None else stage.stage)


def with_numbers(plan: Plan, step: int, stage: Stage | None = None) -> Plan:
    """Return a plan whose roles have the numbers of a step, from 0.

    Args:
        plan: The plan.
        step: The step.
        stage: Stage of imitation that the step belongs to; None for a step of RL.
    """
    if plan.numbers is None:
        return plan
    spec = plan.numbers.spec_at(step)
    if stage is not None:
        spec = spec_in_stage(spec, stage)
    roles = tuple(_role_at(role, spec) for role in plan.roles)
    return replace(plan, roles=roles, scheduled=plan.numbers.values(step))


def last_step(plan: Plan) -> int:
    """Return the last step of a plan's training, from 0; 0 for a spec without `train`.

    The training data are counted if `train.steps` does not decide the last step alone.
    """
    train, data = plan.spec.train, plan.data.get("train")
    if "train" not in plan.spec.model_fields_set:
        return 0
    step_limits = [train.steps] if train.steps else []
    if data is not None and (train.epochs or not step_limits):
        try:
            row_count = sum(1 for _ in data.rows(None))
        except DataError:  # the training itself tells it
            row_count = 0
        step_limits.append(row_count // train.batch_size * (train.epochs or 1))
    return max(1, min(step_limits, default=1)) - 1


def _role_at(role: RolePlan, spec: Spec) -> RolePlan:
    """Return a role with the weights, samplings, and arguments of reward and signal that hold at one step.

    Args:
        role: The role as compiled.
        spec: Spec with the numbers of the step.
    """
    role_spec = spec.roles[role.name]
    weights = [grouping.weight for grouping in role_spec.group] if role.compares_rewards else [1.0]
    signal = role.signal
    if signal is not None:
        signal = signal._replace(signal=_item_at(signal.signal, role_spec.signal))
    return replace(
        role,
        spec=role.spec.model_copy(update={"weight": role_spec.weight}),
        groupings=tuple(
            replace(grouping, weight=weight) for grouping, weight in zip(role.groupings, weights, strict=True)
        ),
        samplings=tuple(sampling for _, sampling in policies.samplings_of(spec, role.name, role.count)),
        reward=role.reward and _item_at(role.reward, role_spec.reward),
        signal=signal,
    )


def _item_at(item: ItemT, call: ItemCall | None) -> ItemT:
    """Return the item, built anew if `call` has other numbers than the call that built it."""
    if call is None or item.origin is None or item.origin.call == call:
        return item
    return cast("ItemT", item.origin.registry.build(call, **item.origin.context))
