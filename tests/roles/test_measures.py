"""Estimators and metrics of the built-in vocabulary."""

from __future__ import annotations

from typing import Any

import pytest

from rolegraph.engine.records import Episode, Failure, FailureName, TerminationReason, Trajectory
from rolegraph.engine.vocabulary import BadOptions, ItemCall, datasets, estimators, metrics, parsers, rewards
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
    assert made.measure(episode(BOTH)) == both
    assert made.measure(episode(BOTH[:1])) == first
    assert made.measure(episode([])) is None, "a role that was skipped has no mean"
    assert made.measure(episode([])._replace(termination_reason=TerminationReason.ERROR)) == none


def episode(trajectories: list[Trajectory], **metadata: Any) -> Episode:
    return Episode("t", 0, {"id": "t"}, trajectories, metadata=metadata)


def test_an_instance_without_a_reward_counts_as_one_that_earned_nothing() -> None:
    assert metric({"mean_reward": "solver"}).measure(episode([*BOTH, Trajectory("solver", 3)])) == 0.5


def test_one_whose_reward_found_nobody_to_read_is_in_no_mean() -> None:
    unread = Trajectory("solver", 3, masked=True)
    assert metric({"mean_reward": "solver"}).measure(episode([*BOTH, unread])) == 0.75
    assert metric({"mean_reward": "solver"}).measure(episode([unread])) is None


def test_a_term_that_a_trajectory_lacks_is_in_no_mean_unless_the_trajectory_failed() -> None:
    made = metric({"term": "solver", "name": "form"})
    other = Trajectory("solver", 3, reward=1.0, terms={"right": 1.0})
    failed = Trajectory("solver", 4, reward=0.0, failure=Failure(FailureName.TIMEOUT, "late"))
    assert made.measure(episode([*BOTH, other])) == 0.75
    assert made.measure(episode([*BOTH, other, failed])) == 0.5
    assert made.measure(episode([other])) is None


def test_how_far_a_loop_went_and_how_much_was_skipped() -> None:
    went = episode(BOTH, rounds={"refine": 2}, skipped={"solver": 0.25})
    assert metric({"rounds": "refine"}).measure(went) == 2.0
    assert metric({"skipped": "solver"}).measure(went) == 0.25
    assert metric({"skipped": "judge"}).measure(went) == 0.0
    stopped = episode([])._replace(termination_reason=TerminationReason.ERROR)
    assert metric({"skipped": "judge"}).measure(stopped) is None, "nobody knows who would have been"


def test_estimators_say_how_small_a_group_may_be() -> None:
    smallest = {"grpo": 2, "prpo": 1, "reinforce": 1, "reinforce_plus_plus_baseline": 2, "rloo": 2}
    assert {name: estimators.build(ItemCall(name)).min_group for name in smallest} == smallest


def test_grpo_may_leave_out_the_standard_deviation() -> None:
    assert estimators.build(ItemCall("grpo")).options == {"std": True}
    assert estimators.build(ItemCall.parse({"grpo": {"std": False}})).options == {"std": False}
    with pytest.raises(BadOptions):
        estimators.build(ItemCall.parse({"rloo": {"std": False}}))


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
