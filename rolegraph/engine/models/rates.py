"""Learning rate of a policy: the spec's, or the rate that follows the size of its model.

The rule is that of tinker-cookbook (`get_lora_lr_multiplier` in `hyperparam_utils.py`): the best rate of an
adapter is proportional to 1/√N for a model of N parameters. One measured rate sets its scale: 0.002 for the
shipped base model. The cookbook's `get_lr`, which goes by the hidden size, gives 13 to 20 times as much for
models of 8 and 9 billion parameters. docs/training/learning_rate.md has the table of rates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import NamedTuple

from rolegraph.engine.compile import Plan, PolicyPlan
from rolegraph.engine.errors import RolegraphError
from rolegraph.engine.models.checkpoints import with_base
from rolegraph.engine.records.jsonl import read_json
from rolegraph.engine.records.weights import base_of_adapter
from rolegraph.engine.shipped import BASE_NAME, model_folder
from rolegraph.engine.spec import Finding, ModelRef

BASE_RATE = 0.002
"""Learning rate for the shipped base model, chosen among rates of 0.0005 to 0.004 in docs/results.md."""
BASE_PARAMETERS = 1_000_000
"""Number of parameters of the shipped base model."""
UNKNOWN_RATE = 1e-4
"""Learning rate for a model whose size is not known."""
FAR = 10.0
"""Ratio between a spec's rate and the rule's beyond which a warning is given."""
_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of a parameter by the `dtype` of a model's config."""
_SIZE = re.compile(r"(?<![\w.])(\d{1,4}(?:\.\d{1,3})?)([bm])(?![a-z0-9])", re.IGNORECASE)


class PolicyRate(NamedTuple):
    """Learning rate of a policy before the schedule, and its origin."""

    value: float
    fitting: float | None
    """Learning rate that the rule gives for the model's size; None if the size is not known."""
    given: bool
    """True if the spec gives the rate."""
    model: str
    """Name of the model."""
    parameters: int | None
    """Approximate number of the model's parameters; None if not known."""

    @property
    def is_far(self) -> bool:
        """True if the spec's learning rate is over ten times, or under a tenth, of the rate by the rule."""
        return self.fitting is not None and not 1 / FAR <= self.value / self.fitting <= FAR

    @property
    def origin(self) -> str:
        """Origin of the rate, for messages."""
        if self.given:
            return "of the spec"
        if self.parameters is None:
            return f"as the size of {self.model} is not known"
        return f"by the size of {self.model}, {_amount(self.parameters)} parameters"

    def __str__(self) -> str:
        return f"{self.value:g} ({self.origin})"


def rate_for(parameters: int) -> float:
    """Return the learning rate for a model, rounded to two digits.

    Args:
        parameters: Number of the model's parameters, at least 1.

    Returns:
        0.002 × √(1,000,000 / parameters): 0.002 for the shipped base model, 0.00017 for 135 million
        parameters, 0.000022 for 8 billion.
    """
    return float(f"{BASE_RATE * math.sqrt(BASE_PARAMETERS / parameters):.2g}")


def policy_rate(policy: PolicyPlan) -> PolicyRate:
    """Return the learning rate of a policy.

    Args:
        policy: The policy. The size of a model folder is that of its weights' files, which are not read; the
            size of any other model is taken from its name, as in `Qwen/Qwen3-8B`.
    """
    try:
        ref = with_base(policy.model)
    except RolegraphError:  # opening the model gives the reason
        ref = policy.model
    parameters = parameter_count(ref)
    fitting_rate = rate_for(parameters) if parameters else None
    value = policy.learning_rate or fitting_rate or UNKNOWN_RATE
    return PolicyRate(value, fitting_rate, policy.learning_rate is not None, _short_name(ref), parameters)


def policy_rates(plan: Plan) -> Mapping[str, PolicyRate]:
    """Return the learning rate of each trained policy of a plan, by the policy's name."""
    return {name: policy_rate(policy) for name, policy in plan.policies.items()}


def rate_findings(plan: Plan) -> Iterator[Finding]:
    """Warn of learning rates in a spec that do not suit the size of their model."""
    for name, rate in policy_rates(plan).items():
        if not rate.is_far or rate.fitting is None or rate.parameters is None:
            continue
        ratio = rate.value / rate.fitting
        times = f"{ratio:.0f} times" if ratio > 1 else f"1/{1 / ratio:.0f} of"
        message = (
            f"the learning rate {rate.value:g} is {times} the {rate.fitting:g} that suits {rate.model} "
            f"({_amount(rate.parameters)} parameters)"
        )
        yield Finding(
            _path_of(plan, name),
            message,
            "",
            "leave it out to follow the model's size",
            "warning",
            at_key=True,
        )


def lower_rates(plan: Plan, roles: Sequence[str]) -> list[str]:
    """Return overrides that lower the learning rates of roles whose training diverged.

    Args:
        plan: The plan.
        roles: The roles.

    Returns:
        An override for each key of the spec, such as `train.learning_rate=0.002`: the rule's rate for the
        model if the spec's is higher, else a quarter of the present rate.
    """
    rates = policy_rates(plan)
    overrides: dict[str, str] = {}
    for policy in dict.fromkeys(policy for role in roles for policy in sorted(plan.policies_of(role))):
        r = rates[policy]
        new_rate = r.fitting if r.fitting and r.value > 1.5 * r.fitting else float(f"{r.value / 4:.1g}")
        key = ".".join(_path_of(plan, policy))
        overrides.setdefault(key, f"{key}={new_rate:g}")
    return [*overrides.values()]


def _path_of(plan: Plan, policy: str) -> tuple[str, ...]:
    """Return the path of the spec's key that sets the learning rate of a policy."""
    has_own_rate = policy in plan.spec.policies and plan.spec.policies[policy].learning_rate is not None
    return ("policies", policy, "learning_rate") if has_own_rate else ("train", "learning_rate")


def parameter_count(ref: ModelRef) -> int | None:
    """Return the approximate number of parameters of a model, without reading its weights.

    Returns:
        The size of the weights' files divided by the bytes of a parameter; for a model that is not a folder
        of this machine, the number in its name. None without either.
    """
    folder = model_folder(ref.name) if ref.provider == "local" else None
    if folder is not None and folder.is_dir():
        return _count_in(folder)
    match = _SIZE.search(ref.name or "")
    if match is None:
        return None
    return round(float(match[1]) * (1e9 if match[2] in "bB" else 1e6)) or None


def _count_in(folder: FilePath) -> int | None:
    try:
        folder = base_of_adapter(folder) or folder
        config = read_json(folder / "config.json")
        dtype = config.get("dtype") or config.get("torch_dtype")
        size = sum(file.stat().st_size for file in folder.glob("model*.safetensors"))
    except (OSError, ValueError, AttributeError, RolegraphError):  # opening the model gives the reason
        return None
    return size // _BYTES.get(str(dtype), 4) or None


def _short_name(ref: ModelRef) -> str:
    """Return the name of a model without its folders and the organisation before it."""
    if ref.name is None:
        return BASE_NAME if ref.provider == "local" else "the service's model"
    return ref.name.rstrip("/").rpartition("/")[2] or ref.name


def _amount(count: int) -> str:
    """Format a large number in words, such as `135 million`."""
    for size, word in ((10**9, "billion"), (10**6, "million")):
        if count >= size:
            return f"{count / size:.3g} {word}"
    return f"{count:,}"
