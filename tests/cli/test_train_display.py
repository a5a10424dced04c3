"""Tests of the live table of a training on a terminal, and of the seed of a resumed training."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import rolegraph as rg
from rolegraph import api
from rolegraph.api.jobs import describe
from rolegraph.cli.main import run
from rolegraph.cli.output import OutputOptions
from rolegraph.cli.train_display import train_display
from rolegraph.engine.records import RunFolder, SavedPolicy
from rolegraph.engine.records.numbers import signed
from rolegraph.pages.report import write_report
from tests.pages.report.runs import rollout, write_episodes, write_run

METRICS = {
    "step": 1.0,
    "batch/judge/fractions/effective": 0.25,
    "batch/judge/fractions/too_easy": 0.75,
    "outcome/judge/taught": 1.0,
    "outcome/judge/too_easy": 0.0,
    "outcome/judge/too_hard": 0.0,
}


Shown = Callable[[str, dict[str, float]], str]


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shown:
    """Return a function that renders the live table of a spec after a step with given metrics."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")

    def show(spec: str, metrics: dict[str, float]) -> str:
        training = SimpleNamespace(flow=rg.load(spec), folder=RunFolder(tmp_path / "run"), steps=1, done=0)
        with train_display(cast("rg.TrainingJob", training)) as observe:
            observe(api.StepLogged(1, metrics))
        return capsys.readouterr().err

    return show


def test_the_table_says_what_taught_as_the_report_does(shown: Shown) -> None:
    table = shown("solver_judge", METRICS)
    assert "grad norm" not in table
    assert "taught" in table
    (judge,) = {line for line in table.splitlines() if "judge" in line and "%" in line}
    assert "100%" in judge and "75%" not in judge


@pytest.mark.parametrize(
    ("policies", "use", "take"),
    [
        (["main"], "model.checkpoint={0}", [""]),
        (
            ["coder", "main"],
            "policies.coder.checkpoint={0}#coder model.checkpoint={0}",
            [" --policy coder", " --policy main"],
        ),
    ],
)
def test_its_end_says_where_the_best_weights_are_and_how_to_use_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policies: list[str], use: str, take: list[str]
) -> None:
    folder = RunFolder(tmp_path / "run")
    flow = rg.load("solver_judge")
    folder.begin(describe(flow, "train", seed=0), flow.plan.resolved)
    for step, best in ((2, True), (4, False)):
        saved = {name: SavedPolicy(version=step, state="", sampler="") for name in policies}
        folder.add_metrics({"step": step, "optim/data": 8})
        folder.add_checkpoint(api.Checkpoint(step=step, policies=saved, best=best))
    training = SimpleNamespace(flow=flow, folder=folder, steps=4, done=4)
    with train_display(cast("rg.TrainingJob", training)):
        pass
    said = capsys.readouterr().out
    assert "step 2" in said
    words = ["rolegraph", "run", "solver_judge", *(word.format(folder.path) for word in use.split())]
    assert words in [shlex.split(line.removeprefix("next: ")) for line in said.splitlines()]
    assert all(f"rolegraph export {folder.path}{words}\n" in said for words in take)


@pytest.fixture
def failing(tmp_path: Path) -> rg.TrainingJob:
    """Return a training in which all answers of the solver failed, and no rating was readable."""
    flow, folder = rg.load("solver_judge"), RunFolder(tmp_path / "run")
    folder.begin(describe(flow, "train", seed=0), flow.plan.resolved)
    for step in (1, 2):
        rollouts = [rollout("t", at, [0.0], advantage=0.0, failed=True) for at in range(4)]
        folder.write_episodes("train", step, rollouts)
        folder.add_metrics({"step": step, "unrated/judge": 4})
    return cast("rg.TrainingJob", SimpleNamespace(flow=flow, folder=folder, steps=2, done=2))


def test_its_end_names_the_commonest_failure_with_an_example(
    failing: rg.TrainingJob, capsys: pytest.CaptureFixture[str]
) -> None:
    with train_display(failing, OutputOptions(quiet=True, as_json=True)):
        pass
    said = capsys.readouterr()
    line = "malformed_output: no <answer> was found, as in 'an answer 1'"
    assert f"warning: solver: 8 of 8 answers failed with {line}\n" in said.err
    assert "judge: 8 answers unrated" in said.err
    assert [text.partition(":")[0] for text in json.loads(said.out)["warnings"]] == [
        "solver",
        "judge",
        "solver",
    ]


def test_failed_groups_have_a_column_and_failed_answers_a_line(shown: Shown) -> None:
    assert "failed" not in shown("solver_judge", METRICS)
    lost = {"failures/solver/malformed_output": 16.0, "unrated/judge": 4.0}
    table = shown("solver_judge", METRICS | {"outcome/solver/failed": 1.0} | lost)
    assert "failed" in table and "equal" not in table
    assert "solver malformed_output 16, judge unrated 4" in table


