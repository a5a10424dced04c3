"""A spec and the flags that change it, to a plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

from engine.compile.compiler import compile_file
from engine.compile.plan import Plan
from engine.spec.diagnostics import Finding
from engine.spec.models import ModelRef


def compile_with(
    spec: str,
    overrides: Sequence[str],
    model: str | None = None,
    base_url: str | None = None,
    further: Callable[[Plan], Iterable[Finding]] | None = None,
) -> Plan:
    """The plan of a spec with `--model` and `--base-url` applied; raises SpecError or UsageError.

    `further` checks the plan for more than can be said of any spec, as in `check_file`.
    """
    words = [*overrides, *([f"model={model}"] if model else [])]
    if base_url:
        words.append(f"model={_at(compile_file(spec, words).spec.model, base_url)}")
    return compile_file(spec, words, further)


def _at(ref: ModelRef, base_url: str) -> str:
    """The model at an endpoint; a local one becomes a tinker one, as a service serves it."""
    provider = "tinker" if ref.provider == "local" else ref.provider
    return json.dumps({**ref.model_dump(exclude_none=True), "provider": provider, "base_url": base_url})
