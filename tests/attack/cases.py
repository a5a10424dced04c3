"""Types of the corpus: a hostile input with its expected outcome, and the actual outcome."""

from __future__ import annotations

from typing import Literal, NamedTuple

Outcome = Literal["text", "error", "fault", "valid", "told"]
"""Outcome of a case.

text: a template renders, or a value is accepted. error: the input causes a failure with a name. fault: a spec
or a file has a fault with its place. valid: a spec or a file is accepted. told: the commands report on a run
folder, readable or not.
"""


class Case(NamedTuple):
    """Hostile input with its expected outcome; `says` is a part of the expected message."""

    name: str
    source: str
    outcome: Outcome
    says: str = ""


class Came(NamedTuple):
    """Actual outcome of a case, in a process with limited memory."""

    outcome: str
    says: str
    spent: int = 0
    """Units of work that a rendering has spent."""
