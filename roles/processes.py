"""What processes of our own are started with."""

from __future__ import annotations

import os

from rolegraph.engine.vocabulary.permissions import is_secret


def without_keys() -> dict[str, str]:
    """The environment, but for what is secret."""
    return {name: value for name, value in os.environ.items() if not is_secret(name)}
