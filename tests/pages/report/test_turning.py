"""Tests of the largest rise and fall of a curve, and of the turn with the largest share of a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rolegraph.engine.compile.leaving import DisclosureRule, read_rule
from rolegraph.engine.records import RunFolder, read_episodes
from rolegraph.pages.report.digest import read_digest
from rolegraph.pages.report.heaviest import heaviest_turn
from rolegraph.pages.report.reading import read_run
from rolegraph.pages.report.turning import TurningPoint, turning_points
from tests.pages.report.runs import write_lines, write_run
from tests.pages.view.runs import write_training

OPEN = DisclosureRule(lambda field: False, grouped=frozenset())


def points(folder: Path) -> dict[str, TurningPoint]:
    digest = read_digest(folder, ("solver", "judge"), read_rule(RunFolder(folder)))
    return {it.name: it for it in turning_points(read_run(folder), digest)}


def curve(folder: Path, split: str, values: Sequence[float], start: int = 1) -> None:
    write_lines(
        folder / "metrics.jsonl",
        [{"step": step, f"{split}/solver_acc": value} for step, value in enumerate(values, start)],
    )


def test_batches_are_compared_by_means_of_a_window(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    curve(folder, "episode", [0.5] * 10 + [0.9] * 5 + [0.4] * 5 + [0.6] * 10)
    found = points(folder)
    assert [(name, it.change.first, it.change.last) for name, it in found.items()] == [
        ("rise", (10.0, 0.5), (15.0, pytest.approx(0.9))),
        ("fall", (15.0, pytest.approx(0.9)), (20.0, pytest.approx(0.4))),
    ]
    assert found["rise"].turn is None, "the episodes are of steps 1 to 4"
    assert (found["fall"].window, found["fall"].among, found["fall"].last_point) == (5, 21, (20.0, 0.4))


def test_validations_are_compared_one_by_one_with_the_updates_between(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    curve(folder, "validation", [0.2, 0.1, 0.5], start=0)
    found = points(folder)
    assert (found["fall"].change.last, found["rise"].change.last) == ((1.0, 0.1), (2.0, 0.5))
    turns = [found[name].turn for name in ("fall", "rise")]
    assert [turn and turn.credit.step for turn in turns] == [1, 2]
    assert [turn and (turn.credit.task, turn.credit.rollout) for turn in turns] == [("mixed", 1)] * 2


def test_a_fall_that_chance_explains_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    curve(folder, "validation", [0.2, 0.8, 0.7], start=0)
    digest = read_digest(folder, ("solver", "judge"), read_rule(RunFolder(folder)))
    tasks = [f"task-{number}" for number in range(10)]
    means = ([0.2] * 10, [0.8] * 10, [0.8] * 9 + [0.0])
    validations = {step: dict(zip(tasks, of, strict=True)) for step, of in enumerate(means)}
    found = turning_points(read_run(folder), replace(digest, validations={"solver_acc": validations}))
    assert [it.name for it in found] == ["rise"]


@pytest.mark.parametrize("values", [[], [0.5], [0.5, 0.5]])
def test_a_curve_that_is_level_has_no_turning_point(tmp_path: Path, values: Sequence[float]) -> None:
    folder = write_run(tmp_path / "run")
    curve(folder, "episode", values)
    assert points(folder) == {}


def test_the_heaviest_turn_has_most_of_its_policys_gradient(tmp_path: Path) -> None:
    folder = RunFolder(write_training(tmp_path / "run"))
    rows = folder.credit_rows(2)
    assert rows is not None
    heavy = heaviest_turn(rows, OPEN)
    assert heavy is not None
    weights = {(it.task, it.rollout, it.role, it.index): it.loss_weight for it in rows}
    by_hand: dict[tuple[str, int, str, int], float] = {}
    for episode in read_episodes(folder.episodes_file("train", 2)):
        for trajectory in episode.trajectories:
            key = episode.task_id, episode.rollout, trajectory.name, trajectory.index
            pushes = sum(abs(value) for step in trajectory.steps for value in step.advantages)
            by_hand[key] = pushes * (weights[key] or 1.0)
    mine = heavy.credit
    assert heavy.share == pytest.approx(max(by_hand.values()) / sum(by_hand.values()))
    assert by_hand[mine.task, mine.rollout, mine.role, mine.index] == max(by_hand.values())


def test_a_group_that_may_tell_a_hidden_field_is_passed_over(tmp_path: Path) -> None:
    rows = RunFolder(write_training(tmp_path / "run")).credit_rows(1)
    assert rows is not None
    by_answer = [row._replace(by="task.answer") for row in rows]
    assert heaviest_turn(by_answer, OPEN) is not None
    assert heaviest_turn(by_answer, DisclosureRule(lambda field: True)) is None
    assert heaviest_turn([], OPEN) is None
