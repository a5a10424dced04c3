"""Overrides of rLLM's hydra config that follow from a plan. Pure, and without rLLM.

`TABLE` is the whole correspondence: each row says which part of a spec sets which key of each backend. A
backend without a key cannot do it, and `checks` reports that. The keys are those of `rllm/trainer/config` at
the commit that the extra `rllm` pins.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from rolegraph.engine.backends import Backend
from rolegraph.engine.compile import Plan, PolicyPlan
from rolegraph.engine.records import MAIN
from rolegraph.engine.records.jsonl import read_json
from rolegraph.engine.rllm_bridge.backends import TRAITS
from rolegraph.engine.rllm_bridge.estimators import deviation, is_precomputed
from rolegraph.engine.shipped import BASE_NAME, MODELS, model_folder
from rolegraph.engine.spec import ModelRef, Sampling, Train

Value = str | bool | int | float | Sequence[str]

RENDERER = "qwen3_instruct"
"""tinker-cookbook's renderer with the shipped models' chat template (ChatML), token for token."""
RLLM_PREFIXES = ("rllm.", "rllm/", "+", "~")
"""Prefixes of overrides for rLLM instead of the spec; `++key=value` reaches keys outside of `rllm`."""


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
    """Folder of the checkpoints; None leaves it to rLLM."""
    resume: bool = False
    trackers: Sequence[str] = ()
    base_url: str | None = None
    """URL of the model, if it is not the spec's."""
    context: int | None = None
    """Context of the model in tokens, prompt and answer together; None if unknown so far."""

    @property
    def train(self) -> Train:
        """The spec's `train`."""
        return self.plan.spec.train


@dataclass(frozen=True, slots=True)
class KeyMapping:
    """Part of a spec, its value, and the key that it sets on each backend; a value of None sets nothing."""

    spec: str
    value: Callable[[Launch], Value | None]
    _: KW_ONLY
    tinker: str | None = None
    verl: str | None = None
    fireworks: str | None = None
    custom: str | None = None

    def key(self, backend: Backend) -> str | None:
        """Return the key on a backend; None if the backend has none."""
        return getattr(self, backend)


def _everywhere(spec: str, value: Callable[[Launch], Value | None], key: str) -> KeyMapping:
    """Return a row with the same key on every backend."""
    return KeyMapping(spec, value, tinker=key, verl=key, fireworks=key, custom=key)


