"""Findings of the probes of a Tinker service, and the gradients that formulas of losses have."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rolegraph.engine.vocabulary import Floats

TOLERANCE = 0.1
"""Largest error of a change, relative to the expected one."""
_NATS = 0.02
"""Largest mean difference of log-probabilities that sampler and trainer give the same tokens."""


class ProbeFinding(NamedTuple):
    """Behaviour of a service, and whether it is the expected one."""

    seen: str
    ok: bool = True


def compared(change: Floats, expected: Floats) -> ProbeFinding:
    """Compare two changes of log-probabilities."""
    size = float(expected @ expected) or 1.0
    ratio = float(change @ expected) / size
    beside = float(np.linalg.norm(change - ratio * expected)) / size**0.5
    seen = f"{ratio:.2f} × the expected change"
    if beside > TOLERANCE:
        seen += f", and {beside:.2f} × in other directions"
    return ProbeFinding(seen, abs(ratio - 1) <= TOLERANCE and beside <= TOLERANCE)


def agreement(found: Floats, expected: Floats) -> ProbeFinding:
    """Compare log-probabilities of the same tokens."""
    if len(found) != len(expected):
        return ProbeFinding(f"{len(found)} in place of {len(expected)} log-probabilities", False)
    apart = float(np.abs(found - expected).mean())
    return ProbeFinding(f"{apart:.1e} nats apart in the mean", apart <= _NATS)


def tiled(values: Sequence[float], count: int) -> Floats:
    """Return `count` values that repeat a pattern."""
    return np.array([*itertools.islice(itertools.cycle(values), count)])


def thresholds(low: float, high: float) -> Mapping[str, float]:
    """Return the settings of a clipped loss."""
    return {"clip_low_threshold": low, "clip_high_threshold": high}


def coefficients(loss: str, ratios: Floats, advantages: Floats, low: float, high: float) -> Floats:
    """Return the negated gradient of a loss by each log-probability [T]; `low` is the beta of dro."""
    match loss:
        case "ppo":
            clipped = (advantages > 0) & (ratios > high) | (advantages < 0) & (ratios < low)
            return np.where(clipped, 0.0, ratios * advantages)
        case "gspo":
            sequence = np.full(len(ratios), np.exp(np.log(ratios).mean()))
            return coefficients("ppo", sequence, advantages, low, high)
        case "cispo":
            return np.clip(ratios, low, high) * advantages
        case "dro":
            return advantages - low * np.log(ratios)
        case _:
            return ratios * advantages
