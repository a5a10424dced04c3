"""What each reward gives, and what it says it reads."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from engine.isolation import Isolation
from engine.registry import BadOptions, Call
from roles import rewards
from roles.vocabulary import Reward, Score


def made(raw: Any) -> Reward:
    return rewards.build(Call.parse(raw))


TASK = {"id": "1", "answer": "Paris", "nums": [3, 4], "target": 7, "aliases": ["Paris", "the City of Light"]}
RIGHT, WRONG = Score(1.0, True), Score(0.0, False)


@pytest.mark.parametrize(
    ("reward", "action", "expected"),
    [
        ("countdown", "<answer>3 + 4</answer>", 1.0),
        ("countdown", "<answer>3 + 3</answer>", 0.0),
        ("countdown", "<answer>9**9**9**9</answer>", 0.0),
        ("countdown", "3 + 4", 0.0),
        ("exact_match", " paris ", 1.0),
        ({"exact_match": {"ignore_case": False}}, "paris", 0.0),
        ({"exact_match": {"punctuation": False}}, "Paris.", 1.0),
        ({"exact_match": {"field": "aliases"}}, "the city of light", 1.0),
        ("f1", "the Paris", 1.0),
        ("f1", "Paris in France", 0.5),
        ({"json_field": "city.name", "field": "answer"}, {"city": {"name": "Paris"}}, 1.0),
        ({"json_field": "cities.1", "value": "Rome"}, {"cities": ["Paris", "Rome"]}, 1.0),
        ({"json_field": "sure", "value": True}, {"sure": 1}, 0.0),
        ({"json_field": "missing", "value": 1}, {}, 0.0),
    ],
)
def test_an_action_earns(reward: Any, action: Any, expected: float) -> None:
    score = made(reward).score(TASK, action, {})
    assert score.reward == pytest.approx(expected)
    assert score.is_correct == (expected == 1.0)


@pytest.mark.parametrize(("verdict", "truth", "expected"), [
    ("correct", RIGHT, 1.0), ("correct", WRONG, 0.0), ("Incorrect", WRONG, 1.0), ("who knows", RIGHT, 0.0),
])  # fmt: skip
def test_agreeing_is_rewarded_whichever_way_the_truth_lies(
    verdict: str, truth: Score, expected: float
) -> None:
    assert made({"agrees_with": "judge"}).score(TASK, verdict, {"judge": [truth]}).reward == expected


def test_a_weighted_sum_keeps_each_term_in_the_signals() -> None:
    reward = made(
        {"weighted": {"right": {"reward": "countdown", "weight": 0.9}, "same": {"reward": "exact_match"}}}
    )
    score = reward.score(TASK, "<answer>3 + 4</answer>", {})
    assert score == Score(0.9, False, {"right": 1.0, "same": 0.0})
    assert reward.fields == ("nums", "target", "answer")
    assert reward.labels == ("answer",)


def test_a_misspelt_term_of_a_sum_gets_the_nearest_name() -> None:
    with pytest.raises(BadOptions, match="did you mean 'countdown'"):
        made({"weighted": {"right": {"reward": "countdwn"}}})


@pytest.mark.parametrize(
    "raw", ["countdown", "exact_match", "f1", {"agrees_with": "judge"}, {"weighted": {"a": {"reward": "f1"}}}]
)
def test_a_score_can_be_sent_to_another_process(raw: Any) -> None:
    assert callable(pickle.loads(pickle.dumps(made(raw).score)))


def test_math_knows_equal_values_and_runs_where_it_can_be_stopped() -> None:
    pytest.importorskip("math_verify", reason="needs the extra `math`")
    reward = made("math")
    assert reward.timeout is not None

    async def scores() -> list[float]:
        async with Isolation() as isolation:
            pairs = [("1/2", "0.5"), ("x+1", "1+x"), ("2", "3")]
            found = [await isolation.run(reward.score, {"answer": g}, a, {}, limit=10) for g, a in pairs]
        return [score.reward for score in found]

    assert asyncio.run(scores()) == [1.0, 1.0, 0.0]