TABLE: tuple[KeyMapping, ...] = (
    # Of the run
    # A backend that is not rLLM's own has no config there: see `removals`.
    KeyMapping(
        "--backend",
        lambda run: run.backend,
        tinker="rllm/backend",
        verl="rllm/backend",
        fireworks="rllm/backend",
    ),
    _everywhere("name", lambda run: run.plan.name, "rllm.trainer.experiment_name"),
    _everywhere("", lambda run: "rolegraph", "rllm.trainer.project_name"),
    _everywhere("--track", lambda run: ("console", *run.trackers), "rllm.trainer.logger"),
    _everywhere("--seed", lambda run: run.seed, "rllm.data.seed"),
    KeyMapping(
        "--out", lambda run: run.folder, tinker="training.default_local_dir", verl="trainer.default_local_dir"
    ),
    KeyMapping(
        "--resume",
        lambda run: "auto" if run.resume else "disable",
        tinker="training.resume_mode",
        verl="trainer.resume_mode",
    ),
    # The model
    KeyMapping(
        "model.name",
        lambda run: model_name(run.plan.spec.model),
        tinker="model.name",
        verl="actor_rollout_ref.model.path",
        fireworks="model.name",
        custom="++model.name",
    ),
    KeyMapping(
        "model.base_url",
        lambda run: run.base_url or run.plan.spec.model.base_url,
        tinker="tinker_base_url",
        fireworks="fireworks_base_url",
    ),
    KeyMapping(
        "model.name", lambda run: renderer(run.plan.spec.model), tinker="rollout_engine.renderer_name"
    ),
    # rLLM's default of 2,048 would replace either backend's limit, and a longer prompt gets no answer.
    KeyMapping("model.name", lambda run: run.context, tinker="training.max_length"),
    KeyMapping(
        "model.name",
        lambda run: _longest_prompt(run),
        tinker="rllm.data.max_prompt_length",
        verl="rllm.data.max_prompt_length",
        fireworks="rllm.data.max_prompt_length",
        custom="rllm.data.max_prompt_length",
    ),
    KeyMapping(
        "train.lora.rank",
        lambda run: _policy(run).lora.rank,
        tinker="model.lora_rank",
        verl="actor_rollout_ref.model.lora_rank",
        fireworks="model.lora_rank",
    ),
    KeyMapping("train.lora.attention", lambda run: _policy(run).lora.attention, tinker="model.train_attn"),
    KeyMapping("train.lora.mlp", lambda run: _policy(run).lora.mlp, tinker="model.train_mlp"),
    KeyMapping("train.lora.unembed", lambda run: _policy(run).lora.unembed, tinker="model.train_unembed"),
    # Rollouts
    KeyMapping(
        "train.rollouts",
        lambda run: run.train.rollouts,
        tinker="training.group_size",
        verl="rllm.rollout.n",
        fireworks="training.group_size",
        custom="rllm.rollout.n",
    ),
    _everywhere("train.batch_size", lambda run: run.train.batch_size, "rllm.data.train_batch_size"),
    KeyMapping(
        "train.batch_size",
        lambda run: run.train.batch_size,
        verl="actor_rollout_ref.actor.ppo_mini_batch_size",
    ),
    _everywhere(
        "sampling.max_tokens",
        lambda run: _longest_answer(run),
        "rllm.data.max_response_length",
    ),
    _everywhere(
        "sampling.temperature", lambda run: _sampling(run).temperature, "rllm.rollout.train.temperature"
    ),
    _everywhere("sampling.top_p", lambda run: _sampling(run).top_p, "rllm.rollout.train.top_p"),
    _everywhere(
        "sampling.temperature", lambda run: _sampling(run).temperature, "rllm.rollout.val.temperature"
    ),
    _everywhere("sampling.top_p", lambda run: _sampling(run).top_p, "rllm.rollout.val.top_p"),
    # Learning
    # The asynchronous loop counts an update before it compares, and so ends one early.
    _everywhere(
        "train.steps, train.epochs",
        lambda run: run.steps + (run.train.staleness > 0),
        "rllm.trainer.total_batches",
    ),
    _everywhere("train.steps, train.epochs", lambda run: _epochs(run), "rllm.trainer.total_epochs"),
    KeyMapping(
        "train.learning_rate",
        lambda run: _policy(run).learning_rate,
        tinker="training.learning_rate",
        verl="actor_rollout_ref.actor.optim.lr",
        fireworks="training.learning_rate",
    ),
    _everywhere("train.schedule.kind", lambda run: run.train.schedule.kind, "rllm.algorithm.lr_schedule"),
    _everywhere(
        "train.schedule.warmup",
        lambda run: run.train.schedule.warmup or None,
        "rllm.algorithm.warmup_steps",
    ),
    KeyMapping(
        "train.schedule.floor",
        lambda run: run.train.schedule.floor,
        verl="actor_rollout_ref.actor.optim.min_lr_ratio",
    ),
    KeyMapping(
        "train.gradient_clip",
        lambda run: run.train.gradient_clip,
        verl="++actor_rollout_ref.actor.optim.clip_grad",
        fireworks="training.grad_clip_norm",
    ),
    _everywhere(
        "roles.*.estimator: {grpo: {std: …}}",
        lambda run: deviation(run.plan),
        "rllm.algorithm.norm_adv_by_std_in_grpo",
    ),
    KeyMapping(
        "roles.*.estimator: precomputed",
        lambda run: any(is_precomputed(role) for role in run.plan.trained.values()) or None,
        tinker="rllm.algorithm.use_precomputed_advantage",
        custom="rllm.algorithm.use_precomputed_advantage",
    ),
    # Staleness: rLLM's asynchronous loop takes tasks one by one, and a mini-batch of them makes an update
    _everywhere("train.staleness", lambda run: run.train.staleness > 0 or None, "rllm.async_training.enable"),
    _everywhere(
        "train.staleness",
        lambda run: run.train.staleness or None,
        "rllm.async_training.staleness_threshold",
    ),
    _everywhere(
        "train.batch_size",
        lambda run: run.train.batch_size if run.train.staleness else None,
        "rllm.async_training.mini_batch_size",
    ),
    _everywhere(
        "train.staleness",
        lambda run: False if run.train.staleness else None,
        "rllm.workflow.raise_on_error",
    ),
    # Measuring and keeping
    KeyMapping(
        "train.validation.rollouts",
        lambda run: run.train.validation.rollouts,
        tinker="validation.group_size",
        verl="rllm.rollout.n_val",
        fireworks="validation.group_size",
        custom="rllm.rollout.n_val",
    ),
    # 0 is before and after: rLLM measures after the last update only where test_freq is positive.
    _everywhere("train.validation.every", lambda run: _test_freq(run), "rllm.trainer.test_freq"),
    _everywhere("data.validation", lambda run: _validates(run), "rllm.trainer.val_before_train"),
    _everywhere("train.checkpoint_every", lambda run: run.train.checkpoint_every, "rllm.trainer.save_freq"),
)
"""`train.validation.tasks` cuts the validation rows themselves, and `roles` become the workflow."""


