"""Tests of one training step of recipes whose groups or estimators no shipped spec has."""

from __future__ import annotations

from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph.engine.records.episodes import read_episodes

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.local.launcher import LocalService
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


CALLED = """\
rolegraph: 1
name: called
data: {train: countdown, validation: countdown}
roles:
  agent:
    prompt: react.j2
    tools: [{role: calculator}]
    calls: 3
    parser: {tag: answer, default: No solution found}
    reward: countdown
    estimator: grpo
  calculator:
    tool: {describe: Compute an arithmetic expression., arguments: {expression: string}}
    prompt: {inline: "Use {{ self.arguments.expression }}. Answer in <answer></answer>."}
    parser: {tag: answer, default: "?"}
    reward: {of: agent}
    estimator: grpo
train: {steps: 1}
"""
"""Spec whose agent calls a role as it was taught to call the calculator."""


def test_a_role_that_the_base_model_calls_trains_for_a_step(service: LocalService, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, CALLED)
    done = train(tmp_path / "run", str(spec), *STEP, "sampling.max_tokens=48", service=service)
    episodes = [*read_episodes(done.folder / "episodes" / "train-000001.jsonl")]
    calls = [t for episode in episodes for t in episode.trajectories if t.name == "calculator"]
    assert calls
    for episode in episodes:
        own = [t for t in episode.trajectories if t.name == "calculator"]
        used = [call for step in episode["agent"][0].steps for call in step.metadata.get("calls", ())]
        assert len(own) <= len(used)
        for called in own:
            assert called.reward == episode["agent"][0].reward
            assert all(step.advantage is not None and step.logprobs for step in called.steps)
