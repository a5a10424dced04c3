"""A spec and the flags that change it, to a plan."""

from __future__ import annotations

import json
from collections.abc import Sequence

from engine.compile.compiler import compile_file
from engine.compile.plan import Plan
from engine.spec.models import ModelRef


def compile_with(
    spec: str, overrides: Sequence[str], model: str | None = None, base_url: str | None = None
) -> Plan:
    """The plan of a spec with `--model` and `--base-url` applied; raises SpecError or UsageError."""
    words = [*overrides, *([f"model={model}"] if model else [])]
    plan = compile_file(spec, words)
    if base_url:
        plan = compile_file(spec, [*words, f"model={_at(plan.spec.model, base_url)}"])
    return plan


def _at(ref: ModelRef, base_url: str) -> str:
    """The model at an endpoint; a local one becomes a tinker one, as a service serves it."""
    provider = "tinker" if ref.provider == "local" else ref.provider
    return json.dumps({**ref.model_dump(exclude_none=True), "provider": provider, "base_url": base_url})
