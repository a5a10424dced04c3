"""Tests of the findings about ratings and scores that no action can hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rolegraph.engine.compile import check_file
from rolegraph.engine.spec import Diagnostic
from tests.edge import write_spec

SCHEMA = {
    "type": "object",
    "required": ["score", "parts"],
    "additionalProperties": False,
    "properties": {"score": {"type": "number"}, "why": {"type": "string"}, "parts": {"type": "array"}},
}
OPEN = {**SCHEMA, "additionalProperties": True}
SAYS = {"prompt": "{{ solver.action }}", "needs": {"solver": "each"}, "trainable": False}
RATERS: dict[str, dict[str, Any]] = {
    "sum": {"needs": {"solver": "each"}, "run": {"calculator": "{{ solver.index }}"}},
    "ran": {"needs": {"solver": "each"}, "run": {"python": "{{ solver.action }}"}},
    "asked": {"needs": {"solver": "each"}, "run": {"http": "{}", "url": "http://127.0.0.1:9/"}},
    "best": {"needs": ["solver", "judge"], "run": {"top": "solver", "by": "judge.score", "k": 2}},
    "same": {"needs": ["solver"], "run": "equal"},
    "judge": {**SAYS, "parser": {"json": {"schema": SCHEMA}}},
    "open": {**SAYS, "parser": {"json": {"schema": OPEN}}},
    "any": {**SAYS, "parser": "json"},
    "words": {**SAYS, "parser": {"tag": "v", "one_of": ["pro", "con"]}},
    "grade": {**SAYS, "parser": {"one_of": ["1", "2"]}},
    "free": {**SAYS, "parser": {"tag": "v"}},
    "voted": {"needs": ["words"], "run": "majority"},
    "apart": {"prompt": "x", "parser": {"json": {"schema": SCHEMA}}, "trainable": False},
}
SOLVER = {"prompt": "x", "count": 2, "parser": {"json": {"schema": SCHEMA}}, "estimator": "grpo"}


def found(folder: Path, rater: str, reward: object, **roles: Any) -> list[Diagnostic]:
    """Return the findings of a spec with a solver, a rater and the roles that the rater needs."""
    if rater == "ran":
        pytest.importorskip("pydantic_monty")
    wanted = {rater, *(key for key in RATERS[rater]["needs"] if key in RATERS)} if rater else set[str]()
    spec = {
        "rolegraph": 2,
        "name": "x",
        "data": {"validation": "countdown"},
        "roles": {"solver": {**SOLVER, "reward": reward}, **{name: RATERS[name] for name in wanted}, **roles},
    }
    checked = check_file(write_spec(folder, yaml.safe_dump(spec, sort_keys=False)), allow=["python"])
    return [d for d in checked.diagnostics if " in the action of " in d.message]


@pytest.mark.parametrize(
    ("rater", "options", "reason"),
    [
        ("sum", {"path": "score"}, "which is a number"),
        ("sum", {"map": {"pro": 1}}, "which is a number"),
        ("ran", {"path": "value"}, "which is text"),
        ("same", {"map": {"pro": 1}}, "which is true or false"),
        ("best", {}, "which is a list"),
        ("best", {"path": "score"}, "which is a list"),
        ("best", {"path": "2.score"}, "which is a list of at most 2"),
        ("best", {"path": "0.why.x"}, "where 0.why is text"),
        ("judge", {}, "which is a mapping of score, why, parts"),
        ("judge", {"path": "rating"}, "which is a mapping of score, why, parts"),
        ("judge", {"path": "parts.x"}, "where parts is a list"),
        ("words", {}, "which is one of pro, con"),
        ("words", {"path": "score"}, "which is one of pro, con"),
        ("words", {"map": {"yes": 1, "no": 0}}, "which is one of pro, con"),
        ("voted", {}, "which is one of pro, con"),
    ],
    ids=str,
)
def test_a_rating_that_no_action_can_hold_is_a_fault(
    rater: str, options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    reward = {"weighted": {"right": "countdown", "team": {"rated_by": rater, **options}}}
    (fault,) = found(tmp_path, rater, reward)
    assert (fault.severity, fault.message.endswith(reason)) == ("error", True), fault.message
    assert rater in fault.message
    assert fault.hint


@pytest.mark.parametrize(
    ("rater", "options"),
    [
        ("sum", {}),
        ("sum", {"map": {"1": 1}}),
        ("ran", {}),
        ("ran", {"map": {"yes": 1}}),
        ("asked", {"path": "score"}),
        ("same", {}),
        ("same", {"map": {"true": 1}}),
        ("best", {"path": "0.score"}),
        ("judge", {"path": "score"}),
        ("judge", {"path": "parts.*"}),
        ("judge", {"path": "why", "map": {"pro": 1}}),
        ("any", {"path": "score"}),
        ("any", {}),
        ("words", {"map": {"Pro": 1}}),
        ("grade", {}),
        ("free", {}),
    ],
    ids=str,
)
def test_a_rating_that_an_action_may_hold_is_not(rater: str, options: dict[str, Any], tmp_path: Path) -> None:
    assert found(tmp_path, rater, {"rated_by": rater, **options}) == []


def test_each_term_of_a_sum_is_found_at_its_own_place(tmp_path: Path) -> None:
    terms = {"a": {"rated_by": "judge", "path": "x"}, "b": {"reward": {"rated_by": "judge", "path": "x"}}}
    faults = found(tmp_path, "judge", {"weighted": {"right": "countdown", **terms}})
    assert len({fault.place.line for fault in faults}) == 2


def test_a_key_that_a_schema_does_not_forbid_is_a_warning(tmp_path: Path) -> None:
    (remark,) = found(tmp_path, "open", {"rated_by": "open", "path": "scores"})
    assert (remark.severity, remark.hint) == ("warning", "did you mean 'score'?")


def test_a_place_of_its_own_needs_a_rater_that_reads_the_role(tmp_path: Path) -> None:
    (fault,) = found(tmp_path, "", {"rated_by": "apart", "path": "parts.*"}, apart=RATERS["apart"])
    assert "does not read solver" in fault.message


def test_scores_of_a_tool_that_chooses_are_checked_too(tmp_path: Path) -> None:
    best = {"needs": ["solver", "words"], "run": {"argmax": "solver", "by": "words.score"}}
    (fault,) = found(tmp_path, "words", "countdown", best=best)
    assert (fault.severity, fault.message.startswith("best reads score")) == ("error", True)


def test_a_field_of_its_own_answer_that_cannot_be_there_is_a_warning(tmp_path: Path) -> None:
    (remark,) = found(tmp_path, "", {"json_field": "rating", "value": 1})
    assert remark.severity == "warning"
    assert found(tmp_path, "", {"json_field": "parts.0", "value": 1}) == []
