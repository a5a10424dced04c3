"""Checks of training: each role's settings and groups in any spec, and a plan's models and data. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import repeat

from rolegraph.engine.compile.chats import turns_read
from rolegraph.engine.compile.lineage import Instance, Instances, joined
from rolegraph.engine.compile.plan import Plan
from rolegraph.engine.compile.policies import samplings_of
from rolegraph.engine.compile.role_plan import GroupingPlan, ResolvedRole, RolePlan, SignalPlan
from rolegraph.engine.prompts import SELF, PromptError, Template
from rolegraph.engine.records import MAIN
from rolegraph.engine.spec import Edge, Finding, Loss, Path, Role, Sampling, Spec
from rolegraph.engine.spec.validation import name_not_found
from rolegraph.engine.vocabulary import Estimator, SelfView, Views, estimators, signals


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
    elif plan.spec.trains_on_seeds() and plan.spec.train.steps is None:
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


SAME_FOR_ALL = frozenset({"self.role", "self.count", "self.round", "self.outer", "self.times"})
"""Fields of `self` that are equal for all instances of a role."""
WHAT_WAS_BEFORE = frozenset({"self.history"})
"""Fields of `self` that differ between rollouts; observations are the same at least in the first turn."""
KNOWN_AT_ONCE = frozenset({"self", "self.index", "self.round", "self.outer", "self.lineage"})
"""Names that a key may read and that are known before anything runs."""


def group_findings(
    spec: Spec, roles: Mapping[str, ResolvedRole], name: str, instances: Instances | None
) -> Iterator[Finding]:
    """Find groups of a trained role that are certainly too small, or can only hold equal rewards."""
    role, found = spec.roles[name], roles[name]
    estimator = found.estimator
    if estimator is None or estimator.compute is None:
        return
    path: Path = ("roles", name, "group")
    for place, grouping in enumerate(found.groupings):
        if grouping.by == "episode" and any(other.by == "episode" for other in found.groupings[:place]):
            yield Finding(path, f"{name} compares the episode twice", "episode once in a list")
        least = _smallest_group(spec, roles, name, instances, grouping)
        if least < estimator.min_group:
            yield _too_small(name, grouping, estimator, least)
        if grouping.by == "prompt" and instances is not None:
            yield from _alike_findings(spec, name, instances, found)
    if "weight" in role.group[0].model_fields_set and len(role.group) == 1:
        message = f"the advantages of {name} are weighted, and there are no others"
        hint = "remove it; `weight` of the role is the factor of its loss"
        yield Finding((*path, 0, "weight"), message, hint=hint, severity="warning")


def _too_small(name: str, grouping: GroupingPlan, estimator: Estimator, least: int) -> Finding:
    """Return the fault of a group with fewer members than its estimator needs."""
    at, compares = ("roles", name, "group"), f"{estimator.name} compares the members of a group"
    if grouping.by == "prompt":
        hint = "raise `count` (its prompt may not speak of `self`), or say `group: turn`"
        message = f"{compares}, and {least} of {name} share a prompt"
        return Finding(at, message, f"at least {estimator.min_group} that see the same", hint)
    if grouping.key is not None:
        hint = "raise `count` or `train.rollouts`, or compare more of them: `group: task`"
        message = f"{compares}, and a group of {name} by {grouping.by} has {least}"
        return Finding(at, message, f"groups of at least {estimator.min_group}", hint)
    hint = "raise `count` or `train.rollouts`, or use reinforce"
    expected = f"count × rollouts of at least {estimator.min_group}"
    message = f"{compares}, and {name}'s group has {least}"
    return Finding(("roles", name, "estimator"), message, expected, hint)


def _smallest_group(
    spec: Spec,
    roles: Mapping[str, ResolvedRole],
    name: str,
    instances: Instances | None,
    grouping: GroupingPlan,
) -> int:
    """Return the size of a role's smallest group where nothing is skipped and nothing fails.

    With `group: prompt`, only instances with the same inputs are counted as sharing a prompt. A key that
    reads the task or an observation is taken to be the same for all.
    """
    rollouts = spec.train.rollouts
    policies = _learning(spec, name, len(instances[name]) if instances else spec.roles[name].count)
    if not policies:
        return 0
    if grouping.by == "prompt" and instances is not None:
        families, upstream = _asked_alike(spec, name, instances, roles[name].mentions)
        return min(map(len, families)) * (1 if upstream else rollouts)
    if grouping.key is not None and instances is not None and grouping.key.mentions <= KNOWN_AT_ONCE:
        rounds = spec.rounds_of(name) if grouping.of_turns else 1
        return rollouts * _rarest_key(spec, name, grouping.key, instances[name], policies, rounds)
    members: Counter[str] = Counter()
    sharing = roles if grouping.by == "episode" else (name,)
    for other in sharing:
        written = spec.roles[other]
        count = len(instances[other]) if instances else written.count
        for own in roles[other].groupings if written.is_trained else ():
            if own is grouping or (other != name and own.by == "episode"):
                pooled = own.of_turns and own.by != "turn"
                for policy in _learning(spec, other, count).values():
                    members[policy] += spec.rounds_of(other) if pooled else 1
    return min(members[policy] for policy in policies.values()) * rollouts


def _rarest_key(
    spec: Spec,
    name: str,
    key: Template,
    instances: Sequence[Instance],
    policies: Mapping[int, str],
    rounds: int,
) -> int:
    """Return how often the rarest key occurs in the `rounds` of one rollout; 0 where none can be computed."""
    times = spec.loops[loop].times if (loop := spec.loop_of(name)) else 1
    found: Counter[tuple[str, str]] = Counter()
    for index, policy in policies.items():
        for outer, number in map(divmod, range(rounds), repeat(times)):
            own = (name, index, instances[index - 1].path, len(instances))
            me = SelfView(*own, number + 1, times, Views(()), outer=outer + 1)
            try:
                found[policy, key.render({SELF: me})] += 1
            except PromptError:
                continue
    return min(found.values(), default=0)


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
    another, and True if a prompt may differ between rollouts of a task.

    `mentions` are the names that the role's templates read.
    """
    role, rounds = spec.roles[name], spec.rounds_of(name)
    count = len(instances[name])
    edges = {key: edge for key, edge in role.needs.items() if key in mentions}
    remembers = role.memory is not None and (rounds > 1 or bool(turns_read(spec).get(name)))
    if remembers or any(mention.startswith("self.") for mention in mentions - SAME_FOR_ALL):
        inputs: Iterable[object] = range(count)
    else:
        joins = (_joins(edges, me, instances) for me in instances[name])
        inputs = zip(joins, role.policy_names(count) or (MAIN,) * count, strict=False)
    differs = remembers or (rounds > 1 and bool(edges or mentions & WHAT_WAS_BEFORE))
    upstream = differs or any(edge.round == "this" for edge in edges.values())
    learning = _learning(spec, name, count)
    families: dict[object, list[int]] = {}
    for place, read in enumerate(inputs):
        if place + 1 in learning:
            families.setdefault(read, []).append(place)
    return [*families.values()], upstream


def _learning(spec: Spec, name: str, count: int) -> dict[int, str]:
    """Return the policy of each instance of a role that is trained, by its index from 1."""
    frozen = spec.frozen_instances(name, count)
    policies = enumerate(spec.roles[name].policy_names(count) or (MAIN,) * count, 1)
    return {index: policy for index, policy in policies if index not in frozen}


def _joins(edges: Mapping[str, Edge], me: Instance, instances: Instances) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(joined(edge, me, instances[edge.of or key])) for key, edge in edges.items())
