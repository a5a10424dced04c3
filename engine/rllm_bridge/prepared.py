"""A plan made ready for rLLM: which roles answer from its engine, and what of it rLLM cannot train."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast
from weakref import WeakKeyDictionary

from engine.compile import Endpoint, Plan
from engine.errors import UsageError
from engine.models import LimitedModel, Models, open_model
from engine.models.opening import Open
from engine.records import Task
from engine.rllm_bridge.models import sampling_of
from engine.run import Isolation
from engine.spec import ModelRef


class Prepared:
    """What every episode of a plan needs under rLLM."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.trained = frozenset(plan.trained)
        self.earning = frozenset(role.name for role in plan.roles if role.reward is not None)
        self.ending = frozenset(role.name for role in plan.roles if role.on_failure.then == "fail")
        for name, signal in plan.signals.items():
            if signal.demonstration is not None:
                raise UsageError(
                    f"{name} imitates demonstrations, which rLLM cannot train on: it has no cross-entropy "
                    "loss for a turn that was not sampled; use Rolegraph's own trainer"
                )
        self.answered_by_rllm = frozenset(
            role.name for role in plan.roles if is_rllms(plan, plan.endpoints[role.endpoint])
        )
        self.sampling = sampling_of(plan)
        self.isolation = Isolation(plan.imports)
        self._opened: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Open, Models]] = WeakKeyDictionary()

    def check_opening(self, open_: Open | None) -> None:
        """Raises UsageError for a model of this machine, which the default cannot open."""
        for ref in others(self.plan):
            if open_ is None and ref.provider == "local" and ref.base_url is None:
                raise UsageError(
                    f"the model local:{ref.name or ''} of {self.plan.name} is served by this machine: "
                    "name a function that opens it as `open_model` in the workflow_args"
                )

    def models(self, open_: Open | None) -> Models:
        """What opens the models that are not the policy; they stay open as long as the event loop."""
        opened = self._opened.setdefault(asyncio.get_running_loop(), {})
        return opened.setdefault(open_ or open_model, Models(open_ or open_model))

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


_prepared: dict[str, Prepared] = {}


def prepared(plan: Plan) -> Prepared:
    """A plan, made ready once in each process, however often it is sent there."""
    if plan.hash not in _prepared:
        _prepared[plan.hash] = Prepared(plan)
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
