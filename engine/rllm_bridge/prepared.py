"""Plan prepared for another project's trainer: the roles that its model answers for, and the other models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, cast

from rolegraph.engine.compile import Endpoint, Plan, RolePlan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models import LimitedModel, Model, Models, open_model
from rolegraph.engine.models.opening import Open
from rolegraph.engine.records import Task
from rolegraph.engine.run import Isolation
from rolegraph.engine.spec import ModelRef

T = TypeVar("T")
WITHOUT_RLLM = "train without --trainer rllm"
VERIFIERS, SLIME = "verifiers", "slime"


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
    """Plan with everything that each of its episodes needs under another project's trainer."""

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
        """Raise UsageError for a local model without `open_model`: the default cannot start services."""
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

    async def table(self, model: Model, open_: Open | None = None) -> list[LimitedModel]:
        """Return a model for each endpoint: the trainer's `model` for a policy, else what `open_` opens."""
        policy, models = LimitedModel(model, self.plan.spec.model.concurrency), self.models(open_)
        return [
            policy if is_policy(self.plan, endpoint) else await models.model(endpoint.model)
            for endpoint in self.plan.endpoints
        ]


def is_policy(plan: Plan, endpoint: Endpoint) -> bool:
    """Return True if the trainer's model answers: for a policy, and for a role without its own model."""
    return endpoint.policy is not None or endpoint.model == plan.spec.model


def policy_roles(plan: Plan) -> list[RolePlan]:
    """Return the roles that the trainer's model answers for, in the order of the spec."""
    return [
        role for role in plan.asking if any(is_policy(plan, endpoint) for endpoint in plan.endpoints_of(role))
    ]


def other_models(plan: Plan) -> list[ModelRef]:
    """Return the models of a plan that are not its policy, each once: of frozen roles, and teachers."""
    frozen = [endpoint.model for endpoint in plan.endpoints if not is_policy(plan, endpoint)]
    return list(dict.fromkeys([*frozen, *plan.teachers]))


def signal_fault(role: RolePlan) -> tuple[str, str, str] | None:
    """Return message, expectation and hint for a signal that rLLM cannot train on; None for any other."""
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
    if role.signal.signal.center:
        # workflows/workflow.py: an episode is handed over before the others of its step have ended.
        message = f"the mean of {role.name}'s signal is over a whole step, and rLLM takes each episode alone"
        return message, "center: false", f"or {WITHOUT_RLLM}"
    return None


def check_trainable(plan: Plan, trainer: str) -> None:
    """Check that a trainer which has one model and takes rewards can train a plan.

    Args:
        plan: The plan.
        trainer: `VERIFIERS` or `SLIME`.

    Raises:
        UsageError: The plan trains several policies, draws past selves, learns from a signal, asks a model of
            this machine that would have to be served, or, for slime, has an estimator with a state.
    """
    if len(plan.policies) > 1:
        raise UsageError(
            f"{plan.name} trains the policies {', '.join(plan.policies)}, and {trainer} trains one model; "
            "use `rolegraph train`, or one policy"
        )
    for name in plan.past:
        raise UsageError(
            f"{plan.name} plays against past selves ({name}), which {trainer} does not keep; use "
            "`rolegraph train`"
        )
    for name in plan.signals:
        raise UsageError(
            f"roles.{name} learns from a signal, and {trainer} takes rewards only; use `rolegraph train`, or "
            "give the role a reward and an estimator"
        )
    for name, role in plan.trained.items():
        if trainer == SLIME and role.estimator is not None and role.estimator.running is not None:
            raise UsageError(
                f"roles.{name}.estimator: {role.estimator.name} keeps a state, which {trainer} does "
                "not save; use another estimator, or `rolegraph train`"
            )
    for role in plan.asking:
        for endpoint in plan.endpoints_of(role):
            if not is_policy(plan, endpoint) and endpoint.model.served_here:
                raise UsageError(
                    f"roles.{role.name} asks the model {endpoint.model}, which {trainer} does not serve; "
                    "name an endpoint, such as `model: openai:NAME` with a `base_url`"
                )


_prepared: dict[str, PreparedPlan] = {}


def prepared(plan: Plan) -> PreparedPlan:
    """Return the plan prepared for rLLM, made once in each process for all copies of the plan.

    Raises:
        UsageError: for a signal that rLLM cannot train on.
    """
    if plan.hash not in _prepared:
        for role in plan.trained.values():
            if (fault := signal_fault(role)) is not None:
                raise UsageError("; ".join(filter(None, fault)))
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
