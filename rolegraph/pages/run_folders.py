"""Folders of runs and trainings in a folder."""

from __future__ import annotations

from pathlib import Path

from rolegraph.engine.errors import RolegraphError
from rolegraph.engine.records import RunFolder
from rolegraph.engine.records.folder import INFO


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
