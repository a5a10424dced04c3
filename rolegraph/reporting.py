"""`rolegraph report`: a training's folder as one page, and the curves of several as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rolegraph.engine.records.jsonl import write_output
from rolegraph.engine.report import draw_curves, write_report


def report(*runs: str | Path, picture: str | Path | None = None, figures: Sequence[str] = ()) -> list[Path]:
    """Write `report.html` into the folder of each training; the page opens from disk without a network.

    Args:
        runs: Folders of trainings.
        picture: SVG file for the learning curves of all trainings; None draws none.
        figures: Figures of the picture; by default the spec's metrics.

    Returns:
        The paths of the pages.

    Raises:
        UsageError: A folder holds no training.
        DataError: A folder's files are damaged.
        WorldError: A file cannot be written.
    """

    folders = [Path(run) for run in runs]
    written = [write_report(folder) for folder in folders]
    if picture is not None:
        write_output(Path(picture), draw_curves(folders, figures).encode())
    return written
