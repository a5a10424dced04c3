"""What a limit is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Limit(NamedTuple):
    """The most that there may be of something."""

    name: str
    """What messages and `rolegraph limits` call it."""
    most: int
    unit: str
    why: str

    def exceeded(self, what: str) -> str:
        """What is said where the limit is hit: `what` ends before "more than …"."""
        return f"{what} more than {self}"

    def __str__(self) -> str:
        """The limit as the end of a sentence, with its name."""
        return f"{self.size} ({self.named})"

    @property
    def size(self) -> str:
        """How much it is, with its unit."""
        return f"{self.most:{',' if self.most < 10**15 else '.2g'}} {self.unit}".rstrip()

    @property
    def named(self) -> str:
        """Its name, for a message that says otherwise how much there may be."""
        return f"limit: {self.name}"


def limits_of_module(names: Mapping[str, object]) -> list[Limit]:
    """Those among a module's names, in its order."""
    return [value for value in names.values() if isinstance(value, Limit)]
