"""Output files that a user names."""

from __future__ import annotations

from pathlib import Path

from rolegraph.engine.errors import WorldError


def write_output(path: Path, data: bytes) -> None:
    """Write a file in place, so that a device such as /dev/stdout works; raises WorldError."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise WorldError(f"cannot write {path}: {error.strerror}") from error
