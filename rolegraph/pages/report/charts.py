"""Numbers to SVG: line charts, stacked bars, intervals. Pure functions; this file knows no run.

Colours are classes (`c0` to `c7`), given by the page or picture that a chart is put into. Every text is
escaped here. A chart is drawn at a fixed size and scaled by its view box.

Why not a library: both were tried with the 17 charts of a run of 30 steps, on two busy cores. Here they take
0.01 s and 78 kB, follow the reader's dark mode, fit 400 px and run no script but the page's own. Altair with
vl-convert is 100 MB installed and took 3 s to build them and 5 s to draw; its SVGs are 293 kB and stay light,
and its interactive page is 975 kB of Vega, which builds functions from text as the page's policy forbids, and
is cut off at 400 px. Matplotlib is 100 MB beyond numpy, took 2 s to import and 5 s to draw, and its SVGs are
280 kB with fixed colours.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from rolegraph.pages.drawing.ink import text
from rolegraph.pages.report.reading import Point

COLOURS = 8
MOST_POINTS = 250
"""Largest number of points of a line; a longer line is drawn by means of neighbouring points."""
MOST_BARS = 120


class Stroke(StrEnum):
    """Style of a chart's line, such as plain or dashed."""

    PLAIN = "plain"
    """Ordinary line."""
    THIN = "thin"
    """Thin line in the background, for training or one run of several."""
    BOLD = "bold"
    """Bold line with a dot at each point, for validation."""
    MEAN = "mean"
    """Bolder line without dots, for the mean of runs."""
    DASHED = "dashed"
    """Dashed line, for a reference level."""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line, with a band around it where `band` has (step, low, high)."""

    label: str
    points: Sequence[Point]
    colour: int = 0
    stroke: Stroke = Stroke.PLAIN
    band: Sequence[tuple[float, float, float]] = ()


Ends = tuple[float, float]
"""Lower and upper end of a scale."""
SHARES: Ends = (0.0, 1.0)
"""Ends of the axis of a share."""

Layer = tuple[str, str, Sequence[Point]]
"""Layer of a stack: label, CSS class and points."""


@dataclass(frozen=True, slots=True)
class ChartSize:
    """Size of a chart and of the margins around its plot, in pixels."""

    width: float = 400
    height: float = 104
    left: float = 54
    right: float = 22
    top: float = 8
    bottom: float = 26


@dataclass(frozen=True, slots=True)
class Axis:
    """Linear scale from values to pixels."""

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[float] = ()

    def at(self, value: float) -> float:
        """Convert a value to its position in pixels."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def number(value: float) -> str:
    """Format a number with three or four digits and separators of thousands."""
    if value == 0 or 0.001 <= abs(value) < 10_000:
        shown = f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:.3g}"
        return f"{value:.3f}" if abs(value) < 1 and not float(value).is_integer() else shown
    return f"{value:,.0f}" if abs(value) >= 1 else _short(value)


def share_ends(values: Iterable[float]) -> Ends | None:
    """Return the ends 0 and 1 of an axis if all values may be shares; None if any is outside."""
    return SHARES if all(0 <= value <= 1 for value in values) else None


