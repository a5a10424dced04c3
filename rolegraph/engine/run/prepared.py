"""Plan prepared for another project's trainer, whose model answers for some roles; the other models are
opened here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from rolegraph.engine.compile import Endpoint, Plan, RolePlan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models import LimitedModel, Models, open_model
from rolegraph.engine.models.opening import Open
from rolegraph.engine.run import Isolation
from rolegraph.engine.spec import ModelRef

T = TypeVar("T")


class PerEventLoop(Generic[T]):
    """Value that is created once for each event loop; values of closed loops are dropped."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[asyncio.AbstractEventLoop, T] = {}

    def get(self) -> T:
        """Return the running loop's value; create it on first use."""
        loop = asyncio.get_running_loop()
        if loop not in self._values:
            # A weak key does not suffice: an open connection holds its loop.
            for event_loop in list(self._values):
                if event_loop.is_closed():
                    self._values.pop(event_loop, None)
            self._values[loop] = self._make()
        return self._values[loop]

    def pop(self) -> T | None:
        """Remove and return the running loop's value; None without a value."""
        return self._values.pop(asyncio.get_running_loop(), None)


class PreparedPlan:
    """Plan with everything that its episodes share under another project's trainer."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.trained = plan.trained
        self.asking = frozenset(role.name for role in plan.asking)
        """Roles that call a model."""
        self.rewarded = frozenset(role.name for role in plan.roles if role.reward is not None)
        self.ending = frozenset(role.name for role in plan.roles if role.spec.on_failure.then == "fail")
        """Roles whose failure ends the episode."""
        self.by_policy = frozenset(role.name for role in policy_roles(plan))
        self.isolation = Isolation(plan.imports)
        self._opened: PerEventLoop[dict[Open, Models]] = PerEventLoop(dict)

    def check_opening(self, open_: Open | None) -> None:
        """Raise UsageError if the plan has a local model and no `open_model` is given: the default cannot
        start services."""
        for ref in other_models(self.plan):
            if open_ is None and ref.served_here:
                raise UsageError(
                    f"the model local:{ref.name or ''} of {self.plan.name} needs a service on this machine: "
                    "give a function that opens it as `open_model` in the workflow_args"
                )

    def models(self, open_: Open | None = None) -> Models:
        """Return the running loop's opener of the models that are not the policy; `close` closes them."""
        return self._opened.get().setdefault(open_ or open_model, Models(open_ or open_model))

    async def close(self) -> None:
        """Close the models that the running event loop has opened."""
        for models in (self._opened.pop() or {}).values():
            await models.aclose()

    async def table(self, policy: LimitedModel, open_: Open | None = None) -> list[LimitedModel]:
        """Return a model for each endpoint: the trainer's `policy` for endpoints of a policy, else the model
        that `open_` opens."""
        models = self.models(open_)
        return [
            policy if is_policy(self.plan, endpoint) else await models.model(endpoint.model)
            for endpoint in self.plan.endpoints
        ]


def is_policy(plan: Plan, endpoint: Endpoint) -> bool:
    """Return True if the trainer's model answers at an endpoint: it has a policy, or its role has no model of
    its own."""
    return endpoint.policy is not None or endpoint.model == plan.spec.model


def policy_roles(plan: Plan) -> list[RolePlan]:
    """Return the roles that the trainer's model answers for, in the order of the spec."""
    return [
        role for role in plan.asking if any(is_policy(plan, endpoint) for endpoint in plan.endpoints_of(role))
    ]


def other_models(plan: Plan) -> list[ModelRef]:
    """Return the models of a plan's frozen roles and teachers, each once."""
    frozen_models = [endpoint.model for endpoint in plan.endpoints if not is_policy(plan, endpoint)]
    return list(dict.fromkeys([*frozen_models, *plan.teachers]))
