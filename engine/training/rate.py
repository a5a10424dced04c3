"""The learning rate of a step."""

from __future__ import annotations

import math

from rolegraph.engine.spec import Schedule


def scheduled(schedule: Schedule, rate: float, step: int, steps: int) -> float:
    """The rate of step `step` (from 1) of `steps`: up from 0 in the warm-up, then by the schedule."""
    if step <= schedule.warmup:
        return rate * step / schedule.warmup
    done = (step - 1 - schedule.warmup) / max(1, steps - 1 - schedule.warmup)
    match schedule.kind:
        case "constant":
            left = 1.0
        case "linear":
            left = 1.0 - done
        case "cosine":
            left = (1.0 + math.cos(math.pi * done)) / 2
    return rate * (schedule.floor + (1.0 - schedule.floor) * left)
