"""Tests of signals beside an estimator in trainings on a scripted service."""

from __future__ import annotations

import html
from pathlib import Path

import pytest

import rolegraph as rg
from tests.models.tinker_edge import score
from tests.training.edge import LOGPROB, STEPS, Training

PENALTY = ("roles.solver.signal={reverse_kl: {teacher: base, coefficient: 0.5}}", "train.checkpoint_every=1")


def test_the_start_of_the_policy_is_the_teacher_at_every_step(training: Training) -> None:
    training.run(*PENALTY)
    service = training.service
    assert {service.updates[body["sampling_session_id"]] for body in service.scored} == {0}
    for step in range(1, STEPS + 1):
        rows = [it for it in training.folder.credit_rows(step) or () if it.source == "estimator"]
        own = {(it.task, it.rollout, it.index): it.advantage for it in rows if it.role == "solver"}
        solvers = [(e, t) for e in training.episodes("train", step) for t in e["solver"]]
        for episode, solver in solvers:
            (call,) = solver.steps
            gaps = [0.5 * (score(token, 0) - LOGPROB) for token in call.response_ids]
            estimated = own[episode.task_id, episode.rollout, solver.index]
            assert estimated is not None
            assert call.advantages == pytest.approx([estimated + gap for gap in gaps], abs=1e-6)
            assert call.metadata["signal"] == pytest.approx(sum(gaps) / len(gaps), abs=1e-6)
    saved = {checkpoint.starts["main"] for checkpoint in training.folder.checkpoints()}
    assert len(saved) == 1 and saved.pop().endswith("/start")
    assert all(line["signal/solver/advantage/std"] > 0 for line in training.folder.metrics()[1:])


@pytest.mark.parametrize("done", [1, 2])
def test_a_resumed_training_has_the_same_teacher(done: int, training: Training, tmp_path: Path) -> None:
    training.run(*PENALTY)
    broken = training.resumed(tmp_path / "broken", done, *PENALTY)
    first, last = broken.folder.checkpoints()[0], broken.folder.checkpoints()[-1]
    assert first.starts == last.starts


def test_a_page_shows_both_parts_of_an_advantage(training: Training) -> None:
    training.run(*PENALTY)
    page = training.folder.path / "page.html"
    rg.view(training.folder.path).write(page, hidden=True)
    text = html.unescape(page.read_text("utf-8"))
    assert "a token</span>" in text and "The signal's advantage is added at each token." in text


def test_a_step_without_a_difference_of_rewards_still_follows_the_signal(training: Training) -> None:
    training.workflow.solve = lambda seed, updates: "<answer>1</answer>"
    training.run(*PENALTY, "roles.judge.estimator=null")
    line = training.folder.metrics()[1]
    assert line["outcome/solver/taught"] == 0 and line["optim/data"] > 0
