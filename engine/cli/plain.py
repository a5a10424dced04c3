"""Text of models and tasks, and intervals, made fit for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolegraph import printable

if TYPE_CHECKING:
    from rolegraph import Interval


def plain(text: str, most: int = 300) -> str:
    """As a terminal may be given it, and cut where it is long."""
    kept = printable(text)
    return kept if len(kept) <= most else f"{kept[:most]} …"


def in_a_cell(interval: Interval | None, *, sign: str = "", mark: str = "") -> str:
    """A mean with its interval under it; `sign` is a `+` for differences, and `mark` stands at the mean."""
    if interval is None:
        return "–"
    form = f"{sign},.3f" if abs(interval.mean) < 10 else f"{sign},.1f"
    return f"{interval.mean:{form}}{mark}\n[{interval.low:{form}}, {interval.high:{form}}]"
