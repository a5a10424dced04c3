"""`sweep.json`: the settings of a sweep, so that it can be resumed. Its runs are folders beside the file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rolegraph.engine.errors import UsageError
from rolegraph.engine.records.info import SourceRecord, Typed
from rolegraph.engine.records.jsonl import read_record, write_record
from rolegraph.engine.records.ownership import FolderKind

NAME = "sweep.json"
SweepKind = Literal["run", "train", "eval"]


class SweepInfo(SourceRecord):
    """Source and settings that all points of a sweep share; an override may have several values."""

    kind: SweepKind
    seed: int = 0
    """Seed of the points without a `seed=…`."""
    split: Literal["train", "validation"] | None = None
    """Split of the tasks; None for the default."""
    limit: int | None = None
    """Largest number of tasks of a run or an evaluation; None for no limit."""
    rollouts: int = 1
    """Number of episodes of each task, for a run or an evaluation."""
    checkpoint: Typed | None = None
    """Trained weights that evaluations compare with their base model."""


SWEEP = FolderKind("a sweep", {NAME: SweepInfo.model_validate})
"""Kind of the folder of a sweep."""


def write_sweep(folder: Path, info: SweepInfo) -> None:
    """Write or replace `sweep.json`; raises WorldError where the write fails."""
    write_record(folder / NAME, info)


def read_sweep(folder: Path) -> SweepInfo:
    """Read `sweep.json`; raises UsageError for a missing file, DataError for a damaged file."""
    try:
        return read_record(folder / NAME, SweepInfo.model_validate, "a valid sweep file")
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{folder} is not the folder of a sweep: there is no {NAME} in it") from None


def newest_sweep(runs: Path, kind: SweepKind, spec: str | None = None) -> Path:
    """Return the folder of the newest sweep of a kind in `runs`; if `spec` is given, of that spec.

    Raises:
        UsageError: There is no such sweep.
    """
    files = {file: read_sweep(file.parent) for file in runs.glob(f"*/{NAME}")}
    matching_files = (file for file, info in files.items() if info.kind == kind and spec in (None, info.spec))
    sweeps = [(file.stat().st_mtime, file.parent) for file in matching_files]
    if not sweeps:
        suffix = f" of {spec}" if spec else ""
        raise UsageError(f"there is no sweep{suffix} in {runs}/ to resume; name its folder with --out")
    return max(sweeps)[1]
