"""The backends of rLLM's trainer, by name: for a flag, a type and a table. Imports nothing."""

from __future__ import annotations

from typing import Literal, cast, get_args

Shipped = Literal["tinker", "verl", "fireworks"]
Backend = Literal[Shipped, "custom"]
"""What kind of backend trains: one of rLLM's own, or a BackendProtocol of somebody's."""
BACKENDS: tuple[Shipped, ...] = get_args(Shipped)


def kind_of(name: str) -> Backend:
    """The kind of a backend by its name, one of rLLM's or `package.module:Class`; raises ValueError.

    >>> kind_of("verl"), kind_of("mine.backends:Mine")
    ('verl', 'custom')
    """
    if name in BACKENDS:
        return cast("Backend", name)
    module, colon, attribute = name.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise ValueError(f"{name!r} is no backend: {', '.join(BACKENDS)}, or package.module:Class")
    return "custom"
