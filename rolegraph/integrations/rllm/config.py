"""Overrides of rLLM's hydra config that follow from a plan. Pure, and without rLLM.

`TABLE` is the whole correspondence: each row says which part of a spec sets which key of a backend. A backend
without a row for a part cannot carry it, and `checks` reports that. The keys are those of
`rllm/trainer/config` at the commit that the group `rllm` pins.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from rolegraph.engine.compile import Plan, PolicyPlan
from rolegraph.engine.models.rates import policy_rate
from rolegraph.engine.records import MAIN
from rolegraph.engine.records.jsonl import read_json
from rolegraph.engine.shipped import BASE_NAME, MODELS, model_folder
from rolegraph.engine.spec import ModelRef, Train
from rolegraph.integrations.rllm.backends import TRAITS
from rolegraph.integrations.rllm.estimators import deviation
from rolegraph.integrations.rllm.gpus import GpuLayout
from rolegraph.integrations.rllm.names import Backend

Value = str | bool | int | float | Sequence[str]

RENDERER = "qwen3_instruct"
"""tinker-cookbook's renderer that gives the same tokens as the shipped models' chat template (ChatML)."""
RLLM_PREFIXES = ("rllm.", "rllm/", "+", "~")
"""Prefixes of overrides of rLLM's config, not the spec; `++key=value` sets a key outside of `rllm`."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Settings of a run of rLLM's trainer."""

    plan: Plan
    backend: Backend
    _: KW_ONLY
    backend_class: str | None = None
    """Class of a `custom` backend, as `package.module:Class`."""
    rows: int
    """Number of training tasks."""
    steps: int
    """Number of updates."""
    seed: int = 0
    folder: str | None = None
    """Folder of the checkpoints; None for rLLM's default."""
    resume: bool = False
    trackers: Sequence[str] = ()
    base_url: str | None = None
    """URL of the model; None for the spec's URL."""
    context: int | None = None
    """Context of the model in tokens, prompt and answer together; None if not yet known."""
    gpus: GpuLayout | None = None
    """Layout of verl's GPUs; None for verl's defaults."""

    @property
    def train(self) -> Train:
        """Section `train` of the spec."""
        return self.plan.spec.train

    @property
    def policy(self) -> PolicyPlan:
        """Policy that rLLM trains, the plan's main one."""
        ref, train = self.plan.spec.model, self.train
        return self.plan.policies.get(MAIN) or PolicyPlan(ref, train.lora, train.learning_rate)

    @property
    def rate(self) -> float:
        """Learning rate of the trained policy before the schedule."""
        return policy_rate(self.policy).value


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """Rule that sets one key of rLLM's config from a part of the spec; a value of None sets nothing."""

    spec: str
    key: str
    value: Callable[[Launch], Value | None] | None = None
    """Function that returns the key's value; by default the value of the spec's key `spec`."""


def _sampling(name: str, run: Launch) -> float:
    """Return sampling setting `name` of the first trained role, because rLLM has one value for all roles.

    Without a trained role, the first role that asks a model decides.
    """
    return getattr(next(iter(run.plan.trained.values()), run.plan.asking[0]).samplings[0], name)


