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
    asked, trained = {*_asked(spec, counts)}, {*_trained(spec, counts)}
    policies = [("policies", name, key) for name in spec.policies for key in ("sampling", "model", "lora")]
    for read, parts in (
        (asked, [("sampling",), ("model",), *(it for it in policies if it[-1] != "lora")]),
        (trained, [("train", key) for key in ("lora", "learning_rate", "rollouts")]),
        (trained, [it for it in policies if it[-1] == "lora"]),
    ):
        for path in (path for part in parts if read for path in loaded.source.overridden(part)):
            if path not in read:
                others = sorted(".".join(map(str, it)) for it in read if it[-1] == path[-1])
                hint = f"read instead: {', '.join(others)}" if others else "remove it"
                message = f"nothing reads {'.'.join(map(str, path))}: it would change nothing"
                yield Finding(path, message, "", hint, at_key=True)


def _asked(spec: Spec, counts: Mapping[str, int]) -> Iterator[Path]:
    """Yield the path of each setting of a model or sampling that some model call reads."""
    trained = trained_policies(spec, counts)
    for name, count in counts.items():
        for key in Sampling.model_fields:
            yield from (path for path, _ in samplings_of(spec, name, count, key))
        policies = spec.roles[name].policy_names(count) or [""] * count
        endpoints = endpoints_of(spec, name, count, trained)
        for policy, endpoint in {*zip(policies, endpoints, strict=False)}:
            source: Path = ("policies", policy) if spec.policy_named(policy).model else ("roles", name)
            is_same = all(
                getattr(endpoint.model, it) == getattr(spec.model, it) for it in ("provider", "name")
            )
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
        rated = [name for name in policies if getattr(spec.policy_named(name), key, None)]
        yield from (("policies", name, key) for name in rated)
        if len(rated) < len(policies):
            yield ("train", key)
    for name, policy in policies.items():
        written = spec.policy_named(name).lora
        for key in Lora.model_fields if policy.model.checkpoint is None else ():
            is_own = written is not None and key in written.model_fields_set
            yield ("policies", name, "lora", key) if is_own else ("train", "lora", key)