def test_several_policies_have_a_table_of_their_own(shown: Shown) -> None:
    figures = {"grad_norm": 1.25, "loss": -0.5, "kl": 0.0625, "learning_rate": 0.001}
    table = shown("two_policies", {"step": 1.0} | {f"optim/{k}/judge": v for k, v in figures.items()})
    assert "grad norm" in table
    (judge,) = {line for line in table.splitlines() if "judge" in line and "1.250" in line}
    assert "-0.5000" in judge and "0.0625" in judge and "0.001" in judge


def test_a_resumed_training_refuses_another_seed(tmp_path: Path) -> None:
    folder, flow = RunFolder(tmp_path / "run"), rg.load("solver_judge")
    folder.begin(describe(flow, "train", seed=3), flow.plan.resolved)
    assert run(["train", "--resume", "--out", str(folder.path), "--seed", "4"]) == 2
    with pytest.raises(rg.UsageError, match="started with the seed 3"):
        rg.TrainingJob.resume(folder.path, seed=4)


def test_a_step_line_has_correct_first_and_each_mean_with_its_n(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = rg.load("solver_judge")
    training = SimpleNamespace(flow=flow, folder=RunFolder(tmp_path / "run"), steps=1, done=0)
    line = {
        "reward/solver/mean": 0.5,
        "reward/solver/n": 32.0,
        "episode/correct": 0.25,
        "episode/n/correct": 16.0,
    }
    line |= {"episode/solver_acc": 0.5, "episode/n/solver_acc": 16.0}
    line |= {"validation/correct": 0.75, "validation/n/correct": 8.0}
    with train_display(cast("rg.TrainingJob", training)) as observe:
        observe(api.StepLogged(1, line))
    (shown,) = (text for text in capsys.readouterr().err.splitlines() if text.startswith("step 1/1"))
    parts = shown.split("  ")
    assert parts[1:] == ["correct 0.250 (n 16)", "solver_acc 0.500 (n 16)", "validation correct 0.750 (n 8)"]


def test_one_number_has_one_name_in_the_step_line_and_one_row_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flow, folder = rg.load("solver_judge"), RunFolder(tmp_path / "run")
    folder.begin(describe(flow, "train", seed=0), flow.plan.resolved)
    names = ("correct", "judge_acc", "solver_acc", "reward/judge", "reward/solver")
    validated = [dict.fromkeys((f"validation/{it}" for it in names), value) for value in (0.25, 0.5)]
    line = {"step": 1, "reward/judge/mean": 0.5, "reward/solver/mean": 0.75, "reward/solver/n": 32.0}
    line |= {"episode/correct": 0.5, "episode/judge_acc": 0.5, "episode/solver_acc": 0.75, **validated[1]}
    line |= {"validation/solver_acc": 0.625, "validation/reward/solver": 0.625}
    folder.add_metrics({"step": 0, **validated[0]})
    training = SimpleNamespace(flow=flow, folder=folder, steps=1, done=0)
    with train_display(cast("rg.TrainingJob", training)) as observe:
        folder.add_metrics(line)
        observe(api.StepLogged(1, line))
    said = capsys.readouterr()
    (shown,) = (text for text in said.err.splitlines() if text.startswith("step 1/1"))
    assert shown.split("  ")[1:] == [
        "correct 0.500",
        "solver_acc 0.750",
        "validation correct 0.500",
        "validation solver_acc 0.625",
    ]
    rows = [text.split() for text in said.out.splitlines() if text.strip()]
    at = rows.index(["correct", "0.250", "0.500", "+0.250", "–"])
    assert rows[at + 1 : at + 3] == [["=", "judge_acc"], ["=", "reward/judge"]]


def test_its_end_has_the_verdict_of_the_report_with_intervals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path / "run")
    for step, second in ((0, 0.0), (4, 1.0)):
        tasks = [rollout(f"v{task}", 0, [float(task < 15), second]) for task in range(30)]
        write_episodes(path, "validation", step, tasks)
    training = SimpleNamespace(flow=rg.load("solver_judge"), folder=RunFolder(path), steps=4, done=4)
    with train_display(cast("rg.TrainingJob", training), OutputOptions(as_json=True)):
        pass
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    with train_display(cast("rg.TrainingJob", training)):
        pass
    lines = capsys.readouterr().out.splitlines()
    (sentence,) = (line for line in lines if line.startswith("solver rose: "))
    change, solver = verdict["change"], verdict["moved"]["solver"]
    assert verdict["text"] == sentence and (verdict["figures"], verdict["steps"]) == (["correct"], [0, 4])
    assert (
        f"correct 0 [{signed(change['low'])}, {signed(change['high'])}] over 30 validation tasks" in sentence
    )
    assert sentence.endswith(
        f"; reward/solver {signed(solver['mean'])} [{signed(solver['low'])}, {signed(solver['high'])}]"
    )
    page = re.sub(r"<[^>]*>|\s+", "", write_report(path).read_text())
    interval = f"[{signed(change['low'])}, {signed(change['high'])}]"
    of_solver = f"{signed(solver['mean'])} [{signed(solver['low'])}, {signed(solver['high'])}]"
    for words in ("solver rose: correct", f"0 {interval}", f"reward/solver {of_solver}."):
        assert words.replace(" ", "") in page
    folder = training.folder
    assert api.recorded_change(folder, folder.info(), folder.metrics()[:1]) is None, "one validation"


