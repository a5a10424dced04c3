"""Tests that a failure name is declared once: members have a cause, and both pages explain each."""

from __future__ import annotations

import pickle

import pytest

from rolegraph.engine.records import Failure, FailureName, Trajectory
from tests.documents import ROOT

PAGES = ("language/failures.md", "troubleshooting.md")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_explains_every_failure(page: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    rows = "".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    assert not [name.value for name in FailureName if f"`{name.value}`" not in rows]


def test_a_trajectory_has_the_cause_of_its_failure() -> None:
    assert Trajectory("solver").failed_by is None
    causes = {name: Trajectory("solver", failure=Failure(name, "")).failed_by for name in FailureName}
    assert causes[FailureName.SPECIAL_TOKEN] == "form"
    assert causes[FailureName.TIMEOUT] == "world"
    assert causes[FailureName.UNSUPPORTED_PROGRAM] == "reward"
    assert causes == {name: name.cause for name in FailureName}


def test_a_name_is_its_value_and_travels_to_another_process() -> None:
    for name in FailureName:
        assert name == name.value
        assert pickle.loads(pickle.dumps(name)) is FailureName(name.value) is name
