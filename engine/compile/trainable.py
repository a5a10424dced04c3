"""Checks of training: of each role's settings in any spec, and of a plan's model and data. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rolegraph.engine.compile.groupings import group_findings
from rolegraph.engine.compile.lineage import Instances
from rolegraph.engine.compile.names import ResolvedRole
from rolegraph.engine.compile.plan import Plan
from rolegraph.engine.compile.policies import samplings_of
from rolegraph.engine.compile.role_plan import RolePlan, SignalPlan
from rolegraph.engine.compile.structure import trains_on_seeds
from rolegraph.engine.spec import Finding, Loss, Path, Role, Sampling, Spec
from rolegraph.engine.spec.faults import name_not_found
from rolegraph.engine.vocabulary import Estimator, estimators, signals


def learning_findings(
    spec: Spec, roles: Mapping[str, ResolvedRole], instances: Instances | None
) -> Iterator[Finding]:
    """Check estimator, reward, signal and loss of each role against each other.

    Args:
        spec: The parsed spec.
        roles: The resolved names of each role.
        instances: The instances of each role; None where the graph has a fault.
    """
    for name, role in spec.roles.items():
        found = roles[name]
        if role.is_trained:
            yield from _role_findings(name, role, found.estimator)
            yield from group_findings(spec, roles, name, instances)
        own = role.loss.name if role.loss else "cross_entropy"
        if found.signal and found.signal.signal.advantages is None and own != "cross_entropy":
            message = f"{name} learns turns that it did not sample, which {own} cannot train"
            yield Finding(("roles", name, "loss"), message, "cross_entropy", "or leave `loss` out")
    if spec.train.refill:
        yield from _refill_findings(spec, roles)
    server = spec.train.sample_from
    if server is not None and server.provider not in ("vllm", "sglang"):
        message = f"{server.provider} does not load the adapters of a training"
        yield Finding(("train", "sample_from"), message, "vllm or sglang", word=server.provider)
    best, figures = spec.train.validation.best, ["correct", *spec.episode.metrics]
    if best not in figures:
        yield name_not_found("figure", best, figures, ("train", "validation", "best"))


def _refill_findings(spec: Spec, roles: Mapping[str, ResolvedRole]) -> Iterator[Finding]:
    """Find what keeps a step from drawing further batches until enough tasks teach."""
    at: Path = ("train", "refill")
    if spec.train.staleness:
        message = "refill draws by what a batch has taught, and staleness draws before that is known"
        yield Finding(at, message, "", "remove `refill` or `staleness`", at_key=True)
    estimated = [roles[name].estimator for name, role in spec.roles.items() if role.is_trained]
    if not any(estimator is not None and estimator.compute is not None for estimator in estimated):
        message = "refill counts tasks on which rewards differ, and no role's rewards are compared"
        yield Finding(at, message, "", "remove it", at_key=True)


def _role_findings(name: str, role: Role, estimator: Estimator | None) -> Iterator[Finding]:
    """Find what keeps a trained role from learning."""
    here: Path = ("roles", name)
    at = (*here, "estimator")
    compares = estimator is not None and estimator.compute is not None
    if role.reward is None and (role.signal is None or compares):
        hint = "give it a reward or a signal, or say `trainable: false`"
        if role.signal is not None:
            hint = "give it a reward, or write `estimator: precomputed` to learn from the signal alone"
        yield Finding(here, f"{name} is trained, but has no reward", "", hint, at_key=True)
    elif role.estimator is None:
        hint = f"give it one of {', '.join(estimators.names())}, or say `trainable: false`"
        yield Finding(here, f"{name} is trained, but has no estimator", "", hint, at_key=True)
    if estimator is None:
        return
    if estimator.compute is None and role.signal is None:
        hint = f"give it a signal ({', '.join(signals.names())}), or another estimator"
        yield Finding(at, f"{name} is {estimator.name}, but nothing sets its advantages", "a `signal`", hint)
    if estimator.compute is None:
        for key in ("credit", "group"):
            if key in role.model_fields_set:
                message = f"{name} is {estimator.name}, so none of its rewards are compared"
                yield Finding((*here, key), message, hint="remove it", severity="warning")


def loss_of(role: Role, estimator: Estimator | None, signal: SignalPlan | None) -> Loss:
    """Return the loss of a role: its own, or the default of its signal or estimator.

    A signal that adds advantages to an estimator's leaves the loss to the estimator.
    """
    default = estimator.loss if estimator else "importance_sampling"
    if signal and (signal.demonstration or estimator is None or estimator.compute is None):
        default = signal.signal.loss
    return role.loss or Loss(name=default)


def training_findings(plan: Plan) -> Iterator[Finding]:
    """Find what keeps a plan without faults from being trained."""
    yield from policy_findings(plan)
    yield from sampling_findings(plan)


def policy_findings(plan: Plan) -> Iterator[Finding]:
    """Find plans without trained roles or data, and models that no trainer can train."""
    if not plan.trained:
        message = f"every role of {plan.name} says `trainable: false`: there is nothing to train"
        yield Finding(("roles",), message, at_key=True)
    if "train" not in plan.data:
        hint = "add `data: {train: …}`, such as a .jsonl file"
        yield Finding(("data",), f"{plan.name} has no training data", "", hint, at_key=True)
    elif trains_on_seeds(plan.spec) and plan.spec.train.steps is None:
        message = f"{plan.name} has no data, so its tasks are seeds, which have no end"
        hint = "say how long to train: train: {steps: 100}, or add `data`"
        yield Finding(("train", "steps"), message, "train.steps", hint, at_key=True)
    for name, policy in plan.policies.items():
        if policy.model.is_trainable:
            continue
        own = name in plan.spec.policies and plan.spec.policies[name].model is not None
        path = ("policies", name, "model") if own else ("model",)
        hint = "or say `trainable: false`" if own else "train another with --model"
        message = f"a model of {policy.model.provider} cannot be trained"
        yield Finding(path, message, "local, a local folder, or tinker:NAME", hint)
    for role in plan.trained.values():
        own = plan.spec.roles[role.name].model
        if own is not None and own != plan.spec.model:
            message = f"{role.name} has a model of its own, but the roles that are trained share one policy"
            hint = (
                f"write `policies: {{{role.name}: {{model: …}}}}` and `policy: {role.name}`, or say "
                "`trainable: false`"
            )
            yield Finding(("roles", role.name, "model"), message, "", hint)


def sampling_findings(plan: Plan) -> Iterator[Finding]:
    """Find samplings that change the policy's distribution, one finding for each key of the spec.

    The losses assume samples of the policy itself, at temperature 1 and top_p 1.
    """
    unlike: dict[Path, Finding] = {}
    for role in plan.trained.values():
        for at, sampling in drawn(plan, role).items():
            temperature, top_p = sampling.temperature, sampling.top_p
            if temperature == 1.0 and top_p == 1.0:
                continue
            path = (*at, "temperature" if temperature != 1.0 else "top_p")
            message = (
                f"{role.name} samples with temperature {temperature:g} and top_p {top_p:g}, but learns from "
                "samples of the policy itself"
            )
            unlike.setdefault(path, Finding(path, message, "temperature 1 and top_p 1"))
    yield from unlike.values()


def drawn(plan: Plan, role: RolePlan) -> dict[Path, Sampling]:
    """Return the sampling settings that a role's instances use, each by the path of its key in the spec."""
    return dict(samplings_of(plan.spec, role.name, role.count))
