"""Traits of rLLM's backends, each written once, and what has to be installed for them.

Each trait was read in rLLM at the commit that the extra `rllm` pins; paths in comments are below `rllm/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from rolegraph.engine.backends import Backend
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models.keys import TINKER, KeyRule

INSTALL = "pip install 'rolegraph[rllm]'"
SCHEDULES = frozenset({"constant", "linear", "cosine"})
IDLE: dict[str, str] = {
    "rllm.stepwise_advantage": "rLLM turns every mode into broadcast",
    "rllm.filter_token_mismatch": "nothing reads it",
    "rllm.workflow.workflow_args": "the trainer takes workflow_args from Python, not from its config",
    "rllm.gateway": "a workflow calls the engine itself, not the gateway",
    "rllm.agent": "a workflow has no agent",
    "rllm.env": "a workflow has no environment",
}
"""Keys, or beginnings of keys, without effect on rLLM's own backends, each with the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendTraits:
    """Traits of one backend; the defaults are those of an unknown backend, for which nothing is reported."""

    name: Backend
    module: str | None = None
    """Package that the backend imports."""
    install: str = INSTALL
    """Command that installs it."""
    key: KeyRule | None = None
    """Key that the backend sends to the model's URL."""
    is_service: bool = False
    """True if a service samples and trains, with a service's limits: no `stop` and no `seed` of a call."""
    speaks_tinker: bool = False
    """True if that service speaks the Tinker API, as the local one does."""
    runs_in_ray: bool = False
    """True if workflows and the trainer run in Ray's processes, perhaps on other machines."""
    loads_model: bool = False
    """True if the backend loads the model itself, from a folder or the Hugging Face hub."""
    trains_folders: bool = True
    """False if only models that the service hosts can be trained."""
    model_keys: str = ""
    """Overrides that have to name the model a second time."""
    renderer_by_name: bool = False
    """True if the chat template is found by a public model's name."""
    max_prompt: int | None = None
    """Prompt limit in tokens to set if the model's context is unknown; None leaves rLLM's own."""
    composes_verl_config: bool = False
    """True if the config asks for verl's `ppo_trainer`."""
    takes_estimators: bool = True
    """False if the trainer cannot take a map from role to estimator, so that the grouping hook estimates."""
    takes_losses: bool = False
    """True if that map may name a loss beside the estimator."""
    losses: frozenset[str] | None = None
    """Losses that `rllm.algorithm.loss_fn` may name; None if unknown."""
    unknown_loss: str = ""
    """Effect of another loss there."""
    role_losses: frozenset[str] | None = None
    """Losses that a role may have of its own; empty if all roles share one, None if unknown."""
    fallback_loss: str = ""
    """Loss that replaces another one of a role."""
    takes_token_advantages: bool = True
    """False if a trajectory has one advantage for all its tokens."""
    one_temperature: bool = False
    """True if all roles are trained at one temperature."""
    one_max_tokens: bool = False
    """True if all roles share the longest `max_tokens`."""
    clips_gradients: bool = True
    can_disable_clipping: bool = True
    """False if a `gradient_clip` of 0 scales every gradient to 0."""
    selects_layers: bool = True
    """False if LoRA's layers are not chosen by `train.lora`."""
    schedules: frozenset[str] = SCHEDULES
    """Learning-rate schedules that the backend has."""
    schedules_with_floor: frozenset[str] = frozenset()
    """Schedules that read `train.schedule.floor`."""
    zero_save_freq_fails: bool = False
    """True if a `save_freq` of 0 is divided by."""
    idle: Mapping[str, str] = field(default_factory=lambda: IDLE)
    """Keys, or beginnings of keys, without effect, each with the reason."""


_TINKER_LOSSES = frozenset({"importance_sampling", "ppo", "cispo", "dro"})

