"""The unknown value: what an expression reads of a turn that was not asked, not answered or not judged."""

from __future__ import annotations

from typing import Final, final


@final
class Unknown:
    """Type of UNKNOWN, which is equal to nothing, false in a template's `if`, and written as no text."""

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
        """Return the name of the one instance, so that another process gets its own UNKNOWN."""
        return "UNKNOWN"


UNKNOWN: Final = Unknown()
"""The one unknown value. Three-valued logic (Kleene) has it for neither true nor false."""
