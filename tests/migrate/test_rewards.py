"""Tests of the rewrites of rewards: expressions that were `{value: …}`."""

from __future__ import annotations

import pytest

from rolegraph.migrate.files import migrate_yaml
from rolegraph.migrate.rewrites import REWRITES

HEAD = "rolegraph: 1\nname: x\n"


def migrated(text: str) -> str:
    changed, problems = migrate_yaml(HEAD + text, REWRITES)
    assert not problems
    assert migrate_yaml(changed, REWRITES) == (changed, [])
    return changed.replace(HEAD.replace("1", "2"), "")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{value: "action == task.answer"}', '"action == task.answer"'),
        ("{value: action == task.answer}  # kept", "action == task.answer  # kept"),
        ("{value: tokens}", "tokens"),
        ('{value: {expr: "0.1 * tokens", right: "ok"}}', '"0.1 * tokens"\n    right: "ok"'),
        ("{weighted: {a: {value: -0.1 * tokens}, b: math}}", "{sum: {a: -0.1 * tokens, b: math}}"),
        (
            "{weighted: {a: {reward: {value: '1 - calls'}, weight: 0.5}}}",
            "{sum: {a: {reward: '1 - calls', weight: 0.5}}}",
        ),
        ("{value: 1}", "1"),
        ("math", "math"),
    ],
)
def test_an_expression_stands_alone(before: str, after: str) -> None:
    spec = "roles:\n  a:\n    reward: TEXT\n    timeout: 9\n"
    assert migrated(spec.replace("TEXT", before)) == spec.replace("TEXT", after)


def test_right_goes_beside_the_reward_in_a_role_on_one_line() -> None:
    before = "roles: {a: {reward: {value: {expr: 1 - calls, right: ok}}, estimator: grpo}}\n"
    after = "roles: {a: {reward: 1 - calls, right: ok, estimator: grpo}}\n"
    assert migrated(before) == after


@pytest.mark.parametrize(
    ("reward", "word"),
    [
        ("{value: {expr: action == task.b, labels: [b]}}", "labels"),
        ("{weighted: {a: {value: {expr: 1 - calls, right: ok}}}}", "right"),
    ],
)
def test_an_option_without_a_form_in_version_2_is_named_with_its_line(reward: str, word: str) -> None:
    _, problems = migrate_yaml(HEAD + f"roles:\n  a:\n    reward: {reward}\n", REWRITES)
    (problem,) = problems
    assert word in str(problem)
    assert "5" in str(problem)
