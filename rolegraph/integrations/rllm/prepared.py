"""Plan prepared for rLLM: the signals that it can train on, and its ids of tasks and rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import Task
from rolegraph.engine.run.prepared import PreparedPlan

WITHOUT_RLLM = "train without --trainer rllm"


def signal_fault(role: RolePlan) -> tuple[str, str, str] | None:
    """Return (message, expected, hint) for a signal that rLLM cannot train on; None where it can or none is
    set."""
    if role.signal is None:
        return None
    if role.signal.demonstration is not None:
        # trainer/tinker/transform.py: a datum has the sampled tokens, and no weights for cross_entropy.
        message = f"{role.name} imitates turns that it did not sample, which rLLM's workflow cannot train"
        return message, "", f"use reverse_kl, or {WITHOUT_RLLM}"
    if role.adds_signal:
        # trainer/algorithms/advantage.py: a trajectory's steps carry advantages, or its estimator sets them.
        message = f"rLLM adds no signal to the advantages that {role.name}'s estimator computes"
        return message, "", f"write `estimator: precomputed`, or {WITHOUT_RLLM}"
    if role.signal.gate is not None or any(
        it.prompt or it.system or (it.model is None and not it.is_start) for it in role.signal.all_teachers
    ):
        # workflows/workflow.py: a trajectory's advantages are set before the trainer's chat format is known.
        message = f"rLLM asks {role.name}'s teacher after the role's own prompt, without a gate"
        return message, "a model or base, alone", f"or {WITHOUT_RLLM}"
    if role.signal.signal.center:
        # workflows/workflow.py: an episode is handed over before the others of its step have ended.
        message = f"the mean of {role.name}'s signal is over a whole step, and rLLM takes each episode alone"
        return message, "center: false", f"or {WITHOUT_RLLM}"
    return None


def likelihood_fault(role: RolePlan) -> tuple[str, str, str] | None:
    """Return (message, expected, hint) for a reward that reads likelihoods, which rLLM's engines do not give;
    None for any other reward."""
    if not role.likelihoods:
        return None
    # engine/rollout/*.py: an engine answers messages, and scores no given tokens.
    message = f"the reward of {role.name} reads a likelihood, and rLLM's engines score no given tokens"
    return message, "another reward", f"or {WITHOUT_RLLM}"


_prepared: dict[str, PreparedPlan] = {}


def prepared(plan: Plan) -> PreparedPlan:
    """Return the plan prepared for rLLM, made once in each process for all copies of the plan.

    Raises:
        UsageError: For stages, whose steps rLLM does not tell, a signal that rLLM cannot train on, and a
            reward from a likelihood.
    """
    if plan.hash not in _prepared:
        if plan.stages:
            raise UsageError(f"rLLM tells a workflow no step, so it has no `train.stages`; {WITHOUT_RLLM}")
        faults = (*map(signal_fault, plan.trained.values()), *map(likelihood_fault, plan.roles))
        if (fault := next(filter(None, faults), None)) is not None:
            raise UsageError("; ".join(filter(None, fault)))
        _prepared[plan.hash] = PreparedPlan(plan)
    return _prepared[plan.hash]


def task_of(task: Any, uid: str) -> tuple[Task, int]:
    """Split rLLM's `task_id:rollout`.

    Args:
        task: The row, or rLLM's Task with the row as metadata.
        uid: Id that rLLM gives the episode; without a rollout's number the rollout is 0.

    Returns:
        The row with its id, and the rollout's number.

    Raises:
        UsageError: For a task id with a colon.
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
