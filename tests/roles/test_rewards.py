"""Rewards: scores, and the task fields that they read and hide from prompts."""

from __future__ import annotations

import asyncio
import math
import pickle
from typing import Any

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.vocabulary import BadOptions, Reward, Score
from rolegraph.engine.vocabulary.isolation import CallTimeout, Isolation
from tests.roles.vocabulary import earned, reward

RIGHT, WRONG = Score(1.0, True), Score(0.0, False)
TEXTS = st.text(min_size=1).filter(lambda text: text.strip() != "")


def test_countdown_pays_for_an_expression_that_solves_the_task() -> None:
    task = {"nums": [3, 4], "target": 7}
    assert earned("countdown", "<answer>3 + 4</answer>", **task) == RIGHT
    assert earned("countdown", "3 + 4", **task) == RIGHT
    assert earned("countdown", "<answer>3 * 4</answer>", **task) == WRONG
    assert earned("countdown", "No solution found", **task) == WRONG
    assert earned("countdown", "<answer>9**9**9**9</answer>", **task) == WRONG
    assert reward("countdown").facts.fields == ("nums", "target")


@pytest.mark.parametrize("nums", ["[3, 4]", "3 4", [3.0, 4.0], ["3", "4"]])
def test_numbers_that_are_no_list_of_numbers_are_an_error_and_not_a_zero(nums: object) -> None:
    with pytest.raises(TypeError, match="list of whole numbers"):
        earned("countdown", "<answer>3 + 4</answer>", nums=nums, target=7)


def test_exact_match_compares_with_a_field_that_no_prompt_may_show() -> None:
    assert earned("exact_match", " paris ", answer="Paris") == RIGHT
    assert earned("exact_match", "London", answer="Paris") == WRONG
    assert earned("exact_match", "7", answer=7) == RIGHT
    assert earned({"exact_match": {"field": "gold"}}, "a  b", gold="A B") == RIGHT
    assert earned({"exact_match": {"ignore_case": False}}, "paris", answer="Paris") == WRONG
    assert earned({"exact_match": {"punctuation": False}}, "Paris.", answer="paris") == RIGHT
    assert earned("exact_match", "Paris.", answer="paris") == WRONG
    assert earned({"exact_match": {"punctuation": False}}, "42 .", answer="42") == RIGHT
    assert earned({"exact_match": {"punctuation": False}}, "a - b", answer="a b") == RIGHT
    made = reward({"exact_match": {"field": "gold"}})
    assert made.facts.fields == made.facts.labels == ("gold",)


def test_a_list_of_answers_accepts_each_of_them() -> None:
    assert earned("exact_match", "NYC", answer=["New York", "NYC"]) == RIGHT
    assert earned("f1", "NYC", answer=["New York", "NYC"]) == RIGHT
    assert earned("exact_match", "LA", answer=["New York", "NYC"]) == WRONG
    assert earned("close_to", "7", answer=["5", 7]) == RIGHT


@pytest.mark.parametrize(
    ("given_answer", "gold", "f1"),
    [
        ("The Eiffel Tower!", "eiffel tower", 1.0),
        ("the tall tower", "tower", 2 / 3),
        ("Paris in France", "Paris", 0.5),
        ("x x y", "x y y", 2 / 3),
        ("the", "an", 0.0),
        ("a", "A", 1.0),
        ("", "tower", 0.0),
        ("bridge", "tower", 0.0),
    ],
)
def test_f1_is_the_overlap_of_words_as_in_squad(given_answer: str, gold: str, f1: float) -> None:
    score = earned("f1", given_answer, answer=gold)
    assert score.reward == pytest.approx(f1)
    assert score.is_correct == (f1 == 1.0)


@given(TEXTS, TEXTS)
def test_f1_is_the_same_both_ways_and_between_0_and_1(one: str, other: str) -> None:
    value = earned("f1", one, answer=other).reward
    assert 0.0 <= value <= 1.0
    assert value == earned("f1", other, answer=one).reward


def test_json_field_compares_a_path_of_the_action() -> None:
    action = {"result": {"values": [1, {"n": 5}], "ok": True}}
    assert earned({"json_field": "result.values.1.n", "field": "gold"}, action, gold=5) == RIGHT
    assert earned({"json_field": "result.values.1.n", "field": "gold"}, action, gold=6) == WRONG
    assert earned({"json_field": "result.ok", "value": True}, action) == RIGHT
    assert earned({"json_field": "result.ok", "value": 1}, action) == WRONG
    assert earned({"json_field": "result.ok", "value": None}, {"result": {"ok": None}}) == RIGHT
    assert reward({"json_field": "a", "field": "gold"}).facts.labels == ("gold",)
    assert reward({"json_field": "a", "value": 1}).facts.fields == ()


@pytest.mark.parametrize("action", ["", "text", None, 5, [], {}, {"a": 1}, {"a": [1]}, {"a": {"x": 1}}])
def test_a_path_that_is_not_there_earns_nothing(action: object) -> None:
    assert earned({"json_field": "a.b", "value": 1}, action) == WRONG
    assert earned({"json_field": "a.7", "value": 1}, action) == WRONG


