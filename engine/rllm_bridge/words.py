"""Words for rLLM that would undo what a spec says, stop the run late, or do nothing: said before it starts.

rLLM's capability matrix (`docs/training/capability-matrix.mdx`) lists most of those without effect; each was
looked up in the code at the commit that the extra `rllm` pins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from rolegraph.engine.backends import BACKENDS, Backend
from rolegraph.engine.errors import did_you_mean
from rolegraph.engine.rllm_bridge.config import TABLE
from rolegraph.engine.spec import Finding, Place
from rolegraph.engine.spec.diagnostics import Severity

IDLE: dict[str, tuple[tuple[Backend, ...], str]] = {
    "rllm.algorithm.kl_beta": (
        ("tinker",),
        "tinker reports the KL divergence, but never adds it to the loss",
    ),
    "rllm.algorithm.eps_clip": (("tinker",), "tinker clips as its service does"),
    "rllm.algorithm.eps_clip_high": (("tinker",), "tinker clips as its service does"),
    "rllm.algorithm.loss_agg_mode": (("tinker",), "tinker sums over each sequence, whatever this says"),
    "rllm.algorithm.rollout_correction": (("tinker",), "nothing of tinker's reads it"),
    "rllm.mask_truncated_samples": (("tinker", "fireworks"), "only verl reads it"),
    "rllm.stepwise_advantage": (BACKENDS, "rLLM turns every mode into broadcast"),
    "rllm.filter_token_mismatch": (BACKENDS, "nothing reads it"),
    "rllm.workflow.workflow_args": (
        BACKENDS,
        "the trainer takes a workflow's arguments from Python, not from its config",
    ),
    "rllm.gateway": (BACKENDS, "a workflow asks the engine itself, not the gateway"),
    "rllm.agent": (BACKENDS, "a workflow has no agent"),
    "rllm.env": (BACKENDS, "a workflow has no environment"),
}
"""By key or beginning of a key: the backends where it does nothing, and why."""
LOST = ("data.train_batch_size", "data.val_batch_size", "data.max_prompt_length", "data.max_response_length")
"""Keys that `rllm.data.*` overwrites when the trainer starts (`trainer/*/utils.py`, sync_config)."""
LOSSES: Mapping[Backend, frozenset[str]] = {
    # trainer/tinker/tinker_policy_trainer.py, TINKER_KNOWN_LOSSES, without cross_entropy: its datums have no
    # weights.
    "tinker": frozenset({"importance_sampling", "ppo", "cispo", "dro"}),
    # What `register_policy_loss` names in verl 0.8, trainer/ppo/core_algos.py.
    "verl": frozenset(
        "vanilla dppo_tv dppo_kl gspo sapo gpg clip_cov kl_cov geo_mean cispo bypass_mode".split()
    ),
    # docs/backends/fireworks.mdx; grpo is what none stands for.
    "fireworks": frozenset({"grpo", "dapo", "cispo", "gspo"}),
}
"""What `rllm.algorithm.loss_fn` may be."""
ROLLOUTS = frozenset({"rllm.rollout.n", "training.group_size"})
"""Keys that say how often each task is tried."""
KEYS = Path(__file__).parent / "rllm_keys.txt"
"""Every key of `rllm/trainer/config/rllm/base.yaml`, one a line."""
ADDED = ("rllm.rollout.train", "rllm.rollout.val", "rllm.transform", "rllm.rejection_sample.mode")
"""Where rLLM reads keys that its config does not list, so that they come with `++`."""


@dataclass(frozen=True, slots=True)
class ConfigOverride:
    """`key=value` for rLLM, as it was written."""

    text: str

    @property
    def key(self) -> str:
        """Without the signs by which hydra adds and removes."""
        return self.text.partition("=")[0].lstrip("+~")

    @property
    def value(self) -> object:
        """What YAML makes of it, as hydra nearly does."""
        written = self.text.partition("=")[2]
        try:
            return yaml.safe_load(written)
        except yaml.YAMLError:
            return written

    def says(self, message: str, expected: str = "", hint: str = "", severity: Severity = "error") -> Finding:
        """A finding at this word."""
        width = len(self.text.partition("=")[0])
        place = Place("command line", line=1, column=1, text=self.text, width=width)
        return Finding((), message, expected, hint, severity, place=place)


@dataclass(frozen=True, slots=True)
class SmallestGroup:
    """The smallest group of a role in a batch: as many instances in each rollout."""

    role: str
    count: int


def word_findings(
    words: Sequence[str], backend: Backend, smallest: SmallestGroup | None
) -> Iterator[Finding]:
    """A warning for each word without effect, an error for one that would undo what the spec says.

    `smallest` is of the roles that are trained.
    """
    keys = ((row.key(backend), row.spec) for row in TABLE if row.spec.startswith("train"))
    ours = {key.lstrip("+~"): spec for key, spec in keys if key is not None}
    read = [ConfigOverride(word) for word in words]
    values = {word.key: word.value for word in read}
    for word in read:
        key = word.key
        for idle, (backends, reason) in IDLE.items():
            if backend in backends and (key == idle or key.startswith(f"{idle}.")):
                yield word.says(f"{key} has no effect: {reason}", hint="leave it out", severity="warning")
        yield from _misspelt(word, backend)
        fault = _fault(word, values, backend, smallest)
        if fault is not None:
            yield fault
        elif key in LOST:
            hint = f"rllm.{word.text.lstrip('+~')}"
            yield word.says(f"rllm.{key} overwrites {key} when the trainer starts", "", hint)
        elif key in ("rllm/backend", "rllm.backend"):
            yield word.says("the backend is chosen by its flag", f"--backend {word.value}")
        elif key.startswith("rllm.algorithm.adv_estimator"):
            message = "each role's estimator is in the spec, and goes before this one"
            yield word.says(message, "roles.ROLE.estimator=…")
        elif key in ours:
            message = f"{key} goes before what the spec says in {ours[key]}"
            yield word.says(message, severity="warning")


@cache
def known_keys() -> frozenset[str]:
    """The keys of rLLM's own config."""
    return frozenset(KEYS.read_text(encoding="utf-8").split())


