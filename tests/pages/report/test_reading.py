"""Tests of reading a run's folder in any state, and of refusing other folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolegraph.engine.errors import DataError, UsageError
from rolegraph.pages.report.reading import read_run
from tests.pages.report.runs import write_lines, write_run


def test_a_run_is_its_plan_and_its_figures_step_by_step(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", seed=7))
    assert (run.info.name, run.info.seed, run.done) == ("solver_judge", 7, 4)
    assert run.info.roles["judge"].estimator == "reinforce"
    assert [step for step, _ in run.series("validation/judge_acc")] == [0, 2, 4]
    assert [step for step, _ in run.series("episode/judge_acc")] == [1, 2, 3, 4]
    assert run.series("no/such") == []


def test_a_last_line_cut_short_by_a_crash_is_passed_over(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "episode/ju')
    run = read_run(folder)
    assert (run.done, run.unreadable) == (4, 0)


def test_lines_that_are_no_figures_are_counted_and_others_kept(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    metrics = folder / "metrics.jsonl"
    metrics.write_text("{broken\n[1]\n" + '{"step": 1, "a": 2, "b": "text", "c": true, "d": null}\n')
    run = read_run(folder)
    assert (run.unreadable, run.keys) == (2, ["a"])


def test_steps_are_put_in_order_and_a_step_written_twice_is_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    write_lines(folder / "metrics.jsonl", [{"step": 2, "a": 1}, {"step": 1, "a": 5}, {"step": 2, "a": 3}])
    assert read_run(folder).series("a") == [(1, 5), (2, 3)]


@pytest.mark.parametrize("empty", [True, False])
def test_a_run_without_a_finished_step_is_a_run(tmp_path: Path, empty: bool) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "metrics.jsonl").write_text("") if empty else (folder / "metrics.jsonl").unlink()
    (folder / "spec.yaml").unlink()
    run = read_run(folder)
    assert (run.done, run.keys, run.spec) == (0, [], "")


def test_a_folder_that_is_no_run_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"not the folder of a training run: expected run\.json"):
        read_run(tmp_path)
    with pytest.raises(UsageError, match="there is no folder"):
        read_run(tmp_path / "absent")
    (tmp_path / "episodes.jsonl").write_text("")
    with pytest.raises(UsageError, match="rolegraph run"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text('{"kind": "run", "name": "x", "roles": {}}')
    with pytest.raises(
        UsageError, match=r"not the folder of a training run: .* of `rolegraph run`, which trains"
    ):
        read_run(tmp_path)


def test_a_role_that_learns_nothing_has_no_estimator(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    info = json.loads((folder / "run.json").read_text())
    info["roles"]["judge"] = {"estimator": None, "loss": "ppo", "trainable": False}
    (folder / "run.json").write_text(json.dumps(info))
    assert read_run(folder).info.roles["judge"].estimator is None


@pytest.mark.parametrize("text", ["", "[]", '{"name": "x"}', '{"name": "x", "roles": []}'])
def test_a_foreign_run_json_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(DataError, match=r"run\.json is not a valid run file"):
        read_run(tmp_path)
