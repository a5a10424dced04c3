"""What a line of the corpus is: an input from someone who means harm, and what must come of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

Outcome = Literal["text", "error", "fault", "valid", "told"]
"""A template renders, or what was given is taken; it is a failure with a name; a spec or a file has a fault
with its place; it is valid; commands tell of a folder, whether they can show it or not."""


class Case(NamedTuple):
    """One hostile input. `says` stands in what comes of it."""

    name: str
    source: str
    outcome: Outcome
    says: str = ""


class Came(NamedTuple):
    """What came of a case, in a process with little memory."""

    outcome: str
    says: str
    spent: int = 0
    """Units of work of a rendering."""
