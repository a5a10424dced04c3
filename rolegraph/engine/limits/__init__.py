"""Limits on untrusted input, each with a name, a size and the reason for the size.

A limit is data, so that a message can name it. A size is several times that of the largest honest input.
Each kind of input has a file, in which the docstring of a limit gives its subject and the reason for its
size. The bounds of an item's option are part of the option's type.
"""

from typing import NamedTuple


class Limit(NamedTuple):
    """Limit on untrusted input: its name in messages, the largest permitted amount, and the unit."""

    name: str
    """Name of the limit in messages."""
    most: int
    """Largest permitted amount, in units of `unit`."""
    unit: str
    """Unit of `most`; empty for a bare number."""

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
        """The limit's name in the form for messages that state the amount themselves: `limit:
        answer_calls`."""
        return f"limit: {self.name}"
