"""Tests of the output of `rolegraph compare`."""

from __future__ import annotations

from pathlib import Path

from rolegraph.engine.records import Episode
from tests import replays
from tests.cli.conftest import Command
from tests.pages.report.runs import rollout, write_episodes, write_run


def test_two_runs_are_shown_from_their_specs_to_their_tokens(rolegraph: Command, tmp_path: Path) -> None:
    replays.run(tmp_path / "runs" / "first", replays.solved(0, 1))
    replays.run(tmp_path / "runs" / "other", replays.solved(1, 2), "roles.judge.estimator=grpo")
    done = rolegraph("compare", "runs/first", "runs/other", "--html", "page.html", COLUMNS="140")
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "roles.judge.estimator reinforce grpo" in lines
    at = lines.index("correct 0.500 0.500 +0.000")
    assert lines[at + 1].startswith("= judge_acc [0.150, 0.850] [0.150, 0.850] [-")
    assert lines[at + 2] == "= reward/judge n 4 n 4 n 4"
    assert lines[0].startswith("Cannot tell other from first: correct 0 [")
    assert lines[0].endswith("over 4 shared tasks; 1 task gained, 1 lost")
    assert any("differences paired over 4 tasks that are the same" in line for line in lines)
    assert any("95 % intervals over tasks" in line for line in lines)
    assert "1 of 4 tasks are solved by other alone" in lines
    assert any(line.startswith("countdown-validation-2: 0% -> 100% correct. Use ") for line in lines)
    assert any(line.startswith("solver 1 reward 0 reward 1") for line in lines)
    assert any(line.startswith("first 4 12 36 ") for line in lines)
    assert lines[-1] == "page.html"
    assert "solved" in (tmp_path / "page.html").read_text()


def test_what_a_model_wrote_does_not_steer_the_terminal(rolegraph: Command, tmp_path: Path) -> None:
    def steering(number: int, rollout: int, role: str, index: int) -> str:
        said = replays.solved(0)(number, rollout, role, index)
        return said if role == "judge" else said.replace("<answer>1<", "<answer>\x1b[2J[red]<")

    replays.run(tmp_path / "first", replays.solved(1))
    replays.run(tmp_path / "other", steering)
    done = rolegraph("compare", "first", "other")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "[red]" in done.stdout


def test_a_mistaken_compare_names_the_mistake(rolegraph: Command, tmp_path: Path) -> None:
    assert "a comparison needs two" in rolegraph("compare", "solver_judge").stderr
    done = rolegraph("compare", "solver_judge", "solver_judeg")
    assert done.returncode == 2
    assert "did you mean solver_judge" in done.stderr
    (tmp_path / "empty").mkdir()
    assert "is not the folder of a run" in rolegraph("compare", "solver_judge", "empty").stderr


def test_a_role_that_moved_beside_an_unmoved_correct_is_in_the_verdict(
    rolegraph: Command, tmp_path: Path
) -> None:
    def second(number: int, rollout: int, role: str, index: int) -> str:
        return replays.solved(number)(number, rollout, role, 3 - index) if role == "solver" else "<answer>1<"

    replays.run(tmp_path / "first", replays.solved(), tasks=12)
    replays.run(tmp_path / "other", second, tasks=12)
    done = rolegraph("compare", "first", "other", COLUMNS="300")
    assert done.returncode == 0, done.stderr
    headline = done.stdout.splitlines()[0]
    assert headline.startswith("solver is better in other than in first: correct ")
    assert ", reward/solver +0.500 [+" in headline


def test_two_trainings_on_other_tasks_are_not_comparable(rolegraph: Command, tmp_path: Path) -> None:
    def validated(name: str) -> list[Episode]:
        return [rollout(f"{name}{task}", 0, [float(name == "b"), 0.0]) for task in range(30)]

    for name in ("a", "b"):
        folder = write_run(tmp_path / name, seed=ord(name))
        for step in (2, 4):
            write_episodes(folder, "validation", step, validated(name))
    done = rolegraph("compare", "a", "b", "--html", "page.html", COLUMNS="300")
    assert done.returncode == 0, done.stderr
    headline, *others = done.stdout.splitlines()
    assert headline.startswith("b and a are not comparable ")
    assert headline.endswith("no task is the same; what differs: seed 97 → 98")
    assert not any("*" in line for line in others if line.startswith("correct")), "no difference is marked"
    assert "not comparable" in (tmp_path / "page.html").read_text()
