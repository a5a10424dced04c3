"""Smallest and largest values of rewards, and their arithmetic. Pure."""

from __future__ import annotations

from math import inf, isnan

Bounds = tuple[float, float]
"""Smallest and largest value; an infinity means no bound."""
UNIT: Bounds = (0.0, 1.0)
"""Bounds of a share (0 to 1), and of a bool as a number."""
COUNT: Bounds = (0.0, inf)
"""Bounds of a count, such as a number of tokens or of calls."""


def scaled(bounds: Bounds, factor: float) -> Bounds:
    """Return the bounds of `factor * value` from the bounds of the value."""
    low, high = sorted(0.0 if isnan(factor * end) else factor * end for end in bounds)
    return low, high


def added(one: Bounds, other: Bounds) -> Bounds:
    """Return the bounds (low, high) of the sum of two bounded values."""
    return one[0] + other[0], one[1] + other[1]


def union(one: Bounds, other: Bounds) -> Bounds:
    """Return the smallest bounds (low, high) that contain both."""
    return min(one[0], other[0]), max(one[1], other[1])


def product(one: Bounds, other: Bounds) -> Bounds:
    """Return the bounds (low, high) of the product of two bounded values."""
    return union(union(scaled(one, other[0]), scaled(one, other[1])), (inf, -inf))


def quotient(one: Bounds, other: Bounds) -> Bounds | None:
    """Return the bounds (low, high) of `one / other`; None where `other` may be 0."""
    if other[0] <= 0 <= other[1]:
        return None
    return product(one, (1 / other[1], 1 / other[0]))
