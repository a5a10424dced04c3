"""A spec and the flags that change it, to a plan."""

from __future__ import annotations

from collections.abc import Sequence

from engine.compile import Plan, compile_file
from engine.spec.merge import model_overrides


def compile_with(
    spec: str, overrides: Sequence[str], model: str | None = None, base_url: str | None = None
) -> Plan:
    """The plan of a spec with `--model` and `--base-url` applied; raises SpecError or UsageError."""
    return compile_file(spec, [*overrides, *model_overrides(model, base_url)])
