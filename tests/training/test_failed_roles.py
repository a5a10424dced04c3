"""Tests of the roles whose failures stop a training."""

from __future__ import annotations

import pytest

from rolegraph.engine.records import Episode, Failure, FailureName, Step, Trajectory
from rolegraph.engine.training.analysis.metrics import failed_roles, lost_roles

RAISED, MALFORMED = FailureName.REWARD_ERROR, FailureName.MALFORMED_OUTPUT


def trajectory(failure: FailureName | None) -> Trajectory:
    cause = Failure(failure, "a cause") if failure else None
    return Trajectory("solver", 1, [Step(action="7")], reward=0.0, failure=cause)


@pytest.mark.parametrize(
    ("failures", "stops"),
    [
        ([RAISED, RAISED], RAISED),
        ([MALFORMED, RAISED], RAISED),
        ([MALFORMED, MALFORMED], MALFORMED),
        ([MALFORMED, FailureName.TIMEOUT], None),
        ([RAISED, None], None),
        ([MALFORMED, None], None),
    ],
)
def test_a_role_stops_a_training_where_no_reward_was_computed(
    failures: list[FailureName | None], stops: FailureName | None
) -> None:
    """Answers that are malformed do not hide a reward that raises for all others."""
    episodes = [Episode(f"t{n}", 0, {}, [trajectory(failure)]) for n, failure in enumerate(failures)]
    stopping = [t.failure.name for t in failed_roles(episodes) if t.failure]
    assert stopping == ([stops] if stops else [])


LOST, LATE = FailureName.MODEL_ERROR, FailureName.TIMEOUT


@pytest.mark.parametrize(
    ("failures", "is_lost"),
    [
        ([LOST, LATE, None], True),
        ([LOST, None], False),
        ([MALFORMED, MALFORMED, LOST], False),
        ([None], False),
    ],
)
def test_a_validation_is_lost_where_a_machine_failed_for_most_answers(
    failures: list[FailureName | None], is_lost: bool
) -> None:
    """Wrong forms are answers; what no model answered says nothing of the weights."""
    episodes = [Episode(f"t{n}", 0, {}, [trajectory(failure)]) for n, failure in enumerate(failures)]
    assert [t.name for t in lost_roles(episodes)] == (["solver"] if is_lost else [])
