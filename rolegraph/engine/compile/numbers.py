"""Numbers of a spec that follow the training step: expressions over `step`, which counts from 0."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, pairwise
from typing import Any

from rolegraph.engine.limits.specs import SPEC_STEPS
from rolegraph.engine.prompts import Expression, PromptError, TemplateScope, read_expression
from rolegraph.engine.spec import Spec
from rolegraph.engine.spec.diagnostics import Finding, Path
from rolegraph.engine.spec.loader import LoadedSpec
from rolegraph.engine.spec.validation import validate
from rolegraph.engine.vocabulary import STEP_NUMBER, values_at

STEP = TemplateScope(
    {}, (), (), text="an expression over the step", is_condition=True, has_value=True, values=("step",)
)
"""Names that an expression over the step may use."""


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """Data of a spec and its expressions over the step, from which the spec as of a step follows."""

    data: Mapping[str, Any]
    by_path: Mapping[Path, Expression]
    steps: Sequence[int]
    """Steps in which the expressions are checked: all steps, or some steps of a long training."""

    def at(self, step: int) -> dict[Path, float]:
        """Return the values of the expressions in a step, by path in the spec."""
        return {path: expression.value({"step": step}) for path, expression in self.by_path.items()}

    def values(self, step: int) -> dict[str, float]:
        """Return the values of the expressions in a step, by dotted path, such as `roles.solver.weight`."""
        return {".".join(map(str, path)): value for path, value in self.at(step).items()}

    def spec_at(self, step: int) -> Spec:
        """Return the spec with its expressions over the step replaced by their values in a step."""
        return validate(values_at(self.data, self.at(step))).value

    def extremes(self) -> list[int]:
        """Return the steps in which any number is least or greatest: limits that hold there hold in all
        steps."""
        extreme_steps: set[int] = set()
        for expression in self.by_path.values():
            values = [(expression.value({"step": step}), step) for step in self.steps]
            extreme_steps |= {min(values)[1], max(values, key=lambda it: it[0])[1]}
        return sorted(extreme_steps)

    def curves(self, last: int) -> dict[str, list[tuple[int, float]]]:
        """Return for each number (step, value) at the steps up to `last` at which its slope changes."""
        steps = sorted({last, *(step for step in self.steps if step < last)})
        return {".".join(map(str, path)): _bends(e, steps) for path, e in self.by_path.items()}


def _bends(expression: Expression, steps: Sequence[int]) -> list[tuple[int, float]]:
    points = [(step, expression.value({"step": step})) for step in steps]
    slopes = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairwise(points)]
    bends = [not math.isclose(slope, next_slope, abs_tol=1e-9) for slope, next_slope in pairwise(slopes)]
    return [*points[:1], *compress(points[1:], bends), *points[1:][-1:]]


def numbers_of(loaded: LoadedSpec) -> tuple[StepNumbers | None, list[Finding]]:
    """Compile the expressions over the step, and give the spec the values of step 0.

    Returns:
        The numbers, None for a spec without any or with faulty ones; and the findings, which name their step.
    """
    expressions: dict[Path, Expression] = {}
    findings: list[Finding] = []
    steps = _checked_steps(loaded.spec)
    for path, source in loaded.numbers.items():
        expression, faults = read_expression(path, source, STEP)
        findings += faults
        if expression is not None:
            expressions[path] = expression
            problems = (_problem(expression, step) for step in steps)
            findings += (Finding(path, e, STEP_NUMBER) for e in [*filter(None, problems)][:1])
    weights = (
        ("roles", name, "weight")
        for name, role in loaded.spec.roles.items()
        if role.is_trained and not role.weight
    )
    findings += (_useless(path) for path in weights)
    if not expressions or findings:
        return None, findings
    numbers = StepNumbers(loaded.data, expressions, steps)
    known_findings = {
        finding.path for finding in validate(values_at(loaded.data, dict.fromkeys(expressions, 1.0))).findings
    }
    for step in numbers.extremes():
        checked = validate(values_at(loaded.data, numbers.at(step))).findings
        findings += (in_step(step, finding) for finding in checked if finding.path not in known_findings)
        known_findings |= {finding.path for finding in checked}
    findings += (
        _useless(path)
        for path, e in expressions.items()
        if path[0] == "roles" and path[2:] == ("weight",) and not any(e.value({"step": n}) for n in steps)
    )
    if findings:
        return None, findings
    loaded.spec = numbers.spec_at(0)
    return numbers, []


def in_step(step: int, finding: Finding) -> Finding:
    """Return a finding whose message names the step to whose numbers it applies."""
    return replace(finding, message=f"in step {step}: {finding.message}")


def _checked_steps(spec: Spec) -> Sequence[int]:
    """Return the steps in which numbers are checked, from 0: all steps of a short training, evenly spread
    steps of a long one."""
    count = spec.train.steps or SPEC_STEPS.most
    return [*range(0, count, math.ceil(count / SPEC_STEPS.most)), count - 1]


def _problem(expression: Expression, step: int) -> str:
    """Return the reason why an expression is no number in a step; empty if it is a number."""
    try:
        value = expression.value({"step": step})
    except PromptError as error:
        return f"in step {step}: {error}"
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return "" if is_number else f"in step {step} it is no number"


def _useless(path: Path) -> Finding:
    message = f"the weight of {path[1]} is 0 in every step, so it learns nothing"
    return Finding(path, message, "more than 0 in some step", "or remove its `estimator`")
