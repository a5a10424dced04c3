"""Tests of reading from a role that is skipped in every round of its loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.training.advantages.ledger import Membership
from tests.edge import ScriptedModel, run_one
from tests.run.written import Roles, asked, plan, whose

NEVER: Roles = {
    "a": {"when": "task.target == 0", "prompt": "a"},
    "b": {"needs": ["a"], "prompt": "{{ a.ran }}"},
    "c": {"needs": {"b": "previous"}, "when": "b.ran and b.action != 'b1.1'", "prompt": "{{ b.action }}"},
}
TWICE = {"l": {"roles": ["a", "b", "c"], "times": 3}}


def test_a_condition_and_an_end_over_who_never_runs_in_a_loop_are_answered(tmp_path: Path) -> None:
    roles = {**NEVER, "c": {**NEVER["c"], "when": "not a.ran", "needs": ["a"], "prompt": "{{ a.action }}"}}
    for until, rounds in (("a.ran", 3), ("not a.ran", 1), ("a | length == 0", 1), ("a.action == 'x'", 3)):
        loop = {"l": {**TWICE["l"], "until": until}}
        episode = run_one(plan(tmp_path, roles, loop), ScriptedModel(whose))
        assert [(t.name, len(t.steps)) for t in episode.trajectories] == [("b", rounds), ("c", rounds)], until
        assert asked(episode, "b") == [["False"] * rounds]
        assert "failures" not in episode.metadata


@pytest.mark.parametrize(
    ("reward", "earned"),
    [
        ("a.reward", None),
        ('action == ("correct" if a.right else "incorrect")', None),
        ("action == a.action", None),
        ("number(a.action)", None),
        (
            {"sum": {"right": "countdown", "team": {"reward": "(a.reward if a.ran else 0)", "weight": 0.5}}},
            0.0,
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("credit", ["trajectory", "turn", "margin", {"return": 0.5}], ids=str)
def test_a_reward_over_who_never_runs_in_a_loop_is_none_and_a_term_counts_nothing(
    reward: dict[str, Any], earned: float | None, credit: object, tmp_path: Path
) -> None:
    roles = {**NEVER, "b": {**NEVER["b"], "reward": reward, "credit": credit}}
    episode = run_one(plan(tmp_path, roles, TWICE), ScriptedModel(whose))
    (b,), (c,) = episode["b"], episode["c"]
    assert [step.reward for step in b.steps] == [earned or 0.0] * 3
    assert (b.reward, b.masked) == (earned, earned is None)
    assert [step.round for step in c.steps] == [3], "the round before is the second"
    compared = {group.key.role for group in Membership().add([episode]).groups()}
    assert compared == ({"c"} if earned is None else {"b", "c"})
