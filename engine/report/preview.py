"""HTML page of a preview: the prompts of a spec's roles. It opens offline and runs no script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rolegraph.engine.report.html import environment, style

if TYPE_CHECKING:
    from rolegraph.engine.run.preview import TaskPrompts

_HERE = Path(__file__).parent


def preview_page(name: str, description: str, tasks: Sequence[TaskPrompts], notes: tuple[str, str]) -> str:
    """Return the HTML of a preview; `notes` are the source of the answers, and the reason why no tokens are
    shown."""
    answers, no_tokens = notes
    return (
        environment(_HERE)
        .get_template("preview.html.j2")
        .render(
            name=name,
            description=description,
            tasks=tasks,
            answers=answers,
            no_tokens=no_tokens,
            style=style(_HERE / "preview.css"),
        )
    )