_EVERYWHERE = (
    ConfigKey("name", "rllm.trainer.experiment_name"),
    ConfigKey("", "rllm.trainer.project_name", lambda _: "rolegraph"),
    ConfigKey("--track", "rllm.trainer.logger", lambda run: ("console", *run.trackers)),
    ConfigKey("--seed", "rllm.data.seed", lambda run: run.seed),
    # rLLM's default of 2,048 would replace a backend's own limit, and a longer prompt gets no answer.
    ConfigKey("model.name", "rllm.data.max_prompt_length", lambda run: _longest_prompt(run)),
    ConfigKey("sampling.max_tokens", "rllm.data.max_response_length", lambda run: _longest_answer(run)),
    *(
        ConfigKey(f"sampling.{name}", f"rllm.rollout.{part}.{name}", partial(_sampling, name))
        for part in ("train", "val")
        for name in ("temperature", "top_p")
    ),
    ConfigKey("train.batch_size", "rllm.data.train_batch_size"),
    # The asynchronous loop counts an update before it compares, and so ends one early.
    ConfigKey("train.steps", "rllm.trainer.total_batches", lambda run: run.steps + (run.train.staleness > 0)),
    ConfigKey("train.steps", "rllm.trainer.total_epochs", lambda run: _epochs(run)),
    ConfigKey("train.schedule.kind", "rllm.algorithm.lr_schedule"),
    ConfigKey(
        "train.schedule.warmup", "rllm.algorithm.warmup_steps", lambda run: run.train.schedule.warmup or None
    ),
    ConfigKey("roles.*.estimator", "rllm.algorithm.norm_adv_by_std_in_grpo", lambda run: deviation(run.plan)),
    # rLLM validates after the last update only if test_freq is positive.
    ConfigKey("train.validation.every", "rllm.trainer.test_freq", lambda run: _test_freq(run)),
    ConfigKey("data.validation", "rllm.trainer.val_before_train", lambda run: "validation" in run.plan.data),
    ConfigKey("train.checkpoint_every", "rllm.trainer.save_freq"),
)
"""Keys of all backends, in the section `rllm`."""

ASYNCHRONOUS = (
    ConfigKey("train.staleness", "rllm.async_training.enable", lambda _: True),
    ConfigKey("train.staleness", "rllm.async_training.staleness_threshold"),
    ConfigKey("train.batch_size", "rllm.async_training.mini_batch_size"),
    ConfigKey("train.staleness", "rllm.workflow.raise_on_error", lambda _: False),
)
"""Keys of a training with staleness: its loop takes tasks one by one, and updates after each mini-batch."""

_RLLMS_OWN = (ConfigKey("--backend", "rllm/backend", lambda run: run.backend),)
"""Keys of rLLM's own backends."""

_SERVICE = (
    *_RLLMS_OWN,
    ConfigKey("model.name", "model.name", lambda run: model_name(run.plan.spec.model)),
    ConfigKey("train.lora.rank", "model.lora_rank", lambda run: run.policy.lora.rank),
    ConfigKey("train.rollouts", "training.group_size"),
    ConfigKey("train.learning_rate", "training.learning_rate", lambda run: run.rate),
    ConfigKey("train.validation.rollouts", "validation.group_size"),
)
"""Keys of both services, tinker and fireworks."""

_ROLLOUTS = (
    ConfigKey("train.rollouts", "rllm.rollout.n"),
    ConfigKey("train.validation.rollouts", "rllm.rollout.n_val"),
)
"""Keys of the other backends for numbers of rollouts."""

_PRECOMPUTED = ConfigKey(
    "roles.*.signal",
    "rllm.algorithm.use_precomputed_advantage",
    lambda run: any(not role.compares_rewards for role in run.plan.trained.values()) or None,
)

_VERLS_ACTOR = "actor_rollout_ref.actor"
_VERLS_ROLLOUT = "actor_rollout_ref.rollout"


def _layout(setting: Callable[[GpuLayout], Value | None]) -> Callable[[Launch], Value | None]:
    """Return the value function of a rule that depends on the layout of the GPUs; without a layout it returns
    None."""
    return lambda run: None if run.gpus is None else setting(run.gpus)


_VERLS_GPUS = (
    ConfigKey("--gpus", "trainer.n_gpus_per_node", _layout(lambda gpus: gpus.trainers)),
    # trainer/verl/verl_launcher.py: with staleness, servers have further GPUs, by default 8.
    ConfigKey("--gpus", "rollout.n_gpus_per_node", _layout(lambda gpus: gpus.samplers or None)),
    ConfigKey(
        "--gpus", f"{_VERLS_ROLLOUT}.tensor_model_parallel_size", _layout(lambda gpus: gpus.tensor_parallel)
    ),
    ConfigKey("--gpus", f"{_VERLS_ROLLOUT}.gpu_memory_utilization", _layout(lambda gpus: gpus.memory_share)),
    ConfigKey("--gpus", f"{_VERLS_ROLLOUT}.max_model_len", lambda run: run.gpus and run.context),
    *(
        ConfigKey("--gpus", f"{_VERLS_ACTOR}.fsdp_config.{part}_offload", _layout(lambda it: it.is_offloaded))
        for part in ("param", "optimizer")
    ),
)
"""Keys that `--gpus` sets on verl."""

