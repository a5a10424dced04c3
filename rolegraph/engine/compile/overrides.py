"""Overrides of the command line that change nothing, because no role or policy reads their keys. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rolegraph.engine.compile.policies import endpoints_of, samplings_of, trained_policies
from rolegraph.engine.spec import Finding, Lora, ModelRef, Path, Sampling, Spec
from rolegraph.engine.spec.loader import LoadedSpec


def override_findings(loaded: LoadedSpec, spec: Spec, counts: Mapping[str, int]) -> Iterator[Finding]:
    """Find overrides of models, samplings, adapters, rates and rollouts that nothing reads.

    Args:
        loaded: The spec, with the places of its values.
        spec: The spec, with located models.
        counts: Number of instances by role.
    """
    asked_policies, trained_paths = {*_asked(spec, counts)}, {*_trained(spec, counts)}
    policies = [("policies", name, key) for name in spec.policies for key in ("sampling", "model", "lora")]
    for read_paths, key_paths in (
        (asked_policies, [("sampling",), ("model",), *(p for p in policies if p[-1] != "lora")]),
        (trained_paths, [("train", key) for key in ("lora", "learning_rate", "rollouts")]),
        (trained_paths, [p for p in policies if p[-1] == "lora"]),
    ):
        for path in (path for k in key_paths if read_paths for path in loaded.source.overridden(k)):
            if path not in read_paths:
                other_paths = sorted(".".join(map(str, p)) for p in read_paths if p[-1] == path[-1])
                hint = f"read instead: {', '.join(other_paths)}" if other_paths else "remove it"
                message = f"nothing reads {'.'.join(map(str, path))}: it would change nothing"
                yield Finding(path, message, "", hint, at_key=True)


def _asked(spec: Spec, counts: Mapping[str, int]) -> Iterator[Path]:
    """Yield the path of each setting of a model or sampling that some model call reads."""
    trained_counts = trained_policies(spec, counts)
    for name, count in counts.items():
        for key in Sampling.model_fields:
            yield from (path for path, _ in samplings_of(spec, name, count, key))
        policies = spec.roles[name].policy_names(count) or [""] * count
        endpoints = endpoints_of(spec, name, count, trained_counts)
        for policy, endpoint in {*zip(policies, endpoints, strict=False)}:
            source: Path = ("policies", policy) if spec.policy_named(policy).model else ("roles", name)
            is_same = all(getattr(endpoint.model, k) == getattr(spec.model, k) for k in ("provider", "name"))
            for path in ((*source, "model"), *([("model",)] if is_same else [])):
                yield from (path, *((*path, key) for key in ModelRef.model_fields))


def _trained(spec: Spec, counts: Mapping[str, int]) -> Iterator[Path]:
    """Yield the path of each adapter setting, learning rate and number of rollouts that a training reads."""
    train, policies = spec.train, trained_policies(spec, counts)
    stages = train.stages if sum(stage.steps for stage in train.stages) == train.steps else []
    for key in ("learning_rate", "rollouts") if policies else ():
        if stages and all(getattr(stage, key) for stage in stages):
            yield ("train", "stages", key)
            continue
        rated_policies = [name for name in policies if getattr(spec.policy_named(name), key, None)]
        yield from (("policies", name, key) for name in rated_policies)
        if len(rated_policies) < len(policies):
            yield ("train", key)
    for name, policy in policies.items():
        written_lora = spec.policy_named(name).lora
        for key in Lora.model_fields if policy.model.checkpoint is None else ():
            is_own = written_lora is not None and key in written_lora.model_fields_set
            yield ("policies", name, "lora", key) if is_own else ("train", "lora", key)
