"""Rewards that read other roles, also where none of these ran."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.vocabulary import BadOptions, RewardInputs, Score, View
from tests.roles.vocabulary import earned, reward

RIGHT, WRONG, SAYS_NOTHING = Score(1.0, True), Score(0.0, False), Score(0.5, None)
SAYS_X, SAYS_Y = ({"json_field": "x", "value": value} for value in (1, 2))
numbers = st.floats(-1e6, 1e6)


def judged(*actions: Any, positions: list[int | None] | None = None) -> RewardInputs:
    """Return the inputs of a reward that reads a judge's instances with these actions."""
    views = [View(index, action) for index, action in enumerate(actions, 1)]
    return RewardInputs(views={"judge": views}, positions={"judge": positions or [None] * len(views)})


def rated(yaml: dict[str, Any], *actions: Any, positions: list[int | None] | None = None) -> float | None:
    score = reward({"rated_by": "judge", **yaml}).score(
        {"id": "t"}, "", judged(*actions, positions=positions)
    )
    assert score is None or score.is_correct is None, "a rating says nothing of right"
    return None if score is None else score.reward


@given(st.lists(numbers, min_size=1), numbers, numbers)
def test_of_is_the_mean_of_what_others_earn_scaled_and_moved(
    rewards: list[float], scale: float, offset: float
) -> None:
    scores = {"solver": [Score(value, True) for value in rewards]}
    score = earned({"of": "solver", "scale": scale, "offset": offset}, "", scores)
    assert score.reward == pytest.approx(scale * sum(rewards) / len(rewards) + offset)


@pytest.mark.parametrize(
    ("scale", "scores", "right"),
    [
        (1, [RIGHT, RIGHT], True),
        (0.5, [RIGHT, WRONG], False),
        (1, [RIGHT, SAYS_NOTHING], True),
        (1, [SAYS_NOTHING], None),
        (-1, [RIGHT], None),
    ],
)
def test_of_says_of_right_what_the_others_do(scale: float, scores: list[Score], right: bool | None) -> None:
    assert earned({"of": "solver", "scale": scale}, "", {"solver": scores}).is_correct is right


@pytest.mark.parametrize(
    "yaml",
    [{"of": "judge"}, {"rated_by": "judge"}, {"same_as": "judge"}, {"agrees_with": "judge"}],
    ids=str,
)
def test_where_nobody_ran_there_is_no_reward(yaml: object) -> None:
    nobody = RewardInputs(scores={"judge": ()}, views={"judge": ()}, positions={"judge": ()})
    assert reward(yaml).score({"id": "t"}, "x", nobody) is None
    both = reward({"weighted": {"theirs": yaml, "mine": "exact_match"}})
    task = {"id": "t", "answer": "x"}
    assert both.score(task, "x", nobody) == Score(1.0, True, {"mine": 1.0}), "the term counts 0"
    alone = reward({"weighted": {"theirs": yaml}})
    assert alone.score({"id": "t"}, "x", nobody) is None, "a sum of nothing is none"


def test_a_rating_is_a_number_in_an_action() -> None:
    assert rated({}, 7) == 7.0
    assert rated({"scale": 0.1, "offset": -1}, "I give it 8") == pytest.approx(-0.2)
    assert rated({"path": "scores.style"}, {"scores": {"style": 3}}) == 3.0
    assert rated({"path": "ok"}, {"ok": True}) == 1.0
    assert rated({"path": "score"}, {"score": 2}, {"score": 4}, {"scored": 9}) == 3.0, (
        "the mean of what is there"
    )
    assert rated({"path": "score"}, "no JSON") is None
    assert rated({}, None) is None


def test_a_star_is_the_place_in_what_the_judge_judged() -> None:
    assert rated({"path": "scores.*"}, {"scores": [5, 6, 7]}, positions=[1]) == 6.0
    assert rated({"path": "*.score"}, [{"score": 5}, {"score": 6}], positions=[0]) == 5.0
    assert rated({"path": "*"}, {"1": 5, "2": 6}, positions=[1]) == 6.0, "in a mapping the number from 1"
    assert rated({"path": "*"}, [5], positions=[3]) is None
    assert rated({"path": "*"}, [5], positions=[None]) is None, "one that the judge did not see has no place"


def test_words_may_rate() -> None:
    votes = {"map": {"pro": 1, "con": -1}}
    assert rated(votes, "Pro ") == 1.0
    assert rated(votes, "con") == -1.0
    assert rated(votes, "neither") is None
    assert rated(votes, "pro", "con", "con") == pytest.approx(-1 / 3)
    for wrong in ({}, {"Pro": 1, "pro": 2}):
        with pytest.raises(BadOptions, match="map gives each of at least one word"):
            reward({"rated_by": "judge", "map": wrong})


