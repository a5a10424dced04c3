"""A role's templates and what they see, to the messages that its model is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rolegraph.engine.prompts.templates import Template
from rolegraph.engine.records import Message


def render_messages(
    prompt: Template, system: Template | None, variables: Mapping[str, Any]
) -> Sequence[Message]:
    """The user's turn, and the system's before it where there is one; raises PromptError."""
    turn = {"role": "user", "content": prompt.render(variables)}
    return (turn,) if system is None else ({"role": "system", "content": system.render(variables)}, turn)
