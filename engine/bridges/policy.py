"""Plan under another project's trainer: the roles that its model answers for, and all other models."""

from __future__ import annotations

from collections.abc import Sequence

from rolegraph.engine.compile import Endpoint, Plan, RolePlan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models import LimitedModel, Models

VERIFIERS, SLIME = "verifiers", "slime"


def is_policy(plan: Plan, endpoint: Endpoint) -> bool:
    """Return True for a policy, and for a role without a model of its own."""
    return endpoint.policy is not None or endpoint.model == plan.spec.model


def policy_roles(plan: Plan) -> list[RolePlan]:
    """Return the roles that the trainer's model answers for, in the order of the spec."""
    return [
        role for role in plan.asking if any(is_policy(plan, endpoint) for endpoint in plan.endpoints_of(role))
    ]


async def model_table(plan: Plan, policy: LimitedModel, others: Models) -> Sequence[LimitedModel]:
    """Return a model for each endpoint of a plan: `policy` where the trainer answers, else its own."""
    return [
        policy if is_policy(plan, endpoint) else await others.model(endpoint.model)
        for endpoint in plan.endpoints
    ]


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
