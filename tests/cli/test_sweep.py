"""Tests of `rolegraph run -m`: one run per combination, and one table."""

from __future__ import annotations

from pathlib import Path

from tests import replays
from tests.cli.conftest import Command


def test_a_sweep_goes_from_its_words_to_a_table_and_goes_on(rolegraph: Command, tmp_path: Path) -> None:
    replays.answers(tmp_path / "model.jsonl", replays.solved(0, 2), tasks=4)
    words = ("roles.judge.estimator=reinforce,grpo", "roles.judge.parser={choice: solver}")
    where = ("--model", "replay:model.jsonl", "--limit", "4", "--out", "sweep")
    done = rolegraph("run", "solver_judge", "-m", *words, *where)
    assert done.returncode == 0, done.stderr
    assert "[1/2] roles.judge.estimator=reinforce" in done.stderr
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert rows[-1] == "sweep/sweep.svg"
    assert sum(row.startswith("roles.judge.estimator=grpo 0.500 ") for row in rows) == 1
    assert (tmp_path / "sweep" / "roles.judge.estimator=grpo" / "episodes.jsonl").exists()

    again = rolegraph("run", "-m", "--resume", "--out", "sweep")
    assert again.returncode == 0, again.stderr
    assert again.stderr.count(" is finished\n") == 2
    assert "episodes in" not in again.stdout


def test_mistakes_of_a_sweep_are_told(rolegraph: Command) -> None:
    done = rolegraph("run", "solver_judge", "-m", "roles.solver.count=2", "--model", "replay:none.jsonl")
    assert (done.returncode, "separated by commas" in done.stderr) == (2, True)
    done = rolegraph("eval", "solver_judge", "--checkpoint", "runs/x", "--resume")
    assert (done.returncode, "--resume needs --out" in done.stderr) == (2, True)
    done = rolegraph("train", "solver_judge", "-m", "train.steps=1,2", "--trainer", "rllm")
    assert (done.returncode, "not with --trainer rllm" in done.stderr) == (2, True)


def test_flags_beside_resume_count_or_are_refused_by_name(rolegraph: Command, tmp_path: Path) -> None:
    replays.answers(tmp_path / "model.jsonl", replays.solved(0, 2), tasks=4)
    words = ("solver_judge", "-m", "roles.judge.estimator=reinforce,grpo")
    where = ("--model", "replay:model.jsonl", "--out", "sweep")
    assert rolegraph("run", *words, *where, "--limit", "2").returncode == 0
    again = ("run", "-m", "--resume", "--out", "sweep")
    more = rolegraph(*again, "--limit", "4")
    assert more.returncode == 0, more.stderr
    for point in (tmp_path / "sweep").glob("*/episodes.jsonl"):
        assert len(point.read_text().splitlines()) == 4
    for flags, name in (
        (("--seed", "5"), "seed"),
        (("--model", "openai:other"), "started with another spec"),
        (("--replay-any",), "--replay-any"),
    ):
        refused = rolegraph(*again, *flags)
        assert (refused.returncode, name in refused.stderr) == (2, True), refused.stderr
    other = rolegraph("run", "debate", "-m", "--resume")
    assert (other.returncode, "no sweep of debate" in other.stderr) == (2, True)
