"""CreditRow of turns, from a spec's keys to the advantages, and its notes in the episodes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

import rolegraph as rg
from rolegraph.engine.errors import DataError, ModelError, UsageError
from rolegraph.engine.models import Request
from rolegraph.engine.records import Episode, RunFolder, Trajectory
from rolegraph.engine.records.credit import CreditRow, LeftOut
from rolegraph.engine.spec.role import CreditField
from rolegraph.engine.training.advantages.ledger import comparisons, credited
from rolegraph.engine.training.analysis.metrics import rewards_by_role
from rolegraph.pages.report import write_report
from tests.training.credited import (
    advantages,
    drawn,
    grouped,
    learnt,
    ledger,
    looped,
    plan,
    rollouts,
    rows,
)
from tests.training.edge import STEPS, Training

# credit of a turn


@pytest.mark.parametrize(
    ("credit", "rewards", "expected"),
    [
        ("turn", [1.0, 0.0, 0.5], [1.0, 0.0, 0.5]),
        ({"return": 0.5}, [1.0, 0.0, 0.5], [1.125, 0.25, 0.5]),
        ({"return": 0.0}, [1.0, 0.0, 0.5], [1.0, 0.0, 0.5]),
        ({"return": 1.0}, [1.0, 0.0, 0.5, -1.0], [0.5, -0.5, -0.5, -1.0]),
        ("margin", [1.0, 0.0, 0.5], [1.0, -1.0, 0.0]),
        ("margin", [0.0, 1.0, 0.5, 1.0], [0.0, 1.0, 0.0, 0.5]),
        ("margin", [0.25], [0.25]),
        ({"return": 0.9}, [], []),
    ],
)
def test_a_turn_is_credited_by_the_table(credit: Any, rewards: list[float], expected: list[float]) -> None:
    assert credited(rewards, TypeAdapter(CreditField).validate_python(credit)) == pytest.approx(expected)


def test_a_trajectory_that_is_credited_as_a_whole_is_compared_as_one(tmp_path: Path) -> None:
    spec = looped(tmp_path, "trajectory")
    episodes = rollouts(spec, drawn)
    done, metrics = learnt(spec, episodes)
    groups = grouped(episodes, spec.trained)
    assert [[member.round for member in group.members] for group in groups] == [[0] * 4] * 2
    assert metrics["groups/num_trajs_before_filter"] == 8
    assert all(len(set(own)) == 1 for own in advantages(done, "a"))
    assert [row.round for row in rows(spec, episodes)] == [0] * 8


def test_turns_of_a_round_are_compared_with_what_their_trajectories_earned(tmp_path: Path) -> None:
    spec = looped(tmp_path, "trajectory", "turn")
    groups = grouped(rollouts(spec, drawn), spec.trained)
    assert [(g.key.task, g.key.round, len(g.members)) for g in groups] == [
        (task, number, 4) for task in ("t0", "t1") for number in (1, 2, 3)
    ]
    for task in ("t0", "t1"):
        rewards = [[t.reward for t in g.members] for g in groups if g.key.task == task]
        assert rewards[0] == rewards[1] == rewards[2]


def test_a_masked_turn_is_in_no_group_and_the_turns_around_it_are(tmp_path: Path) -> None:
    spec = looped(tmp_path, "margin", "turn", on_failure={"then": "mask"})

    def answer(request: Request) -> str:
        return "no tags" if request.id.node.round == 2 and request.id.rollout == 0 else drawn(request)

    episodes = rollouts(spec, answer)
    done, metrics = learnt(spec, episodes)
    groups = grouped(episodes, spec.trained)
    assert [(g.key.round, len(g.members)) for g in groups] == [
        *[(1, 4), (3, 4), (2, 3)],
        *[(1, 4), (3, 4), (2, 3)],
    ]
    assert metrics["groups/num_trajs_before_filter"] == 24
    steps = episodes[0].trajectories[0].steps
    (third,) = (member for member in groups[1].members if member.rollout == 0)
    assert third.reward == steps[2].reward - steps[0].reward, (
        "the mean of those before, without the masked one"
    )
    assert [value is None for value in advantages(done, "a")[0]] == [False, True, False]


# figures


def test_a_role_s_reward_is_that_of_its_trajectories_or_of_its_turns_where_these_are_compared(
    tmp_path: Path,
) -> None:
    whole, apart = looped(tmp_path, "trajectory"), looped(tmp_path, "margin")
    episodes = rollouts(whole, drawn)
    assert rewards_by_role(whole, episodes)["a"] == [t.reward for e in episodes for t in e.trajectories]
    turns = [step.reward for e in episodes for t in e.trajectories for step in t.steps]
    assert rewards_by_role(apart, episodes)["a"] == turns


# rows of credit


def test_each_member_has_a_row_with_its_baseline_and_its_weight_in_the_loss(tmp_path: Path) -> None:
    spec = plan(tmp_path, {"a": {"count": 2, "weight": 3}, "b": {"estimator": "reinforce"}})
    made = rollouts(spec, drawn)
    step = ledger(spec, made)
    whole = 8 * (2 * 3 + 1)
    weights = step.loss_weights
    assert weights == pytest.approx({("main", "a"): 3 / whole, ("main", "b"): 1 / whole})
    found = rows(spec, made)
    assert len(found) == 8 * 3
    for row in found:
        together = [it.reward for it in found if it.group == row.group]
        assert {it.task for it in found if it.group == row.group} == {row.task}
        assert row.baseline == pytest.approx(np.mean(together) if row.role == "a" else 0.0)
        assert (row.loss_weight, row.source, row.policy) == (weights["main", row.role], "estimator", "main")


def test_a_call_s_advantage_is_the_weighted_sum_of_the_rows_that_cover_it(tmp_path: Path) -> None:
    groups = ["task", {"by": "turn", "credit": "margin", "weight": 0.5}, {"by": 0, "over": "batch"}]
    spec = looped(tmp_path, "turn", groups)
    made = rollouts(spec, drawn)
    found, (done, _) = rows(spec, made), learnt(spec, made)
    assert {row.grouping for row in found} == {0, 1, 2}
    for episode in done:
        for trajectory in episode["a"]:
            own = [it for it in found if (it.task, it.rollout) == (episode.task_id, episode.rollout)]
            for step in trajectory.steps:
                covering = [it for it in own if it.round in (0, step.round)]
                total = sum(it.weight * (it.advantage or 0.0) for it in covering)
                assert len(covering) == 3 and step.advantage == pytest.approx(total)


def test_what_is_in_no_group_has_a_row_with_the_reason(tmp_path: Path) -> None:
    masked = {"on_failure": {"then": "mask"}}
    spec = plan(tmp_path, {"a": masked, "b": {"count": 3, "group": {"by": "1 / (self.index - 2)"}}})

    def answer(request: Request) -> str:
        if request.id.node.role == "a" and request.id.rollout == 1:
            raise ModelError("down")
        return "no tags" if request.id.node.role == "a" and request.id.rollout == 0 else drawn(request)

    found = rows(spec, rollouts(spec, answer, tasks=1))
    left_out = {(it.role, it.rollout, it.index): it.left_out for it in found if it.group is None}
    assert left_out == {
        **{("b", rollout, 2): LeftOut.NO_KEY for rollout in range(4)},
        ("a", 0, 1): LeftOut.MASKED,
        ("a", 1, 1): LeftOut.MASKED,
    }
    assert all(it.advantage is None and it.loss_weight is None for it in found if it.group is None)


@pytest.mark.parametrize(("credit", "group"), [("trajectory", "task"), ("turn", "turn")])
def test_a_masked_turn_of_a_compared_trajectory_has_a_row(tmp_path: Path, credit: str, group: str) -> None:
    spec = looped(tmp_path, credit, group, on_failure={"then": "mask"})

    def answer(request: Request) -> str:
        return "no tags" if request.id.node.round == 2 and request.id.rollout == 0 else drawn(request)

    made = rollouts(spec, answer, tasks=1)
    found = rows(spec, made)
    (masked,) = [row for row in found if row.left_out]
    assert masked[:8] == (1, made[0].task_id, 0, "a", 1, 2, 0, "main")
    assert (masked.left_out, masked.group, masked.advantage) == (LeftOut.MASKED, None, None)
    assert masked.failed and masked.tokens == made[0].trajectories[0].steps[1].response_tokens
    compared = [(row.rollout, row.round) for row in found if row.group is not None]
    if group == "task":
        assert compared == [(rollout, 0) for rollout in range(4)]
    else:
        places = [(rollout, number) for rollout in range(4) for number in (1, 2, 3)]
        assert sorted(compared) == [place for place in places if place != (0, 2)]


def test_a_row_is_read_as_it_was_written(tmp_path: Path) -> None:
    spec = looped(tmp_path, "turn", ["task", "turn"])
    found = rows(spec, rollouts(spec, drawn))
    folder = RunFolder(tmp_path / "run")
    folder.write_credit(3, found)
    assert folder.credit_rows(3) == found
    assert folder.credit_rows(2) is None


# the table of a training


def table(run: RunFolder, steps: int) -> list[list[CreditRow]]:
    return [run.credit_rows(step) or [] for step in range(1, steps + 1)]


def test_a_resumed_training_has_the_same_rows(training: Training, tmp_path: Path) -> None:
    training.run()
    broken = training.resumed(tmp_path / "broken", 1)
    assert all(table(training.folder, STEPS))
    assert table(broken.folder, STEPS) == table(training.folder, STEPS)


def test_a_rewound_training_has_no_rows_after_its_checkpoint(training: Training) -> None:
    training.run("train.checkpoint_every=2", steps=3)
    file = training.folder.credit_file(4)
    file.write_bytes(training.folder.credit_file(3).read_bytes())
    training.folder.rewind()
    assert not file.exists() and training.folder.credit_file(3).exists()


def test_rows_are_kept_as_long_as_the_episodes(training: Training) -> None:
    training.run("train.keep={episodes: 1}")
    names = [file.name for file in sorted(training.folder.credit.iterdir())]
    assert names == [f"train-{STEPS:06d}.jsonl"]


def test_membership_is_derived_once_for_each_episode(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    derived = comparisons

    def counting(episode: Episode, trajectory: Trajectory, *others: Any) -> Any:
        counted.append(trajectory.uid)
        return derived(episode, trajectory, *others)

    monkeypatch.setattr("rolegraph.engine.training.advantages.ledger.comparisons", counting)
    training.run("train.refill=1", "roles.solver.signal={reverse_kl: {teacher: base}}", steps=1)
    trajectories = [t.uid for e in training.episodes("train", 1) for t in e.trajectories]
    assert sorted(counted) == sorted(trajectories)


def test_a_step_s_metadata_holds_no_credit(training: Training) -> None:
    training.run("roles.solver.group=[task, {by: 0, over: batch}]")
    gone = {"credit", "group", "groups", "baseline", "too_small", "weight", "advantage", "loss_weight"}
    steps = [s for e in training.episodes("train", 1) for t in e.trajectories for s in t.steps]
    assert steps and not any(gone & {*step.metadata} for step in steps)


def test_a_damaged_table_is_named_with_its_line(finished: Training, tmp_path: Path) -> None:
    copied = RunFolder(tmp_path / "run")
    shutil.copytree(finished.folder.path, copied.path)
    lines = copied.credit_file(2).read_bytes().splitlines(keepends=True)
    copied.credit_file(2).write_bytes(lines[0] + b'{"step": "two"}\n' + lines[1])
    with pytest.raises(DataError, match=r"train-000002.jsonl:2: not a row of credit"):
        copied.credit_rows(2)
    with pytest.raises(DataError):
        rg.Run(copied.path).credit()
    assert "1 lines of episodes and credit" in write_report(copied.path).read_text("utf-8")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("rollout", -1),
        ("index", 0),
        ("reward", "x"),
        ("advantage", 1e101),
        ("terms", {"a": "b"}),
        ("source", "guess"),
        ("left_out", "why"),
        ("group", [1]),
        ("tokens", None),
    ],
)
def test_a_hostile_row_is_refused_with_its_column(column: str, value: object, tmp_path: Path) -> None:
    row = CreditRow(1, "t", 0, "a", 1, round=0, call=0, policy="main", source="estimator")
    run = RunFolder(tmp_path)
    run.write_credit(1, [row])
    run.credit_file(1).write_text(json.dumps({**row._asdict(), "terms": {}, column: value}) + "\n")
    with pytest.raises(DataError, match=f"train-000001.jsonl:1: not a row of credit: {column}"):
        run.credit_rows(1)


def test_the_credit_of_a_training_is_a_table(finished: Training) -> None:
    pandas = pytest.importorskip("pandas")
    frame = rg.Run(finished.folder.path).credit()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == sum(map(len, table(finished.folder, STEPS)))
    assert frame.groupby("role")["advantage"].describe()["count"].to_dict() == {
        role: float(sum(frame["role"] == role)) for role in ("solver", "judge")
    }
    one = rg.Run(finished.folder.path).credit(2)
    assert set(one["step"]) == {2}
    with pytest.raises(UsageError, match="no credit of step 9"):
        rg.Run(finished.folder.path).credit(9)
