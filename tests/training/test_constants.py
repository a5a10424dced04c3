"""Tests of the commonest answer of a role and of the best constant answer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from rolegraph.engine.compile import check_file
from rolegraph.engine.models import Request
from rolegraph.engine.records import Step, Trajectory
from rolegraph.engine.training.analysis.constants import MOST_ANSWERS, AnswerTally, tally_answers
from tests.edge import ScriptedModel, run_one, write_spec

Given = Iterable[tuple[str, str, float | None]]
"""Task, answer and reward of each answer."""


def tally(given: Given, words: tuple[str, ...] = ()) -> AnswerTally:
    made = AnswerTally(words)
    for task, answer, reward in given:
        steps = [Step(action=answer, reward=reward or 0.0)]
        made.add(task, Trajectory("solver", 1, steps, reward=reward))
    return made


def labelled(*answers: str, golds: str = "AABC" * 5) -> Given:
    """Yield the same answers on each of 20 tasks, paid by the task's gold."""
    for number, gold in enumerate(golds):
        yield from ((f"t{number}", answer, float(answer == gold)) for answer in answers)


def test_a_role_that_gives_one_label_scores_as_the_constant_does() -> None:
    found = tally(labelled("A")).result
    assert found and (found.commonest, found.share) == ("A", 1.0)
    assert (found.best, found.reward) == ("A", 0.5)


def test_the_best_constant_need_not_be_the_commonest_answer() -> None:
    found = tally(labelled("B", "B", "A", "C")).result
    assert found and (found.commonest, found.share) == ("B", 0.5)
    assert (found.best, found.reward) == ("A", 0.5)


def test_an_answer_that_was_not_given_on_a_task_counts_as_the_lowest_reward() -> None:
    given = [
        (task, answer, 2 * reward - 1) for task, answer, reward in labelled("A") if reward or task < "t15"
    ]
    given += [(task, answer, -1.0) for task, answer, _ in labelled("B") if task not in {t for t, *_ in given}]
    found = tally(given).result
    assert found and (found.best, found.reward) == ("A", 0.0)


def judged(verdicts: Iterable[tuple[str, bool]]) -> Given:
    """Yield verdicts on solvers of one task after another, five of each, paid where they are true."""
    for number, (verdict, right) in enumerate(verdicts):
        yield f"t{number // 5}", verdict, float((verdict == "correct") == right)


VERDICTS = ("correct", "incorrect")


def test_of_two_words_the_other_is_right_where_one_is_wrong() -> None:
    """Rewards of a validator follow from the turn: one verdict is right here and wrong there."""
    turns = [("correct" if number % 2 else "incorrect", number % 10 < 3) for number in range(40)]
    found = tally(judged(turns), VERDICTS).result
    assert found and (found.best, found.reward) == ("incorrect", pytest.approx(0.7))
    everything = tally(judged([("incorrect", number % 10 < 3) for number in range(40)]), VERDICTS).result
    assert everything and (everything.share, everything.reward) == (1.0, pytest.approx(0.7))


@pytest.mark.parametrize("slips", [0, 1])
def test_a_validator_that_is_nearly_never_wrong_does_not_raise_the_constant(slips: int) -> None:
    """On each task it read right picks and wrong ones, so each of its words was right there."""
    right = [number % 5 < 3 for number in range(40)]
    turns = [("correct" if it else "incorrect", it != (number < slips)) for number, it in enumerate(right)]
    found = tally(judged(turns), VERDICTS).result
    assert found and found.best == "correct"
    assert found.reward == pytest.approx(0.6 - slips / 40)


@pytest.mark.parametrize(
    "given",
    [
        [(f"t{n}", f"{n} + {k}", float(k == 0)) for n in range(20) for k in range(4)],
        [(f"t{n}", str(n), 1.0) for n in range(20)],
        [(f"t{n}", str(n), 1.0) for n in range(2)],
        [("t0", "A", 1.0)] * 8,
        [(f"t{n}", str(n), 1.0) for n in range(MOST_ANSWERS + 5)],
        [],
    ],
)
def test_tasks_with_answers_of_their_own_have_no_figures(given: Given) -> None:
    assert tally(given).result is None


def test_a_collapse_of_open_answers_shows() -> None:
    given = [(f"t{n}", "7" if k else f"{n}.5", float(n == 0)) for n in range(20) for k in range(4)]
    found = tally(given).result
    assert found and (found.commonest, found.share) == ("7", 0.75)
    assert found.reward == pytest.approx(1 / 20)


def test_a_role_without_rewards_has_a_commonest_answer_alone() -> None:
    found = tally([(f"t{n}", "A", None) for n in range(4)]).result
    assert found and found.reward is None
    assert [*found.metrics("solver")] == ["answers/same/solver"]


def test_failed_and_masked_answers_do_not_count() -> None:
    made = tally(labelled("A"))
    step = Step(action="B", metadata={"masked": True})
    made.add("t0", Trajectory("solver", 1, [step], reward=None, masked=True))
    made.add("t0", Trajectory("solver", 1, [Step(action=None)], reward=0.0))
    assert made.result and made.result.share == 1.0


def test_what_each_word_would_earn_is_computed_whatever_was_said_and_however(tmp_path: Path) -> None:
    golds = "AAABBBBCCCC"  # C is never said, and half of the validator's answers have no form
    text = """
rolegraph: 2
name: flow
data: {train: rows.jsonl, hidden: [answer]}
roles:
  solver: {prompt: "{{ task.question }}", parser: {one_of: [A, B, C]}, reward: exact_match, estimator: grpo}
  validator:
    needs: solver
    prompt: "{{ solver.action }}"
    parser: {one_of: [correct, incorrect]}
    reward: 'action == ("correct" if solver.right else "incorrect")'
    estimator: grpo
episode: {correct: solver.right}
"""
    rows = [{"id": f"t{n}", "question": "?", "answer": gold} for n, gold in enumerate(golds)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = check_file(write_spec(tmp_path, text)).valid()

    def said(request: Request) -> str:
        number = int(request.id.task.removeprefix("t"))
        return "A" if request.id.node.role == "solver" else ("hm", "correct")[number % 2]

    episodes = [run_one(plan, ScriptedModel(said), row) for row in rows]
    results = tally_answers(episodes, {role.name: role.allowed_answers for role in plan.asking})
    solver, validator = (results[name].result for name in ("solver", "validator"))
    assert solver is not None and validator is not None
    assert (solver.best, solver.reward) == ("B", pytest.approx(4 / 11))
    assert (validator.best, validator.reward) == ("incorrect", pytest.approx(8 / 11))


def test_a_word_that_decides_who_answers_has_no_computed_reward() -> None:
    assert check_file("router").valid().word_scored == frozenset()
