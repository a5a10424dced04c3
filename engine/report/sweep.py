"""Figures of a sweep's points, and their picture: an interval for each figure and point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rolegraph.engine.drawing.ink import PALETTE, document, text
from rolegraph.engine.records import RunFolder
from rolegraph.engine.report.charts import Axis, nice_ticks, number
from rolegraph.engine.report.compare.sides import TOKENS_OUT, read_side
from rolegraph.engine.training.compare import Interval, interval

_PANEL, _ROW, _TOP, _BOTTOM, _GAP = 260, 26, 46, 34, 28
_LETTER = 7.2
"""Approximate width of a letter in a label, in pixels."""


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
    figures = figure_names(points)
    labels = [" ".join(point.overrides) or point.name for point in points]
    left = 24 + _LETTER * max(map(len, labels), default=0)
    width = left + len(figures) * (_PANEL + _GAP)
    height = _TOP + _ROW * len(points) + _BOTTOM
    rows = [
        f'<text class="label" x="{left - 14:g}" y="{_middle(at):g}" dy="0.32em">{text(label)}</text>'
        for at, label in enumerate(labels)
    ]
    panels = [
        _panel(name, [point.figures.get(name) for point in points], left + at * (_PANEL + _GAP), at)
        for at, name in enumerate(figures)
    ]
    css = Path(__file__).with_name("sweep.css")
    return document(f"{title}: {', '.join(figures)}", width, height, css, [*rows, *panels])


def _panel(name: str, cells: Sequence[Interval | None], x: float, colour: int) -> str:
    ends = [end for cell in cells if cell for end in (cell.low, cell.high)]
    ticks = nice_ticks(min(ends), max(ends), 4)
    axis = Axis(ticks[0], ticks[-1], start=x + 8, end=x + _PANEL - 8, ticks=ticks)
    bottom = _TOP + _ROW * len(cells)
    hue = PALETTE[colour % len(PALETTE)]
    parts = [f'<text class="title" x="{x:g}" y="22">{text(name)}</text>']
    for tick in axis.ticks:
        at = f"{axis.at(tick):.1f}"
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{_TOP - 8}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{at}" y="{bottom + 18}">{number(tick)}</text>')
    for at, cell in enumerate(cells):
        if cell is not None:
            y = f"{_middle(at):g}"
            said = f"{number(cell.mean)} [{number(cell.low)}, {number(cell.high)}]"
            parts.append(
                f'<g stroke="{hue}" fill="{hue}"><title>{said}</title><line stroke-width="3" '
                f'stroke-linecap="round" stroke-opacity="0.55" x1="{axis.at(cell.low):.1f}" '
                f'x2="{axis.at(cell.high):.1f}" y1="{y}" y2="{y}"/>'
                f'<circle cx="{axis.at(cell.mean):.1f}" cy="{y}" r="4"/></g>'
            )
    return "".join(parts)


def _middle(row: int) -> float:
    return _TOP + _ROW * (row + 0.5)