def _misspelt(word: ConfigOverride, backend: Backend) -> Iterator[Finding]:
    """A key that rLLM has not got: hydra refuses it, or with `++` adds it, and nothing reads it."""
    key, known = word.key, known_keys()
    if not key.startswith("rllm.") or key in known or key == "rllm.backend":
        return
    if any(other.startswith(f"{key}.") for other in known):
        return
    if any(key.startswith(f"{section}.") or key == section for section in ADDED):
        there = backend == "fireworks" and key.endswith(".top_k")
        if not word.text.startswith("+") and not there:
            yield word.says(f"rLLM's config does not list {key}", f"++{word.text}")
        return
    severity = "warning" if word.text.startswith("+") else "error"
    yield word.says(f"rLLM has no key {key}", "", did_you_mean(key, known), severity)


def _fault(
    word: ConfigOverride, values: Mapping[str, object], backend: Backend, smallest: SmallestGroup | None
) -> Finding | None:
    """What a key's value would do, where it is not one that a person wants."""
    key, value = word.key, word.value
    match key:
        case "rllm.algorithm.loss_fn" if value is not None:
            return _loss_fault(word, backend)
        case _ if key in ROLLOUTS and isinstance(value, int) and smallest is not None:
            if smallest.count * value >= 2 or values.get("rllm.rejection_sample.min_trajs_per_group") == 1:
                return None
            return word.says(*alone(smallest.role))
        case "rllm.rejection_sample.multiplier" if isinstance(value, (int, float)) and value != 1:
            # trainer/unified_trainer.py: a batch of int(train_batch_size * multiplier) tasks.
            if value < 1:
                return word.says("rLLM would draw that part of a batch: no task at all for 0", "at least 1")
            if values.get("rllm.rejection_sample.enable") is not True:
                message = "rLLM stops at a multiplier without rejection sampling"
                return word.says(message, "rllm.rejection_sample.enable=true beside it")
        case "rllm.compact_filtering.mask_env_done" if value is True:
            if values.get("rllm.compact_filtering.enable") is True:
                # An episode that came to its end is ENV_DONE, and there are few others.
                message = "this drops every episode that came to its end, and rLLM would train nothing"
                return word.says(message, "false")
            message = f"{key} has no effect: compact_filtering.enable is false"
            return word.says(message, hint="leave it out", severity="warning")
        case "rllm.trainer.save_freq" if isinstance(value, int) and value <= 0:
            if value == 0 and backend == "tinker":
                # trainer/tinker/tinker_backend.py, on_train_end.
                message = "tinker divides by it after the last update, and keeps no checkpoint"
                return word.says(message, "train.checkpoint_every of at least 1")
            message = f"{backend} then keeps no checkpoint, not even of the last update"
            return word.says(message, "train.checkpoint_every of at least 1", severity="warning")
        case _ if key.endswith("n_gpus_per_node") and isinstance(value, int) and value < 1:
            return word.says("Ray would wait for workers without a GPU, for ever", "at least 1")
        case _:
            return None
    return None


def _loss_fault(word: ConfigOverride, backend: Backend) -> Finding | None:
    known = LOSSES.get(backend)
    if known is None:
        return None
    if word.value not in known:
        instead = {
            "tinker": "and would train by importance_sampling, after a line in its log",
            "verl": "and stops at the first update",
            "fireworks": "and stops when it starts",
        }
        expected = ", ".join(sorted(known))
        message = f"{backend} trains by no loss {word.value}, {instead[backend]}"
        return word.says(message, expected, did_you_mean(str(word.value), known))
    if backend == "tinker":
        # trainer/tinker/tinker_policy_trainer.py: before the loss that goes with each estimator.
        message = f"{word.key} goes before the loss that each role has by its estimator"
        return word.says(message, hint="roles.ROLE.loss=…", severity="warning")
    return None


def alone(role: str) -> tuple[str, str, str]:
    """Message, expectation and hint where a role's groups have one member."""
    # trainer/algorithms/rejection_sampling.py, filter_groups, and trainer/buffer.py.
    return (
        f"rLLM drops groups of one, and {role}'s group has no more: it would succeed and train nothing of it",
        "count × rollouts of at least 2",
        "or rllm.rejection_sample.min_trajs_per_group=1",
    )