TABLE: Mapping[Backend, Sequence[ConfigKey]] = {
    "tinker": (
        *_SERVICE,
        *_EVERYWHERE,
        ConfigKey("--out", "training.default_local_dir", lambda run: run.folder),
        ConfigKey("--resume", "training.resume_mode", lambda run: _resume_mode(run)),
        ConfigKey("model.base_url", "tinker_base_url", lambda run: _base_url(run)),
        ConfigKey("model.name", "rollout_engine.renderer_name", lambda run: renderer(run.plan.spec.model)),
        ConfigKey("model.name", "training.max_length", lambda run: run.context),
        ConfigKey("train.lora.attention", "model.train_attn", lambda run: run.policy.lora.attention),
        ConfigKey("train.lora.mlp", "model.train_mlp", lambda run: run.policy.lora.mlp),
        ConfigKey("train.lora.unembed", "model.train_unembed", lambda run: run.policy.lora.unembed),
        _PRECOMPUTED,
    ),
    "verl": (
        *_RLLMS_OWN,
        *_EVERYWHERE,
        *_ROLLOUTS,
        ConfigKey("--out", "trainer.default_local_dir", lambda run: run.folder),
        ConfigKey("--resume", "trainer.resume_mode", lambda run: _resume_mode(run)),
        ConfigKey("model.name", "actor_rollout_ref.model.path", lambda run: model_name(run.plan.spec.model)),
        ConfigKey("train.lora.rank", "actor_rollout_ref.model.lora_rank", lambda run: run.policy.lora.rank),
        # The scale of our own trainer and of hosted Tinker, which the rate is chosen for; verl has 16.
        ConfigKey("train.lora.rank", "actor_rollout_ref.model.lora_alpha", lambda _: 32),
        ConfigKey("train.batch_size", f"{_VERLS_ACTOR}.ppo_mini_batch_size"),
        # verl refuses a config that says neither how many sequences nor how many tokens a pass has.
        ConfigKey("", f"{_VERLS_ACTOR}.use_dynamic_bsz", lambda _: True),
        # A pass has as many tokens as by verl's own default, or a whole context that is longer.
        ConfigKey(
            "model.name",
            f"{_VERLS_ACTOR}.ppo_max_token_len_per_gpu",
            lambda run: max(min(16_384, run.gpus.longest if run.gpus else 16_384), run.context or 0),
        ),
        ConfigKey("", f"{_VERLS_ROLLOUT}.name", lambda _: "vllm"),
        *_VERLS_GPUS,
        ConfigKey("train.learning_rate", f"{_VERLS_ACTOR}.optim.lr", lambda run: run.rate),
        ConfigKey("train.schedule.floor", f"{_VERLS_ACTOR}.optim.min_lr_ratio"),
        ConfigKey("train.gradient_clip", f"++{_VERLS_ACTOR}.optim.clip_grad"),
    ),
    "fireworks": (
        *_SERVICE,
        *_EVERYWHERE,
        ConfigKey("model.base_url", "fireworks_base_url", lambda run: _base_url(run)),
        ConfigKey("train.gradient_clip", "training.grad_clip_norm"),
    ),
    "custom": (
        *_EVERYWHERE,
        *_ROLLOUTS,
        ConfigKey("model.name", "++model.name", lambda run: model_name(run.plan.spec.model)),
        _PRECOMPUTED,
    ),
}
"""Keys that a spec sets on each backend.

Two parts of a spec are no keys: `train.validation.tasks` cuts the validation rows, and `roles` become the
workflow.
"""


