"""Tests of steps that draw further batches until enough tasks are informative."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.compile import compile_file
from rolegraph.engine.records import Episode
from rolegraph.engine.training.loop.schedule import batch_tasks
from tests.edge import RIGHT, WRONG
from tests.training.edge import SEED, SMALL, STEPS, Training, tasks

REFILL = ("train.refill=3", "train.checkpoint_every=1")


def ids(episodes: list[Episode], *, used: bool = False) -> list[str]:
    """Return the tasks of episodes, each once, in order."""
    kept = [e for e in episodes if not (used and "unused" in e.metadata)]
    return [*dict.fromkeys(episode.task_id for episode in kept)]


def differs(episodes: list[Episode], task: str) -> bool:
    """Return whether the rewards of a role differ on a task."""
    found: dict[str, set[float | None]] = {}
    for episode in episodes:
        if episode.task_id == task:
            for trajectory in episode.trajectories:
                found.setdefault(trajectory.name, set()).add(trajectory.reward)
    return any(len(rewards) > 1 for rewards in found.values())


def seldom(seed: int, updates: int) -> str:
    return RIGHT if seed % 5 == 0 else WRONG


def test_a_step_learns_from_the_first_tasks_that_teach(training: Training) -> None:
    training.workflow.solve = seldom
    training.run(*REFILL)
    lines = training.folder.metrics()[1:]
    assert max(line["refill/drawn"] for line in lines) > 2, "a step drew again"
    for number, line in enumerate(lines, 1):
        episodes = training.episodes("train", number)
        teaching = [task for task in ids(episodes) if differs(episodes, task)]
        assert ids(episodes, used=True) == teaching[:2]
        assert (line["refill/drawn"], line["refill/kept"]) == (len(ids(episodes)), len(teaching[:2]))
        solvers = [t.reward or 0.0 for e in episodes for t in e.trajectories if t.name == "solver"]
        assert line["reward/solver/mean"] == pytest.approx(sum(solvers) / len(solvers))


def test_a_step_draws_the_batches_that_follow_and_no_task_twice(training: Training) -> None:
    training.workflow.solve = lambda seed, updates: WRONG
    training.run(*REFILL)
    train = compile_file("solver_judge", SMALL).spec.train
    numbers = iter(range(1, 100))
    for step in range(1, STEPS + 1):
        drawn = [
            task["id"]
            for number in [next(numbers) for _ in range(4)]
            for task in batch_tasks(tasks("train", 5), train, SEED, number)
        ]
        assert ids(training.episodes("train", step)) == [*dict.fromkeys(drawn)]
    assert training.service.asked_for("optim_step") == []
    assert [checkpoint.batches for checkpoint in training.folder.checkpoints()] == [4, 8, 12]


@pytest.mark.parametrize("done", [1, 2])
def test_a_training_goes_on_with_the_tasks_of_an_unbroken_one(
    done: int, training: Training, tmp_path: Path
) -> None:
    training.workflow.solve = seldom
    training.run(*REFILL)
    assert training.folder.checkpoints()[1].batches != 2, "a step drew again"
    training.resumed(tmp_path / "broken", done, *REFILL)
