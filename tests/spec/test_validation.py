"""Tests that validation reports and drops invalid parts, and keeps the rest for later checks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, model_validator

from rolegraph.engine.spec import ModelRef, Role, Spec
from rolegraph.engine.spec.validation import fit_model, validate

SOLVER: dict[str, Any] = {"prompt": "Hi", "count": 3}


def spec_of(*, roles: object = None, **top: object) -> dict[str, Any]:
    return {"rolegraph": 2, "name": "sums", "roles": {"solver": SOLVER} if roles is None else roles, **top}


def test_a_spec_without_faults_is_the_spec_that_pydantic_reads() -> None:
    data = spec_of(train={"steps": 3}, model="tinker:x")
    assert validate(data) == (Spec.model_validate(data), [], set())


def test_a_role_keeps_what_fits_of_it() -> None:
    fitting = validate(spec_of(roles={"solver": {**SOLVER, "cuont": 2, "timeout": -1}, "judge": SOLVER}))
    assert fitting.value.roles["solver"] == Role.model_validate(SOLVER)
    assert fitting.value.roles["judge"].count == 3
    assert fitting.left_out == {("roles", "solver", "cuont"), ("roles", "solver", "timeout")}


def test_the_top_keeps_what_fits_of_it_and_all_roles() -> None:
    data = spec_of(name=3, train={"steps": 0, "rollouts": 4}, sampling={"top_p": 2}, episode={"corect": "x"})
    fitting = validate(data)
    assert fitting.value.roles == {"solver": Role.model_validate(SOLVER)}
    assert fitting.value.train.rollouts == 4
    assert fitting.left_out == {("name",), ("train", "steps"), ("sampling", "top_p"), ("episode", "corect")}


def test_faults_of_the_top_and_of_every_role_come_together() -> None:
    fitting = validate(spec_of(nmae="x", roles={"a": {"prompt": 3}, "b": {}, "c": None, "d": SOLVER}))
    assert [finding.message for finding in fitting.findings] == [
        "unknown key 'nmae'",
        "prompt cannot be 3",
        "c cannot be null",
    ]


def test_a_role_of_a_bad_name_is_there_for_others_to_need_and_only_its_name_is_reported() -> None:
    fitting = validate(spec_of(roles={"the solver": {**SOLVER, "cuont": 2}}))
    assert [finding.message for finding in fitting.findings] == ["'the solver' cannot be a name"]
    assert list(fitting.value.roles) == ["the solver"]
    assert ("roles", "the solver") in fitting.left_out


@pytest.mark.parametrize("roles", [{}, [], 3, None, "solver"], ids=str)
def test_without_roles_there_is_one_that_no_check_has_anything_against(roles: object) -> None:
    fitting = validate({"rolegraph": 2, "name": "sums", "roles": roles})
    assert [role.is_trained for role in fitting.value.roles.values()] == [False]
    assert fitting.left_out == {("roles",)}


def test_a_value_written_in_short_goes_as_a_whole() -> None:
    fitting = validate(spec_of(model="tnker:x", train={"schedule": "cosin", "rollouts": 4}))
    assert fitting.value.model == ModelRef()
    assert fitting.value.train.rollouts == 4
    assert fitting.left_out == {("model",), ("train", "schedule")}


def test_an_item_of_a_list_goes_alone_but_positions_in_the_list_no_longer_count() -> None:
    fitting = validate(spec_of(sampling={"stop": [1, "END", 2]}))
    assert fitting.value.sampling.stop == ["END"]
    assert fitting.left_out == {("sampling", "stop")}
    assert [finding.path[-1] for finding in fitting.findings] == [0, 2]


def test_a_list_of_needs_holds_names() -> None:
    fitting = validate(spec_of(roles={"solver": SOLVER, "judge": {**SOLVER, "needs": [1, "solver"]}}))
    assert fitting.left_out == {("roles", "judge", "needs")}
    assert "role names, not 1" in fitting.findings[0].message + (fitting.findings[0].expected or "")


def test_nothing_stands_in_for_a_prompt_that_does_not_fit() -> None:
    fitting = validate(spec_of(roles={"solver": {**SOLVER, "prompt": {"flie": "x.j2"}}}))
    assert fitting.value.roles["solver"].prompt is None
    assert fitting.left_out == {("roles", "solver", "prompt")}


def test_two_hundred_roles_with_two_faults_each_are_reported_with_their_places() -> None:
    broken = {f"r{i}": {**SOLVER, "cuont": 1, "count": 0} for i in range(200)}
    fitting = validate(spec_of(roles=broken))
    assert len(fitting.findings) == 400
    assert fitting.findings[-1].path == ("roles", "r199", "cuont")
    assert len(fitting.value.roles) == 200


def test_more_roles_than_anyone_writes_are_one_fault_and_nothing_else_is_looked_at() -> None:
    (finding,) = validate(spec_of(roles={f"r{i}": {**SOLVER, "cuont": 1} for i in range(201)})).findings
    assert (finding.message, "limit: spec_roles" in finding.expected) == ("the spec has 201 roles", True)


class Interval(BaseModel):
    """Model with a constraint between its two fields."""

    low: int = 0
    high: int = 1

    @model_validator(mode="after")
    def ordered(self) -> Interval:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


def test_where_a_second_look_shows_more_faults_nothing_of_the_part_is_left() -> None:
    fitting = fit_model(Interval, {"low": 5, "high": "x"}, {"high": 2}, ("train", "interval"))
    assert fitting.value == Interval(high=2)
    assert fitting.left_out == {("train", "interval")}
    assert [finding.path for finding in fitting.findings] == [
        ("train", "interval", "high"),
        ("train", "interval"),
    ]


WORDS = [*Spec.model_fields, *Role.model_fields, "provider", "kind", "metrics", "[key]"]
keys = st.sampled_from(WORDS) | st.text(max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | keys
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4)
)
roles = st.dictionaries(keys, st.dictionaries(st.sampled_from(list(Role.model_fields)), values), max_size=3)
anything = st.dictionaries(keys, values, max_size=5) | st.builds(
    lambda top, written: {**top, "roles": written}, st.dictionaries(keys, values, max_size=5), roles
)


@given(anything)
@example({"[key]": 1, "roles": {"[key]": {"[key]": 2}}})
def test_whatever_yaml_can_hold_gives_a_spec_or_findings_at_what_was_written(data: dict[str, Any]) -> None:
    fitting = validate(data)
    assert fitting.value.roles
    assert () not in fitting.left_out
    for finding in fitting.findings:
        assert any(finding.path[:depth] in fitting.left_out for depth in range(len(finding.path) + 1))
    if not fitting.findings:
        assert fitting.value == Spec.model_validate(data)


def test_text_that_is_no_unicode_is_a_finding_too() -> None:
    assert validate({"name": "\ud800", "roles": {"\ud800": {"\ud800": "\ud800"}}}).findings
