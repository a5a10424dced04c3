"""The unknown value: the value, in an expression, of a turn that was not asked, not answered or not
judged."""

from __future__ import annotations

from typing import Final, final


@final
class Unknown:
    """Type of UNKNOWN, which equals no value, is false in a template's `if`, and renders as empty text."""

    __slots__ = ()

    def __bool__(self) -> bool:
        """Return False, as a template's `if` reads it."""
        return False

    def __str__(self) -> str:
        """Return the empty text, as a template writes it."""
        return ""

    def __repr__(self) -> str:
        """Return `unknown`, for messages."""
        return "unknown"

    def __reduce__(self) -> str:
        """Return the name of the single instance, so that unpickling in another process gives its own
        UNKNOWN."""
        return "UNKNOWN"


UNKNOWN: Final = Unknown()
"""The only unknown value; in three-valued logic (Kleene), neither true nor false."""
