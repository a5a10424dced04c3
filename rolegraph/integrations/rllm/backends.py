"""Traits of rLLM's backends, each written once, and the packages that they need.

Each trait was read in rLLM at the commit that the group `rllm` pins; paths in comments are below `rllm/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from rolegraph.engine.errors import UsageError
from rolegraph.engine.models.keys import TINKER, KeyRule
from rolegraph.engine.models.service_traits import ServiceTraits
from rolegraph.integrations.rllm.names import Backend

INSTALL = "uv pip install --group rllm . (in a clone)"
SCHEDULES = frozenset({"constant", "linear", "cosine"})
IDLE: dict[str, str] = {
    "rllm.stepwise_advantage": "rLLM turns every mode into broadcast",
    "rllm.filter_token_mismatch": "nothing reads it",
    "rllm.workflow.workflow_args": "the trainer takes workflow_args from Python, not from its config",
    "rllm.gateway": "a workflow calls the engine itself, not the gateway",
    "rllm.agent": "a workflow has no agent",
    "rllm.env": "a workflow has no environment",
}
"""Keys, or beginnings of keys, without effect on rLLM's own backends, by name, with the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendTraits:
    """Traits of one backend; the defaults are those of an unknown backend, for which nothing is reported.

    A fact with two values that only one check needs is written in that check.
    """

    name: Backend
    module: str | None = None
    """Package that the backend imports."""
    install: str = INSTALL
    """Command that installs the package."""
    versions: tuple[str, ...] = ()
    """Prefixes of the package's versions that rLLM works with, such as `0.8.`; empty if all work."""
    key: KeyRule | None = None
    """Rule for the key that the backend sends to the model's URL."""
    is_service: bool = False
    """True if a service samples and trains; such a service cuts answers where the context ends."""
    service: ServiceTraits = field(default_factory=ServiceTraits)
    """Traits that a plan's checks read of every backend."""
    losses: frozenset[str] | None = None
    """Losses that `rllm.algorithm.loss_fn` may name; None if unknown."""
    unknown_loss: str = ""
    """Effect of a loss that is not in `losses`."""
    role_losses: frozenset[str] | None = None
    """Losses that a single role may have; empty if all roles share one loss, None if unknown."""
    fallback_loss: str = ""
    """Loss that replaces a role's loss that is not in `role_losses`."""
    schedules: frozenset[str] = SCHEDULES
    """Learning-rate schedules that the backend has."""
    schedules_with_floor: frozenset[str] = frozenset()
    """Schedules that read `train.schedule.floor`."""
    idle: Mapping[str, str] = field(default_factory=lambda: IDLE)
    """Keys, or beginnings of keys, without effect, by name, with the reason."""


_TINKER_LOSSES = frozenset({"importance_sampling", "ppo", "cispo", "dro"})

