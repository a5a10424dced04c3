"""The picture of a table: a row for each arm, a ring before training, a disc and its interval after, and a
vertical line at the best constant answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rolegraph import api
from rolegraph.engine.records.numbers import number
from rolegraph.pages.drawing.ink import text
from rolegraph.pages.report.charts import Axis
from rolegraph.pages.report.sweep import FigurePanel, rows_picture


class Change(NamedTuple):
    """A figure before training, after it, and of the best constant answer; None where it is not measured."""

    before: api.Interval | None
    after: api.Interval
    constant: float | None = None


Rows = Mapping[str, Mapping[str, Change]]
"""Changes by arm and figure."""


def picture(title: str, rows: Rows) -> str:
    """Return an SVG with a row for each arm and a panel for each figure."""
    figures = [*dict.fromkeys(figure for row in rows.values() for figure in row)]
    panels = [panel(figure, [row.get(figure) for row in rows.values()]) for figure in figures]
    return rows_picture(title, [*rows], panels, Path(__file__).with_suffix(".css"))


def panel(figure: str, cells: Sequence[Change | None]) -> FigurePanel:
    """Return one figure of all arms."""
    drawn = [side for cell in cells if cell for side in (cell.before, cell.after) if side]
    ends = [end for side in drawn for end in (side.low, side.high)]
    ends += [cell.constant for cell in cells if cell and cell.constant is not None]
    return FigurePanel(figure, ends, [cell and partial(mark, cell) for cell in cells])


def mark(cell: Change, axis: Axis, y: float) -> str:
    """Draw one arm's figure before and after training."""
    before, after, constant = cell
    end = f"{axis.at(after.mean):.1f}"
    said = f"{number(after.mean)} [{number(after.low)}, {number(after.high)}]"
    parts: list[str] = []
    if before:
        start = f"{axis.at(before.mean):.1f}"
        said = f"{number(before.mean)}, after training {said}"
        parts.append(f'<line class="rise" x1="{start}" x2="{end}" y1="{y:g}" y2="{y:g}"/>')
        parts.append(f'<circle class="before" cx="{start}" cy="{y:g}" r="4"/>')
    if constant is not None:
        place = f"{axis.at(constant):.1f}"
        said += f"; best constant answer {number(constant)}"
        parts.append(f'<line class="constant" x1="{place}" x2="{place}" y1="{y - 7:g}" y2="{y + 7:g}"/>')
    low, high = f"{axis.at(after.low):.1f}", f"{axis.at(after.high):.1f}"
    parts.append(f'<line class="interval" x1="{low}" x2="{high}" y1="{y:g}" y2="{y:g}"/>')
    parts.append(f'<circle class="after" cx="{end}" cy="{y:g}" r="5"/>')
    return f"<g><title>{text(said)}</title>{''.join(parts)}</g>"
