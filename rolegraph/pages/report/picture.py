"""Learning curves of one or several runs as one self-contained SVG file, such as for a README.

The background follows the colour scheme and every colour is of a middle tone, so that the picture reads on
white and on black. Runs of one spec (with the same hash: overrides change it) share a panel for each figure:
a line for each seed, and their mean in bold. Runs of different specs are never averaged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rolegraph.engine.errors import UsageError, did_you_mean
from rolegraph.engine.records import RunFolder
from rolegraph.engine.training.analysis.changes import read_validations
from rolegraph.engine.vocabulary.foreign import short_repr
from rolegraph.pages.drawing.drawing import Drawing
from rolegraph.pages.drawing.ink import document, text
from rolegraph.pages.report.charts import (
    COLOURS,
    ChartLine,
    ChartSize,
    Ends,
    Stroke,
    plot,
    share_ends,
    thinned,
)
from rolegraph.pages.report.digest import bands
from rolegraph.pages.report.reading import Point, RunRecord, read_run

_CSS = Path(__file__).with_name("picture.css")
_SIZE = ChartSize(width=440, height=264, left=50, right=20, top=40, bottom=30, unit="")
_ACROSS = 3
_LEGEND = 30


def draw_curves(folders: Sequence[Path], figures: Sequence[str] = ()) -> Drawing:
    """Draw learning curves, a panel for each figure; a single run also has the 95 % interval over the tasks.

    Args:
        folders: Folders of trainings.
        figures: `correct`, names of the spec's metrics, or full names of figures in `metrics.jsonl`; by
            default `correct` and all metrics of the specs.

    Raises:
        UsageError: A training or a figure is missing.
    """
    runs = [read_run(folder) for folder in folders]
    if not runs:
        raise UsageError("a picture of learning curves needs at least one run")
    names = list(figures) or list(dict.fromkeys(name for run in runs for name in run.info.metric_names))
    panels = {name: _lines(runs, name) for name in names}
    shown_panels = {name: lines for name, lines in panels.items() if lines}
    missing_names = [name for name in names if name not in shown_panels]
    if missing_names and (figures or not shown_panels):
        raise UsageError(_missing(runs, missing_names[0]))
    if not shown_panels:
        raise UsageError(f"{folders[0]}: the spec names no figures; say which to draw")
    return Drawing(_picture(runs, shown_panels))


def _series(run: RunRecord, name: str) -> list[Point]:
    return run.series(f"validation/{name}") or run.series(f"episode/{name}") or run.series(name)


def _missing(runs: Sequence[RunRecord], name: str) -> str:
    if not any(run.lines for run in runs):
        return f"{runs[0].folder}: no step is finished yet, so there is nothing to draw"
    names = {key.removeprefix("validation/").removeprefix("episode/") for run in runs for key in run.keys}
    hint = did_you_mean(name, sorted(names))
    return "; ".join(filter(None, (f"no run has the figure {short_repr(name)}", hint)))


def _lines(runs: Sequence[RunRecord], name: str) -> list[ChartLine]:
    specs: dict[tuple[str, str], list[tuple[int, RunRecord]]] = {}
    for index, run in enumerate(runs):
        specs.setdefault((run.info.name, run.info.hash), []).append((index, run))
    spec_counts = Counter(spec for spec, _ in specs)
    has_several = len(specs) > 1
    lines: list[ChartLine] = []
    for (spec, digest), spec_runs in specs.items():
        members = [(index, run) for index, run in spec_runs if _series(run, name)]
        stroke = Stroke.THIN if len(members) > 1 else Stroke.BOLD
        spec_label = f"{spec} {digest[:6]}" if spec_counts[spec] > 1 else spec
        for index, run in members:
            label = f"{spec_label}, seed {run.info.seed}" if has_several else f"seed {run.info.seed}"
            if sum(other.info.seed == run.info.seed for _, other in members) > 1:
                label = f"{label} ({run.folder.name})"
            colour = index if has_several or len(members) == 1 else 1 + index % (COLOURS - 1)
            band = bands(read_validations(RunFolder(run.folder))).get(name, ()) if len(runs) == 1 else ()
            lines.append(thinned(ChartLine(label, _series(run, name), colour, stroke, band)))
        if len(members) > 1:
            label = f"{spec_label}, mean" if has_several else "mean"
            mean = _mean([_series(run, name) for _, run in members])
            lines.append(thinned(ChartLine(label, mean, members[0][0] if has_several else 0, Stroke.MEAN)))
    return lines


def _mean(series: Sequence[Sequence[Point]]) -> list[Point]:
    """Return the mean of several curves at their common steps.

    A mean over fewer curves would jump at the end of a curve.
    """
    values = [dict(points) for points in series]
    steps = sorted(set(values[0]).intersection(*values[1:]))
    return [(step, math.fsum(value[step] for value in values) / len(values)) for step in steps]


def _picture(runs: Sequence[RunRecord], panels: dict[str, list[ChartLine]]) -> str:
    columns = min(_ACROSS, len(panels))
    legend = list({line.label: line for lines in panels.values() for line in lines}.values())
    width = columns * _SIZE.width
    keys, legend_height = _keys(legend, width) if len(legend) > 1 else ("", 0.0)
    height = legend_height + math.ceil(len(panels) / columns) * _SIZE.height
    parts: list[str] = []
    for index, (name, lines) in enumerate(panels.items()):
        x, y = index % columns * _SIZE.width, legend_height + index // columns * _SIZE.height
        title = f'<text class="title" x="{_SIZE.left:g}" y="22">{text(name)}</text>'
        parts.append(
            f'<g transform="translate({x:g} {y:g})">{title}{plot(lines, _SIZE, _ends(name, lines))[1]}</g>'
        )
    run_names = ", ".join(dict.fromkeys(run.info.name for run in runs))
    title = f"Learning curves of {run_names}: {', '.join(panels)}"
    return document(title, width, height, _CSS, [keys, *parts])


def _ends(name: str, lines: Sequence[ChartLine]) -> Ends | None:
    """Return the axis ends 0 and 1 for `correct` and for metrics whose values are all from 0 to 1; None for
    other figures."""
    return None if "/" in name else share_ends(value for line in lines for _, value in line.points)


def _keys(lines: Sequence[ChartLine], width: float) -> tuple[str, float]:
    parts: list[str] = []
    x, y = _SIZE.left, 20.0
    for line in lines:
        entry_width = 34 + 7.4 * len(line.label) + 20
        if x + entry_width > width and x > _SIZE.left:
            x, y = _SIZE.left, y + 22
        kind = f"line {line.stroke} c{line.colour % COLOURS}"
        parts.append(f'<polyline class="{kind}" points="{x:g},{y - 4:g} {x + 24:g},{y - 4:g}"/>')
        parts.append(f'<text class="key" x="{x + 32:g}" y="{y:g}">{text(line.label)}</text>')
        x += entry_width
    return "".join(parts), y - 20 + _LEGEND