def overrides(run: Launch) -> dict[str, Value]:
    """Return the keys of rLLM's config that a run sets, with their values, in the order of `TABLE`."""
    rows = [*TABLE[run.backend], *(ASYNCHRONOUS if run.train.staleness else ())]
    values = ((row.key, row.value(run) if row.value else attrgetter(row.spec)(run.plan.spec)) for row in rows)
    return {key: value for key, value in values if value is not None}


def folder_of(ref: ModelRef) -> Path | None:
    """Return the folder of a local model; None for another provider's model."""
    return model_folder(ref.name).resolve() if ref.provider == "local" else None


def context_in(folder: Path | None) -> int | None:
    """Return the context in tokens from a model folder's `config.json`; None if the file does not say."""
    try:
        config: Any = read_json(folder / "config.json") if folder is not None else {}
        sizes = (table.get("max_position_embeddings") for table in (config, config.get("text_config", {})))
        return next((size for size in sizes if isinstance(size, int)), None)
    except (OSError, ValueError, AttributeError):
        return None


def model_name(ref: ModelRef) -> str | None:
    """Return the name of a model under rLLM: the model's name, or the folder of a local model."""
    folder = folder_of(ref)
    return ref.name if folder is None else str(folder)


def renderer(ref: ModelRef) -> str | None:
    """Return the renderer of a shipped model; None for other models, which tinker-cookbook knows by a public
    name only."""
    return RENDERER if ref.provider == "local" and (ref.name or BASE_NAME) in MODELS else None


def split_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split overrides by their prefixes into (overrides of the spec, overrides of rLLM's config)."""
    for_rllm = [word for word in words if word.startswith(RLLM_PREFIXES)]
    return [word for word in words if not word.startswith(RLLM_PREFIXES)], for_rllm


def hydra_words(run: Launch, without: Collection[str] = ()) -> list[str]:
    """Return the keys that a run sets, without some, as overrides in hydra's syntax.

    Args:
        run: The run.
        without: Keys to leave out.
    """
    values = {key: value for key, value in overrides(run).items() if key not in without}
    # A custom backend has no config in rLLM, whose default is another.
    return [*(["~rllm/backend"] if run.backend == "custom" else []), *as_hydra(values)]


def as_hydra(values: Mapping[str, Value]) -> list[str]:
    """Return overrides in hydra's syntax, quoted where its grammar asks for it."""
    return [f"{key}={_hydra_value(value)}" for key, value in values.items()]


def _hydra_value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if re.fullmatch(r"[A-Za-z_/][\w./-]*", value):
            return value
        return "'" + re.sub(r"(\\*)'", r"\1\1\\'", value) + "'"
    if isinstance(value, Sequence):
        return f"[{','.join(map(_hydra_value, value))}]"
    return repr(value)


def _longest_answer(run: Launch) -> int:
    return max(role.max_tokens for role in run.plan.asking)


def _longest_prompt(run: Launch) -> int | None:
    """Return the longest prompt in tokens that leaves room for an answer; None for rLLM's default."""
    is_service = TRAITS[run.backend].is_service
    if run.context is None:
        # trainer/config/rllm/backend/tinker.yaml, data.max_prompt_length, and fireworks.yaml.
        return 30_720 if is_service else None
    # A service's engine cuts answers to the rest of the context: it keeps one token back, and needs one to
    # answer with. verl does not cut them.
    reserved_tokens = 2 if is_service else _longest_answer(run)
    return max(1, run.context - reserved_tokens)


def _epochs(run: Launch) -> int:
    return math.ceil(run.steps / max(1, run.rows // run.train.batch_size))


def _base_url(run: Launch) -> str | None:
    return run.base_url or run.plan.spec.model.base_url


def _resume_mode(run: Launch) -> str:
    return "auto" if run.resume else "disable"


def _test_freq(run: Launch) -> int:
    return (run.train.validation.every or run.steps) if "validation" in run.plan.data else -1
