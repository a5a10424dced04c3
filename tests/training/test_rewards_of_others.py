"""Specs whose roles earn by what others do are trained for a step on the local model."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.records.episodes import read_episodes

pytest.importorskip("torch", reason="needs the extra `local`")

from engine.local.launcher import Running
from tests.trainings import SMALL, metrics, train

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "spec", ["debate_judge", "chain_team", "judge_with_reference", "proposer_solver_judge"]
)
def test_a_spec_is_trained_for_a_step(spec: str, service: Running, tmp_path: Path) -> None:
    one = ("train.steps=1", "train.validation={every: 0, tasks: 1, rollouts: 1, best: correct}")
    trained = train(tmp_path / "run", spec, *SMALL, *one, "sampling.max_tokens=64", service=service)
    assert [line["step"] for line in metrics(trained.folder)] == [0, 1]
    episodes = [*read_episodes(trained.folder / "episodes" / "train-000001.jsonl")]
    assert len(episodes) == 16
    for episode in episodes:
        rewards = [trajectory.reward for trajectory in episode.trajectories]
        if spec == "debate_judge":
            assert sum(reward or 0.0 for reward in rewards) == 0
        elif spec == "chain_team":
            assert len({*rewards}) == 1
        elif spec == "proposer_solver_judge":
            assert rewards[0] == pytest.approx(1 - sum(r or 0.0 for r in rewards[1:5]) / 4)
    learning = {group.split("/")[1] for group in metrics(trained.folder)[1] if group.startswith("reward/")}
    assert learning, "somebody was compared"
