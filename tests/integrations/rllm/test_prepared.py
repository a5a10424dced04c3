"""Tests of plans prepared for rLLM, without rLLM: the roles whose signals and rewards count."""

from __future__ import annotations

import pytest

from rolegraph.engine.compile import compile_file
from rolegraph.engine.errors import UsageError
from rolegraph.integrations.rllm.keys import refuse
from rolegraph.integrations.rllm.prepared import prepared

SIGNAL = "roles.judge.signal={imitation: {demonstration: '{{ task.solution }}'}}"


def test_a_signal_of_a_role_that_is_not_trained_is_no_reason_to_refuse() -> None:
    assert prepared(compile_file("solver_judge", (SIGNAL, "roles.judge.estimator=null")))


@pytest.mark.parametrize(
    "override",
    [
        "roles.judge.reward={likelihood: {of: '{{ task.solution }}'}}",
        "train.stages=[{imitation: best, steps: 2}]",
    ],
)
def test_what_rllm_cannot_train_is_refused(override: str) -> None:
    with pytest.raises(UsageError):
        refuse(compile_file("solver_judge", (override,)))
