"""`Limit`, the largest permitted amount of one thing."""

from __future__ import annotations

from typing import NamedTuple


class Limit(NamedTuple):
    """The largest permitted amount of one thing."""

    name: str
    """Name of the limit in messages."""
    most: int
    """Largest permitted number."""
    unit: str
    """Unit of `most`; empty for a bare number."""
    why: str
    """Subject of the limit, and the reason for its size."""

    def exceeded(self, subject: str) -> str:
        """Return `subject` followed by "more than 64 calls (limit: answer_calls)"."""
        return f"{subject} more than {self}"

    def __str__(self) -> str:
        """Return the amount with the name of the limit: `64 calls (limit: answer_calls)`."""
        return f"{self.size} ({self.label})"

    @property
    def size(self) -> str:
        """Amount with its unit, such as `64 calls`."""
        return f"{self.most:{',' if self.most < 10**15 else '.2g'}} {self.unit}".rstrip()

    @property
    def label(self) -> str:
        """Name for the end of a message that states the amount itself: `limit: answer_calls`."""
        return f"limit: {self.name}"
