"""Whether a plan can be trained at all, before anything is started."""

from __future__ import annotations

from engine.compile.plan import Plan
from engine.errors import UsageError


def check_trainable(plan: Plan) -> None:
    """Raises UsageError, saying what to change, for a plan that cannot be trained."""
    policy = plan.spec.model
    if not plan.trained:
        raise UsageError(f"every role of {plan.name} says `trainable: false`: there is nothing to train")
    if "train" not in plan.data:
        raise UsageError(f"{plan.name} has no training data; add `data: {{train: …}}`, such as a .jsonl file")
    if policy.provider not in ("local", "tinker"):
        raise UsageError(
            f"a model of {policy.provider} cannot be trained; train with `--model local`, a local folder, or "
            "`--model tinker:NAME`"
        )
    if policy.checkpoint is not None:
        raise UsageError(
            "training begins at the model itself: leave `checkpoint` out, or go on with --resume"
        )
    for role in plan.trained.values():
        if plan.model_of(role) != policy:
            raise UsageError(
                f"{role.name} has a model of its own, but the roles that are trained share one policy: "
                f"remove its `model`, or say `trainable: false`"
            )
        if role.sampling.temperature != 1.0 or role.sampling.top_p != 1.0:
            raise UsageError(
                f"{role.name} samples with temperature {role.sampling.temperature:g} and top_p "
                f"{role.sampling.top_p:g}; it learns from what the policy itself says, at temperature 1 and "
                "top_p 1"
            )
