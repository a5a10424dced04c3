"""Numbers to SVG: line charts, stacked bars, intervals. Pure functions; this file knows no run.

Colours are classes (`c0` to `c7`), given by the page or picture that a chart is put into. Every text is
escaped here. A chart of a page places everything by percentages, so that it takes the width of its column and
its letters keep their size; a chart of a picture has a fixed size in pixels.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Literal, NamedTuple

from rolegraph.engine.records.numbers import number, short
from rolegraph.pages.drawing.ink import text
from rolegraph.pages.report.reading import Point

COLOURS = 8
MOST_POINTS = 250
"""Largest number of points of a line; in a longer line, neighbouring points are averaged."""
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


class ChartLink(NamedTuple):
    """Point of a chart that links to another page."""

    step: float
    value: float
    href: str
    title: str
    """Text on hover."""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """Line of a chart; `band` has (step, low, high) of the band around it."""

    label: str
    points: Sequence[Point]
    colour: int = 0
    stroke: Stroke = Stroke.PLAIN
    band: Sequence[tuple[float, float, float]] = ()
    links: Sequence[ChartLink] = ()
    """Points to click. A screen reader reads the chart as one image, so its page must also have the links as
    text."""


Ends = tuple[float, float]
"""Lower and upper end of an axis."""
SHARES: Ends = (0.0, 1.0)
"""Ends of the axis of a share."""

Layer = tuple[str, str, Sequence[Point]]
"""Layer of a stack: label, CSS class and points."""


@dataclass(frozen=True, slots=True)
class ChartSize:
    """Size of a chart with the margins around its plot; by default the plot without margins, in percent of
    its box on the page."""

    width: float = 100
    height: float = 100
    left: float = 0
    right: float = 0
    top: float = 0
    bottom: float = 0
    unit: Literal["%", ""] = "%"
    """Unit of the coordinates: percent, or pixels without a unit."""

    def place(self, position: float) -> str:
        """Return a position along either axis as the value of an attribute."""
        return f"{position:.2f}{self.unit}"


_FLUID = ChartSize()


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
    first_index, last_index = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first_index, last_index + 1)]


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> Sequence[Point]:
    """Return about `most` points: each run of neighbours is replaced by a point at their mean."""
    size = math.ceil(len(points) / most)
    if size <= 1:
        return points
    return [_middle(points[start : start + size]) for start in range(0, len(points), size)]


def line_chart(
    label: str, lines: Sequence[ChartLine], ends: Ends | None = None, best: float | None = None
) -> str:
    """Draw a line chart over steps as an `<svg>` element; its `data-hover` holds the values to show on hover.

    Args:
        label: Description of the chart.
        lines: The lines.
        ends: Range that the y axis must cover, such as `SHARES`.
        best: Step of the best checkpoint, which is marked; None marks none.
    """
    lines = [thinned(line) for line in lines]
    x, inner = plot(lines, _FLUID, ends)
    if best is not None:
        inner += _upright("best", x.at(best))
    return _svg(label, inner, x, [_values(line) for line in lines])


def plot(lines: Sequence[ChartLine], size: ChartSize, ends: Ends | None = None) -> tuple[Axis, str]:
    """Return (x axis of steps, SVG of the inside of a line chart): grid, tick labels, bands and lines.

    `ends` is a range that the y axis must cover.
    """
    values = [value for line in lines for _, value in line.points] + [*(ends or ())]
    values += [value for line in lines for _, low, high in line.band for value in (low, high)]
    steps = [step for line in lines for step, _ in line.points]
    x, y = _steps_axis(steps, size), _values_axis(values, size)
    drawn = sorted(lines, key=lambda line: line.stroke is Stroke.BOLD)
    shapes = "".join([*(_band(line, x, y) for line in lines), *(_path(line, x, y) for line in drawn)])
    if size.unit:  # points of a path have no percentages; a box of 100 by 100, stretched, gives them
        shapes = f'<svg viewBox="0 0 100 100" preserveAspectRatio="none">{shapes}</svg>'
    points = [draw(line, x, y, size) for draw in (_dots, _links) for line in drawn]
    return x, "".join([_grid(x, y, size), shapes, *points])


def thinned(line: ChartLine) -> ChartLine:
    """Return a copy of a line with at most about MOST_POINTS points: neighbours are averaged, also in the
    band.
    """
    lows = thin([(step, low) for step, low, _ in line.band])
    highs = thin([(step, high) for step, _, high in line.band])
    band = [(step, low, high) for (step, low), (_, high) in zip(lows, highs, strict=True)]
    return replace(line, points=thin(line.points), band=band)


def stack_chart(label: str, layers: Sequence[Layer], whole: float | None = None) -> str:
    """Return the SVG of a bar chart over steps, each bar a stack of layers (label, CSS class, points).

    `whole` is the upper end of the y axis, if known.
    """
    size = _FLUID
    thinned_layers = [(name, kind, dict(thin(points, MOST_BARS))) for name, kind, points in layers]
    steps = sorted({step for _, _, points in thinned_layers for step in points})
    sums = {step: sum(points.get(step, 0.0) for _, _, points in thinned_layers) for step in steps}
    y = _values_axis([0.0, whole or max(sums.values(), default=1.0) or 1.0], size)
    gap = min((b - a for a, b in pairwise(steps)), default=1.0)
    x = _steps_axis([steps[0] - gap / 2, steps[-1] + gap / 2] if steps else [], size, whole_steps=steps)
    width = size.width * gap / (x.high - x.low) * (0.82 if len(steps) <= 60 else 1.05)
    parts = [_grid(x, y, size)]
    base = dict.fromkeys(steps, 0.0)
    for _, kind, points in thinned_layers:
        for step, value in points.items():
            top, bottom = y.at(base[step] + value), y.at(base[step])
            base[step] += value
            if bottom - top > 0.01:
                left_edge = size.place(x.at(step) - width / 2)
                parts.append(
                    f'<rect class="bar {kind}" x="{left_edge}" y="{size.place(top)}" '
                    f'width="{size.place(width)}" height="{size.place(bottom - top)}"/>'
                )
    tips = [
        (name, [(step, number(value)) for step, value in points.items()])
        for name, _, points in thinned_layers
    ]
    return _svg(label, "".join(parts), x, tips)


def interval(mean: float, low: float, high: float, axis: Axis, kind: str = "") -> str:
    """Draw a mean and its interval as an SVG, one line high.

    Args:
        mean: The mean.
        low: Lower end of the interval.
        high: Upper end of the interval.
        axis: Scale in percent of the SVG's width; 0 is marked if it lies inside the scale.
        kind: CSS class of the interval's colour.
    """
    left, middle, right = (_FLUID.place(axis.at(value)) for value in (low, mean, high))
    zero = _upright("zero", axis.at(0)) if axis.low <= 0 <= axis.high else ""
    return (
        f'<svg class="interval {kind}" role="img" '
        f'aria-label="{number(mean)}, from {number(low)} to {number(high)}">'
        f'<line class="grid" x1="0" x2="100%" y1="50%" y2="50%"/>{zero}'
        f'<line class="range" x1="{left}" x2="{right}" y1="50%" y2="50%"/>'
        f'<circle cx="{middle}" cy="50%" r="4"/></svg>'
    )


def scale(values: Iterable[float]) -> Axis:
    """Return an axis in percent, for `interval` and `ruler`, whose round ends enclose all values."""
    covered = [*values] or [0.0, 1.0]
    ticks = nice_ticks(min(covered), max(covered), 4)
    return Axis(ticks[0], ticks[-1], start=6, end=94, ticks=ticks)


def ruler(axis: Axis) -> str:
    """Draw the ticks of an axis as an SVG, one line high, for the foot of a column of intervals."""
    step = axis.ticks[1] - axis.ticks[0]
    ticks = [
        f'<text class="tick x" x="{_FLUID.place(axis.at(tick))}" y="12">{_tick(tick, step)}</text>'
        for tick in axis.ticks
    ]
    return f'<svg class="ruler" aria-hidden="true">{"".join(ticks)}</svg>'


def share_bar(label: str, parts: Sequence[tuple[str, int]]) -> str:
    """Draw counts as one bar of parts, an SVG one line high.

    Args:
        label: Description of the bar.
        parts: (CSS class of the colour, count) of each part.
    """
    total = sum(count for _, count in parts) or 1
    rects: list[str] = []
    start = 0.0
    for kind, count in parts:
        width = 100 * count / total
        bar_attributes = f'x="{_FLUID.place(start)}" width="{_FLUID.place(width)}"'
        rects.append(f'<rect class="bar {kind}" {bar_attributes} height="100%"/>')
        start += width
    return f'<svg class="shares" role="img" aria-label="{text(label)}">{"".join(rects)}</svg>'


def _upright(kind: str, position: float) -> str:
    """Draw a line from the top to the bottom of a chart, at a position in percent of its width."""
    return f'<line class="{kind}" x1="{position:.2f}%" x2="{position:.2f}%" y1="0" y2="100%"/>'


def _values(line: ChartLine) -> tuple[str, list[tuple[float, str]]]:
    """Return (label of a line, [(step, text of the value)]); the text includes the band if the line has
    one."""
    band = {step: f" [{number(low)}, {number(high)}]" for step, low, high in line.band}
    return line.label, [(step, number(value) + band.get(step, "")) for step, value in line.points]


def _svg(label: str, inner: str, x: Axis, shown: Sequence[tuple[str, Sequence[tuple[float, str]]]]) -> str:
    """Return `inner` as an `<svg>` element, whose `data-hover` holds the values of each series at each step.

    Args:
        label: Description of the chart.
        inner: SVG of the chart's inside.
        x: Axis of the steps.
        shown: (label, [(step, text of the value)]) of each series.
    """
    tips: dict[float, list[str]] = {}
    for name, points in shown:
        for step, value in points:
            tips.setdefault(step, []).append(f"{name}  {value}")
    hover = [[round(x.at(step), 2), "\n".join([f"step {step:g}", *tips[step]])] for step in sorted(tips)]
    role = "group" if "<a " in inner else "img"  # no link of an image is announced
    return (
        f'<svg class="chart" role="{role}" tabindex="0" aria-label="{text(label)}" '
        f'data-hover="{text(json.dumps(hover, ensure_ascii=False))}">{inner}'
        '<line class="cursor" y1="0" y2="100%"/></svg>'
    )


def _steps_axis(steps: Sequence[float], size: ChartSize, whole_steps: Sequence[float] = ()) -> Axis:
    low, high = (min(steps), max(steps)) if steps else (0.0, 1.0)
    if high == low:
        low, high = low - 1, high + 1
    first_step, last_step = (whole_steps[0], whole_steps[-1]) if whole_steps else (low, high)
    ticks = [
        tick for tick in nice_ticks(low, high, 7) if first_step <= tick <= last_step and tick == round(tick)
    ]
    return Axis(low, high, start=size.left, end=size.width - size.right, ticks=ticks or [first_step])


def _values_axis(values: Sequence[float], size: ChartSize) -> Axis:
    ticks = nice_ticks(min(values), max(values), 4) if values else [0.0, 1.0]
    return Axis(ticks[0], ticks[-1], start=size.height - size.bottom, end=size.top, ticks=ticks)


def _grid(x: Axis, y: Axis, size: ChartSize) -> str:
    step = y.ticks[1] - y.ticks[0] if len(y.ticks) > 1 else 1.0
    parts: list[str] = []
    for tick in y.ticks:
        line_y = size.place(y.at(tick))
        parts += [
            f'<line class="grid" x1="{size.place(x.start)}" x2="{size.place(x.end)}" '
            f'y1="{line_y}" y2="{line_y}"/>',
            f'<text class="tick y" x="{x.start:g}" y="{line_y}" dx="-8" dy="0.32em">'
            f"{_tick(tick, step)}</text>",
        ]
    foot = f'y="{size.place(y.start)}" dy="18"'
    is_near = x.at(x.ticks[0]) - x.start < (x.end - x.start) / 40
    parts.append(f'<text class="tick y" x="{x.start:g}" {foot} dx="{-14 if is_near else -8}">step</text>')
    x_step = 10_000.0 if x.ticks[-1] >= 10_000 else 1.0
    for tick in x.ticks:
        parts.append(f'<text class="tick x" x="{size.place(x.at(tick))}" {foot}>{_tick(tick, x_step)}</text>')
    return "".join(parts)


def _tick(value: float, step: float) -> str:
    if abs(value) < step / 1000:
        return "0"
    for size, unit in ((1e9, ""), (1e6, "M"), (1e3, "k")):
        if step >= size:
            return f"{value / size:g}{unit}".replace("-", "−") if unit else short(value)
    if step < 1e-4:
        return short(value)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if round(step, decimals) != step and abs(round(step, decimals) - step) > step * 1e-6:
        decimals += 1
    return f"{value:,.{decimals}f}".replace("-", "−")


def _middle(points: Sequence[Point]) -> Point:
    return points[len(points) // 2][0], sum(value for _, value in points) / len(points)


def _band(line: ChartLine, x: Axis, y: Axis) -> str:
    if len(line.band) < 2:
        return ""
    upper_points = [f"{x.at(step):.2f},{y.at(high):.2f}" for step, _, high in line.band]
    back = [f"{x.at(step):.2f},{y.at(low):.2f}" for step, low, _ in reversed(line.band)]
    return f'<polygon class="band c{line.colour % COLOURS}" points="{" ".join(upper_points + back)}"/>'


def _path(line: ChartLine, x: Axis, y: Axis) -> str:
    if len(line.points) < 2:
        return ""
    points = " ".join(f"{x.at(step):.2f},{y.at(value):.2f}" for step, value in line.points)
    return f'<polyline class="line {line.stroke} c{line.colour % COLOURS}" points="{points}"/>'


def _dots(line: ChartLine, x: Axis, y: Axis, size: ChartSize) -> str:
    if len(line.points) != 1 and (line.stroke is not Stroke.BOLD or len(line.points) > 60):
        return ""
    return "".join(
        f'<circle class="dot c{line.colour % COLOURS}" cx="{size.place(x.at(step))}" '
        f'cy="{size.place(y.at(value))}" r="3.2"/>'
        for step, value in line.points
    )


def _links(line: ChartLine, x: Axis, y: Axis, size: ChartSize) -> str:
    return "".join(
        f'<a href="{text(link.href)}" tabindex="-1"><circle class="dot link c{line.colour % COLOURS}" '
        f'cx="{size.place(x.at(link.step))}" cy="{size.place(y.at(link.value))}" r="6">'
        f"<title>{text(link.title)}</title></circle></a>"
        for link in line.links
    )
