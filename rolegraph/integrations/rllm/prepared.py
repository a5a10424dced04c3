"""Preparation of a plan for rLLM, and rLLM's ids of tasks and rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import Task
from rolegraph.engine.run.prepared import PreparedPlan
from rolegraph.integrations.rllm.estimators import custom_estimators
from rolegraph.integrations.rllm.registered import register

_prepared: dict[str, PreparedPlan] = {}


def prepared(plan: Plan) -> PreparedPlan:
    """Register a plan's custom estimators with rLLM, and return its PreparedPlan; once for each plan in a
    process.

    Estimators that rLLM does not have are registered here, because verl trains in another process, which gets
    the plan by pickle.
    """
    if plan.hash not in _prepared:
        register(custom_estimators(plan, "custom"))
        _prepared[plan.hash] = PreparedPlan(plan)
    return _prepared[plan.hash]


def task_of(task: Any, uid: str) -> tuple[Task, int]:
    """Split rLLM's id of an episode, `task_id:rollout`.

    Args:
        task: The row, or rLLM's Task with the row as metadata.
        uid: Id that rLLM gives the episode; without a rollout number, the rollout is 0.

    Returns:
        The row with its id, and the rollout's number.

    Raises:
        UsageError: The task id has a colon.
    """
    row = cast("Mapping[str, Any]", task if isinstance(task, Mapping) else task.metadata)
    task_id, _, rollout = uid.rpartition(":")
    if not task_id or not rollout.isdigit():
        task_id, rollout = uid, "0"
    if ":" in task_id:
        raise UsageError(
            f"the task id {task_id!r} has a colon, at which rLLM cuts it, so that tasks would share "
            "a group; give the dataset's rows an `id` without one"
        )
    return (row if row.get("id") == task_id else {**row, "id": task_id}), int(rollout)
