"""Questions that a plan has for a backend: abilities of services and of rLLM's backends, and needs of plans.

A question is a field of `ServiceTraits` and, if a plan may need the ability, a finding of `unmet_needs`. A
backend states the fields in which it differs: `doctor` probes a service, an integration declares its own.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rolegraph.engine.compile import Plan
from rolegraph.engine.compile.trainable import drawn
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records.confined import make_folder, write_whole
from rolegraph.engine.spec import Finding


@dataclass(frozen=True, slots=True)
class ServiceTraits:
    """Behaviour of one backend with one model; the defaults are those of hosted Tinker and of the local
    service."""

    sdk_version: str | None = None
    """Version of the Tinker SDK with which the service was probed; None without a probe."""
    losses: tuple[str, ...] = ("cross_entropy", "importance_sampling", "ppo", "cispo", "gspo")
    """Loss functions that the service computes by their formulas, if thresholds are given."""
    reports_loss: bool = True
    """True if a pass reports its loss (`loss:sum`)."""
    takes_means: bool = False
    """True if a gradient is divided by the number of datums since the last step, and each datum's part by its
    length, prompt included; False if the loss is a sum over tokens."""
    accumulates: bool = True
    """True if the gradients of several passes before one step are added."""
    merges_losses: bool = False
    """True if passes that are queued together all use the loss function or the settings of one of them."""
    has_clip_norm: bool = True
    """True if `grad_clip_norm` limits the gradient."""
    has_rank_scaling: bool = False
    """True if the same Adam step moves an adapter of a higher rank further than one of a lower rank."""
    has_leading_none: bool = True
    """True if `compute_logprobs` returns an entry for each token of the prompt, None for the first."""
    has_stop: bool = True
    """True if a call may name strings that end its answer."""
    has_seed: bool = True
    """True if the same seed samples the same tokens."""
    keeps_old_samplers: bool = True
    """True if a sampler of older weights keeps sampling from these weights, without an effect on the
    training."""
    has_several_adapters: bool = True
    """True if two adapters can train at the same time without affecting each other."""
    restores_without_client: bool = True
    """True if a training client can be created from a saved state; False if a state can only be loaded into
    a client that exists."""
    restores_optimizer: bool = True
    """True if the first step after loading a state with its optimizer equals the step of an unbroken
    training."""

    @classmethod
    def of(cls, url: str, model: str) -> ServiceTraits:
        """Return the recorded traits of a service with a model; the defaults without a record.

        Raises:
            UsageError: The record cannot be read.
        """
        file = _file(url, model)
        if not file.is_file():
            return cls()
        try:
            return TypeAdapter(cls).validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            raise UsageError(f"{file} is no record of a service; delete it") from error

    def save(self, url: str, model: str) -> Path:
        """Write these traits as the record of a service with a model, for later commands; return the file.

        Raises:
            WorldError: The file cannot be written.
        """
        file = _file(url, model)
        make_folder(file.parent)
        write_whole(file, json.dumps({"url": url, "model": model, **asdict(self)}, indent=1).encode())
        return file


def unmet_needs(plan: Plan, traits: ServiceTraits, policy: str | None = None) -> Iterator[Finding]:
    """Find settings of a plan that a backend cannot follow (errors) or ignores (warnings).

    A message continues a sentence that begins with the backend, such as `the service at URL`.

    Args:
        plan: The plan.
        traits: Behaviour of the backend.
        policy: Policy that the backend trains; None checks only settings that concern no single policy.
    """
    train = plan.spec.train
    roles = [role.name for role in plan.trained.values() if policy in plan.policies_of(role.name)]
    for role in plan.asking:
        for path, sampling in drawn(plan, role, "stop").items():
            if sampling.stop and not traits.has_stop:
                message = "ends an answer where the chat template does, and takes no `stop`"
                yield Finding(path, message, "", "remove it, and let the parser find the end")
        for path, sampling in drawn(plan, role, "seed").items():
            if sampling.seed is not None and not traits.has_seed:
                yield Finding(path, "samples without a seed", hint="remove it", severity="warning")
    if train.gradient_clip and not traits.has_clip_norm:
        message = f"does not clip gradients, at {train.gradient_clip:g} or at all"
        hint = "`train.gradient_clip: 0` accepts it"
        yield Finding(("train", "gradient_clip"), message, hint=hint, severity="warning")
    old_weights_problem = "puts old weights back into training when they are sampled"
    if train.staleness and not traits.keeps_old_samplers:
        message = f"{old_weights_problem}; set train.staleness to 0 (it is {train.staleness})"
        yield Finding(("train", "staleness"), message)
    if plan.past and not traits.keeps_old_samplers:
        yield Finding(("policies",), f"{old_weights_problem}; leave out past selves")
    if len(roles) > 1 and not traits.accumulates:
        remedy = f"give each of {', '.join(roles)} a policy of its own"
        yield Finding(("policies",), f"keeps the gradient of the last pass alone; {remedy}")
    if len(plan.policies) > 1 and not traits.has_several_adapters:
        message = f"trains one adapter at a time, and {plan.name} has {len(plan.policies)} policies"
        yield Finding(("policies",), message)


def _file(url: str, model: str) -> Path:
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    name = hashlib.sha256(f"{url.rstrip('/')}\n{model}".encode()).hexdigest()[:32]
    return settings / "rolegraph" / "services" / f"{name}.json"
