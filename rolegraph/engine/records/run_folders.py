"""Folders of runs and trainings in a folder: all of them, or the newest."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from rolegraph.engine.errors import RolegraphError, UsageError
from rolegraph.engine.records.folder import INFO, RunFolder
from rolegraph.engine.records.info import Kind


def runs_in(path: Path) -> list[Path]:
    """Return the folders of runs in a folder: the folder itself, or those directly in it, as in an
    evaluation's.

    After each training come the folders of the workflows that validate it.
    """
    runs = [path] if (path / INFO).exists() else sorted(file.parent for file in path.glob(f"*/{INFO}"))
    return [folder for run in runs for folder in (run, *_validations(run))] or [path]


def _validations(run: Path) -> list[Path]:
    try:
        return [it.path for it in RunFolder(run).validations() if it.info_file.exists()]
    except RolegraphError:  # the run's own page says so
        return []


def newest(runs: Path, name: str | None = None, kind: Kind = "train") -> RunFolder:
    """Return the newest run or training in `runs`, of the spec `name` if it is given.

    Raises:
        UsageError: `runs` has no such folder.
    """
    folders: list[tuple[datetime, Path]] = []
    for file in runs.glob(f"*/{INFO}"):
        info = RunFolder(file.parent).info()
        if info.kind == kind and name in (None, info.name):
            changed = datetime.fromtimestamp(file.stat().st_mtime, UTC)
            folders.append((info.started or changed, file.parent))
    if not folders:
        run = "training run" if kind == "train" else "run"
        what = f"{run} of {name}" if name else run
        raise UsageError(f"there is no {what} in {runs}/ to resume; name its folder with --out")
    return RunFolder(max(folders)[1])
