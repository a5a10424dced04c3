"""Policies of role instances, their endpoints and samplings, and the checks of a spec's policies. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rolegraph.engine.compile.role_plan import Endpoint, PastPlan, PolicyPlan
from rolegraph.engine.records import MAIN
from rolegraph.engine.spec import Finding, ModelRef, Path, Policy, Role, Sampling, Spec
from rolegraph.engine.spec.base import laid_over
from rolegraph.engine.spec.sources import NO_BODY
from rolegraph.engine.spec.validation import name_not_found

UNTRAIN = "remove its `estimator` and `signal`"
"""Hint for a role that cannot be trained."""


def trained_policies(spec: Spec, counts: Mapping[str, int]) -> dict[str, PolicyPlan]:
    """Return the policies of trained roles, `main` first, then in the order of the spec."""
    trained_roles = {name: count for name, count in counts.items() if spec.roles[name].is_trained}
    used_policies = {policy for policy in _used(spec, trained_roles) if not spec.policy_named(policy).of}
    plans: dict[str, PolicyPlan] = {}
    for name in dict.fromkeys((MAIN, *spec.policies)):
        if name in used_policies:
            policy, train = spec.policy_named(name), spec.train
            lora = laid_over(train.lora, policy.lora)
            plans[name] = PolicyPlan(_model(spec, name), lora, policy.learning_rate or train.learning_rate)
    return plans


def _used(spec: Spec, counts: Mapping[str, int]) -> set[str]:
    """Return the names of all policies that some instance of the roles in `counts` has."""
    return {policy for name, count in counts.items() for policy in spec.roles[name].policy_names(count)}


def past_policies(
    spec: Spec, counts: Mapping[str, int], trained: Mapping[str, PolicyPlan]
) -> dict[str, PastPlan]:
    """Return the policies of past selves (frozen copies of a trained policy) that some role uses, by name."""
    used_policies = _used(spec, counts)
    return {
        name: PastPlan(policy.of, policy.every, policy.keep, policy.pick)
        for name, policy in spec.policies.items()
        if name in used_policies and policy.of is not None and policy.of in trained
    }


def endpoints_of(spec: Spec, name: str, count: int, trained: Mapping[str, PolicyPlan]) -> list[Endpoint]:
    """Return the model endpoint of each instance of a role, in order; empty for a role that runs a tool."""
    role = spec.roles[name]
    if role.run is not None:
        return []
    if not (policies := role.policy_names(count)):
        return [Endpoint(role.model or spec.model)] * count
    # While a spec is only run, a trained role may have a model of its own.
    model = role.model if role.policy is None else None
    endpoints: list[Endpoint] = []
    for policy in policies:
        past = policy if spec.policy_named(policy).of in trained else None
        endpoints.append(Endpoint(model or _model(spec, policy), policy if policy in trained else None, past))
    return endpoints


def answering(spec: Spec, name: str, counts: Mapping[str, int]) -> list[ModelRef]:
    """Return the models that answer for a role's instances, each once."""
    endpoints = endpoints_of(spec, name, counts[name], trained_policies(spec, counts))
    return list(dict.fromkeys(endpoint.model for endpoint in endpoints))


def samplings_of(spec: Spec, name: str, count: int, key: str = "temperature") -> list[tuple[Path, Sampling]]:
    """Return the sampling of each instance of a role, with the path in the spec of its setting `key`.

    The settings are merged key by key: first the spec's, then the trained policy's
    whose past self answers, then the policy's, then the role's.
    Empty for a role that runs a tool.
    """
    role = spec.roles[name]
    if role.run is not None:
        return []
    policies = role.policy_names(count) or ("",) * count
    samplings = {policy: _sampling_of(spec, name, policy, key) for policy in dict.fromkeys(policies)}
    return [samplings[policy] for policy in policies]


def _sampling_of(spec: Spec, name: str, policy: str, key: str) -> tuple[Path, Sampling]:
    """Return the sampling of a role's instances of one policy, with the path of its setting `key`."""
    role = spec.roles[name]
    models: list[tuple[Path, Policy | Role]] = [
        (("policies", it), spec.policy_named(it)) for it in (spec.policy_named(policy).of, policy) if it
    ]
    path, sampling = ("sampling", key), spec.sampling
    for prefix, it in (*models, (("roles", name), role)):
        path = (*prefix, "sampling", key) if it.sampling and key in it.sampling.model_fields_set else path
        sampling = laid_over(sampling, it.sampling)
    return path, sampling


def models_of(spec: Spec) -> Iterator[tuple[Path, ModelRef | None]]:
    """Yield each model that the spec names, with its path."""
    yield ("model",), spec.model
    yield from ((("policies", name, "model"), policy.model) for name, policy in spec.policies.items())
    yield from ((("roles", name, "model"), role.model) for name, role in spec.roles.items())


def body_findings(spec: Spec) -> Iterator[Finding]:
    """Find fields for a server of models whose requests take none."""
    for path, ref in models_of(spec):
        if ref is not None and ref.body and ref.provider in NO_BODY:
            message = f"{ref.provider} takes no `body`"
            yield Finding((*path, "body"), message, "a model of openai or litellm")


