"""Tests of the findings about scores and fields that no action can hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rolegraph.engine.compile import check_file
from rolegraph.engine.spec import Diagnostic
from tests.edge import decided, write_spec

SCHEMA = {
    "type": "object",
    "required": ["score", "parts"],
    "additionalProperties": False,
    "properties": {"score": {"type": "number"}, "why": {"type": "string"}, "parts": {"type": "array"}},
}
SAYS = {"prompt": "{{ solver.action }}", "needs": {"solver": "each"}}
RATERS: dict[str, dict[str, Any]] = {
    "judge": {**SAYS, "parser": {"json": SCHEMA}},
    "words": {**SAYS, "parser": {"tag": "v", "as": ["pro", "con"]}},
}
SOLVER = {"prompt": "x", "count": 2, "parser": {"json": SCHEMA}, "estimator": "grpo"}


def found(folder: Path, rater: str, reward: object, **roles: Any) -> list[Diagnostic]:
    """Return the findings of a spec with a solver, a rater and the roles that the rater needs."""
    wanted = {rater, *(key for key in RATERS[rater]["needs"] if key in RATERS)} if rater else set[str]()
    spec = {
        "rolegraph": 2,
        "name": "x",
        "data": {"validation": "countdown"},
        "roles": {"solver": {**SOLVER, "reward": reward}, **{name: RATERS[name] for name in wanted}, **roles},
    }
    checked = check_file(write_spec(folder, yaml.safe_dump(decided(spec), sort_keys=False)), allow=["python"])
    return [d for d in checked.diagnostics if " in the action of " in d.message]


def test_scores_of_a_tool_that_chooses_are_checked_too(tmp_path: Path) -> None:
    best = {"needs": ["solver", "words"], "run": {"argmax": "solver", "by": "words.score"}}
    (fault,) = found(tmp_path, "words", "countdown", best=best)
    assert (fault.severity, fault.message.startswith("best reads score")) == ("error", True)


def test_a_field_of_its_own_answer_that_cannot_be_there_is_a_warning(tmp_path: Path) -> None:
    (remark,) = found(tmp_path, "", {"json_field": "rating", "value": 1})
    assert remark.severity == "warning"
    assert found(tmp_path, "", {"json_field": "parts.0", "value": 1}) == []
