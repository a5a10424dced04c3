"""Text of models and tasks, made fit for a terminal."""

from __future__ import annotations


def plain(text: str, most: int = 300) -> str:
    """Without the characters that steer a terminal, and cut where it is long."""
    kept = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
    return kept if len(kept) <= most else f"{kept[:most]} …"
