"""Picture with a row for each label and a panel for each figure; panels have axes of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rolegraph.engine.drawing.ink import document, text
from rolegraph.engine.report.charts import Axis, nice_ticks, number

_PANEL, _ROW, _TOP, _BOTTOM, _GAP = 280, 26, 46, 34, 28
_LETTER = 7.2
"""Approximate width of a letter in a label, in pixels."""

DrawMark = Callable[[Axis, float], str]
"""Draws the mark of one row, given the panel's axis and the row's y."""


class FigurePanel(NamedTuple):
    """One figure of all rows."""

    name: str
    values: Sequence[float]
    """Values that the axis covers."""
    marks: Sequence[DrawMark | None]
    """Mark of each row; None where the row has none."""


def rows_picture(
    title: str, labels: Sequence[str], panels: Sequence[FigurePanel], css: Path | None = None
) -> str:
    """Return an SVG of labelled rows.

    Args:
        title: Title before the names of the panels.
        labels: Label of each row.
        panels: Panels from left to right.
        css: Style of the marks; by default that of an interval.
    """
    left = 24 + _LETTER * max(map(len, labels), default=0)
    width, height = left + len(panels) * (_PANEL + _GAP), _TOP + _ROW * len(labels) + _BOTTOM
    parts = [
        f'<text class="label" x="{left - 14:g}" y="{_middle(at):g}" dy="0.32em">{text(label)}</text>'
        for at, label in enumerate(labels)
    ]
    for at, panel in enumerate(panels):
        parts += _draw(panel, left + at * (_PANEL + _GAP), _TOP + _ROW * len(labels))
    names = ", ".join(panel.name for panel in panels)
    return document(f"{title}: {names}", width, height, css or Path(__file__).with_name("rows.css"), parts)


def _draw(panel: FigurePanel, x: float, bottom: float) -> list[str]:
    """Draw a panel whose left end is at `x`."""
    ticks = nice_ticks(min(panel.values), max(panel.values), 4)
    axis = Axis(ticks[0], ticks[-1], start=x + 8, end=x + _PANEL - 8, ticks=ticks)
    parts = [f'<text class="title" x="{x:g}" y="22">{text(panel.name)}</text>']
    for tick in axis.ticks:
        at = f"{axis.at(tick):.1f}"
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{_TOP - 8}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{at}" y="{bottom + 18}">{number(tick)}</text>')
    return parts + [mark(axis, _middle(row)) for row, mark in enumerate(panel.marks) if mark]


def _middle(row: int) -> float:
    return _TOP + _ROW * (row + 0.5)
