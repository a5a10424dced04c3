"""Checks of training: each role's settings and groups in any spec, and a plan's models and data. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass

from rolegraph.engine.compile.chats import turns_read
from rolegraph.engine.compile.lineage import Instance, Instances, joined
from rolegraph.engine.compile.names import ResolvedNames, judged
from rolegraph.engine.compile.plan import Plan
from rolegraph.engine.compile.policies import UNTRAIN, samplings_of
from rolegraph.engine.compile.role_plan import GroupingPlan, ResolvedRole, RolePlan
from rolegraph.engine.prompts import SELF, Expression, PromptError
from rolegraph.engine.records import MAIN
from rolegraph.engine.spec import Edge, Finding, Path, Sampling, Spec
from rolegraph.engine.spec.sources import OWN_PROVIDERS, PROVIDERS
from rolegraph.engine.spec.validation import name_not_found
from rolegraph.engine.vocabulary import Estimator, SelfView, Views


def learning_findings(names: ResolvedNames) -> Iterator[Finding]:
    """Check each role's estimator, reward, signal and loss against each other, and the training's `refill`,
    `sample_from`, `stop` and `validation.best` against the roles."""
    spec, groups, judged_roles = names.spec, _Groups(names), judged(names.rewards)
    for name, role in names.roles.items():
        if role.spec.is_trained:
            yield from _role_findings(role)
            yield from groups.findings(name)
        else:
            for key in sorted({"loss", "group", "weight"} & role.spec.model_fields_set):
                message = f"{name} is not trained, so its {key} has no effect"
                hint = f"remove it, or give {name} an `estimator`"
                yield Finding(("roles", name, key), message, "", hint, "warning", at_key=True)
        yield from _gate_findings(role, judged_roles)
        yield from _loss_findings(role)
    if spec.train.refill:
        yield from _refill_findings(spec, names.roles)
    server = spec.train.sample_from
    if server is not None and server.provider in OWN_PROVIDERS:
        message = f"{server.provider} does not load the adapters of a training"
        other_providers = " or ".join(name for name in PROVIDERS if name not in OWN_PROVIDERS)
        yield Finding(("train", "sample_from"), message, other_providers, word=server.provider)
    workflows = spec.train.validation.workflow  # their metrics are checked where they are compiled
    if not workflows:
        yield from metric_findings(spec, ["correct", *spec.episode.metrics])
    if spec.train.stop and not (spec.train.validation.every and (spec.data.validation or workflows)):
        message = "stop counts validations, but this training makes no validation between its steps"
        hint = "give `data.validation` and `train.validation.every`, or remove `stop`"
        yield Finding(("train", "stop"), message, "", hint, at_key=True)


def metric_findings(spec: Spec, figures: Sequence[str]) -> Iterator[Finding]:
    """Find a `train.validation.best` that names no metric of a validation.

    Args:
        spec: The parsed spec.
        figures: Names of the metrics of a validation.
    """
    if (best_name := spec.train.validation.best) not in figures:
        yield name_not_found("figure", best_name, figures, ("train", "validation", "best"))


def _loss_findings(role: ResolvedRole) -> Iterator[Finding]:
    """Find a loss that cannot train a role with its signal or its groupings."""
    path: Path = ("roles", role.name, "loss")
    loss = role.spec.loss.name if role.spec.loss else "cross_entropy"
    if role.signal and role.signal.signal.advantages is None and loss != "cross_entropy":
        message = f"{role.name} learns turns that it did not sample, which {loss} cannot train"
        yield Finding(path, message, "cross_entropy", "or leave `loss` out")
    if role.loss and role.loss.compute and len(role.groupings) > 1:
        message = f"{role.loss.name} compares the members of one group, and {role.name} has several groupings"
        yield Finding(path, message, "one `group`", "or a loss that reads advantages alone, such as ppo")


def _gate_findings(role: ResolvedRole, right: Set[str]) -> Iterator[Finding]:
    """Find gates that read a reward of a role without one, or a verdict of a role that cannot be right.

    Args:
        role: The role.
        right: Roles that can be right.
    """
    if role.spec.signal is None or role.signal is None or role.signal.gate is None:
        return
    is_lacking = {"reward": role.spec.reward is None, "right": role.name not in right}
    lacking_names = {name for name, is_lacking_name in is_lacking.items() if is_lacking_name}
    clause = "which has no reward" if role.spec.reward is None else "whose reward tells no right from wrong"
    for name in sorted(role.signal.gate.mentions.intersection(lacking_names)):
        message = f"the gate reads the `{name}` of {role.name}, {clause}"
        path: Path = ("roles", role.name)
        gate_path = (*path, "signal", *role.spec.signal.path_of(("gate",)))
        rests_on = ((*path, "reward"),)
        yield Finding(gate_path, message, hint="read the action, or another role", rests_on=rests_on)


def term_findings(role: ResolvedRole) -> Iterator[Finding]:
    """Find `normalize: term` in the reward of a role whose terms cannot be compared each by itself.

    Stages are not checked: `best` compares the sums there.
    """
    if role.reward is None or role.spec.reward is None or not role.reward.normalized:
        return
    prefix: Path = ("roles", role.name)
    path = (*prefix, "reward", *role.spec.reward.path_of(("normalize",)))
    if role.estimator is None:
        message = f"{role.name} has no estimator, so its terms are not compared"
        yield Finding(path, message, "", "remove `normalize`", "warning", rests_on=((*prefix, "estimator"),))
        return
    message = "`normalize: term` compares each term within a group, "
    if not role.estimator.compares_group:
        reason = f"and {role.estimator.name} compares no group"
        yield Finding(path, message + reason, "", "use grpo or rloo, or remove `normalize`")
    if any(grouping.of_turns or grouping.by == "episode" for grouping in role.groupings):
        compared_unit = "turns" if any(grouping.of_turns for grouping in role.groupings) else "several roles"
        reason = f"and the groups of {role.name} are of {compared_unit}"
        yield Finding(
            path, message + reason, "", "compare its trajectories (`group: task`), or remove `normalize`"
        )
    if role.loss and role.loss.compute:
        reason = f"and {role.loss.name} compares their sum"
        yield Finding(path, message + reason, "", "use a loss that reads advantages alone, such as ppo")


def _refill_findings(spec: Spec, roles: Mapping[str, ResolvedRole]) -> Iterator[Finding]:
    """Find settings under which `train.refill` cannot draw more tasks until enough are informative."""
    path: Path = ("train", "refill")
    if spec.train.staleness:
        message = "refill draws by the rewards of a batch, and staleness draws before that is known"
        yield Finding(path, message, "", "remove `refill` or `staleness`", at_key=True)
    if not any(role.compares_rewards and role.spec.is_trained for role in roles.values()):
        message = "refill counts tasks on which rewards differ, and no role's rewards are compared"
        unknown_roles = [name for name, role in roles.items() if role.spec.estimator and not role.estimator]
        rests_on = tuple(("roles", name, "estimator") for name in unknown_roles)
        yield Finding(path, message, "", "remove it", at_key=True, rests_on=rests_on)


def _role_findings(resolved: ResolvedRole) -> Iterator[Finding]:
    """Find an estimator without a reward, and groups that no estimator compares."""
    name, role = resolved.name, resolved.spec
    role_path: Path = ("roles", name)
    if role.estimator is not None:
        if role.reward is None:
            message = f"{name} has the estimator {role.estimator.name}, but no reward"
            hint = "give it a reward, or remove the estimator, and it " + (
                "learns from the signal alone" if role.signal else "is not trained"
            )
            yield Finding(role_path, message, "", hint, at_key=True, rests_on=((*role_path, "reward"),))
        return
    for key in sorted({"credit", "group"} & role.model_fields_set):
        message = f"{name} has no estimator, so none of its rewards are compared"
        yield Finding((*role_path, key), message, hint="remove it", severity="warning")


def training_findings(plan: Plan) -> Iterator[Finding]:
    """Find the reasons why a plan without faults cannot be trained."""
    yield from policy_findings(plan)
    yield from sampling_findings(plan)


def policy_findings(plan: Plan) -> Iterator[Finding]:
    """Find plans without trained roles or data, and models that no trainer can train."""
    if not plan.trained:
        message = f"no role of {plan.name} has an `estimator` or a `signal`: there is nothing to train"
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
        has_model = name in plan.spec.policies and plan.spec.policies[name].model is not None
        path = ("policies", name, "model") if has_model else ("model",)
        hint = f"or {UNTRAIN} of its roles" if has_model else "train another with --model"
        message = f"a model of {policy.model.provider} cannot be trained"
        yield Finding(path, message, "local, a local folder, or tinker:NAME", hint)
    for role in plan.trained.values():
        model = plan.spec.roles[role.name].model
        if model is not None and model != plan.spec.model:
            message = f"{role.name} has a model of its own, but the roles that are trained share one policy"
            advice = f"write `policies: {{{role.name}: {{model: …}}}}` and `policy: {role.name}`"
            hint = f"{advice}, or {UNTRAIN}"
            yield Finding(("roles", role.name, "model"), message, "", hint)


def sampling_findings(plan: Plan) -> Iterator[Finding]:
    """Find samplings that change the policy's distribution, one finding for each key of the spec.

    The losses assume samples of the policy itself, at temperature 1 and top_p 1.
    """
    unlike_findings: dict[Path, Finding] = {}
    for role in plan.trained.values():
        for key in ("temperature", "top_p"):
            for path, sampling in drawn(plan, role, key).items():
                if getattr(sampling, key) == 1.0 or (key == "top_p" and sampling.temperature != 1.0):
                    continue
                sampled = f"temperature {sampling.temperature:g} and top_p {sampling.top_p:g}"
                message = f"{role.name} samples with {sampled}, but learns from samples of the policy itself"
                unlike_findings.setdefault(path, Finding(path, message, "temperature 1 and top_p 1"))
    yield from unlike_findings.values()


def drawn(plan: Plan, role: RolePlan, key: str) -> dict[Path, Sampling]:
    """Return the samplings of a role's instances, by the path in the spec that sets `key` for them."""
    return dict(samplings_of(plan.spec, role.name, role.count, key))


