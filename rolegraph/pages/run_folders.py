"""Folders of runs and trainings in a folder, and names for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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


def distinct_ends(paths: Sequence[Path]) -> list[str]:
    """Return the shortest end of each absolute path that no other of the paths has, such as `mine`, or
    `seed-1/mine` where another is `seed-2/mine`."""
    counts = Counter(end for parts in {path.parts for path in paths} for end in _ends(parts))
    shortest_ends = (next(end for end in _ends(path.parts) if counts[end] == 1) for path in paths)
    return [str(Path(*end)) for end in shortest_ends]


def _ends(parts: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [parts[start:] for start in reversed(range(len(parts)))]