def overrides(run: Launch) -> dict[str, Value]:
    """Return the keys of rLLM's config that a run sets, with their values, in the table's order."""
    values = ((row.key(run.backend), row.value(run)) for row in TABLE)
    return {key: value for key, value in values if key is not None and value is not None}


def folder_of(ref: ModelRef) -> Path | None:
    """Return the folder of a local model; None for any other."""
    return model_folder(ref.name).resolve() if ref.provider == "local" else None


def context_in(folder: Path | None) -> int | None:
    """Return the context in tokens by a model folder's `config.json`; None if it does not say."""
    if folder is None:
        return None
    try:
        config: Any = read_json(folder / "config.json")
        length = config.get("max_position_embeddings")
        length = length or config.get("text_config", {}).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):
        return None
    return length if isinstance(length, int) else None


def model_name(ref: ModelRef) -> str | None:
    """Return a model's name under rLLM: its own, or the folder of a local model."""
    folder = folder_of(ref)
    return ref.name if folder is None else str(folder)


def renderer(ref: ModelRef) -> str | None:
    """Return the renderer of a shipped model; None for others, whose folder tinker-cookbook cannot match."""
    return RENDERER if ref.provider == "local" and (ref.name or BASE_NAME) in MODELS else None


def removals(run: Launch) -> list[str]:
    """Return the override that removes rLLM's default backend for a custom one, which has no config."""
    return ["~rllm/backend"] if run.backend == "custom" else []


def split_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split overrides into those of the spec and those of rLLM's config."""
    for_rllm = [word for word in words if word.startswith(RLLM_PREFIXES)]
    return [word for word in words if not word.startswith(RLLM_PREFIXES)], for_rllm


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
    return max(sampling.max_tokens for role in run.plan.asking for sampling in role.samplings)


def _longest_prompt(run: Launch) -> int | None:
    """Return the longest prompt in tokens that leaves room for an answer; None keeps rLLM's limit."""
    traits = TRAITS[run.backend]
    if run.context is None:
        return traits.max_prompt
    # A service's engine cuts answers to the rest of the context: it keeps one token back, and needs one to
    # answer with. verl does not cut them.
    reserved = 2 if traits.is_service else _longest_answer(run)
    return max(1, run.context - reserved)


def _sampling(run: Launch) -> Sampling:
    return next(iter(run.plan.trained.values()), run.plan.asking[0]).samplings[0]


def _policy(run: Launch) -> PolicyPlan:
    train = run.train
    return run.plan.policies.get(MAIN) or PolicyPlan(run.plan.spec.model, train.lora, train.learning_rate)


def _epochs(run: Launch) -> int:
    return math.ceil(run.steps / max(1, run.rows // run.train.batch_size))


def _validates(run: Launch) -> bool:
    return "validation" in run.plan.data


def _test_freq(run: Launch) -> int:
    return (run.train.validation.every or run.steps) if _validates(run) else -1
