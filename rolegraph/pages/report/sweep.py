"""Picture of a sweep's points: an interval for each figure and point.

`rows_picture` draws any picture with a row for each label and a panel for each figure; panels have axes of
their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rolegraph.api.sweeping import SweepPointFigures, metric_names
from rolegraph.engine.records.numbers import number
from rolegraph.engine.training.analysis.intervals import Interval
from rolegraph.pages.drawing.ink import PALETTE, document, text
from rolegraph.pages.report.charts import Axis, nice_ticks, share_ends

_PANEL, _ROW, _TOP, _BOTTOM, _GAP = 280, 26, 46, 34, 28
_LETTER = 7.2
"""Approximate width in pixels of a character of a label."""

DrawMark = Callable[[Axis, float], str]
"""Function from the panel's axis and the y of a row to the SVG of the row's mark."""


class FigurePanel(NamedTuple):
    """Panel of a picture of rows: the name of a figure, its values, and the mark in each row."""

    name: str
    values: Sequence[float]
    """Values that the axis must cover."""
    marks: Sequence[DrawMark | None]
    """Mark of each row; None for a row without a value."""


def rows_picture(
    title: str, labels: Sequence[str], panels: Sequence[FigurePanel], css: Path | None = None
) -> str:
    """Return an SVG with a labelled row for each point, and a panel of marks for each figure.

    Args:
        title: Title before the names of the panels.
        labels: Label of each row.
        panels: Panels from left to right.
        css: Style of the marks; by default that of an interval.
    """
    left = 24 + _LETTER * max(map(len, labels), default=0)
    width, height = left + len(panels) * (_PANEL + _GAP), _TOP + _ROW * len(labels) + _BOTTOM
    parts = [
        f'<text class="label" x="{left - 14:g}" y="{_middle(index):g}" dy="0.32em">{text(label)}</text>'
        for index, label in enumerate(labels)
    ]
    for index, panel in enumerate(panels):
        parts += _draw(panel, left + index * (_PANEL + _GAP), _TOP + _ROW * len(labels))
    names = ", ".join(panel.name for panel in panels)
    return document(f"{title}: {names}", width, height, css or Path(__file__).with_name("rows.css"), parts)


def _draw(panel: FigurePanel, x: float, bottom: float) -> list[str]:
    """Return the SVG elements of one figure's panel, whose left end is at `x`."""
    ticks = nice_ticks(min(panel.values), max(panel.values), 4)
    axis = Axis(ticks[0], ticks[-1], start=x + 8, end=x + _PANEL - 8, ticks=ticks)
    parts = [f'<text class="title" x="{x:g}" y="22">{text(panel.name)}</text>']
    for tick in axis.ticks:
        left_edge = f"{axis.at(tick):.1f}"
        parts.append(f'<line class="grid" x1="{left_edge}" x2="{left_edge}" y1="{_TOP - 8}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{left_edge}" y="{bottom + 18}">{number(tick)}</text>')
    return parts + [mark(axis, _middle(row)) for row, mark in enumerate(panel.marks) if mark]


def _middle(row: int) -> float:
    return _TOP + _ROW * (row + 0.5)


def sweep_picture(title: str, points: Sequence[SweepPointFigures]) -> str:
    """Return an SVG with a row for each point and a panel for each figure."""
    labels = [" ".join(point.overrides) or point.name for point in points]
    panels = [
        _panel(name, [point.figures.get(name) for point in points], PALETTE[index % len(PALETTE)])
        for index, name in enumerate(metric_names(points))
    ]
    return rows_picture(title, labels, panels)


def _panel(name: str, cells: Sequence[Interval | None], hue: str) -> FigurePanel:
    bounds = [end for cell in cells if cell for end in (cell.low, cell.high)]
    if "/" not in name and not name.endswith(" change"):
        bounds += share_ends(bounds) or ()
    return FigurePanel(name, bounds, [cell and partial(interval_mark, cell, hue) for cell in cells])


def interval_mark(cell: Interval, hue: str, axis: Axis, y: float) -> str:
    """Draw a mean and its interval in a row of a picture.

    Args:
        cell: The mean and its interval.
        hue: Colour, as in CSS.
        axis: Axis of the panel.
        y: Middle of the row, in pixels.
    """
    title = f"{number(cell.mean)} [{number(cell.low)}, {number(cell.high)}], n {cell.n}"
    return (
        f'<g stroke="{hue}" fill="{hue}"><title>{title}</title><line stroke-width="3" '
        f'stroke-linecap="round" stroke-opacity="0.55" x1="{axis.at(cell.low):.1f}" '
        f'x2="{axis.at(cell.high):.1f}" y1="{y:g}" y2="{y:g}"/>'
        f'<circle cx="{axis.at(cell.mean):.1f}" cy="{y:g}" r="4"/></g>'
    )