TRAITS: Mapping[Backend, BackendTraits] = {
    "tinker": BackendTraits(
        name="tinker",
        module="tinker",
        key=TINKER,
        is_service=True,
        # engine/rollout/tinker_engine.py: `stop` is the chat template's, and of a call it reads temperature,
        # top_p and top_k, no seed. trainer/tinker/tinker_policy_trainer.py, optim_step_future: AdamParams
        # without a norm, and no key.
        service=ServiceTraits(has_stop=False, has_seed=False, has_clip_norm=False),
        # trainer/tinker/tinker_policy_trainer.py, TINKER_KNOWN_LOSSES, without cross_entropy: a datum has no
        # weights there.
        losses=_TINKER_LOSSES,
        unknown_loss="it would train by importance_sampling, after a line in its log",
        role_losses=_TINKER_LOSSES,
        fallback_loss="importance_sampling",
        idle=IDLE
        | {
            "rllm.algorithm.kl_beta": "tinker reports the KL divergence, but never adds it to the loss",
            "rllm.algorithm.eps_clip": "tinker clips as its service does",
            "rllm.algorithm.eps_clip_high": "tinker clips as its service does",
            "rllm.algorithm.loss_agg_mode": "tinker sums over each sequence and ignores this key",
            "rllm.algorithm.rollout_correction": "nothing of tinker's reads it",
            "rllm.mask_truncated_samples": "only verl reads it",
        },
    ),
    # verl starts its own inference servers, and makes workflows in a Ray actor, where they are trained on
    # (trainer/verl/verl_backend.py, init_rollout_engine, and trainer/verl/verl_launcher.py).
    "verl": BackendTraits(
        name="verl",
        module="verl",
        # pyproject.toml pins 0.8.0; `verl_versions` adapts rLLM to 0.9.
        versions=("0.8.", "0.9."),
        install="uv pip install --config-file rolegraph/integrations/rllm/uv.toml --group verl '.[math]'",
        # `register_policy_loss` in verl 0.8, trainer/ppo/core_algos.py.
        losses=frozenset(
            "vanilla dppo_tv dppo_kl gspo sapo gpg clip_cov kl_cov geo_mean cispo bypass_mode".split()
        ),
        unknown_loss="it stops at the first update",
        # trainer/verl/verl_backend.py, _update_actor_with_loss_routing: an unknown loss becomes vanilla.
        role_losses=frozenset({"ppo"}),
        fallback_loss="ppo",
        # verl/workers/engine/fsdp/transformer_impl.py has two, and raises when the workers are up.
        schedules=frozenset({"constant", "cosine"}),
        schedules_with_floor=frozenset({"cosine"}),
    ),
    "fireworks": BackendTraits(
        name="fireworks",
        module="fireworks",
        install="pip install 'rllm[fireworks] @ git+https://github.com/rllm-org/rllm.git'",
        key=KeyRule("FIREWORKS_API_KEY", "FIREWORKS_BASE_URL", "https://api.fireworks.ai"),
        is_service=True,
        # engine/rollout/fireworks_engine.py: as tinker_engine.py.
        service=ServiceTraits(has_stop=False, has_seed=False),
        # docs/backends/fireworks.mdx; null stands for grpo.
        losses=frozenset({"grpo", "dapo", "cispo", "gspo"}),
        unknown_loss="it stops when it starts",
        # trainer/fireworks/fireworks_policy_trainer.py, builtin_loss_args: one kernel for all roles.
        role_losses=frozenset(),
        idle=IDLE | {"rllm.mask_truncated_samples": "only verl reads it"},
    ),
    "custom": BackendTraits(name="custom", schedules_with_floor=SCHEDULES, idle={}),
}


def has_rllm() -> bool:
    """Return True if rLLM can be imported."""
    return find_spec("rllm") is not None


def need_rllm(feature: str = "this") -> None:
    """Raise UsageError with the command that installs rLLM, if rLLM is not installed.

    Args:
        feature: Subject of the message's sentence.
    """
    if not has_rllm():
        raise UsageError(f"{feature} needs rLLM: {INSTALL}")


def need_backend(backend: Backend) -> None:
    """Raise UsageError with the command that installs rLLM or the backend's package, if either is missing."""
    need_rllm("--trainer rllm")
    traits = TRAITS[backend]
    if traits.module is not None and find_spec(traits.module) is None:
        raise UsageError(f"rLLM's backend {backend} needs {traits.module}: {traits.install}")


def check_version(backend: Backend) -> None:
    """Raise UsageError if the installed version of the backend's package does not work with rLLM."""
    traits = TRAITS[backend]
    if traits.module is None or not traits.versions:
        return
    with suppress(PackageNotFoundError):
        installed = version(traits.module)
        if not installed.startswith(traits.versions):
            raise UsageError(
                f"{traits.module} {installed} is installed, but rLLM works with "
                f"{' and '.join(f'{prefix}*' for prefix in traits.versions)} alone: {traits.install}"
            )
