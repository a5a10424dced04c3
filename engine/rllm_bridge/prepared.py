"""Plan prepared for rLLM: the roles that its engine answers for, the other models, and task ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, cast

from rolegraph.engine.compile import Endpoint, Plan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models import LimitedModel, Models, open_model
from rolegraph.engine.models.opening import Open
from rolegraph.engine.records import Task
from rolegraph.engine.run import Isolation
from rolegraph.engine.spec import ModelRef

T = TypeVar("T")


class PerEventLoop(Generic[T]):
    """Value for each event loop, made on first use; values of closed loops are dropped."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[asyncio.AbstractEventLoop, T] = {}

    def get(self) -> T:
        """Return the running loop's value, made if it is missing."""
        loop = asyncio.get_running_loop()
        if loop not in self._values:
            # A weak key does not suffice: an open connection holds its loop.
            for known in list(self._values):
                if known.is_closed():
                    self._values.pop(known, None)
            self._values[loop] = self._make()
        return self._values[loop]

    def pop(self) -> T | None:
        """Remove and return the running loop's value; None if there is none."""
        return self._values.pop(asyncio.get_running_loop(), None)


class PreparedPlan:
    """Plan with everything that each of its episodes needs under rLLM."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.trained = plan.trained
        self.asking = frozenset(role.name for role in plan.asking)
        """Roles that call a model."""
        self.rewarded = frozenset(role.name for role in plan.roles if role.reward is not None)
        self.ending = frozenset(role.name for role in plan.roles if role.spec.on_failure.then == "fail")
        """Roles whose failure ends the episode."""
        for name, signal in plan.signals.items():
            if signal.demonstration is not None:
                raise UsageError(
                    f"{name} imitates demonstrations, which rLLM cannot train on: it has no cross-entropy "
                    "loss for a turn that was not sampled; use Rolegraph's own trainer"
                )
            if self.trained[name].adds_signal or signal.signal.center:
                raise UsageError(
                    f"the signal of {name} is added to an estimator's advantages or centered over a step, "
                    "which rLLM cannot do; use Rolegraph's own trainer"
                )
        self.answered_by_rllm = frozenset(
            role.name
            for role in plan.asking
            if any(is_rllms(plan, endpoint) for endpoint in plan.endpoints_of(role))
        )
        """Roles with an endpoint that rLLM's engine answers."""
        self.isolation = Isolation(plan.imports)
        self._opened: PerEventLoop[dict[Open, Models]] = PerEventLoop(dict)

    def check_opening(self, open_: Open | None) -> None:
        """Raise UsageError for a local model without `open_model`: the default cannot start services."""
        for ref in other_models(self.plan):
            if open_ is None and ref.served_here:
                raise UsageError(
                    f"the model local:{ref.name or ''} of {self.plan.name} needs a service on this machine: "
                    "give a function that opens it as `open_model` in the workflow_args"
                )

    def models(self, open_: Open | None) -> Models:
        """Return the running loop's opener of the models that are not the policy; `close` closes them."""
        return self._opened.get().setdefault(open_ or open_model, Models(open_ or open_model))

    async def close(self) -> None:
        """Close the models that the running event loop has opened."""
        for models in (self._opened.pop() or {}).values():
            await models.aclose()

    async def table(self, policy: LimitedModel, open_: Open | None) -> list[LimitedModel]:
        """Return a model for each endpoint: `policy`, rLLM's engine, where rLLM serves it; else `open_`'s."""
        models = self.models(open_)
        return [
            policy if is_rllms(self.plan, endpoint) else await models.model(endpoint.model)
            for endpoint in self.plan.endpoints
        ]


def is_rllms(plan: Plan, endpoint: Endpoint) -> bool:
    """Return True if rLLM's engine answers: for the policy, and for roles without a model of their own."""
    return endpoint.policy is not None or endpoint.model == plan.spec.model


def other_models(plan: Plan) -> list[ModelRef]:
    """Return the models of a plan that are not its policy, each once: of frozen roles, and teachers."""
    frozen = [endpoint.model for endpoint in plan.endpoints if not is_rllms(plan, endpoint)]
    return list(dict.fromkeys([*frozen, *plan.teachers]))


_prepared: dict[str, PreparedPlan] = {}


def prepared(plan: Plan) -> PreparedPlan:
    """Return the prepared plan, made once in each process for all copies of the plan."""
    if plan.hash not in _prepared:
        _prepared[plan.hash] = PreparedPlan(plan)
    return _prepared[plan.hash]


def task_of(task: Any, uid: str) -> tuple[Task, int]:
    """Split rLLM's `task_id:rollout`.

    Args:
        task: the row, or rLLM's Task with the row as metadata.
        uid: rLLM's id of the episode; without a rollout's number the rollout is 0.

    Returns:
        The row with its id, and the rollout's number.

    Raises:
        UsageError: for a task id with a colon.
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
