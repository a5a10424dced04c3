"""Schedules of a spec: numbers that change over the steps of a training, and the spec as of a step. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rolegraph.engine.spec.diagnostics import Finding, Path
from rolegraph.engine.spec.models import Spec
from rolegraph.engine.spec.validation import validate
from rolegraph.engine.vocabulary import NumberSchedule, values_at, written_schedules

_EXPECTED = "{from: 0.1, to: 0, steps: 100}, and `after` if it waits"


@dataclass(frozen=True, slots=True)
class SpecSchedules:
    """Data of a spec and its schedules, from which the spec as of a step follows."""

    data: Mapping[str, Any]
    by_path: Mapping[Path, NumberSchedule]

    def spec_at(self, step: int) -> Spec:
        """Return the spec with the values of a training step."""
        return validate(data_at(self.data, self.by_path, step)).value

    def values(self, step: int | None) -> dict[str, float]:
        """Return the values in a step by their paths, such as `roles.solver.weight`; None for the last."""
        return {".".join(map(str, path)): it.at(step) for path, it in self.by_path.items()}


def find_schedules(data: Mapping[str, Any]) -> tuple[dict[Path, NumberSchedule], list[Finding]]:
    """Return the valid schedules of a spec's data by path, and a finding for each other one."""
    schedules: dict[Path, NumberSchedule] = {}
    findings: list[Finding] = []
    for path, written in written_schedules(data):
        try:
            schedules[path] = NumberSchedule.model_validate(written)
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(map(str, fault["loc"]))
            findings.append(
                Finding(
                    path,
                    f"the schedule has a fault at {where}: {fault['msg']}",
                    _EXPECTED,
                    code="wrong-value",
                )
            )
    return schedules, findings


def data_at(
    data: Mapping[str, Any], schedules: Mapping[Path, NumberSchedule], step: int | None
) -> Mapping[str, Any]:
    """Return a spec's data with each schedule replaced by its value in a step; None for the last."""
    return values_at(data, {path: it.at(step) for path, it in schedules.items()}) if schedules else data
