"""Figures of a sweep's points, and their picture: an interval for each figure and point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rolegraph.engine.drawing.ink import PALETTE
from rolegraph.engine.records import RunFolder
from rolegraph.engine.report.charts import Axis, number
from rolegraph.engine.report.compare.sides import TOKENS_OUT, read_side
from rolegraph.engine.report.rows import FigurePanel, rows_picture
from rolegraph.engine.training.compare import Interval, interval


class SweepPointFigures(NamedTuple):
    """Figures of a point of a sweep."""

    name: str
    overrides: Sequence[str]
    """Overrides that distinguish the point from the others."""
    figures: Mapping[str, Interval]
    """Mean over tasks by figure; empty where there are no episodes yet."""


def figures_of_run(folder: Path) -> dict[str, Interval]:
    """Return `correct`, the metrics and the response tokens of a run, or of a training's best validation.

    Raises UsageError where the folder is not one of a run, DataError where it is damaged.
    """
    results = read_side(folder.name, folder).results
    if results is None:
        return {}
    metrics = RunFolder(folder).info().metrics
    names = [name for name in ("correct", *metrics, TOKENS_OUT) if name in results.figures]
    return {name: interval(results.figures[name]) for name in names}


def figure_names(points: Sequence[SweepPointFigures]) -> list[str]:
    """Return the names of all figures."""
    return list(dict.fromkeys(name for point in points for name in point.figures))


def sweep_picture(title: str, points: Sequence[SweepPointFigures]) -> str:
    """Return an SVG with a row for each point and a panel for each figure."""
    labels = [" ".join(point.overrides) or point.name for point in points]
    panels = [
        _panel(name, [point.figures.get(name) for point in points], PALETTE[at % len(PALETTE)])
        for at, name in enumerate(figure_names(points))
    ]
    return rows_picture(title, labels, panels)


def _panel(name: str, cells: Sequence[Interval | None], hue: str) -> FigurePanel:
    ends = [end for cell in cells if cell for end in (cell.low, cell.high)]
    return FigurePanel(name, ends, [cell and partial(_mark, cell, hue) for cell in cells])


def _mark(cell: Interval, hue: str, axis: Axis, y: float) -> str:
    said = f"{number(cell.mean)} [{number(cell.low)}, {number(cell.high)}]"
    return (
        f'<g stroke="{hue}" fill="{hue}"><title>{said}</title><line stroke-width="3" '
        f'stroke-linecap="round" stroke-opacity="0.55" x1="{axis.at(cell.low):.1f}" '
        f'x2="{axis.at(cell.high):.1f}" y1="{y:g}" y2="{y:g}"/>'
        f'<circle cx="{axis.at(cell.mean):.1f}" cy="{y:g}" r="4"/></g>'
    )
