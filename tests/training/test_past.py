"""Tests of past selves: the kept copies, the drawn ones, and trainings that are resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph.engine.records import Episode
from tests.edge import RIGHT, WRONG
from tests.training.edge import STEPS, Training

PAST = "policies.past={of: main, every: 1, keep: 2}"
JUDGED = (PAST, "roles.judge.policy=past", "roles.judge.estimator=null", "train.checkpoint_every=1")
"""A judge that is a past self of the solvers' policy."""


def drawn(training: Training, step: int) -> dict[str, set[int]]:
    """Return the versions of the copies that each task of a step played against."""
    found: dict[str, set[int]] = {}
    for episode in training.episodes("train", step):
        found.setdefault(episode.task_id, set()).add(episode.metadata["past"]["past"])
    return found


def judged_by(episode: Episode) -> set[int]:
    """Return the versions of the weights that judged."""
    return {step.weight_version or 0 for t in episode["judge"] for step in t.steps}


def test_each_task_plays_against_one_copy_in_all_its_rollouts(training: Training) -> None:
    training.run(*JUDGED)
    for step in range(1, STEPS + 1):
        kept = {max(0, step - 2), step - 1}
        for versions in drawn(training, step).values():
            assert len(versions) == 1 and versions <= kept
        for episode in training.episodes("train", step):
            assert judged_by(episode) == {episode.metadata["past"]["past"]}
            assert {s.weight_version for t in episode["solver"] for s in t.steps} == {step - 1}
    assert not [name for line in training.folder.metrics() for name in line if name.startswith("loss/judge")]
    assert {line["staleness/mean"] for line in training.folder.metrics()[1:]} == {0.0}


def test_the_latest_is_the_newest_copy(training: Training) -> None:
    training.run(*JUDGED, "policies.past.every=2", "policies.past.pick=latest")
    for step, latest in ((1, 0), (2, 0), (3, 2)):
        assert [*drawn(training, step).values()] == [{latest}, {latest}]


def test_a_validation_is_against_the_start(training: Training) -> None:
    training.run(*JUDGED)
    for step in (0, 2, 3):
        for episode in training.episodes("validation", step):
            assert judged_by(episode) == {0} and "past" not in episode.metadata


def test_an_instance_of_a_trained_role_may_be_a_past_self(training: Training) -> None:
    training.run(PAST, "roles.solver.policy=[main, past]", "train.rollouts=4")
    for episode in training.episodes("train", 3):
        present, past = episode["solver"]
        assert present.steps[0].advantage is not None and past.steps[0].advantage is None
        assert past.steps[0].weight_version in (None, 1, 2) and "staleness" not in past.steps[0].metadata
    expected = [t.reward for e in training.episodes("train", 1) for t in e["solver"] if t.index == 1]
    line = training.folder.metrics()[1]
    assert line["episode/reward/solver"] == pytest.approx(
        sum(reward or 0.0 for reward in expected) / len(expected)
    )
    page = training.folder.path / "page.html"
    assert rg.view(training.folder.path).write(page, hidden=True).episodes > 0
    sizes = [line["groups/max_group_size"] for line in training.folder.metrics()[1:]]
    assert sizes == [4.0, 4.0, 4.0]


def test_copies_live_as_long_as_a_checkpoint_names_them(training: Training) -> None:
    training.run(*JUDGED, "policies.past.keep=1", "train.checkpoint_every=3")
    made = [body.get("path") or "" for body in training.service.asked_for("save_weights_for_sampler")]
    assert [path for path in made if path.startswith("past-")] == [f"past-00000{n}" for n in (1, 2, 3)]
    named = [copy.sampler for c in training.folder.checkpoints() for copy in c.past["past"]]
    deleted = [body["path"] for body in training.service.asked_for("delete_checkpoint")]
    assert len(deleted) == 2 and not {*deleted} & {*named}
    assert all(path in training.service.updates for path in named if path)


def test_copies_go_with_the_checkpoints_that_named_them(training: Training) -> None:
    training.run(*JUDGED, "policies.past.keep=1", "train.keep={checkpoints: 1}", "train.validation.every=0")
    (last,) = training.folder.checkpoints()
    named = {copy.sampler for copy in last.past["past"]}
    deleted = {body["path"] for body in training.service.asked_for("delete_checkpoint")}
    made = [body.get("path") or "" for body in training.service.asked_for("save_weights_for_sampler")]
    copies = {f"tinker://run/sampler_weights/{path}" for path in made if path.startswith("past-")}
    assert copies - deleted == named


@pytest.mark.parametrize("done", [1, 2])
def test_a_resumed_training_draws_the_same_opponents(done: int, training: Training, tmp_path: Path) -> None:
    training.workflow.solve = lambda seed, updates: RIGHT if seed % 2 else WRONG
    training.run(*JUDGED)
    training.resumed(tmp_path / "broken", done, *JUDGED)
