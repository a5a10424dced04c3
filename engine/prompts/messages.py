"""From a role's templates to the messages that its model is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rolegraph.engine.prompts.templates import Template
from rolegraph.engine.records import Message


def render_messages(
    prompt: Template, system: Template | None, variables: Mapping[str, Any]
) -> Sequence[Message]:
    """Render the system message, if there is a template for it, and the user message; raises PromptError."""
    turn = {"role": "user", "content": prompt.render(variables)}
    return (turn,) if system is None else ({"role": "system", "content": system.render(variables)}, turn)
