"""Tests of one training step of recipes whose groups or estimators no shipped spec has."""

from __future__ import annotations

from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph.engine.records.episodes import read_episodes

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.engine.local.launcher import LocalService
from tests.compile.test_recipes import HEAD, RECIPES
from tests.edge import write_spec
from tests.trainings import STEP, train

pytestmark = pytest.mark.service


def trained(recipe: str, folder: Path, service: LocalService) -> rg.TrainingResult:
    spec = write_spec(folder, HEAD + RECIPES[recipe] + "train: {steps: 1}\n")
    return train(folder / "run", str(spec), *STEP, "sampling.max_tokens=24", service=service)


def test_groups_in_groups_train_for_a_step(service: LocalService, tmp_path: Path) -> None:
    done = trained("Groups in groups", tmp_path, service)
    episodes = [*read_episodes(done.folder / "episodes" / "train-000001.jsonl")]
    steps = [step for episode in episodes for step in episode["agent"][0].steps]
    assert steps
    for step in steps:
        whole, state = step.metadata["groups"]
        assert (whole.get("group"), state["group"]["part"]) == (None, 1)
        assert step.advantage == pytest.approx(whole["advantage"] + state["advantage"])
        assert step.metadata["by"] == {"self.observation": state["group"]["by"]}


def test_a_mean_for_each_role_trains_for_a_step(service: LocalService, tmp_path: Path) -> None:
    done = trained("Self-play with a mean for each role", tmp_path, service)
    (saved,) = done.checkpoints
    assert "first" in saved.estimators, "its moves end the game, unless they are legal"
    for role, states in saved.estimators.items():
        assert done.metrics[-1][f"estimator/{role}"] == states["0"][""]
