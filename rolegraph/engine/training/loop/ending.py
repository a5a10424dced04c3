"""Conditions that end a training before its last planned step: `train.stop`, and the command's budget.
Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rolegraph.engine.errors import UsageError
from rolegraph.engine.spec import Train
from rolegraph.engine.training.advantages.group_metrics import Metrics
from rolegraph.engine.training.analysis.divergence import steps_of_rl

_TOKENS = re.compile(r"(\d+(?:\.\d+)?)([kMG]?)-tokens", re.ASCII)
_DOLLARS = re.compile(r"\$(\d+(?:\.\d+)?)", re.ASCII)
_TIME = re.compile(r"(?=\d)(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
_SIZES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


class Usage(NamedTuple):
    """Tokens, prompts included, seconds and dollars of a command or of one of its steps."""

    tokens: float
    seconds: float
    dollars: float = 0.0

    def since(self, before: Usage) -> Usage:
        """Return the usage since an earlier measurement: this usage minus `before`."""
        return Usage(*(amount - amount_before for amount, amount_before in zip(self, before, strict=True)))


class Budget(NamedTuple):
    """Limit on what one command may use; None is no limit."""

    tokens: float | None = None
    seconds: float | None = None
    dollars: float | None = None

    @classmethod
    def parse(cls, text: str | None) -> Budget:
        """Parse the budget of a command line; None is no limit.

        Args:
            text: Tokens, such as `2M-tokens` or `500k-tokens`, a time, such as `30m`, `1h30m` or `90s`, or
                dollars, such as `$5`.

        Raises:
            UsageError: The text has another form.
        """
        if text is None:
            return NO_BUDGET
        if tokens := _TOKENS.fullmatch(text):
            return cls(tokens=float(tokens[1]) * _SIZES[tokens[2]])
        if time := _TIME.fullmatch(text):
            hours, minutes, seconds = (float(amount or 0) for amount in time.groups())
            return cls(seconds=(hours * 60 + minutes) * 60 + seconds)
        if dollars := _DOLLARS.fullmatch(text):
            return cls(dollars=float(dollars[1]))
        raise UsageError(
            f"not a budget: {text!r}; expected tokens as in 2M-tokens, a time as in 30m or 1h30m, or dollars "
            "as in '$5'"
        )

    def allows(self, used: Usage, step: Usage) -> bool:
        """Return True if another step like the latest stays within the budget.

        Args:
            used: Usage of the command so far.
            step: Usage of its latest step.
        """
        limits = zip(self, used, step, strict=True)
        return all(limit is None or total + cost <= limit for limit, total, cost in limits)


NO_BUDGET = Budget()


def stalled(lines: Sequence[Metrics], train: Train) -> str | None:
    """Return the reason why `train.stop` ends a training after its latest step; None to continue.

    Args:
        lines: Metrics of all steps so far; those of a validation have its metrics. Steps of an imitation
            stage do not count, so that RL follows in any case.
        train: The spec's `train`.
    """
    if train.stop is None:
        return None
    name = train.validation.best
    measured_values = [
        (line["step"], line[f"validation/{name}"])
        for line in steps_of_rl(lines)
        if f"validation/{name}" in line
    ]
    if not measured_values:
        return None
    step, value = max(measured_values, key=lambda point: point[1])  # the first of equal ones
    steps_since_best = sum(later_step > step for later_step, _ in measured_values)
    if steps_since_best < train.stop:
        return None
    return f"{name} has not risen above {value:.3f} of step {step:.0f} in {steps_since_best} validations"