TRAITS: Mapping[Backend, BackendTraits] = {
    "tinker": BackendTraits(
        name="tinker",
        module="tinker",
        key=TINKER,
        is_service=True,
        speaks_tinker=True,
        # engine/rollout/tinker_engine.py: the cookbook goes by a public model's name.
        renderer_by_name=True,
        # trainer/config/rllm/backend/tinker.yaml, data.max_prompt_length.
        max_prompt=30720,
        takes_losses=True,
        # trainer/tinker/tinker_policy_trainer.py, TINKER_KNOWN_LOSSES, without cross_entropy: a datum has no
        # weights there.
        losses=_TINKER_LOSSES,
        unknown_loss="it would train by importance_sampling, after a line in its log",
        role_losses=_TINKER_LOSSES,
        fallback_loss="importance_sampling",
        # trainer/tinker/tinker_policy_trainer.py, optim_step_future: AdamParams without a norm, and no key.
        clips_gradients=False,
        # trainer/tinker/tinker_backend.py, on_train_end.
        zero_save_freq_fails=True,
        idle=IDLE
        | {
            "rllm.algorithm.kl_beta": "tinker reports the KL divergence, but never adds it to the loss",
            "rllm.algorithm.eps_clip": "tinker clips as its service does",
            "rllm.algorithm.eps_clip_high": "tinker clips as its service does",
            "rllm.algorithm.loss_agg_mode": "tinker sums over each sequence, whatever this says",
            "rllm.algorithm.rollout_correction": "nothing of tinker's reads it",
            "rllm.mask_truncated_samples": "only verl reads it",
        },
    ),
    "verl": BackendTraits(
        name="verl",
        module="verl",
        install="pip install 'rllm[verl] @ git+https://github.com/rllm-org/rllm.git'",
        # trainer/verl/verl_launcher.py: workflows are made, and trained on, in a Ray actor.
        runs_in_ray=True,
        # trainer/verl/verl_backend.py, init_rollout_engine: verl starts its own inference servers.
        loads_model=True,
        composes_verl_config=True,
        # `register_policy_loss` in verl 0.8, trainer/ppo/core_algos.py.
        losses=frozenset(
            "vanilla dppo_tv dppo_kl gspo sapo gpg clip_cov kl_cov geo_mean cispo bypass_mode".split()
        ),
        unknown_loss="it stops at the first update",
        # trainer/verl/verl_backend.py, _update_actor_with_loss_routing: an unknown loss becomes vanilla.
        role_losses=frozenset({"ppo"}),
        fallback_loss="ppo",
        # trainer/verl/transform.py, update_dataproto_with_advantages: float(advantage) of a list raises.
        takes_token_advantages=False,
        # trainer/verl/utils.py: actor_rollout_ref.rollout.temperature also scales the trainer's logits.
        one_temperature=True,
        selects_layers=False,
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
        # trainer/config/rllm/backend/fireworks.yaml: model.name and the training shape name hosted models,
        # and the tokenizer and the shape default to those of one small Qwen.
        trains_folders=False,
        model_keys="++model.tokenizer_model=… ++fireworks_config.policy_trainer_shape_id=…",
        max_prompt=30720,
        # The trainer iterates over datums that a map turns into a dict by role.
        takes_estimators=False,
        # docs/backends/fireworks.mdx; null stands for grpo.
        losses=frozenset({"grpo", "dapo", "cispo", "gspo"}),
        unknown_loss="it stops when it starts",
        # trainer/fireworks/fireworks_policy_trainer.py, builtin_loss_args: one kernel for all roles.
        role_losses=frozenset(),
        # trainer/fireworks/fireworks_policy_trainer.py, _process_datums: the first token's counts for all.
        takes_token_advantages=False,
        # engine/rollout/fireworks_engine.py: rllm.rollout.*.max_tokens goes before the call's own.
        one_max_tokens=True,
        can_disable_clipping=False,
        # Nothing below trainer/fireworks reads model.train_*.
        selects_layers=False,
        idle=IDLE | {"rllm.mask_truncated_samples": "only verl reads it"},
    ),
    "custom": BackendTraits(name="custom", schedules_with_floor=SCHEDULES, idle={}),
}


def has_rllm() -> bool:
    """Return True if rLLM can be imported."""
    return find_spec("rllm") is not None


def need_rllm(feature: str = "this") -> None:
    """Raise UsageError with the command that installs rLLM, if it is not installed.

    Args:
        feature: subject of the message's sentence.
    """
    if not has_rllm():
        raise UsageError(f"{feature} needs rLLM: {INSTALL}")


def need_backend(backend: Backend) -> None:
    """Raise UsageError with the command that installs rLLM or the backend's package, if one is missing."""
    need_rllm("--trainer rllm")
    traits = TRAITS[backend]
    if traits.module is not None and find_spec(traits.module) is None:
        raise UsageError(f"rLLM's backend {backend} needs {traits.module}: {traits.install}")
