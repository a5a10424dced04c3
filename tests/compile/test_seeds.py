"""Tests of specs without data, whose tasks are the seeds of an environment."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.compile.trainable import training_findings
from rolegraph.engine.errors import SpecError
from rolegraph.engine.records import SEEDS
from tests.edge import write_spec

GRID = """
rolegraph: 2
name: grid
roles:
  walker:
    prompt: "{{ self.observation }}"
    reward: env
    estimator: grpo
loops: {walk: {roles: [walker], times: 3, env: grid}}
"""


def compiled(folder: Path, more: str = "") -> Plan:
    return compile_file(write_spec(folder, GRID + more))


def test_training_counts_up_from_0_and_validation_down_from_the_other_end(tmp_path: Path) -> None:
    plan = compiled(tmp_path, "train: {steps: 3, batch_size: 4, validation: {tasks: 2}}")
    train, validation = plan.data["train"], plan.data["validation"]
    assert [row["seed"] for row in train.rows(None)] == [*range(12)]
    assert [row["seed"] for row in validation.rows(None)] == [SEEDS, SEEDS - 1]
    assert len([*train.rows(99)]) == 99, "there are always more"
    assert len({row["id"] for row in [*train.rows(99), *validation.rows(99)]}) == 198
    again = pickle.loads(pickle.dumps(plan))
    assert [*again.data["train"].rows(2)] == [*train.rows(2)]


def test_training_wants_to_know_how_long_and_running_does_not(tmp_path: Path) -> None:
    (finding,) = training_findings(compiled(tmp_path))
    assert finding.path == ("train", "steps")
    assert not [*training_findings(compiled(tmp_path, "train: {steps: 1}"))]


def test_with_data_the_tasks_are_those_of_the_data(tmp_path: Path) -> None:
    plan = compiled(tmp_path, "data: {train: {countdown: {count: 3}}}")
    assert "validation" not in plan.data
    assert "nums" in plan.data["train"].columns


def test_a_prompt_may_read_nothing_of_a_task_that_is_a_seed(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="the task has no field 'question'; there is id, seed"):
        write_spec(tmp_path, GRID.replace("self.observation", "task.question"))
        compile_file(tmp_path / "spec.yaml")
