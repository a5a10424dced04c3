"""Prompts that the shipped models were trained on: exactly those of the shipped specs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from rolegraph.engine.compile import Plan
from rolegraph.engine.shipped import BASE_NAME, PROMPTS
from rolegraph.engine.spec import Finding


def foreign_findings(plan: Plan) -> Iterator[Finding]:
    """Warn, once for each shipped model, of the roles whose prompts it was not trained on.

    Args:
        plan: The plan.
    """
    roles: dict[str, list[str]] = {}
    for role in plan.asking:
        model = plan.endpoints[role.endpoints[0]].model
        prompts = {template.source for template in (role.system, role.prompt) if template}
        if model.is_shipped and not prompts <= _shipped_prompts():
            roles.setdefault(model.name or BASE_NAME, []).append(role.name)
    for model, names in roles.items():
        message = (
            f"{model} knows the shipped prompts alone, and the prompt of {', '.join(names)} is another: it "
            "can neither answer it nor learn to"
        )
        path = ("roles", names[0], "prompt")
        yield Finding(path, message, hint="--model chooses another model", severity="warning")


@cache
def _shipped_prompts() -> frozenset[str]:
    """Return the texts of all shipped prompt templates."""
    return frozenset(file.read_text("utf-8") for file in PROMPTS.glob("*.j2"))