def test_same_as_compares_actions() -> None:
    def same(action: object, *theirs: object, **options: Any) -> Score:
        return earned({"same_as": "judge", **options}, action, seen=judged(*theirs))

    assert same(" 42", "42") == Score(1.0, None)
    assert same("42", 42) == Score(1.0, None)
    assert same({"a": 1}, {"a": 1}) == Score(1.0, None)
    assert same("42", "42", "43").reward == 0.5
    pytest.importorskip("math_verify")
    assert same("1/2", "0.5").reward == 0.0
    assert same("1/2", "0.5", equal="math").reward == 1.0
    made = reward({"same_as": "judge", "equal": "math", "timeout": 3})
    assert made.timeout == 3.0
    again = pickle.loads(pickle.dumps(made)).score
    assert again({"id": "t"}, "1/2", judged("0.5")).reward == 1.0


@pytest.mark.parametrize(
    ("terms", "scores", "right"),
    [
        ({"team": {"of": "solver"}, "mine": SAYS_X}, [WRONG], True),
        ({"team": {"of": "solver"}, "mine": SAYS_Y}, [RIGHT], False),
        ({"team": {"of": "solver"}}, [RIGHT], True),
        ({"team": {"of": "solver"}, "mine": {"reward": SAYS_Y, "weight": 0}}, [RIGHT], True),
        ({"team": {"of": "solver"}, "deep": {"weighted": {"mine": SAYS_X}}}, [WRONG], True),
        ({"deep": {"weighted": {"team": {"of": "solver"}}}, "mine": SAYS_X}, [WRONG], True),
        ({"team": {"of": "solver"}, "form": {"matches": "x"}}, [WRONG], False),
        ({"team": {"of": "solver"}, "form": {"weighted": {"long": {"length": {"over": 0}}}}}, [WRONG], False),
        ({"rating": {"rated_by": "judge"}, "form": {"matches": "x"}}, [], None),
        ({"long": {"length": {"over": 0}}, "form": {"matches": "x"}}, [], True),
        ({"against": {"of": "solver", "scale": -1}}, [RIGHT], None),
    ],
    ids=str,
)
def test_borrowed_terms_say_nothing_of_right_where_one_s_own_does(
    terms: object, scores: Sequence[Score], right: bool | None
) -> None:
    action, seen = {"x": 1}, judged(3)._replace(scores={"solver": scores})
    assert earned({"weighted": terms}, action, seen=seen).is_correct is right


DOWN = View(1, "", failed=True)


def test_a_rating_that_cannot_be_read_leaves_no_reward_whatever_else_is_earned() -> None:
    def paid(terms: object, *views: View) -> Score | None:
        seen = RewardInputs(views={"judge": views}, positions={"judge": [None] * len(views)})
        return reward(terms).score({"id": "t"}, {"x": 1}, seen)

    both = {"weighted": {"right": SAYS_X, "rating": {"rated_by": "judge"}}}
    assert paid({"rated_by": "judge"}, DOWN) == Score(None, None)
    assert paid(both, DOWN) == Score(None, True, {"right": 1.0}), "whether it is right is known"
    assert paid({"weighted": {"deep": both}}, DOWN) == Score(None, True)
    assert paid(both, DOWN, View(2, "3")) == Score(4.0, True, {"right": 1.0, "rating": 3.0})
    assert paid(both, View(1, "no number")) == Score(None, True, {"right": 1.0})
    assert paid(both, View(1, "no number"), View(2, "3")) == Score(4.0, True, {"right": 1.0, "rating": 3.0})
    listed = {"weighted": {"right": SAYS_X, "rating": {"rated_by": "judge", "path": "*"}}}
    assert paid(listed, View(1, [5])) == Score(1.0, True, {"right": 1.0}), "the judge did not see this turn"
    assert paid(both, View(1, "0.5", failed=True)) == Score(1.5, True, {"right": 1.0, "rating": 0.5}), (
        "its parser's default is a rating"
    )
    noted = {"weighted": {"right": SAYS_X, "rating": {"reward": {"rated_by": "judge"}, "weight": 0}}}
    assert paid(noted, DOWN) == Score(1.0, True, {"right": 1.0}), "it is only reported"
    of = {"weighted": {"right": SAYS_X, "team": {"of": "solver"}}}
    masked = RewardInputs(scores={"solver": [Score(None, True)]})
    assert reward(of).score({"id": "t"}, {"x": 1}, masked) == Score(None, True, {"right": 1.0})


def test_a_sum_reads_what_its_terms_do() -> None:
    made = reward({"weighted": {"a": {"of": "x"}, "b": {"same_as": "y"}, "c": {"tool_calls": {"over": 0}}}})
    assert (made.roles, made.views, made.read_roles) == (("x",), ("y",), ("x", "y"))
    assert made.reads_turn
    assert not made.delegates
    assert reward({"weighted": {"a": {"of": "x"}, "b": {"rated_by": "y"}}}).delegates
