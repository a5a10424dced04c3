"""The picture of a table: a row for each arm, a ring before training, a disc and its interval after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import rolegraph as rg
from rolegraph.engine.drawing.ink import document, text
from rolegraph.engine.report.charts import Axis, nice_ticks, number

PANEL, ROW, TOP, BOTTOM, GAP = 300, 26, 46, 34, 28
LETTER = 7.2
"""Approximate width of a letter in a label, in pixels."""


class Change(NamedTuple):
    """A figure before training, None where that is not measured, and after it."""

    before: rg.Interval | None
    after: rg.Interval


Rows = Mapping[str, Mapping[str, Change]]
"""Changes by arm and figure."""


def picture(title: str, rows: Rows) -> str:
    """Return an SVG with a row for each arm and a panel for each figure."""
    figures = [*dict.fromkeys(figure for row in rows.values() for figure in row)]
    left = 24 + LETTER * max(map(len, rows), default=0)
    width, height = left + len(figures) * (PANEL + GAP), TOP + ROW * len(rows) + BOTTOM
    parts = [
        f'<text class="label" x="{left - 14:g}" y="{middle(at):g}" dy="0.32em">{text(arm)}</text>'
        for at, arm in enumerate(rows)
    ]
    for at, figure in enumerate(figures):
        cells = [row.get(figure) for row in rows.values()]
        parts += panel(figure, cells, left + at * (PANEL + GAP))
    return document(
        f"{title}: {', '.join(figures)}", width, height, Path(__file__).with_suffix(".css"), parts
    )


def panel(figure: str, cells: Sequence[Change | None], x: float) -> list[str]:
    """Draw one figure of all arms, with an axis of its own, whose left end is at `x`."""
    drawn = [side for cell in cells if cell for side in cell if side]
    ticks = nice_ticks(min(side.low for side in drawn), max(side.high for side in drawn), 4)
    axis = Axis(ticks[0], ticks[-1], start=x + 8, end=x + PANEL - 8, ticks=ticks)
    bottom = TOP + ROW * len(cells)
    parts = [f'<text class="title" x="{x:g}" y="22">{text(figure)}</text>']
    for tick in axis.ticks:
        at = f"{axis.at(tick):.1f}"
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP - 8}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{at}" y="{bottom + 18}">{number(tick)}</text>')
    for row, cell in enumerate(cells):
        if cell:
            parts.append(mark(cell, axis, middle(row)))
    return parts


def mark(cell: Change, axis: Axis, y: float) -> str:
    """Draw one arm's figure before and after training."""
    before, after = cell
    end = f"{axis.at(after.mean):.1f}"
    said = f"{number(after.mean)} [{number(after.low)}, {number(after.high)}]"
    parts: list[str] = []
    if before:
        start = f"{axis.at(before.mean):.1f}"
        said = f"{number(before.mean)}, after training {said}"
        parts.append(f'<line class="rise" x1="{start}" x2="{end}" y1="{y:g}" y2="{y:g}"/>')
        parts.append(f'<circle class="before" cx="{start}" cy="{y:g}" r="4"/>')
    low, high = f"{axis.at(after.low):.1f}", f"{axis.at(after.high):.1f}"
    parts.append(f'<line class="interval" x1="{low}" x2="{high}" y1="{y:g}" y2="{y:g}"/>')
    parts.append(f'<circle class="after" cx="{end}" cy="{y:g}" r="5"/>')
    return f"<g><title>{text(said)}</title>{''.join(parts)}</g>"


def middle(row: int) -> float:
    """Return the y of a row's middle."""
    return TOP + ROW * (row + 0.5)
