"""Tests that train recipes of the documentation on a scripted service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolegraph.engine.records import Task
from tests.compile.test_recipes import HEAD, RECIPES, ROW
from tests.edge import write_spec
from tests.training.edge import Training

DATA = "data: {train: rows.jsonl}\n"


def recipe(training: Training, folder: Path, name: str) -> None:
    """Let a training be of a recipe, on rows that all recipes can read."""

    def rows(split: str, count: int) -> list[Task]:
        return [
            {**ROW, "id": f"{split}{n}", "question": f"Task {n}: {ROW['question']}"} for n in range(count)
        ]

    (folder / "rows.jsonl").write_text(json.dumps({"id": "1", **ROW}))
    training.spec = write_spec(folder, HEAD + DATA + RECIPES[name])
    training.rows = rows


def test_self_play_is_against_a_past_self(training: Training, tmp_path: Path) -> None:
    text = RECIPES["Self-play against past selves"]
    training.spec = write_spec(tmp_path, HEAD + text)
    training.rows = lambda split, count: [{"id": f"{split}{n}", "seed": n} for n in range(count)]
    training.workflow.solve = lambda seed, updates: f"<answer>{1 + seed % 9}</answer>"
    training.run("policies.past.every=1", "policies.past.pick=latest", "train.rollouts=4")
    assert training.service.asked_for("optim_step")
    for episode in training.episodes("train", 3):
        versions = {t.name: {s.weight_version for s in t.steps} for t in episode.trajectories}
        assert versions.get("x", {2}) == {2} == versions.get("o", {2})
        assert all(s.advantage is None for t in episode.trajectories if t.name == "o" for s in t.steps)


def test_rejection_sampling_learns_right_answers_alone(training: Training, tmp_path: Path) -> None:
    recipe(training, tmp_path, "Rejection-sampling fine-tuning")
    training.workflow.solve = lambda seed, updates: f"<answer>{42 if seed % 3 else 41}</answer>"
    training.run("train.rollouts=4", "train.refill=1")
    sent = training.service.asked_for("forward_backward")
    assert {body["loss_fn"] for body in sent} == {"cross_entropy"}
    used = [e for e in training.episodes("train", 1) if "unused" not in e.metadata]
    assert {t.reward for e in used for t in e.trajectories} == {0.0, 1.0}
    right = [e for e in used if e.is_correct]
    data = sent[0]["data"]
    assert len(data) == len(right)
    for datum, episode in zip(data, right, strict=True):
        ids = episode.trajectories[0].steps[0].response_ids
        weights = datum.inputs["weights"]
        assert weights[-len(ids) :] == pytest.approx([1 / len(used)] * len(ids))
        assert not any(weights[: -len(ids)])
