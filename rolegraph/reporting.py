"""`rolegraph report`: a training's folder as one page, and the curves of several as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rolegraph.engine.drawing.png import png_of
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records.jsonl import write_output
from rolegraph.engine.report import draw_curves, write_report


def report(*runs: str | Path, picture: str | Path | None = None, figures: Sequence[str] = ()) -> list[Path]:
    """Write `report.html` into the folder of each training; the page opens from disk without a network.

    Args:
        runs: Folders of trainings.
        picture: File for the learning curves of all trainings, SVG or PNG by its ending; None draws none.
        figures: Figures of the picture; by default the spec's metrics.

    Returns:
        The paths of the pages.

    Raises:
        UsageError: A folder holds no training; or the picture has another ending, or needs resvg-py.
        DataError: A folder's files are damaged.
        WorldError: A file cannot be written.
    """
    folders = [Path(run) for run in runs]
    file = None if picture is None else Path(picture)
    if file is not None and file.suffix not in (".svg", ".png"):
        raise UsageError(f"{file} is neither .svg nor .png, the forms of a picture")
    written = [write_report(folder) for folder in folders]
    if file is not None:
        drawn = draw_curves(folders, figures)
        write_output(file, png_of(drawn) if file.suffix == ".png" else drawn.encode())
    return written
