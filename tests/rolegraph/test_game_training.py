"""Games are trained as data is: seeds for tasks, a step of the loop for each update."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from engine.records import SEEDS
from engine.records.episodes import read_episodes

pytest.importorskip("torch", reason="needs the extra `local`")

from engine.local.launcher import Running
from tests.trainings import metrics, train

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]

STEP = (
    "train.batch_size=2",
    "train.rollouts=2",
    "train.steps=1",
    "train.validation={every: 0, tasks: 1, rollouts: 1}",
    "sampling.max_tokens=24",
)
GAMES = {
    "tic_tac_toe": ("loops.play.env={tic_tac_toe: {illegal: repeats}}", "loops.play.times=3"),
    "plan_path": ("loops.walk.times=2",),
    "textarena": ("loops.play.times=3",),
}


@pytest.mark.parametrize("game", GAMES)
def test_a_game_is_trained_for_a_step(game: str, service: Running, tmp_path: Path) -> None:
    if game == "textarena" and importlib.util.find_spec("textarena") is None:
        pytest.skip("needs the extra `textarena`")
    train(tmp_path / "run", game, *STEP, *GAMES[game], service=service)
    assert [line["step"] for line in metrics(tmp_path / "run")] == [0, 1]
    folder = tmp_path / "run" / "episodes"
    trained = [*read_episodes(folder / "train-000001.jsonl")]
    assert {episode.task["seed"] for episode in trained} == {0, 1}
    held = [*read_episodes(folder / "validation-000001.jsonl")]
    assert {episode.task["seed"] for episode in held} == {SEEDS}
    for episode in trained:
        twin = next(e for e in trained if e.task_id == episode.task_id and e.rollout != episode.rollout)
        first, other = (e.trajectories[0].steps[0].chat_completions[0]["content"] for e in (episode, twin))
        assert first == other, "all rollouts of a task start from the same state"