def checkpoint_findings(spec: Spec, counts: Mapping[str, int]) -> Iterator[Finding]:
    """Find checkpoints of models that no role asks; `counts` are the numbers of instances by role."""
    learned = trained_policies(spec, counts)
    sampled = {e.model.weights for name in counts for e in endpoints_of(spec, name, counts[name], learned)}
    for path, ref in _checkpoints(spec, counts):
        if ref.provider == "replay":  # it has the answers of the weights that were recorded
            continue
        if ref.weights is None:
            message, hint = f"{ref.provider} takes no checkpoint", "`rolegraph export` writes it for servers"
            yield Finding(path, message, "a local or a tinker model", hint)
        elif ref.weights not in sampled:
            message = f"no role asks the weights {ref.weights}: each has another model, or other weights"
            yield Finding(path, message, "", "remove it, or the other", rests_on=_policies_of(spec))
    if (start_weights := _model(spec, MAIN).weights) is None:
        return
    for name, role in spec.roles.items():
        if role.model is not None and role.policy is None and role.is_trained and not role.model.weights:
            message = f"{name} is trained, but its model of its own does not have the weights {start_weights}"
            hint = f"remove it, give it a `checkpoint`, or {UNTRAIN}"
            yield Finding(("roles", name, "model"), message, "", hint, at_key=True)


def _policies_of(spec: Spec) -> tuple[Path, ...]:
    """Return the path in the spec of each role's `policy`."""
    return tuple(("roles", name, "policy") for name in spec.roles)


def _checkpoints(spec: Spec, counts: Mapping[str, int]) -> Iterator[tuple[Path, ModelRef]]:
    """Yield (path in the spec, model with the checkpoint) for each checkpoint that a role's model starts
    from."""
    used_policies = _used(spec, counts).intersection(spec.policies)
    for name in sorted(used_policies):
        if spec.policies[name].checkpoint is not None and spec.policies[name].of is None:
            yield ("policies", name, "checkpoint"), _model(spec, name)
    for path, ref in models_of(spec):
        if ref and ref.checkpoint and (path[0] != "policies" or path[1] in used_policies):
            yield (*path, "checkpoint"), ref


def check_policies(spec: Spec, counts: Mapping[str, int]) -> Iterator[Finding]:
    """Find faults in the policies of roles; `counts` are the numbers of instances by role."""
    used_policies = _used(spec, counts)
    names = list(dict.fromkeys((MAIN, *spec.policies)))
    for name, role in spec.roles.items():
        path: Path = ("roles", name, "policy")
        for policy in dict.fromkeys(role.policy_names(counts[name])):
            if policy not in names:
                finding = name_not_found("policy", policy, names, path, ("policies",))
                advice = f"for weights of its own write at the top: policies: {{{policy}: {{}}}}"
                yield replace(finding, hint=finding.hint or advice)
        if role.policy is not None and len(role.policy) not in (1, counts[name]):
            message = f"{name} has {counts[name]} instances, and its list of policies has {len(role.policy)}"
            yield Finding(path, message, "a policy for each instance, or one for all")
        if role.is_trained and len(spec.frozen_instances(name, counts[name])) == counts[name]:
            message = f"{name} is trained, and past selves, which are not trained, answer for it"
            yield Finding(path, message, "a policy that is trained, for an instance", UNTRAIN)
        if role.policy is not None and role.model is not None:
            message = f"{name} has both a `policy`, which sets its model, and a `model`"
            hint = "remove one of the two; a policy's model stands under `policies`"
            yield Finding(("roles", name, "model"), message, "", hint, at_key=True)
    for name, policy in spec.policies.items():
        policy_path: Path = ("policies", name)
        if name == MAIN and policy.model is not None:
            message = "the model of the policy `main` is the spec's `model`"
            yield Finding((*policy_path, "model"), message, "", "write it there", at_key=True)
        yield from _past_findings(spec, counts, name)
        if policy.checkpoint is not None and policy.lora is not None:
            message = f"{name} starts from a checkpoint, which sets the shape of the adapter"
            yield Finding((*policy_path, "lora"), message, "", "remove `lora` or `checkpoint`", at_key=True)
        if name not in used_policies:
            message, hint = f"no role has the policy {name}", f"give a role `policy: {name}`, or remove it"
            yield Finding(policy_path, message, "", hint, "warning", at_key=True, rests_on=_policies_of(spec))


def _past_findings(spec: Spec, counts: Mapping[str, int], name: str) -> Iterator[Finding]:
    """Find faults in the policy `name`: of past selves, or keys for past selves in a trained policy."""
    policy, policy_path = spec.policies[name], ("policies", name)
    written_keys = [key for key in policy.model_fields_set if getattr(policy, key) is not None]
    if policy.of is None:
        for key in sorted({"every", "keep", "pick"}.intersection(written_keys)):
            hint = "name the policy, as in `of: main`, or remove it"
            message = f"`{key}` applies only to policies of past selves; {name} is a trained policy"
            yield Finding((*policy_path, key), message, "", hint, at_key=True)
        return
    for key in sorted({"model", "checkpoint", "lora", "learning_rate"}.intersection(written_keys)):
        message = f"{name} has the weights of {policy.of}, and is not trained itself"
        yield Finding((*policy_path, key), message, "", "remove it", at_key=True)
    sources = [p for p in (MAIN, *spec.policies) if not spec.policy_named(p).of]
    if policy.of not in sources or name == MAIN:
        yield name_not_found("policy to copy", policy.of, [*dict.fromkeys(sources)], (*policy_path, "of"))
    elif policy.of not in trained_policies(spec, counts):
        message = f"{name} are past selves of {policy.of}, which no role trains"
        yield Finding((*policy_path, "of"), message, "a policy of a trained role")


def _model(spec: Spec, name: str) -> ModelRef:
    """Return the model that a policy starts from."""
    policy = spec.policy_named(name)
    policy = spec.policy_named(policy.of) if policy.of else policy
    model = policy.model or spec.model
    return model.model_copy(update={"checkpoint": policy.checkpoint}) if policy.checkpoint else model
