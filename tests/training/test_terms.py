"""Rewards whose terms are compared each by itself (`normalize: term`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.compile import Plan
from rolegraph.engine.compile.steps import plan_at
from rolegraph.engine.models import Request
from rolegraph.engine.records import Episode
from rolegraph.engine.training.advantages.ledger import Membership
from tests.training.credited import advantages, learnt, plan, rollouts, rows

TERMS: Mapping[str, Any] = {"large": "1 if action >= 2 else 0", "odd": "0.1 * (action % 2)"}
"""Rewards of the actions 0 to 3: 0, 0.1, 1, 1.1."""


def number_plan(folder: Path, terms: Mapping[str, Any], normalize: str = "term", **more: Any) -> Plan:
    reward = {"sum": terms, "normalize": normalize}
    return plan(folder, {"a": {"parser": "number", "reward": reward, **more}})


def answered(plan: Plan, *answers: Sequence[str]) -> list[Episode]:
    """Return episodes of a task for each list of answers, one answer for each rollout."""

    def answer(request: Request) -> str:
        task, rollout, *_ = request.id
        return answers[int(task.removeprefix("t"))][rollout]

    return rollouts(plan, answer, tasks=len(answers), count=len(answers[0]))


def taken(plan: Plan, *answers: Sequence[str]) -> list[float]:
    """Return the advantage of each answer."""
    episodes, _ = learnt(plan, answered(plan, *answers))
    return [advantage for steps in advantages(episodes, "a") for advantage in steps]


def test_each_term_has_its_own_statistics_whatever_its_scale(tmp_path: Path) -> None:
    # The terms of 0 to 3 are -1, -1, 1, 1 and -1, 1, -1, 1 deviations from their means; their sums deviate
    # by the root of 2.
    made = number_plan(tmp_path, TERMS)
    assert taken(made, "0123") == pytest.approx([-(2**0.5), 0, 0, 2**0.5], abs=1e-4)
    compared = number_plan(tmp_path, TERMS, "sum")
    assert taken(compared, "0123") == pytest.approx([-1.0945, -0.8955, 0.8955, 1.0945], abs=1e-4)


def test_the_weights_are_those_of_the_normalized_terms(tmp_path: Path) -> None:
    terms = {"large": TERMS["large"], "odd": {"reward": TERMS["odd"], "weight": -3}}
    # The sums are 2, -4, 4, -2, with the deviation 3.1623.
    expected = [0.6325, -1.2649, 1.2649, -0.6325]
    assert taken(number_plan(tmp_path, terms), "0123") == pytest.approx(expected, abs=1e-4)


def test_a_single_term_is_compared_as_the_estimator_does_up_to_the_batch(tmp_path: Path) -> None:
    terms = {"only": "action"}
    by_term = taken(number_plan(tmp_path, terms), "0123", "5555", "0008")
    by_sum = taken(number_plan(tmp_path, terms, "sum"), "0123", "5555", "0008")
    deviation = (sum(it**2 for it in by_sum) / 12) ** 0.5
    assert by_term == pytest.approx([it / deviation for it in by_sum], abs=1e-5)
    assert by_term[4:8] == [0, 0, 0, 0]


def test_a_batch_of_equal_terms_has_no_gradient(tmp_path: Path) -> None:
    assert taken(number_plan(tmp_path, {"odd": "0.1 * (action % 2)"}), "111", "333") == [0] * 6


def test_an_unreadable_answer_has_its_share_of_on_failure_in_each_term(tmp_path: Path) -> None:
    # -0.5 in each: the terms are -0.5, 0, 1, 1 and -0.5, 0.1, 0, 0.1.
    made = number_plan(tmp_path, TERMS, on_failure={"reward": -1})
    expected = [-1.6496, 0.0681, 0.6822, 0.8993]
    assert taken(made, ["none", "1", "2", "3"]) == pytest.approx(expected, abs=1e-4)
    zero = number_plan(tmp_path, TERMS)
    assert taken(zero, ["none", "1", "2", "3"]) == pytest.approx(taken(zero, "0123"))


def test_the_rows_say_what_was_compared_and_add_up(tmp_path: Path) -> None:
    made = number_plan(tmp_path, TERMS)
    episodes, found = answered(made, "0123", "0011"), rows(made, answered(made, "0123", "0011"))
    steps = advantages(learnt(made, episodes)[0], "a")
    assert [[row.weight * (row.advantage or 0.0)] for row in found] == steps
    assert [row.terms["large"] + row.terms["odd"] for row in found] == [row.reward for row in found]
    assert all(row.baseline is None and row.loss_weight is not None for row in found)


@pytest.mark.parametrize(("normalize", "informative"), [("term", ["t0"]), ("sum", [])])
def test_terms_that_cancel_out_are_informative_where_each_is_compared(
    normalize: str, informative: list[str], tmp_path: Path
) -> None:
    made = number_plan(tmp_path, {"even": "1 - action % 2", "odd": "action % 2"}, normalize)
    episodes = answered(made, "0123", "1111")
    assert Membership(made.trained, made.policy_of).add(episodes).informative() == informative


def test_the_weights_follow_the_step(tmp_path: Path) -> None:
    terms = {"large": TERMS["large"], "odd": {"reward": TERMS["odd"], "weight": "ramp(2, 0, 4)"}}
    made = number_plan(tmp_path, terms)
    weights = [plan_at(made, step).trained["a"].reward for step in (1, 3, 5)]
    assert [it and it.normalized for it in weights] == [
        {"large": 1, "odd": 2},
        {"large": 1, "odd": 1},
        {"large": 1},
    ]
