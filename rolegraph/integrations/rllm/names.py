"""Names of the backends of rLLM's trainer, for the command line and for types. Imports nothing from rLLM."""

from __future__ import annotations

from typing import Literal, cast, get_args

Shipped = Literal["tinker", "verl", "fireworks"]
Backend = Literal[Shipped, "custom"]
"""Kind of a backend: one of rLLM's own, or `custom` for a BackendProtocol of the user's."""
BACKENDS: tuple[Shipped, ...] = get_args(Shipped)


def kind_of(name: str) -> Backend:
    """Return which backend a name stands for: a known one, or `custom` for `package.module:Class`.

    Args:
        name: One of `BACKENDS`, or `package.module:Class`.

    Raises:
        ValueError: For any other name.

    >>> kind_of("verl"), kind_of("mine.backends:Mine")
    ('verl', 'custom')
    """
    if name in BACKENDS:
        return cast("Backend", name)
    module, colon, attribute = name.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise ValueError(
            f"{name!r} is not a backend; expected {', '.join(BACKENDS)}, or package.module:Class"
        )
    return "custom"
