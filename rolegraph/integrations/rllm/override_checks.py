"""Checks of overrides of rLLM's config: settings that are overwritten, late failures, keys without effect.

When the config is composed, hydra refuses unknown keys and wrong types; these checks find faults that hydra
accepts. Each was read in rLLM at the commit that the group `rllm` pins; paths in comments are below `rllm/`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml

from rolegraph.engine.compile import RolePlan
from rolegraph.engine.errors import did_you_mean
from rolegraph.engine.spec import Finding, Place
from rolegraph.engine.spec.diagnostics import Severity
from rolegraph.integrations.rllm.backends import BackendTraits
from rolegraph.integrations.rllm.config import ASYNCHRONOUS, TABLE

OVERWRITTEN = frozenset(
    f"data.{key}"
    for key in ("train_batch_size", "val_batch_size", "max_prompt_length", "max_response_length")
)
"""Keys that `rllm.data.*` overwrites when the trainer starts (`trainer/*/utils.py`, sync_config)."""
ROLLOUTS = frozenset({"rllm.rollout.n", "training.group_size"})
"""Keys that set the number of rollouts of a task."""
UNLISTED = ("rllm.rollout.train.", "rllm.rollout.val.", "rllm.transform.", "rllm.rejection_sample.mode")
"""Beginnings of keys that rLLM reads although its config does not list them."""


@dataclass(frozen=True, slots=True)
class ConfigOverride:
    """One `key=value` override of rLLM's config from the command line."""

    text: str

    @property
    def key(self) -> str:
        """Key without hydra's prefixes `+` and `~`."""
        return self.text.partition("=")[0].lstrip("+~")

    @property
    def value(self) -> object:
        """Value parsed as YAML, whose scalars are almost hydra's."""
        value_text = self.text.partition("=")[2]
        try:
            return yaml.safe_load(value_text)
        except yaml.YAMLError:
            return value_text

    def finding(
        self, message: str, expected: str = "", hint: str = "", severity: Severity = "error"
    ) -> Finding:
        """Return a finding that points at this override."""
        width = len(self.text.partition("=")[0])
        place = Place("command line", line=1, column=1, text=self.text, width=width)
        return Finding((), message, expected, hint, severity, place=place)

    def warning(self, message: str, hint: str = "") -> Finding:
        """Return a warning that points at this override of rLLM's config."""
        return self.finding(message, "", hint, "warning")


def override_findings(
    overrides: Sequence[str],
    traits: BackendTraits,
    smallest: RolePlan | None,
    known_keys: Collection[str] | None = None,
) -> Iterator[Finding]:
    """Yield a warning for each override without effect, and an error for each override that trains wrongly.

    Args:
        overrides: Overrides of rLLM's config, as written.
        traits: Traits of the backend.
        smallest: The trained role with the fewest instances; None if no role is trained.
        known_keys: Keys of the installed rLLM's config; None to skip the check of keys added with `+`.
    """
    rows = [*TABLE[traits.name], *ASYNCHRONOUS]
    spec_of_key = {row.key.lstrip("+"): row.spec for row in rows if row.spec.startswith("train")}
    parsed_overrides = [ConfigOverride(text) for text in overrides]
    values = {override.key: override.value for override in parsed_overrides}
    for override in parsed_overrides:
        key = override.key
        for idle, reason in traits.idle.items():
            if key == idle or key.startswith(f"{idle}."):
                yield override.warning(f"{key} has no effect: {reason}", "leave it out")
        if known_keys is not None and override.text.startswith("+") and key.startswith("rllm."):
            # With `+` hydra adds the key, and nothing reads it.
            is_known = any(f"{name}.".startswith(f"{key}.") for name in known_keys)
            if not (is_known or key.startswith(UNLISTED)):
                yield override.warning(f"rLLM has no key {key}", did_you_mean(key, known_keys))
        if findings := [*_of_value(override, values, traits, smallest)]:
            yield from findings
        elif key in OVERWRITTEN:
            hint = f"rllm.{override.text.lstrip('+~')}"
            yield override.finding(f"rllm.{key} overwrites {key} when the trainer starts", "", hint)
        elif key in ("rllm/backend", "rllm.backend"):
            yield override.finding("the backend is chosen by its flag", f"--backend {override.value}")
        elif key.startswith("rllm.algorithm.adv_estimator"):
            message = "each role's estimator is in the spec, and overrides this one"
            yield override.finding(message, "roles.ROLE.estimator=…")
        elif key in spec_of_key:
            yield override.warning(f"{key} overrides the spec's {spec_of_key[key]}")


