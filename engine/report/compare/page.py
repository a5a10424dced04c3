"""HTML page of a comparison; it opens offline and runs no script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from rolegraph.engine.records import Trajectory
from rolegraph.engine.report import charts
from rolegraph.engine.report.compare.comparison import Comparison
from rolegraph.engine.report.digest import clipped
from rolegraph.engine.report.html import environment, style
from rolegraph.engine.training.compare import Interval

_HERE = Path(__file__).parent


def comparison_page(comparison: Comparison) -> str:
    """Return the HTML of a comparison."""
    return (
        environment(_HERE)
        .get_template("compare.html.j2")
        .render(
            found=comparison,
            drawn=drawn,
            answer=answer,
            zip=zip,
            style=style(_HERE / "compare.css"),
        )
    )


def answer(trajectory: Trajectory) -> str:
    """Return the responses of a role instance; its action where it called no model."""
    written = [step.model_response for step in trajectory.steps if step.model_response]
    return clipped("\n\n".join(written) or trajectory.action or "")


def drawn(row: Sequence[Interval | None]) -> list[Markup]:
    """Return the intervals of a row as SVG, on one scale; empty for a missing interval."""
    values = [end for cell in row if cell for end in (cell.low, cell.high)]
    ends = (min(values, default=0.0), max(values, default=1.0))
    return [Markup(charts.interval(c.mean, c.low, c.high, ends)) if c else Markup("") for c in row]
