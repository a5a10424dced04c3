"""`sweep.json`: what a sweep is of, so that it can go on. Its runs lie in folders of their own beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from rolegraph.engine.errors import DataError, UsageError, WorldError
from rolegraph.engine.records.info import Typed
from rolegraph.engine.records.jsonl import read_json, reason, write_whole

NAME = "sweep.json"
SweepKind = Literal["run", "train", "eval"]


class SweepInfo(BaseModel):
    """What every point of a sweep is made with."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    kind: SweepKind
    spec: Typed
    words: tuple[Typed, ...]
    """The overrides as they were typed, those with several values among them."""
    model: Typed | None = None
    base_url: Typed | None = None
    imports: tuple[Typed, ...] = ()
    allow: tuple[Typed, ...] = ()
    seed: int = 0
    split: Literal["train", "validation"] | None = None
    """Of runs."""
    limit: int | None = None
    """Tasks at most, of runs and evaluations."""
    rollouts: int = 1
    checkpoint: Typed | None = None
    """Of evaluations."""


def write_sweep(folder: Path, info: SweepInfo) -> None:
    """Note what a sweep is of; raises UsageError where there is one, WorldError as writing does."""
    if (folder / NAME).exists():
        raise UsageError(
            f"{folder} already holds a sweep; go on with --resume, or choose another folder with --out"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorldError(f"cannot write to the output folder {folder}: {error.strerror}") from error
    rewrite_sweep(folder, info)


def rewrite_sweep(folder: Path, info: SweepInfo) -> None:
    """Note what a sweep is of from now on; raises WorldError."""
    write_whole(folder / NAME, info.model_dump_json(indent=1).encode())


def read_sweep(folder: Path) -> SweepInfo:
    """What a sweep is of; raises UsageError where there is none, DataError for a damaged file."""
    try:
        return SweepInfo.model_validate(read_json(folder / NAME))
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{folder} holds no sweep: there is no {NAME} in it") from None
    except OSError as error:
        raise DataError(f"cannot read {folder / NAME}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{folder / NAME} is not what a sweep writes: {reason(error)}") from error


def newest_sweep(runs: Path, kind: SweepKind) -> Path:
    """The sweep in `runs` of a kind that was begun last; raises UsageError."""
    begun = [
        (file.stat().st_mtime, file.parent)
        for file in runs.glob(f"*/{NAME}")
        if read_sweep(file.parent).kind == kind
    ]
    if not begun:
        raise UsageError(f"there is no sweep in {runs}/ to go on with; name its folder with --out")
    return max(begun)[1]
