"""Estimators and metrics: what a role may learn by, and the numbers of an episode."""

from __future__ import annotations

import pytest

from engine.records import Trajectory
from engine.vocabulary import BadOptions, Call, datasets, estimators, metrics, parsers, rewards
from tests.roles.vocabulary import metric

BOTH = [
    Trajectory("solver", 1, reward=1.0, is_correct=True, terms={"form": 1.0}),
    Trajectory("solver", 2, reward=0.5, is_correct=False, terms={"form": 0.5}),
]


@pytest.mark.parametrize(
    ("yaml", "both", "first", "none"),
    [
        ({"mean_reward": "solver"}, 0.75, 1.0, 0.0),
        ({"correct": "solver"}, 0.0, 1.0, 0.0),
        ({"any_correct": "solver"}, 1.0, 1.0, 0.0),
        ({"signal": "solver", "name": "form"}, 0.75, 1.0, 0.0),
    ],
    ids=str,
)
def test_a_metric_is_a_number_of_one_role(yaml: object, both: float, first: float, none: float) -> None:
    made = metric(yaml)
    assert made.role == "solver"
    assert made.measure(BOTH) == both
    assert made.measure(BOTH[:1]) == first
    assert made.measure([]) == none


def test_an_instance_without_a_reward_counts_as_one_that_earned_nothing() -> None:
    assert metric({"mean_reward": "solver"}).measure([*BOTH, Trajectory("solver", 3)]) == 0.5


def test_estimators_say_how_small_a_group_may_be() -> None:
    smallest = {"grpo": 2, "prpo": 1, "reinforce": 1, "reinforce_plus_plus_baseline": 2, "rloo": 2}
    assert {name: estimators.build(Call(name)).min_group for name in smallest} == smallest


def test_grpo_may_leave_out_the_standard_deviation() -> None:
    assert estimators.build(Call("grpo")).options == {"std": True}
    assert estimators.build(Call.parse({"grpo": {"std": False}})).options == {"std": False}
    with pytest.raises(BadOptions):
        estimators.build(Call.parse({"rloo": {"std": False}}))


def test_everything_that_can_be_listed_says_what_it_is_in_a_line() -> None:
    for registry in (
        parsers,
        rewards,
        estimators,
        metrics,
        datasets,
    ):
        for name in registry.names():
            summary = registry.summary(name)
            assert 20 < len(summary) <= 105, (registry.kind, name, summary)
            assert summary.endswith("."), (registry.kind, name, summary)
