"""Tests of the commands that print rows, of `rolegraph show`, and of `rg.Run(…).episodes`."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

import rolegraph as rg
from tests.cli.conftest import Command, rolegraph
from tests.pages.view.runs import write_run, write_training

__all__ = ["rolegraph"]
MISSED = "not judge.right and any(solver.right)"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("episodes") / "run", tasks=6)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training(tmp_path_factory.mktemp("episodes") / "training", steps=2)


def test_rows_are_those_for_which_the_expression_holds(rolegraph: Command, run: Path) -> None:
    done = rolegraph("episodes", str(run), "--where", MISSED, "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    wanted = [
        (it.task_id, it.rollout)
        for it in rg.read_episodes(run)
        if not it["judge"][0].is_correct and any(solver.is_correct for solver in it["solver"])
    ]
    assert wanted and [(row["task"], row["rollout"]) for row in rows] == wanted
    assert all(row["reward/judge"] == 0 for row in rows)


def test_csv_and_python_have_the_same_rows(rolegraph: Command, training: Path) -> None:
    done = rolegraph("episodes", str(training), "--csv", "--step", "2", "--split", "train")
    written = [*csv.DictReader(io.StringIO(done.stdout))]
    rows = rg.Run(training).episodes(step=2, split="train")
    rows = rows if isinstance(rows, list) else rows.to_dict("records")
    assert written and [row["task"] for row in written] == [row["task"] for row in rows]
    assert [float(row["reward/solver"]) for row in written] == [row["reward/solver"] for row in rows]
    assert {(row["split"], row["step"]) for row in written} == {("train", "2")}


def test_the_table_says_how_many_there_are_and_which_to_open(rolegraph: Command, run: Path) -> None:
    done = rolegraph("episodes", str(run), "--limit", "2")
    count = len([*rg.read_episodes(run)])
    assert f"{count} episodes, 2 shown; --limit {count} shows all" in done.stdout
    following = done.stderr.strip().removeprefix("next: rolegraph ").split()
    shown = rolegraph(*following)
    assert shown.returncode == 0 and "answer" in shown.stdout and "judge 1" in shown.stdout


@pytest.mark.parametrize(
    ("expression", "place"),
    [
        ("jugde.right", "where:1:1"),
        ("judge.right or", "where:1:13"),
        ("solver.right", "where:1:8"),
        ("judge.right and task.questoin", "where:1:22"),
    ],
)
def test_a_fault_is_told_with_its_place(rolegraph: Command, run: Path, expression: str, place: str) -> None:
    done = rolegraph("episodes", str(run), "--where", expression)
    assert done.returncode == 2 and done.stderr.startswith(f"{place}: error: ")
    assert done.stderr.splitlines()[2].endswith("^")


def test_a_folder_or_an_episode_that_is_missing_is_told(
    rolegraph: Command, run: Path, tmp_path: Path
) -> None:
    assert rolegraph("episodes", str(tmp_path / "none")).returncode == 2
    for wrong in ("nobody", "nobody:3"):
        done = rolegraph("show", str(run), wrong)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"rolegraph episodes {run}" in done.stderr
    assert rolegraph("episodes", str(run), "--step", "3").returncode == 2


COMMANDS = [
    ("runs", ("{run}", "{training}")),
    ("episodes", ("{run}",)),
    ("compare", ("{run}", "{training}")),
    ("list", ()),
    ("list", ("parsers", "tag")),
    ("list", ("keys", "weight")),
    ("list", ("specs", "debate")),
    ("preview", ("solver_judge",)),
]


@pytest.mark.parametrize(("command", "words"), COMMANDS)
def test_every_list_has_the_same_rows_as_json_and_csv(
    rolegraph: Command, run: Path, training: Path, command: str, words: tuple[str, ...]
) -> None:
    named = [word.format(run=run, training=training) for word in words]
    as_json = rolegraph(command, *named, "--json")
    as_csv = rolegraph(command, *named, "--csv")
    rows = [json.loads(line) for line in as_json.stdout.splitlines()]
    read = [*csv.DictReader(io.StringIO(as_csv.stdout))]
    assert rows and len(read) == len(rows)
    columns = dict.fromkeys(name for row in rows for name in row)
    assert [*read[0]] == [*columns]
    cells = [{name: "" if row.get(name) is None else str(row[name]) for name in columns} for row in rows]
    assert read == cells
    both = rolegraph(command, *named, "--csv", "--json")
    assert both.returncode == 2 and "--json or --csv" in both.stderr


def test_runs_have_their_folder_and_figures_with_intervals(
    rolegraph: Command, run: Path, training: Path
) -> None:
    done = rolegraph("runs", str(run), str(training), "--json")
    rows = {row["folder"]: row for row in map(json.loads, done.stdout.splitlines())}
    row = rows[str(run)]
    assert row["kind"] == "run" and row["correct/low"] <= row["correct"] <= row["correct/high"]
    assert (row["correct/n"], rows[str(training)]["kind"]) == (6, "training")
    shown = rolegraph("runs", str(run)).stdout
    assert "n 6" in shown and run.name in shown


def test_a_comparison_is_drawn_with_a_row_for_each_score(
    rolegraph: Command, run: Path, training: Path, tmp_path: Path
) -> None:
    file = tmp_path / "differences.svg"
    done = rolegraph("compare", str(run), str(training), "--picture", str(file))
    drawing = file.read_text(encoding="utf-8")
    assert str(file) in done.stdout and f"{training.name} − {run.name}" in drawing
    assert drawing.count("<circle") == len({"correct", "solver_acc"}) and "tokens" not in drawing
    assert rg.compare(run, training).plot("tokens in", "reward/judge").svg.count("<circle") == 2
    with pytest.raises(rg.UsageError, match="solver_acc"):
        rg.compare(run, training).plot("correct", "solver_ac")


def test_steps_of_a_training_are_sides(rolegraph: Command, run: Path, training: Path) -> None:
    done = rolegraph("compare", str(training), "--steps", "1,2", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["side"] for row in rows} == {f"{training.name}, step {step}" for step in (1, 2)}
    roles = {row["figure"]: row["difference/mean"] for row in rows if row["side"].endswith("step 2")}
    assert roles["reward/solver"] is not None
    for words in (
        (str(training), "--steps", "1,x"),
        (str(training), "--steps", "1,9"),
        (str(run), "--steps", "1,2"),
    ):
        assert rolegraph("compare", *words).returncode == 2


def test_a_file_of_episodes_tells_how_many_it_leaves_out(
    rolegraph: Command, run: Path, tmp_path: Path
) -> None:
    whole = len([*rg.read_episodes(run)])
    for limit, left in ((5, f"{whole - 5} left out"), (whole, "")):
        file = str(tmp_path / f"{limit}.html")
        done = rolegraph("view", str(run), "--static", file, "--no-hidden", "--limit", str(limit))
        assert f"{limit} episodes" in done.stdout and left in done.stdout
        assert bool(left) == ("left out" in done.stdout)


def test_a_comparison_has_a_row_for_each_figure_of_each_side(
    rolegraph: Command, run: Path, training: Path
) -> None:
    done = rolegraph("compare", str(run), str(training), "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    first, other = (row for row in rows if row["figure"] == "correct")
    assert (first["side"], other["side"]) == (run.name, training.name)
    assert first["difference/mean"] is None
    assert other["difference/mean"] == pytest.approx(other["mean"] - first["mean"])
