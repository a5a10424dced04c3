"""Where a compiled class has its plan from: a spec that any process can compile again, or a Plan of this one.

Knows no rLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

from engine.compile.compiler import compile_file
from engine.compile.plan import Plan
from engine.errors import UsageError


@dataclass(frozen=True, slots=True)
class SpecSource:
    """A spec's name or absolute path, and what was overridden: strings, which travel to a Ray worker."""

    spec: str
    overrides: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        """Compiled once in each process; raises SpecError or UsageError."""
        return _compiled(self)


@dataclass(frozen=True, slots=True, eq=False)
class PlanSource:
    """A plan of this process. Its templates and vocabulary are functions, which no pickle can hold."""

    plan: Plan

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"the workflow of the plan {self.plan.name} cannot be sent to another process; "
            "compile it from the spec's name or file"
        )


Source = SpecSource | PlanSource


def source_of(spec: str | Path | Plan, overrides: Sequence[str] = ()) -> Source:
    """The source of a plan, a shipped spec's name, or a file, whose path is made absolute."""
    if isinstance(spec, Plan):
        if overrides:
            raise UsageError("overrides change a spec, not a plan; compile it with them")
        return PlanSource(spec)
    path = Path(spec)
    return SpecSource(str(path.resolve() if path.is_file() else spec), tuple(overrides))


@lru_cache(maxsize=64)
def _compiled(source: SpecSource) -> Plan:
    return compile_file(source.spec, source.overrides)
