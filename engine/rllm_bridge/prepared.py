"""A plan made ready for rLLM: which roles answer from its engine, and what of it rLLM cannot train."""

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
    """A value for each event loop, made when it is first asked for; those of closed loops are forgotten."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[asyncio.AbstractEventLoop, T] = {}

    def get(self) -> T:
        """The running loop's value."""
        loop = asyncio.get_running_loop()
        if loop not in self._values:
            # A weak key would not do: an open connection holds its loop.
            for other in list(self._values):
                if other.is_closed():
                    self._values.pop(other, None)
            self._values[loop] = self._make()
        return self._values[loop]

    def pop(self) -> T | None:
        """The running loop's value, which is forgotten; None if there is none."""
        return self._values.pop(asyncio.get_running_loop(), None)


class PreparedPlan:
    """What every episode of a plan needs under rLLM."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.trained = plan.trained
        self.asking = frozenset(role.name for role in plan.asking)
        self.earning = frozenset(role.name for role in plan.roles if role.reward is not None)
        self.ending = frozenset(role.name for role in plan.roles if role.spec.on_failure.then == "fail")
        for name, signal in plan.signals.items():
            if signal.demonstration is not None:
                raise UsageError(
                    f"{name} imitates demonstrations, which rLLM cannot train on: it has no cross-entropy "
                    "loss for a turn that was not sampled; use Rolegraph's own trainer"
                )
        self.answered_by_rllm = frozenset(
            role.name
            for role in plan.asking
            if any(is_rllms(plan, endpoint) for endpoint in plan.endpoints_of(role))
        )
        self.isolation = Isolation(plan.imports)
        self._opened: PerEventLoop[dict[Open, Models]] = PerEventLoop(dict)

    def check_opening(self, open_: Open | None) -> None:
        """Raises UsageError for a model of this machine, which the default cannot open."""
        for ref in others(self.plan):
            if open_ is None and ref.served_here:
                raise UsageError(
                    f"the model local:{ref.name or ''} of {self.plan.name} is served by this machine: "
                    "name a function that opens it as `open_model` in the workflow_args"
                )

    def models(self, open_: Open | None) -> Models:
        """What opens the models that are not the policy; they stay open until `close`."""
        return self._opened.get().setdefault(open_ or open_model, Models(open_ or open_model))

    async def close(self) -> None:
        """Close the models that this event loop has open."""
        for models in (self._opened.pop() or {}).values():
            await models.aclose()

    async def table(self, policy: LimitedModel, open_: Open | None) -> list[LimitedModel]:
        """The models of the plan's endpoints, rLLM's engine among them."""
        models = self.models(open_)
        return [
            policy if is_rllms(self.plan, endpoint) else await models.model(endpoint.model)
            for endpoint in self.plan.endpoints
        ]


def is_rllms(plan: Plan, endpoint: Endpoint) -> bool:
    """Whether rLLM's engine answers: for the policy, and for whoever has no model of their own."""
    return endpoint.policy is not None or endpoint.model == plan.spec.model


def others(plan: Plan) -> list[ModelRef]:
    """The models of a plan that are not its policy, each once: frozen roles' own, and teachers."""
    frozen = [endpoint.model for endpoint in plan.endpoints if not is_rllms(plan, endpoint)]
    return list(dict.fromkeys([*frozen, *plan.teachers]))


_prepared: dict[str, PreparedPlan] = {}


def prepared(plan: Plan) -> PreparedPlan:
    """A plan, made ready once in each process, however often it is sent there."""
    if plan.hash not in _prepared:
        _prepared[plan.hash] = PreparedPlan(plan)
    return _prepared[plan.hash]


def task_of(task: Any, uid: str) -> tuple[Task, int]:
    """The task with its id, and the rollout's number, from rLLM's `task_id:rollout`."""
    row = cast("Mapping[str, Any]", task if isinstance(task, Mapping) else task.metadata)
    task_id, _, rollout = uid.rpartition(":")
    if not task_id or not rollout.isdigit():
        task_id, rollout = uid, "0"
    if ":" in task_id:
        raise UsageError(
            f"the task id {task_id!r} holds a colon, at which rLLM cuts it, so that tasks would share "
            "a group; give the dataset's rows an `id` without one"
        )
    return (row if row.get("id") == task_id else {**row, "id": task_id}), int(rollout)
