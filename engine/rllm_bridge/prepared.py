"""A plan made ready for rLLM: which roles answer from its engine, and what of it rLLM cannot train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast
from weakref import WeakKeyDictionary

from engine.compile.plan import Plan
from engine.errors import UsageError
from engine.models import open_model
from engine.records import Task
from engine.rllm_bridge.models import Elsewhere, Open, sampling_of
from engine.rllm_bridge.source import Source
from engine.run.isolation import Isolation
from engine.spec.models import ModelRef

POLICY = ModelRef(provider="tinker", name="rLLM's rollout engine")
"""Stands for rLLM's policy in a plan whose roles answer from it."""


class Prepared:
    """What every episode of a plan needs under rLLM."""

    def __init__(self, plan: Plan) -> None:
        self.trained = frozenset(plan.trained)
        self.earning = frozenset(role.name for role in plan.roles if role.reward is not None)
        self.ending = frozenset(role.name for role in plan.roles if role.on_failure.then == "fail")
        for name, signal in plan.signals.items():
            if signal.demonstration is not None:
                raise UsageError(
                    f"{name} imitates demonstrations, which rLLM cannot train on: it has no cross-entropy "
                    "loss for a turn that was not sampled; use Rolegraph's own trainer"
                )
        self.teachers = list(dict.fromkeys(s.teacher for s in plan.signals.values() if s.teacher))
        roles = tuple(
            replace(role, model=POLICY) if role.trainable or role.model == plan.spec.model else role
            for role in plan.roles
        )
        self.plan = replace(plan, roles=roles)
        self.sampling = sampling_of(plan)
        self.isolation = Isolation()
        self._opened: WeakKeyDictionary[Any, dict[ModelRef, Elsewhere]] = WeakKeyDictionary()

    def elsewhere(self, owner: Any, open_: Open | None) -> dict[ModelRef, Elsewhere]:
        """The models that are not the policy, opened once for an owner: an engine, an event loop.

        Raises UsageError for one that the default, `open_` being None, cannot open.
        """
        if owner not in self._opened:
            own = [role.model for role in self.plan.roles if role.model != POLICY]
            refs = dict.fromkeys([*own, *self.teachers])
            for ref in refs:
                if open_ is None and ref.provider == "local":
                    raise UsageError(
                        f"the model local:{ref.name or ''} of {self.plan.name} is served by this machine: "
                        "name a function that opens it as `open_model` in the workflow_args"
                    )
            self._opened[owner] = {ref: Elsewhere(ref, open_ or open_model) for ref in refs}
        return self._opened[owner]


@lru_cache(maxsize=64)
def prepared(source: Source) -> Prepared:
    """A source's plan, made ready once in each process."""
    return Prepared(source.plan)


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
