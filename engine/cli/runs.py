"""Where runs are kept unless the person says otherwise."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

RUNS = Path("runs")


def new_folder(name: str) -> Path:
    """A folder for a run that begins now."""
    return RUNS / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
