"""Tests of the reader of credit in episodes of version 0.2, and of runs."""

from __future__ import annotations

from typing import Any

import pytest

from rolegraph.engine.records import Episode, Step, Trajectory
from rolegraph.pages.recorded_credit import recorded_rows


def episode(rollout: int, metadata: dict[str, Any], **step: Any) -> Episode:
    steps = (Step(response_ids=(1, 2), metadata=metadata, **step),)
    return Episode(
        "t", rollout, {"id": "t"}, [Trajectory("a", 1, steps, 1.0 - rollout, uid=f"t:{rollout}/a/1")]
    )


def test_a_trajectory_of_version_02_has_the_row_that_it_noted() -> None:
    noted = {"baseline": 0.5, "loss_weight": 0.25}
    rows = [*recorded_rows([episode(n, noted, advantage=0.5 - n) for n in (0, 1)])]
    assert [(it.group, it.rollout, it.reward, it.advantage) for it in rows] == [
        (0, 0, 1.0, 0.5),
        (0, 1, 0.0, -0.5),
    ]
    assert {(it.baseline, it.loss_weight, it.tokens, it.by) for it in rows} == {(0.5, 0.25, 2, "task")}


def test_turns_in_several_groups_have_a_row_for_each() -> None:
    parts = [
        {"advantage": 1.0, "weight": 1.0},
        {"credit": 0.75, "group": {"round": 1, "part": 1}, "advantage": -1.0, "weight": 0.5},
    ]
    whole, turn = recorded_rows([episode(0, {"groups": parts, "loss_weight": 0.125})])
    assert (whole.grouping, whole.round, whole.advantage) == (0, 0, 1.0)
    assert (turn.grouping, turn.round, turn.reward, turn.weight, turn.by) == (1, 1, 0.75, 0.5, "turn")
    assert whole.loss_weight == turn.loss_weight == 0.125 and whole.group != turn.group


@pytest.mark.parametrize(
    "metadata",
    [
        {"groups": [3]},
        {"group": ["x"]},
        {"advantage": "x"},
        {"group": {"policy": ["a"]}},
        {"credit": "x"},
        {"loss_weight": {}},
        {"baseline": float("nan")},
    ],
)
def test_notes_of_another_form_are_left_out(metadata: dict[str, Any]) -> None:
    (row,) = recorded_rows([episode(0, metadata)])
    assert (row.group, row.reward, row.advantage, row.baseline) == (0, 1.0, None, None)