def nice_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return evenly spaced round numbers from at or below `low` to at or above `high`."""
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-12):
        margin = abs(low) * 0.1 or 1.0
        low, high = low - margin, high + margin
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> Sequence[Point]:
    """Return about `most` points: each run of neighbours is replaced by a point at their mean."""
    size = math.ceil(len(points) / most)
    if size <= 1:
        return points
    return [_middle(points[start : start + size]) for start in range(0, len(points), size)]


def line_chart(
    label: str, lines: Sequence[ChartLine], size: ChartSize | None = None, ends: Ends | None = None
) -> str:
    """Draw a line chart over steps as an `<svg>` element; its `data-hover` holds the values to show on hover.

    Args:
        label: Description of the chart.
        lines: The lines.
        size: Size of the chart.
        ends: Values that the axis covers at least, such as `SHARES`.
    """
    size = size or ChartSize()
    lines = [thinned(line) for line in lines]
    x, inner = plot(lines, size, ends)
    return _svg(label, size, inner, x, [_values(line) for line in lines])


def plot(lines: Sequence[ChartLine], size: ChartSize, ends: Ends | None = None) -> tuple[Axis, str]:
    """Return (x axis of steps, SVG of a line chart's inside): grid, tick labels, bands and lines.

    `ends` are values that the y axis covers at least.
    """
    values = [value for line in lines for _, value in line.points] + [*(ends or ())]
    values += [value for line in lines for _, low, high in line.band for value in (low, high)]
    steps = [step for line in lines for step, _ in line.points]
    x, y = _steps_axis(steps, size), _values_axis(values, size)
    parts = [_grid(x, y, size)]
    parts += [_band(line, x, y) for line in lines if len(line.band) > 1]
    parts += [_path(line, x, y) for line in sorted(lines, key=lambda line: line.stroke is Stroke.BOLD)]
    return x, "".join(parts)


def thinned(line: ChartLine) -> ChartLine:
    """Return a copy of a line with at most about MOST_POINTS points, neighbours averaged; its band
    likewise."""
    lows = thin([(step, low) for step, low, _ in line.band])
    highs = thin([(step, high) for step, _, high in line.band])
    band = [(step, low, high) for (step, low), (_, high) in zip(lows, highs, strict=True)]
    return replace(line, points=thin(line.points), band=band)


def stack_chart(label: str, layers: Sequence[Layer], whole: float | None = None) -> str:
    """Return the SVG of a bar chart over steps, each bar a stack of layers (label, CSS class, points).

    `whole` is the upper end of the y axis, if known.
    """
    size = ChartSize()
    thinned_layers = [(name, kind, dict(thin(points, MOST_BARS))) for name, kind, points in layers]
    steps = sorted({step for _, _, points in thinned_layers for step in points})
    sums = {step: sum(points.get(step, 0.0) for _, _, points in thinned_layers) for step in steps}
    y = _values_axis([0.0, whole or max(sums.values(), default=1.0) or 1.0], size)
    gap = min((b - a for a, b in pairwise(steps)), default=1.0)
    room = size.width - size.left - size.right
    x = _steps_axis([steps[0] - gap / 2, steps[-1] + gap / 2] if steps else [], size, whole_steps=steps)
    width = room * gap / (x.high - x.low) * (0.82 if len(steps) <= 60 else 1.05)
    parts = [_grid(x, y, size)]
    base = dict.fromkeys(steps, 0.0)
    for _, kind, points in thinned_layers:
        for step, value in points.items():
            top, bottom = y.at(base[step] + value), y.at(base[step])
            base[step] += value
            if bottom - top > 0.01:
                parts.append(
                    f'<rect class="bar {kind}" x="{x.at(step) - width / 2:.1f}" y="{top:.1f}" '
                    f'width="{width:.1f}" height="{bottom - top:.1f}"/>'
                )
    tips = [
        (name, [(step, number(value)) for step, value in points.items()])
        for name, _, points in thinned_layers
    ]
    return _svg(label, size, "".join(parts), x, tips)


def interval(mean: float, low: float, high: float, ends: tuple[float, float]) -> str:
    """Return an SVG, one line high, of a mean and its interval on a scale from ends[0] to ends[1]."""
    axis = Axis(ends[0], ends[1] if ends[1] > ends[0] else ends[0] + 1, start=6, end=194)
    return (
        f'<svg class="interval" viewBox="0 0 200 16" role="img" '
        f'aria-label="{number(mean)}, from {number(low)} to {number(high)}">'
        '<line class="grid" x1="0" x2="200" y1="8" y2="8"/>'
        f'<line class="range" x1="{axis.at(low):.1f}" x2="{axis.at(high):.1f}" y1="8" y2="8"/>'
        f'<circle cx="{axis.at(mean):.1f}" cy="8" r="4"/></svg>'
    )


def _values(line: ChartLine) -> tuple[str, list[tuple[float, str]]]:
    """Return a line's label and the text of its value at each step, with the band where there is one."""
    band = {step: f" [{number(low)}, {number(high)}]" for step, low, high in line.band}
    return line.label, [(step, number(value) + band.get(step, "")) for step, value in line.points]


def _svg(
    label: str, size: ChartSize, inner: str, x: Axis, shown: Sequence[tuple[str, Sequence[tuple[float, str]]]]
) -> str:
    """Return `inner` as an `<svg>` element, whose `data-hover` holds the values of each series at each
    step."""
    tips: dict[float, list[str]] = {}
    for name, points in shown:
        for step, value in points:
            tips.setdefault(step, []).append(f"{name}  {value}")
    hover = [[round(x.at(step), 1), "\n".join([f"step {step:g}", *tips[step]])] for step in sorted(tips)]
    return (
        f'<svg class="chart" viewBox="0 0 {size.width:g} {size.height:g}" role="img" tabindex="0" '
        f'aria-label="{text(label)}" data-hover="{text(json.dumps(hover, ensure_ascii=False))}">{inner}'
        f'<line class="cursor" y1="{size.top:g}" y2="{size.height - size.bottom:g}"/></svg>'
    )


def _steps_axis(steps: Sequence[float], size: ChartSize, whole_steps: Sequence[float] = ()) -> Axis:
    low, high = (min(steps), max(steps)) if steps else (0.0, 1.0)
    if high == low:
        low, high = low - 1, high + 1
    first, last = (whole_steps[0], whole_steps[-1]) if whole_steps else (low, high)
    ticks = [tick for tick in nice_ticks(low, high, 7) if first <= tick <= last and tick == round(tick)]
    return Axis(low, high, start=size.left, end=size.width - size.right, ticks=ticks or [first])


def _values_axis(values: Sequence[float], size: ChartSize) -> Axis:
    most = 4 if size.height > 150 else 2
    ticks = nice_ticks(min(values), max(values), most) if values else [0.0, 1.0]
    return Axis(ticks[0], ticks[-1], start=size.height - size.bottom, end=size.top, ticks=ticks)


def _grid(x: Axis, y: Axis, size: ChartSize) -> str:
    step = y.ticks[1] - y.ticks[0] if len(y.ticks) > 1 else 1.0
    parts: list[str] = []
    for tick in y.ticks:
        line_y = f"{y.at(tick):.1f}"
        parts += [
            f'<line class="grid" x1="{size.left:g}" x2="{size.width - size.right:g}" '
            f'y1="{line_y}" y2="{line_y}"/>',
            f'<text class="tick y" x="{size.left - 8:g}" y="{line_y}" dy="0.32em">{_tick(tick, step)}</text>',
        ]
    room = 14 if x.at(x.ticks[0]) < size.left + 10 else 8
    parts.append(f'<text class="tick y" x="{size.left - room:g}" y="{size.height - 8:g}">step</text>')
    x_step = 10_000.0 if x.ticks[-1] >= 10_000 else 1.0
    for tick in x.ticks:
        parts.append(
            f'<text class="tick x" x="{x.at(tick):.1f}" y="{size.height - 8:g}">{_tick(tick, x_step)}</text>'
        )
    return "".join(parts)


def _tick(value: float, step: float) -> str:
    if abs(value) < step / 1000:
        return "0"
    for size, unit in ((1e9, ""), (1e6, "M"), (1e3, "k")):
        if step >= size:
            return f"{value / size:g}{unit}".replace("-", "−") if unit else _short(value)
    if step < 1e-4:
        return _short(value)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if round(step, decimals) != step and abs(round(step, decimals) - step) > step * 1e-6:
        decimals += 1
    return f"{value:,.{decimals}f}".replace("-", "−")


def _short(value: float) -> str:
    return re.sub(r"e([+-])0", r"e\1", f"{value:.3g}").replace("-", "−", value < 0)


def _middle(points: Sequence[Point]) -> Point:
    return points[len(points) // 2][0], sum(value for _, value in points) / len(points)


def _band(line: ChartLine, x: Axis, y: Axis) -> str:
    there = [f"{x.at(step):.1f},{y.at(high):.1f}" for step, _, high in line.band]
    back = [f"{x.at(step):.1f},{y.at(low):.1f}" for step, low, _ in reversed(line.band)]
    return f'<polygon class="band c{line.colour % COLOURS}" points="{" ".join(there + back)}"/>'


def _path(line: ChartLine, x: Axis, y: Axis) -> str:
    kind = f"c{line.colour % COLOURS}"
    places = [(f"{x.at(step):.1f}", f"{y.at(value):.1f}") for step, value in line.points]
    joined = " ".join(f"{a},{b}" for a, b in places)
    drawn = f'<polyline class="line {line.stroke} {kind}" points="{joined}"/>' if len(places) > 1 else ""
    if (line.stroke is Stroke.BOLD and len(places) <= 60) or len(places) == 1:
        drawn += "".join(f'<circle class="dot {kind}" cx="{a}" cy="{b}" r="3.2"/>' for a, b in places)
    return drawn
