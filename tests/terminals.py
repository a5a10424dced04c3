"""Terminals that a test reads."""

from __future__ import annotations

import os


def read_terminal(terminal: int) -> bytes:
    """Read what processes write to a terminal or a pipe until they end, and close it."""
    found = b""
    while True:
        try:
            part = os.read(terminal, 65_536)
        except OSError:  # Linux: nobody writes any more
            part = b""
        if not part:
            os.close(terminal)
            return found
        found += part