def test_the_live_table_shows_what_a_constant_answer_gets_and_names_the_kl(shown: Shown) -> None:
    assert "constant" not in shown("solver_judge", METRICS | {"answers/same/judge": 0.3, "kl/judge": 0.01})
    table = shown("solver_judge", METRICS | {"answers/same/judge": 0.97, "answers/constant/judge": 0.41})
    (judge,) = {line for line in table.splitlines() if "judge" in line and "0.410" in line}
    assert "97%" in judge and "KL sampler‖trainer" in table


@pytest.mark.parametrize(
    ("best", "taught", "signal", "expected"),
    [
        (False, 0.5, 0.0, ["view"]),
        (True, 0.5, 0.0, ["run", "export"]),
        (False, 0.0, 0.0, ["view"]),
        (True, 0.0, 0.0, ["run", "export"]),
        (True, 0.0, -0.5, ["run", "export"]),
    ],
)
def test_weights_that_are_not_better_than_the_start_are_not_exported(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    best: bool,
    taught: float,
    signal: float,
    expected: list[str],
) -> None:
    flow, folder = rg.load("solver_judge"), RunFolder(tmp_path / "run")
    folder.begin(describe(flow, "train", seed=0), flow.plan.resolved)
    for step in (0, 1):
        line = {"step": float(step), "validation/correct": 0.5, "validation/n/correct": 8.0}
        trained = {
            "optim/data": 8.0,
            "outcome/judge/taught": taught,
            "signal/judge/advantage/min": signal,
            "signal/judge/advantage/max": 0.0,
        }
        folder.add_metrics(line | (trained if step else {}))
    saved = {api.MAIN: SavedPolicy(version=1, state="", sampler="")}
    folder.add_checkpoint(api.Checkpoint(step=1, policies=saved, best=best))
    training = cast("rg.TrainingJob", SimpleNamespace(flow=flow, folder=folder, steps=1, done=1))
    with train_display(training, OutputOptions(as_json=True)):
        pass
    said = capsys.readouterr()
    assert [command.split()[1] for command in json.loads(said.out)["next"]] == expected
    assert ("no weights were better" in said.err) is not best
    assert ("judge is dead" in said.err) is (not taught and not signal)


def test_a_step_line_names_the_answer_that_would_earn_as_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = SimpleNamespace(
        flow=rg.load("solver_judge_validator"), folder=RunFolder(tmp_path / "run"), steps=2, done=0
    )
    line = {"reward/validator/mean": 0.41, "reward/validator/n": 64.0, "answers/constant/validator": 0.41}
    with train_display(cast("rg.TrainingJob", training)) as observe:
        observe(api.StepLogged(1, {"step": 1, **line}, {"validator": "incorrect"}))
        observe(
            api.StepLogged(2, {"step": 2, **line, "reward/validator/mean": 0.8}, {"validator": "incorrect"})
        )
    first, second = (it for it in capsys.readouterr().err.splitlines() if it.startswith("step "))
    assert "validator 0.41, no better than always saying 'incorrect' (0.41)" in first
    assert "no better" not in second


def test_its_end_has_greedy_figures_and_rewards_that_one_answer_would_get(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flow, folder = rg.load("solver_judge_validator"), RunFolder(tmp_path / "run")
    folder.begin(describe(flow, "train", seed=0), flow.plan.resolved)
    validated = {"validation/correct": 0.5, "validation/n/correct": 64.0}
    validated |= {"validation/reward/validator": 0.69, "validation/n/reward/validator": 64.0}
    validated |= {"validation/answers/constant/validator": 0.69, "validation/answers/same/validator": 1.0}
    greedy = {"greedy/correct": 0.25, "greedy/n/correct": 32.0, "time/greedy": 1.5}
    folder.add_metrics({"step": 0, **validated, "greedy/correct": 0.125})
    folder.add_metrics({"step": 1, **validated, **greedy})
    training = SimpleNamespace(flow=flow, folder=folder, steps=1, done=1)
    with train_display(cast("rg.TrainingJob", training), OutputOptions(as_json=True)):
        pass
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["greedy"] == {"correct": {"before": 0.125, "now": 0.25}}
    remark = "validator: 0.69 in validation (n 64), no better than always saying one answer (0.69)"
    assert remark in document["warnings"] and rg.Run(folder.path).verdict == [remark]
    (row,) = (line.split() for line in shown.err.splitlines() if line.split()[:1] == ["correct"])
    assert row == ["correct", "0.500", "0.500", "+0.000", "64", "0.125", "->", "0.250"]
    assert "temperature 0 (n 32), 1.5 s" in shown.err
