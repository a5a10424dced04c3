"""Checks of training: of each role's settings in any spec, and of a plan's model and data. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from rolegraph.engine.compile.graph import rounds_of, trains_on_seeds
from rolegraph.engine.compile.lineage import Instance, Instances, joined
from rolegraph.engine.compile.names import ResolvedRole
from rolegraph.engine.compile.plan import Plan, RolePlan, SignalPlan
from rolegraph.engine.compile.policies import frozen_instances, policy_names, samplings_of
from rolegraph.engine.records import MAIN
from rolegraph.engine.spec import Edge, Finding, Loss, Path, Role, Sampling, Spec
from rolegraph.engine.spec.faults import name_not_found
from rolegraph.engine.vocabulary import Estimator, estimators, signals

SAME_FOR_ALL = frozenset({"self.role", "self.count", "self.round", "self.times"})
"""Fields of `self` that are equal for all instances of a role."""
WHAT_WAS_BEFORE = frozenset({"self.history"})
"""Fields of `self` that differ between rollouts; observations are the same at least in the first turn."""


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
            group = _smallest_group(spec, name, instances, found.mentions)
            yield from _role_findings(name, role, found.estimator, group)
        if role.is_trained and role.group == "prompt" and instances is not None:
            yield from _alike_findings(spec, name, instances, found)
        own = role.loss.name if role.loss else "cross_entropy"
        if found.signal and found.signal.signal.advantages is None and own != "cross_entropy":
            message = f"{name} learns turns that it did not sample, which {own} cannot train"
            yield Finding(("roles", name, "loss"), message, "cross_entropy", "or leave `loss` out")
    if spec.train.refill:
        yield from _refill_findings(spec, roles)
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


def _smallest_group(spec: Spec, name: str, instances: Instances | None, mentions: Set[str]) -> int:
    """Return the size of a role's smallest group where nothing is skipped and nothing fails.

    With `group: prompt`, only instances with the same inputs are counted as sharing a prompt. `mentions` are
    the names that the role's templates read.
    """
    role, rollouts = spec.roles[name], spec.train.rollouts
    count = len(instances[name]) if instances else role.count
    frozen = frozen_instances(spec, name, count)
    if len(frozen) == count:
        return 0
    if role.group != "prompt" or instances is None:
        policies = [p for n, p in enumerate(_policies(role, count), 1) if n not in frozen]
        pooled = role.group == "task" and role.compares_turns
        return min(Counter(policies).values()) * rollouts * (rounds_of(spec, name) if pooled else 1)
    families, upstream = _asked_alike(spec, name, instances, mentions)
    return min(map(len, families)) * (1 if upstream else rollouts)


def _alike_findings(spec: Spec, name: str, instances: Instances, role: ResolvedRole) -> Iterator[Finding]:
    """Warn of a role whose groups can only hold equal rewards, because the reward is another role's."""
    reward = role.reward
    if reward is None or not reward.delegates or reward.views or not instances.keys() >= {*reward.roles}:
        return  # its reward is its own, or depends on its position
    families, upstream = _asked_alike(spec, name, instances, role.mentions)
    read = {other: Edge(join="branch") for other in reward.roles}
    all_alike = all(
        len(family) > 1 and len({_joins(read, instances[name][n], instances) for n in family}) == 1
        for family in families
    )
    if upstream and all_alike:
        whose = " and ".join(reward.roles)
        message = f"{name} is compared with those asked the same, who earn the same: what {whose} earns"
        hint = "add what tells them apart (`weighted`), or compare them over all rollouts (`group: turn`)"
        yield Finding(("roles", name, "reward"), message, hint=hint, severity="warning")


def _asked_alike(
    spec: Spec, name: str, instances: Instances, mentions: Set[str]
) -> tuple[Sequence[Sequence[int]], bool]:
    """Return the sets of instances (by index from 0) of a role that always have the same prompt as one
    another, and True if a prompt may differ between rollouts of a task."""
    role, rounds = spec.roles[name], rounds_of(spec, name)
    count = len(instances[name])
    edges = {key: edge for key, edge in role.needs.items() if key in mentions}
    remembers = role.memory is not None and rounds > 1
    if remembers or any(mention.startswith("self.") for mention in mentions - SAME_FOR_ALL):
        inputs: Iterable[object] = range(count)
    else:
        joins = (_joins(edges, me, instances) for me in instances[name])
        inputs = zip(joins, _policies(role, count), strict=False)
    differs = remembers or (rounds > 1 and bool(edges or mentions & WHAT_WAS_BEFORE))
    upstream = differs or any(edge.round == "this" for edge in edges.values())
    families: dict[object, list[int]] = {}
    frozen = frozen_instances(spec, name, count)
    for place, read in enumerate(inputs):
        if place + 1 in frozen:
            continue
        families.setdefault(read, []).append(place)
    return [*families.values()], upstream


def _policies(role: Role, count: int) -> Sequence[str]:
    return policy_names(role, count) or (MAIN,) * count


def _joins(edges: Mapping[str, Edge], me: Instance, instances: Instances) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(joined(edge, me, instances[edge.of or key])) for key, edge in edges.items())


def _role_findings(name: str, role: Role, estimator: Estimator | None, group: int) -> Iterator[Finding]:
    """Find what keeps a trained role from learning; `group` is the size of its smallest group."""
    here: Path = ("roles", name)
    at = (*here, "estimator")
    if role.reward is None and role.signal is None:
        hint = "give it a reward or a signal, or say `trainable: false`"
        yield Finding(here, f"{name} is trained, but has no reward", "", hint, at_key=True)
    elif role.estimator is None:
        hint = f"give it one of {', '.join(estimators.names())}, or say `trainable: false`"
        yield Finding(here, f"{name} is trained, but has no estimator", "", hint, at_key=True)
    if estimator is None:
        return
    if estimator.compute is None and role.signal is None:
        hint = f"give it a signal ({', '.join(signals.names())}), or another estimator"
        yield Finding(at, f"{name} is {estimator.name}, but nothing sets its advantages", "a `signal`", hint)
    if estimator.compute is not None and role.signal is not None:
        message = f"{name} has a signal, which the estimator {estimator.name} would replace"
        yield Finding(at, message, "estimator: precomputed", "or remove the signal")
    if estimator.compute is None:
        for key in ("credit", "group"):
            if key in role.model_fields_set:
                message = f"{name} is {estimator.name}, so none of its rewards are compared"
                yield Finding((*here, key), message, hint="remove it", severity="warning")
        return
    if group < estimator.min_group and role.group == "prompt":
        message = f"{estimator.name} compares the members of a group, and {group} of {name} share a prompt"
        hint = "raise `count` (its prompt may not speak of `self`), or say `group: turn`"
        yield Finding((*here, "group"), message, f"at least {estimator.min_group} that see the same", hint)
    elif group < estimator.min_group:
        message = f"{estimator.name} compares the members of a group, and {name}'s group has {group}"
        hint = "raise `count` or `train.rollouts`, or use reinforce"
        yield Finding(at, message, f"count × rollouts of at least {estimator.min_group}", hint)


def loss_of(role: Role, estimator: Estimator | None, signal: SignalPlan | None) -> Loss:
    """Return the loss of a role: its own, or the default of its signal or estimator."""
    default = signal.signal.loss if signal else estimator.loss if estimator else "importance_sampling"
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