def _of_value(
    override: ConfigOverride,
    values: Mapping[str, object],
    traits: BackendTraits,
    smallest: RolePlan | None,
) -> Iterator[Finding]:
    """Yield a finding if the value of an override breaks an assumption of the spec, such as the group
    size."""
    key, value = override.key, override.value
    match key:
        case "rllm.algorithm.loss_fn" if value is not None and traits.losses is not None:
            if value not in traits.losses:
                message = f"{traits.name} has no loss {value}: {traits.unknown_loss}"
                hint = did_you_mean(str(value), traits.losses)
                yield override.finding(message, ", ".join(sorted(traits.losses)), hint)
            elif traits.name == "tinker":
                # trainer/tinker/tinker_policy_trainer.py: before the loss that goes with each estimator.
                message = f"{key} overrides the loss that each role has by its estimator"
                yield override.warning(message, "roles.ROLE.loss=…")
        case _ if key in ROLLOUTS and isinstance(value, int) and smallest is not None:
            if smallest.count * value < 2 and values.get("rllm.rejection_sample.min_trajs_per_group") != 1:
                yield override.finding(*single_member(smallest.name))
        case "rllm.rejection_sample.multiplier" if isinstance(value, (int, float)) and value != 1:
            # trainer/unified_trainer.py: a batch of int(train_batch_size * multiplier) tasks.
            if value < 1:
                message = "rLLM would take that part of a batch: no task at all for 0"
                yield override.finding(message, "at least 1")
            elif values.get("rllm.rejection_sample.enable") is not True:
                message = "rLLM stops at a multiplier without rejection sampling"
                yield override.finding(message, "rllm.rejection_sample.enable=true beside it")
        case "rllm.compact_filtering.mask_env_done" if value is True:
            if values.get("rllm.compact_filtering.enable") is True:
                # An episode that ends normally is ENV_DONE, and there are few others.
                message = "this drops every episode that ends normally, and rLLM would train nothing"
                yield override.finding(message, "false")
            else:
                message = f"{key} has no effect: compact_filtering.enable is false"
                yield override.warning(message, "leave it out")
        case "rllm.trainer.save_freq" if isinstance(value, int) and value <= 0:
            hint = "train.checkpoint_every of at least 1"
            if value == 0 and traits.name == "tinker":  # trainer/tinker/tinker_backend.py, on_train_end
                message = "tinker divides by it after the last update, and keeps no checkpoint"
                yield override.finding(message, hint)
            else:
                message = f"{traits.name} then keeps no checkpoint, not even of the last update"
                yield override.finding(message, hint, severity="warning")
        case _ if key.endswith("n_gpus_per_node") and isinstance(value, int) and value < 1:
            yield override.finding("Ray would wait for workers without a GPU, for ever", "at least 1")
        case _:
            pass


def single_member(role: str) -> tuple[str, str, str]:
    """Return (message, expected, hint) for a role whose groups would have one member."""
    # trainer/algorithms/rejection_sampling.py, filter_groups, and trainer/buffer.py.
    return (
        f"rLLM drops groups of one member, and {role}'s have no more: it would train nothing of that role",
        "count × rollouts of at least 2",
        "or rllm.rejection_sample.min_trajs_per_group=1",
    )
