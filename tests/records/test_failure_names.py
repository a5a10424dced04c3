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


def test_a_cause_decides_how_a_failed_answer_counts() -> None:
    failed = [Trajectory("solver", failure=Failure(name, "")) for name in FailureName]
    for trajectory in failed:
        assert trajectory.failure is not None
        counts = {
            "form": trajectory.is_formless,
            "world": trajectory.is_lost,
            "reward": trajectory.is_unjudged,
        }
        assert [cause for cause, holds in counts.items() if holds] == (
            [] if trajectory.failure.name.cause == "other" else [trajectory.failure.name.cause]
        )


def test_a_name_is_its_value_and_travels_to_another_process() -> None:
    for name in FailureName:
        assert name == name.value
        assert pickle.loads(pickle.dumps(name)) is FailureName(name.value) is name
