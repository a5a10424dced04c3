"""Metrics of version 1, as expressions of version 2."""

from __future__ import annotations

import pytest
import yaml

from rolegraph.migrate.files import rewritten
from rolegraph.migrate.metrics import metrics

SPEC = """roles:
  solver: {count: 2}
  judge: {needs: [solver]}
  critic: {needs: {solver: each}}
loops: {l: {roles: [judge], times: 2}}
episode:
  metrics:
    m: METRIC  # kept
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{correct: judge}", "judge.right"),
        ("{correct: solver}", "all(solver.right)"),
        ("{any_correct: critic}", "any(critic.right)"),
        ("{mean_reward: judge}", "judge.reward"),
        ("{mean_reward: critic}", "mean(critic.reward)"),
        ("{term: judge, name: form}", "judge.terms.form"),
        ("{signal: solver, name: form}", "mean(solver.terms.form)"),
        ("{rounds: l}", "l.rounds"),
        ("{skipped: judge}", "not judge.ran"),
        ("{my_metric: judge}", {"my_metric": "judge"}),
    ],
)
def test_a_metric_becomes_an_expression(before: str, after: object) -> None:
    text, problems = rewritten(SPEC.replace("METRIC", before), [metrics])
    assert (yaml.safe_load(text)["episode"]["metrics"]["m"], problems) == (after, [])
    assert "# kept" in text


def test_the_share_of_several_that_were_skipped_is_named_with_its_line() -> None:
    _, problems = rewritten(SPEC.replace("METRIC", "{skipped: solver}"), [metrics])
    assert [line for line, _ in problems] == [8]
