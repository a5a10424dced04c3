"""Rewards of version 1 that other roles decide, as expressions of version 2."""

from __future__ import annotations

import pytest
import yaml

from rolegraph.migrate.files import rewritten
from rolegraph.migrate.raters import raters

SPEC = """rolegraph: 1
roles:
  plan: {{prompt: plan.j2}}
  solver:
    count: 3  # candidates
    needs: {{plan: all}}
    reward: {reward}
  judge: {{needs: {{solver: each}}, when: solver.ran, parser: {{tag: verdict, one_of: [pro, con]}}}}
  all: {{needs: [solver], parser: {{json: {{}}}}}}
  vote: {{needs: [solver], run: majority}}
  grade: {{needs: {{solver: each}}, parser: number}}
"""


def migrated(reward: str) -> tuple[object, list[tuple[int, str]]]:
    """Return the reward of `solver`, and the problems."""
    text, problems = rewritten(SPEC.format(reward=reward), [raters])
    assert "count: 3  # candidates" in text
    return yaml.safe_load(text)["roles"]["solver"]["reward"], problems


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{of: judge}", "judge.reward"),
        ("{of: judge, scale: -1}", "-judge.reward"),
        ("{of: judge, scale: -1, offset: 1}", "1 - judge.reward"),
        ("{of: judge, scale: 0.5, offset: -2}", "0.5 * judge.reward - 2"),
        ("{of: judge, scale: {from: 0.1, to: 0, steps: 100}}", "ramp(0.1, 0, 100) * judge.reward"),
        ("{of: judge, else: 0}", "judge.reward | default(0)"),
        ("{of: judge, scale: 2, else: -1}", "(2 * judge.reward) | default(-1)"),
        ("{of: judge, else: mask}", "judge.reward"),
        ("{of: vote}", "vote.reward"),
        ("{rated_by: grade}", "grade.action"),
        ("{rated_by: vote}", "number(vote.action)"),
        ("{rated_by: all, path: scores.0.of style}", 'all.action.scores[0]["of style"]'),
        ("{rated_by: all, path: scores.*, scale: 0.1}", "0.1 * all.action.scores[self.index - 1]"),
        ("{rated_by: judge, map: {pro: 1, con: 0}}", 'judge.action == "pro"'),
        ("{rated_by: judge, map: {pro: 1, con: -1}}", '{"pro": 1, "con": -1}[judge.action]'),
        ("{rated_by: vote, map: {Pro: 2}}", '{"pro": 2}[vote.action | trim | lower]'),
        ("{same_as: vote}", "action == vote.action"),
        ("{same_as: vote, equal: math, else: 0}", "(math(action, vote.action)) | default(0)"),
        ("{agrees_with: judge}", 'action == ("correct" if judge.right else "incorrect")'),
        ("{agrees_with: judge, right: ja, wrong: nein}", 'action == ("ja" if judge.right else "nein")'),
        (
            "{weighted: {right: math, team: {of: judge}, price: {reward: {rated_by: grade}, weight: -1}}}",
            {
                "sum": {
                    "right": "math",
                    "team": "(judge.reward if judge.ran else 0)",
                    "price": {"reward": "grade.action", "weight": -1},
                }
            },
        ),
        (
            "{weighted: {deep: {weighted: {team: {of: vote}}}}}",
            {"sum": {"deep": {"sum": {"team": "vote.reward"}}}},
        ),
        ("{likelihood: {of: '{{ task.answer }}'}}", {"likelihood": {"of": "{{ task.answer }}"}}),
        ("math", "math"),
    ],
)
def test_a_reward_from_other_roles_becomes_an_expression(before: str, after: object) -> None:
    assert migrated(before) == (after, [])


def test_of_several_instances_the_mean_is_paid_and_all_must_be_right() -> None:
    spec = "roles:\n  plan: {reward: {REWARD}}\n  solver: {count: 3, needs: plan}\n"

    def of_plan(reward: str) -> str:
        return yaml.safe_load(rewritten(spec.replace("REWARD", reward), [raters])[0])["roles"]["plan"][
            "reward"
        ]

    assert of_plan("of: solver, scale: 2") == "2 * mean(solver.reward)"
    assert of_plan("same_as: solver") == "mean(solver.action == action)"
    assert of_plan("agrees_with: solver") == 'action == ("correct" if all(solver.right) else "incorrect")'


def test_a_team_that_decides_the_episode_keeps_being_right() -> None:
    spec = "roles:\n  solver:\n    reward: {of: judge}\n  judge: {}\nepisode: {correct: solver}\n"
    solver = yaml.safe_load(rewritten(spec, [raters])[0])["roles"]["solver"]
    assert solver == {"reward": "judge.reward", "right": "judge.right"}


def test_a_place_in_a_list_that_is_not_known_is_named_with_its_line() -> None:
    spec = (
        "roles:\n  solver:\n    reward: {rated_by: judge, path: scores.*}\n  judge: {needs: {solver: each}}\n"
    )
    text, problems = rewritten(spec, [raters])
    assert (text, [line for line, _ in problems]) == (spec, [3])
