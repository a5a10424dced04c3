"""A spec and the flags that change it, to a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from engine.compile import Plan, compile_file
from engine.spec import Finding, model_overrides


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
    return compile_file(spec, [*overrides, *model_overrides(model, base_url)], further)
