"""The newest run or training in a folder."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from rolegraph.engine.errors import UsageError
from rolegraph.engine.records.folder import INFO, RunFolder
from rolegraph.engine.records.info import Kind


def newest(runs: Path, name: str | None = None, kind: Kind = "train") -> RunFolder:
    """Return the newest run or training in `runs`, of the spec `name` if it is given.

    Raises:
        UsageError: `runs` has no such folder.
    """
    folders: list[tuple[datetime, Path]] = []
    for file in runs.glob(f"*/{INFO}"):
        info = RunFolder(file.parent).info()
        if info.kind == kind and name in (None, info.name):
            changed_at = datetime.fromtimestamp(file.stat().st_mtime, UTC)
            folders.append((info.started or changed_at, file.parent))
    if not folders:
        run = "training run" if kind == "train" else "run"
        noun = f"{run} of {name}" if name else run
        raise UsageError(f"there is no {noun} in {runs}/ to resume; name its folder with --out")
    return RunFolder(max(folders)[1])
