"""What a line of the corpus is: an input from someone who means harm, and what must come of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

Outcome = Literal["text", "error", "fault", "valid"]
"""A template renders or is a `prompt_error`; it or a spec has a fault with its place; a spec is valid."""


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
