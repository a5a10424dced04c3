"""Stub of a container engine: it runs the command of a container on this machine, without a container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

STUB = """#!/bin/bash
while [ "$1" != "--" ]; do shift; done
shift 2
exec "$@"
"""


def add_stub_engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a `docker` in front of the path that is the stub."""
    (folder / "bin").mkdir()
    (folder / "bin" / "docker").write_text(STUB)
    (folder / "bin" / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