@pytest.mark.parametrize("options", [{}, {"field": "gold", "value": 1}])
def test_json_field_compares_with_one_thing(options: dict[str, Any]) -> None:
    with pytest.raises(BadOptions, match="give one"):
        reward({"json_field": "a", **options})


@pytest.mark.parametrize(
    ("action", "gold", "right"),
    [
        ("that makes 12.5", 12.5, True),
        (12.5, "12.5", True),
        ("3/4", 0.75, True),
        ("$1,200", 1200, True),
        ("so 7, or 8", 7, False),
        ("so 7, or 8", [7, "#### 8"], True),
        ("twelve", 12, False),
        (True, 1, False),
        (None, 0, False),
        (10**400, 12, False),
        (1e-7, 0, True),
        (1e-5, 0, False),
    ],
)
def test_close_to_compares_the_last_number(action: object, gold: object, right: bool) -> None:
    assert earned("close_to", action, answer=gold) == (RIGHT if right else WRONG)
    assert reward("close_to").facts.labels == ("answer",)


def test_a_tolerance_is_absolute_or_relative_and_the_wider_counts() -> None:
    assert earned({"close_to": {"absolute": 2}}, "98", answer=100) == RIGHT
    assert earned({"close_to": {"absolute": 2}}, "97", answer=100) == WRONG
    assert earned({"close_to": {"relative": 0.05}}, "-95", answer=-100) == RIGHT
    assert earned({"close_to": {"relative": 0.05}}, "94", answer=100) == WRONG
    assert earned({"close_to": {"relative": 0.05, "absolute": 6}}, "94", answer=100) == RIGHT
    assert earned({"close_to": {"field": "gold", "relative": 0.05}}, "1.04", gold=1) == RIGHT
    for option in ("absolute", "relative"):
        with pytest.raises(BadOptions, match=option):
            reward({"close_to": {option: -1}})


@pytest.mark.parametrize("gold", ["Paris", True, [7, "x"], {}, "1.234,56"])
def test_a_field_without_a_number_is_an_error_and_not_a_zero(gold: object) -> None:
    with pytest.raises(TypeError, match="must hold a number"):
        earned("close_to", "7", answer=gold)


def test_length_counts_characters_or_words_of_the_action() -> None:
    assert earned({"length": {"over": 4}}, "12345") == RIGHT
    assert earned({"length": {"over": 5}}, "12345") == WRONG
    assert earned({"length": {"under": 6}}, "12345") == RIGHT
    assert earned({"length": {"under": 5}}, "12345") == WRONG
    assert earned({"length": {"over": 2, "under": 4}}, "123") == RIGHT
    assert earned({"length": {"over": 2, "unit": "words"}}, "one two\n three") == RIGHT
    assert earned({"length": {"over": 3, "unit": "words"}}, "one two\n three") == WRONG
    assert earned({"length": {"under": 1}}, "") == RIGHT
    assert earned({"length": {"over": 8}}, {"a": "b"}) == RIGHT  # {"a": "b"}
    assert earned({"length": {"under": 2}}, 7) == RIGHT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a bound"),
        ({"over": 400, "under": 401}, "no length is over 400 and under 401"),
        ({"over": -1}, "greater than or equal to 0"),
        ({"over": 1, "unit": "tokens"}, "characters' or 'words"),
    ],
)
def test_a_length_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOptions, match=message):
        reward({"length": options})


def test_matches_looks_for_a_pattern_in_the_action_or_wants_all_of_it() -> None:
    assert earned({"matches": r"\d+ eggs"}, "I have 12 eggs.") == RIGHT
    assert earned({"matches": r"\d+ eggs", "whole": True}, "I have 12 eggs.") == WRONG
    assert earned({"matches": r"\d+|\d+ eggs", "whole": True}, "12 eggs") == RIGHT
    assert earned({"matches": "EGGS"}, "eggs") == WRONG
    assert earned({"matches": "EGGS", "ignore_case": True}, "eggs") == RIGHT
    assert earned({"matches": "a.b"}, "a\nb") == RIGHT
    assert earned({"matches": '"a": 1'}, {"a": 1}) == RIGHT
    assert earned({"matches": "."}, "\ud800") == WRONG
    with pytest.raises(BadOptions, match="not a regular expression"):
        reward({"matches": "("})
    with pytest.raises(BadOptions, match="no lookarounds"):
        reward({"matches": "(?=x)"})


TERMS = {
    "right": {"reward": "countdown", "weight": 0.9},
    "match": {"reward": {"exact_match": {"field": "solution"}}, "weight": 0.1},
    "seen": {"reward": {"f1": {"field": "solution"}}, "weight": 0},
}
TASK = {"nums": [3, 4], "target": 7, "solution": "<answer>3+4</answer>"}


def test_a_weighted_sum_keeps_each_term_as_a_signal() -> None:
    score = earned({"sum": TERMS}, "<answer>4+3</answer>", **TASK)
    assert score.reward == pytest.approx(0.9)
    assert not score.is_correct
    assert {name: score.terms[name] for name in ("right", "match")} == {"right": 1.0, "match": 0.0}
    assert set(score.terms) == set(TERMS)