SAME_FOR_ALL = frozenset({"self.role", "self.count", "self.round", "self.outer", "self.times"})
"""Fields of `self` that are equal for all instances of a role."""
WHAT_WAS_BEFORE = frozenset({"self.history"})
"""Fields of `self` that differ between rollouts of one task, unlike the observation of the first turn."""
KNOWN_AT_ONCE = frozenset({"self", "self.index", "self.round", "self.outer", "self.lineage"})
"""Names that a key may read and that are known before anything runs."""


@dataclass(frozen=True, slots=True)
class _Groups:
    """Checks, before a run, of the groups whose rewards are compared."""

    names: ResolvedNames

    def findings(self, name: str) -> Iterator[Finding]:
        """Find groups of a trained role that are certainly too small, or can only hold equal rewards."""
        entries, role = self.names.spec.roles[name].group, self.names.roles[name]
        path: Path = ("roles", name, "group")
        for index, grouping in enumerate(role.groupings if role.compares_rewards else ()):
            if grouping.by == "episode" and any(g.by == "episode" for g in role.groupings[:index]):
                yield Finding(path, f"{name} compares the episode twice", "episode once in a list")
            least_members = self.smallest(name, grouping)
            if role.estimator and least_members < role.estimator.min_group:
                yield _too_small(name, grouping, role.estimator, least_members)
            if grouping.by == "prompt" and self.names.instances is not None:
                yield from self.alike_findings(name, self.names.instances)
        if role.compares_rewards and "weight" in entries[0].model_fields_set and len(entries) == 1:
            message = f"the advantages of {name} are weighted, and there are no others"
            hint = "remove it; `weight` of the role is the factor of its loss"
            yield Finding((*path, 0, "weight"), message, hint=hint, severity="warning")

    def smallest(self, name: str, grouping: GroupingPlan) -> int:
        """Return the number of members in a role's smallest group, if no turn is skipped or fails.

        With `group: prompt`, only instances with the same inputs are counted as sharing a prompt. A key that
        reads the task or an observation is taken to be the same for all, and so are the prompts of
        several tasks.
        """
        train, policies = self.names.spec.train, self.learning(name)
        rollouts = train.rollouts * grouping.over.tasks(train.batch_size)
        if not policies:
            return 0
        if grouping.by == "prompt" and self.names.instances is not None:
            families, reads_upstream = self.asked_alike(name, self.names.instances)
            return min(map(len, families)) * (1 if reads_upstream else rollouts)
        members: Counter[str] = Counter()
        if grouping.key and self.names.instances is not None and grouping.key.mentions <= KNOWN_AT_ONCE:
            keys = Counter(self.known_keys(name, grouping, grouping.key, self.names.instances[name]))
            return rollouts * min(keys.values(), default=0)
        for role_name in self.names.roles if grouping.by == "episode" else (name,):
            is_trained = self.names.spec.roles[role_name].is_trained
            for candidate in self.names.roles[role_name].groupings if is_trained else ():
                pools_roles = (candidate.by, candidate.over) == ("episode", grouping.over)
                if candidate is grouping or (role_name != name and pools_roles):
                    is_pooled = candidate.of_turns and candidate.by != "turn"
                    for policy in self.learning(role_name).values():
                        members[policy] += self.names.spec.rounds_of(role_name) if is_pooled else 1
        return min(members[policy] for policy in policies.values()) * rollouts

    def known_keys(
        self, name: str, grouping: GroupingPlan, key: Expression, instances: Sequence[Instance]
    ) -> Iterator[tuple[str, str]]:
        """Yield (policy, group key) of each turn or trajectory of one rollout; keys that only a run can
        compute are left out."""
        times = self.names.spec.loops[loop].times if (loop := self.names.spec.loop_of(name)) else 1
        for index, policy in self.learning(name).items():
            for number in range(self.names.spec.rounds_of(name) if grouping.of_turns else 1):
                outer, rounds_before = divmod(number, times)
                path, count = instances[index - 1].path, len(instances)
                self_view = SelfView(
                    name, index, path, count, rounds_before + 1, times, Views(()), outer=outer + 1
                )
                with suppress(PromptError):
                    yield policy, key.text({SELF: self_view})

    def alike_findings(self, name: str, instances: Instances) -> Iterator[Finding]:
        """Warn of a role whose groups can only hold equal rewards, because the reward is another role's."""
        reward = self.names.roles[name].reward
        if reward is None or not reward.delegates or reward.views or not instances.keys() >= {*reward.roles}:
            return  # its reward is its own, or depends on its position
        families, reads_upstream = self.asked_alike(name, instances)
        read_edges = [(needed_role, Edge(join="branch")) for needed_role in reward.roles]
        are_alike = all(
            len(f) > 1 and len({_joins(read_edges, instances[name][n], instances) for n in f}) == 1
            for f in families
        )
        if reads_upstream and are_alike:
            owner_names = " and ".join(reward.roles)
            message = (
                f"all members of a group of {name} get the same reward (that of {owner_names}), "
                "so no advantage differs from 0"
            )
            hint = "add a reward that differs between them (`sum`), or compare all rollouts (`group: turn`)"
            yield Finding(("roles", name, "reward"), message, hint=hint, severity="warning")

    def asked_alike(self, name: str, instances: Instances) -> tuple[Sequence[Sequence[int]], bool]:
        """Return (groups of a role's instances that always get the same prompt, True if a prompt may differ
        between rollouts of a task).

        Instances are indices from 0.
        """
        role, mentions = self.names.spec.roles[name], self.names.roles[name].mentions
        rounds = self.names.spec.rounds_of(name)
        edges = [(needed_role, edge) for key, needed_role, edge in role.edges if key in mentions]
        has_memory = role.memory is not None and (rounds > 1 or bool(turns_read(self.names.spec).get(name)))
        is_unique = has_memory or any(mention.startswith("self.") for mention in mentions - SAME_FOR_ALL)
        has_differences = has_memory or (rounds > 1 and bool(edges or mentions & WHAT_WAS_BEFORE))
        reads_upstream = has_differences or any(edge.round == "this" for _, edge in edges)
        families: dict[object, list[int]] = {}
        for index, policy in self.learning(name).items():
            read_key = index if is_unique else (policy, _joins(edges, instances[name][index - 1], instances))
            families.setdefault(read_key, []).append(index - 1)
        return [*families.values()], reads_upstream

    def learning(self, name: str) -> dict[int, str]:
        """Return the policy of each trained instance of a role, by the instance's index from 1."""
        role = self.names.spec.roles[name]
        count = self.names.counts[name]
        frozen_indices = self.names.spec.frozen_instances(name, count)
        policies = enumerate(role.policy_names(count) or (MAIN,) * count, 1)
        return {index: policy for index, policy in policies if index not in frozen_indices}


def _joins(
    edges: Sequence[tuple[str, Edge]], me: Instance, instances: Instances
) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(joined(edge, me, instances[needed_role])) for needed_role, edge in edges)


def _too_small(name: str, grouping: GroupingPlan, estimator: Estimator, least: int) -> Finding:
    """Return the fault of a group with fewer members than its estimator needs."""
    path, statement = ("roles", name, "group"), f"{estimator.name} compares the members of a group"
    if grouping.by == "prompt":
        hint = "raise `count` (its prompt must not read `self`), or say `group: turn`"
        message = f"{statement}, and {least} of {name} share a prompt"
        return Finding(path, message, f"at least {estimator.min_group} that see the same", hint)
    if grouping.key is not None:
        hint = "raise `count` or `train.rollouts`, or compare more of them: `group: task`"
        message = f"{statement}, and a group of {name} by {grouping.by} has {least}"
        return Finding(path, message, f"groups of at least {estimator.min_group}", hint)
    hint = "raise `count` or `train.rollouts`, or use reinforce"
    expected = f"count × rollouts of at least {estimator.min_group}"
    message = f"{statement}, and {name}'s group has {least}"
    return Finding(("roles", name, "estimator"), message, expected, hint)
