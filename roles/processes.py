"""What processes of our own are started with."""

from __future__ import annotations

import os

_SECRET = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")


def without_keys() -> dict[str, str]:
    """The environment, but for what is secret."""
    return {name: value for name, value in os.environ.items() if not name.endswith(_SECRET)}
