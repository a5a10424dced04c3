"""What a spec's roles would be asked, as one page that opens offline. Pure.

Autoescape is on: tasks, recorded answers and templates are a stranger's text. The page runs no script.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rolegraph.engine.report.html import environment, style

if TYPE_CHECKING:
    from rolegraph.engine.run.preview import TaskPrompts

_HERE = Path(__file__).parent


def preview_page(name: str, description: str, tasks: Sequence[TaskPrompts], notes: tuple[str, str]) -> str:
    """The page's text. `notes` say whose answers are shown, and why there are no tokens."""
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
