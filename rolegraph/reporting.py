"""`rolegraph report`: a training's folder as one page, and the curves of several as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rolegraph.engine.errors import WorldError


def report(*runs: str | Path, picture: str | Path | None = None, figures: Sequence[str] = ()) -> list[Path]:
    """Write `report.html` into each training's folder, and return where.

    The page opens from disk without a network. `picture` is an SVG file for the learning curves of all of
    them: of `figures`, by default the spec's metrics. Raises UsageError for a folder that holds no training,
    DataError for a damaged one, and WorldError where the disk does not take it.
    """
    from rolegraph.engine.report import draw_curves, write_report

    folders = [Path(run) for run in runs]
    written = [write_report(folder) for folder in folders]
    if picture is not None:
        drawn = draw_curves(folders, figures)
        try:
            Path(picture).write_text(drawn, encoding="utf-8")
        except OSError as error:
            raise WorldError(f"cannot write {picture}: {error.strerror}") from error
    return written
