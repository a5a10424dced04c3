"""The report: a run's data put into `report.html.j2`, with its style and script inside the file.

Autoescape is on: what models wrote is hostile text. A content security policy lets the page load nothing
and run no script but its own, which the policy names by its hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rolegraph.engine.compile.graph import check_graph, role_needs
from rolegraph.engine.drawing import picture_of
from rolegraph.engine.drawing.svg import svg
from rolegraph.engine.records import Control, RunFolder, Step
from rolegraph.engine.records.jsonl import write_whole
from rolegraph.engine.report.charts import MOST_BARS, interval
from rolegraph.engine.report.digest import Digest, clipped, instance, question, read_digest
from rolegraph.engine.report.html import environment, script, signed, style
from rolegraph.engine.report.panels import REASONS, sections
from rolegraph.engine.report.reading import RunRecord, read_run
from rolegraph.engine.spec import load_spec
from rolegraph.engine.training.outcomes import advantages

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class HeadlineFigure:
    """Best value of a metric; `first` is that of the untrained model."""

    name: str
    best: float
    step: int
    last: float
    first: float | None
    split: str


@dataclass(frozen=True, slots=True)
class OtherFigure:
    """Figure that no chart shows."""

    key: str
    first: float
    last: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ControlRow:
    """Row of the table of controls; `drawn` is the SVG of its interval."""

    control: Control
    drawn: Markup


def write_report(folder: Path) -> Path:
    """Write `report.html` into a training run's folder and return its path.

    Raises UsageError where the folder is none of a training run, WorldError where it cannot be written.
    """
    run = read_run(folder)
    page = render(run, read_digest(folder, run.info.roles))
    report = RunFolder(folder).report
    write_whole(report, page.encode("utf-8", "replace"))
    return report


def render(run: RunRecord, digest: Digest) -> str:
    """Return the HTML of the report."""
    code, code_hash = script(_HERE / "report.js")
    shown = sections(run, digest)
    drawn = {key for section in shown for panel in section.panels for key in panel.keys}
    return (
        environment(_HERE)
        .get_template("report.html.j2")
        .render(
            run=run,
            info=run.info,
            figures=figures(run),
            sections=shown,
            controls=measured(run),
            workflow=workflow(run),
            others=others(run, drawn),
            digest=digest,
            reasons=REASONS,
            long=len(run.lines) > MOST_BARS,
            question=question,
            instance=instance,
            spread=spread,
            prompt=prompt,
            fields=fields,
            style=style(),
            script=code,
            script_hash=code_hash,
        )
    )


def workflow(run: RunRecord) -> str:
    """Return the graph of the spec's roles as SVG; empty where the spec is missing or invalid."""
    if not run.spec:
        return ""
    loaded = load_spec(RunFolder(run.folder).spec_file)
    faulty = loaded.faults or check_graph(loaded.spec, role_needs(loaded.spec))
    return "" if faulty else svg(picture_of(loaded.spec))


def figures(run: RunRecord) -> list[HeadlineFigure]:
    """Return each metric at its best validation, or its best batch where nothing was validated."""
    best_of: list[HeadlineFigure] = []
    for name in run.info.metrics:
        for split, key in (("validation", f"validation/{name}"), ("training batch", f"episode/{name}")):
            if points := run.series(key):
                step, best = max(points, key=lambda point: point[1])
                first = points[0][1] if points[0][0] == 0 and len(points) > 1 else None
                best_of.append(
                    HeadlineFigure(
                        name, best=best, step=int(step), last=points[-1][1], first=first, split=split
                    )
                )
                break
    return best_of


def measured(run: RunRecord) -> list[ControlRow]:
    """Return the controls in the order of their file, drawn on one scale."""
    values = [end for control in run.controls for end in (control.low, control.high, control.mean)]
    ends = (min(values, default=0.0), max(values, default=1.0))
    return [ControlRow(c, Markup(interval(c.mean, c.low, c.high, ends))) for c in run.controls]


def others(run: RunRecord, drawn: set[str]) -> list[OtherFigure]:
    """Return the figures that no chart shows."""
    undrawn: list[OtherFigure] = []
    for key in run.keys:
        if key not in drawn:
            values = [value for _, value in run.series(key)]
            undrawn.append(
                OtherFigure(key, first=values[0], last=values[-1], low=min(values), high=max(values))
            )
    return undrawn


def spread(steps: Sequence[Step]) -> str:
    """Format the advantages of steps as one number, or as mean, smallest and largest."""
    values = advantages(steps)
    if not values:
        return ""
    low, high, mean = min(values), max(values), sum(values) / len(values)
    if high - low < 1e-9:
        return signed(mean)
    return f"mean {signed(mean)}, tokens {signed(low)} to {signed(high)}"


def prompt(step: Step) -> str:
    """Return the last message of a step's prompt."""
    asked = [message.get("content") or "" for message in step.chat_completions if message["role"] == "user"]
    return clipped(asked[-1]) if asked else ""


def fields(task: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the fields of a task except for its question."""
    return [(name, clipped(value, 300)) for name, value in task.items() if name not in ("id", "question")][:8]
