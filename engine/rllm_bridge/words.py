"""Words for rLLM that its trainer takes without a murmur and does nothing with.

Its capability matrix (`docs/training/capability-matrix.mdx`) lists most of them; each was looked up in the
code at the commit that the extra `rllm` pins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.backends import BACKENDS, Backend
from engine.rllm_bridge.config import TABLE
from engine.spec import Finding, Place

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


def word_findings(words: Sequence[str], backend: Backend) -> Iterator[Finding]:
    """A warning for each word without effect, an error for one that would undo what the spec says."""
    keys = ((row.key(backend), row.spec) for row in TABLE if row.spec.startswith("train"))
    ours = {key.lstrip("+~"): spec for key, spec in keys if key is not None}
    for word in words:
        key, _, value = word.partition("=")
        key = key.lstrip("+~")
        place = Place("command line", line=1, column=1, text=word, width=len(word.partition("=")[0]))
        for idle, (backends, reason) in IDLE.items():
            if backend in backends and (key == idle or key.startswith(f"{idle}.")):
                message = f"{key} has no effect: {reason}"
                yield Finding((), message, hint="leave it out", severity="warning", place=place)
        if key in LOST:
            hint = f"rllm.{key}={value}"
            yield Finding((), f"rllm.{key} overwrites {key} when the trainer starts", "", hint, place=place)
        elif key in ("rllm/backend", "rllm.backend"):
            yield Finding((), "the backend is chosen by its flag", f"--backend {value}", place=place)
        elif key.startswith("rllm.algorithm.adv_estimator"):
            message = "each role's estimator is in the spec, and goes before this one"
            yield Finding((), message, "roles.ROLE.estimator=…", place=place)
        elif key in ours:
            message = f"{key} goes before what the spec says in {ours[key]}"
            yield Finding((), message, severity="warning", place=place)