def test_a_weighted_sum_is_right_when_every_term_of_positive_weight_is() -> None:
    assert earned({"sum": TERMS}, "<answer>3+4</answer>", **TASK).is_correct
    penalty = {"long": {"reward": {"exact_match": {"field": "solution"}}, "weight": -0.5}}
    score = earned({"sum": {"right": {"reward": "countdown"}, **penalty}}, "<answer>4+3</answer>", **TASK)
    assert (score.reward, score.is_correct) == (1.0, True)


def test_a_term_may_be_its_reward_alone() -> None:
    short = {
        "right": "countdown",
        "match": {"f1": {"field": "solution"}},
        "is": {"json_field": "a", "value": 1},
    }
    full = {name: {"reward": written, "weight": 1} for name, written in short.items()}
    for action in ("3+4", "<answer>3+4</answer>", {"a": 1}):
        assert earned({"sum": short}, action, **TASK) == earned({"sum": full}, action, **TASK)
    mixed = {"right": "countdown", "long": {"reward": {"length": {"over": 4}}, "weight": -0.1}}
    assert earned({"sum": mixed}, "3 + 4", **TASK).reward == pytest.approx(0.9)
    assert earned({"sum": mixed}, "3+4", **TASK) == Score(1.0, True, {"right": 1.0, "long": 0.0})


def test_a_weighted_sum_reads_hides_and_waits_for_what_its_terms_do() -> None:
    made = reward({"sum": {**TERMS, "says": {"reward": "action == judge.action or judge.right"}}})
    assert made.facts.fields == ("nums", "target", "solution")
    assert made.facts.labels == ("solution",)
    assert made.roles == ("judge",)
    assert made.timeout is None


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({}, "positive weight"),
        ({"a": {"reward": "countdown", "weight": 0}}, "positive weight"),
        ({"a": {"reward": "countdwn"}}, "a.reward: unknown reward 'countdwn'; did you mean 'countdown'"),
        ({"a": {"reward": {"f1": {"feld": "x"}}}}, "a.reward: reward 'f1': feld"),
        ({"a": {"reward": "countdown", "wight": 1}}, "wight"),
        ({"a": {"reward": "countdown", "weight": math.inf}}, "finite"),
        ({"a": [5]}, "dictionary|instance of Term"),
        ({"a": "countdwn"}, "a: unknown reward 'countdwn'; did you mean 'countdown'"),
        ({"a": {"f1": {"feld": "x"}}}, "a: reward 'f1': feld"),
    ],
)
def test_a_faulty_term_is_named(terms: object, message: str) -> None:
    with pytest.raises(BadOptions, match=message):
        reward({"sum": terms})


@pytest.mark.parametrize(
    ("action", "gold", "right"),
    [
        ("\\frac{1}{2}", "0.5", True),
        ("$x + 1$", "1 + x", True),
        ("x+1", "1+x", True),
        ("The answer is \\boxed{12}", "12", True),
        ("13", "12", False),
        ("nonsense (", "12", False),
    ],
)
def test_math_compares_values_and_not_text(action: str, gold: str, right: bool) -> None:
    pytest.importorskip("math_verify")
    assert earned("math", action, answer=gold) == (RIGHT if right else WRONG)


def test_math_runs_in_a_worker_that_is_stopped_at_its_limit() -> None:
    pytest.importorskip("math_verify")

    def made(seconds: float) -> Reward:
        right = {"reward": {"math": {"timeout": seconds}}}
        return reward({"sum": {"right": right, "f1": {"reward": "f1"}}})

    async def score(made: Reward, action: str) -> Score:
        async with Isolation() as isolation:
            arguments = ({"id": "t", "answer": "1/2"}, action, {})
            return await isolation.run(made.score, *arguments, limit=made.timeout or 0.0)

    patient, hasty = made(600.0), made(0.5)
    assert (patient.timeout, hasty.timeout, hasty.facts.labels) == (600.0, 0.5, ("answer",))
    assert asyncio.run(score(patient, "0.5")).terms["right"] == 1.0
    with pytest.raises(CallTimeout):
        asyncio.run(score(hasty, "9^{9^{9}}"))


def test_a_time_limit_must_leave_some_time() -> None:
    with pytest.raises(BadOptions, match="greater than 0"):
        reward({"math": {"timeout": 0}})


@pytest.mark.parametrize(
    "yaml",
    [
        "countdown",
        "exact_match",
        "f1",
        {"json_field": "a", "value": 1},
        "close_to",
        {"length": {"over": 400}},
        {"matches": "x+"},
        'action == ("correct" if x.right else "incorrect")',
        {"sum": TERMS},
    ],
    ids=str,
)
def test_a_reward_can_be_sent_to_another_process(yaml: object) -> None:
    made = reward(yaml)
    assert pickle.loads(pickle.dumps(made)).origin == made.origin
    pickle.loads(cloudpickle.dumps(made.score))  # pyright: ignore  # as a worker gets the functions that have a time limit
