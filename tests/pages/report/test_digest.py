"""Tests that episodes are read once, and that only barren groups and a few samples are kept."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

from rolegraph.engine.compile.leaving import DisclosureRule
from rolegraph.engine.records import Episode
from rolegraph.engine.training.analysis.outcomes import GroupOutcome
from rolegraph.pages.report.digest import SAMPLES, read_digest
from tests.pages.report.runs import rollout, rollouts, write_episodes, write_run

ROLES = ("solver", "judge")
RULE = DisclosureRule(lambda field: False, frozenset(ROLES))
"""Rule of a run without hidden fields."""


def test_groups_without_advantages_are_counted_for_each_task_with_the_reason(tmp_path: Path) -> None:
    digest = read_digest(write_run(tmp_path / "run"), ROLES, RULE)
    solver, judge = digest.groups
    assert (solver.role, solver.seen, solver.barren) == ("solver", 12, 8)
    rows = {row.task: (row.question, row.barren, row.outcomes) for row in solver.barren_tasks}
    assert rows == {
        "easy": ("What is easy?", 4, {GroupOutcome.EASY: 4}),
        "hard": ("What is hard?", 4, {GroupOutcome.HARD: 4}),
    }
    assert solver.steps == dict.fromkeys(range(1, 5), dict.fromkeys(("taught", "too easy", "too hard"), 1))
    assert (judge.role, judge.barren) == ("judge", 8)


def test_a_group_of_equal_rewards_taught_where_it_has_an_advantage(tmp_path: Path) -> None:
    write_folder(tmp_path, [rollout("t", at, [1.0, 1.0], advantage=1.0) for at in range(2)])
    for role in read_digest(tmp_path, ROLES, RULE).groups:
        assert (role.seen, role.barren, role.barren_tasks) == (1, 0, []), "reinforce has no baseline"


def test_rewards_between_nought_and_one_are_neither_easy_nor_hard(tmp_path: Path) -> None:
    write_folder(tmp_path, [rollout("t", at, [0.5, 0.5], advantage=0.0) for at in range(2)])
    (row,) = read_digest(tmp_path, ROLES, RULE).groups[0].barren_tasks
    assert (row.barren, row.outcomes) == (1, {GroupOutcome.NEITHER: 1})


def test_what_training_left_out_is_in_no_group(tmp_path: Path) -> None:
    first, second = (rollout("t", at, [1.0], advantage=0.0) for at in range(2))
    masked = first.trajectories[0]._replace(masked=True, reward=0.0)
    unanswered = first.trajectories[0]._replace(steps=(), reward=0.0)
    write_folder(tmp_path, [first._replace(trajectories=(masked, unanswered)), second])
    (row,) = read_digest(tmp_path, ROLES, RULE).groups[0].barren_tasks
    assert row.outcomes == {GroupOutcome.EASY: 1}, "the one answer that was compared earned 1"


def test_a_role_without_advantages_has_no_groups(tmp_path: Path) -> None:
    write_folder(tmp_path, [rollout("t", at, [1.0]) for at in range(2)])
    assert read_digest(tmp_path, ROLES, RULE).groups == ()


def test_the_samples_are_of_the_last_step_and_each_of_another_task(tmp_path: Path) -> None:
    digest = read_digest(write_run(tmp_path / "run"), ROLES, RULE)
    assert [(group.split, group.step) for group in digest.samples] == [("train", 4), ("validation", 4)]
    for group in digest.samples:
        for side, role in product(("best", "worst"), ROLES):
            ids = [
                sample.episode.task_id
                for sample in group.samples
                for reason in sample.reasons
                if (reason.side, reason.instance.split()[0]) == (side, role)
            ]
            assert len(ids) == len(set(ids)) == SAMPLES


def test_the_best_has_the_highest_advantage_and_the_worst_the_lowest(tmp_path: Path) -> None:
    tasks = {"low": -2.0, "middle": 0.0, "high": 3.0, "other": 0.1, "another": -0.1}
    write_folder(tmp_path, [rollout(task, 0, [1.0], advantage=value) for task, value in tasks.items()])
    (group,) = read_digest(tmp_path, ROLES, RULE).samples
    reasons = {sample.episode.task_id: sample.reasons for sample in group.samples}
    assert reasons["high"] == tuple(("best", role, "advantage", 3.0) for role in ROLES)
    assert reasons["low"] == tuple(("worst", role, "advantage", -2.0) for role in ROLES)
    assert "middle" not in reasons


def test_a_file_that_was_only_just_begun_leaves_the_samples_to_the_step_before(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    line = json.dumps(rollout("t", 0, [1.0]).to_dict())
    (folder / "episodes" / "train-000005.jsonl").write_text(line[:50])
    digest = read_digest(folder, ROLES, RULE)
    assert (digest.samples[0].step, digest.unreadable) == (4, 0)


def test_a_broken_line_is_counted_and_the_others_are_read(tmp_path: Path) -> None:
    path = write_folder(tmp_path, rollouts(1))
    foreign = {"id": 3, "task": [], "trajectories": [], "is_correct": False}
    path.write_text(f"{{}}\n[]\nnonsense\n{json.dumps(foreign)}\n" + path.read_text())
    digest = read_digest(tmp_path, ROLES, RULE)
    assert digest.unreadable == 4
    assert digest.groups[0].seen == 3


def test_a_run_without_episodes_has_an_empty_digest(tmp_path: Path) -> None:
    digest = read_digest(tmp_path, ROLES, RULE)
    assert (digest.groups, digest.samples) == ((), ())


def write_folder(folder: Path, episodes: list[Episode]) -> Path:
    (folder / "episodes").mkdir(parents=True, exist_ok=True)
    return write_episodes(folder, "train", 1, episodes)
