"""Tests of the live table of a training on a terminal, and of the seed of a resumed training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import rolegraph as rg
from rolegraph.engine.cli.main import run
from rolegraph.engine.cli.train_display import train_display
from rolegraph.engine.records import RunFolder, SavedPolicy
from rolegraph.running import describe

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
            observe(rg.StepLogged(1, metrics))
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
        folder.add_checkpoint(rg.Checkpoint(step=step, policies=saved, best=best))
    training = SimpleNamespace(flow=flow, folder=folder, steps=4, done=4)
    with train_display(cast("rg.TrainingJob", training)):
        pass
    said = capsys.readouterr().out
    assert "step 2" in said
    assert f"rolegraph run solver_judge {use.format(folder.path)}\n" in said
    assert all(f"rolegraph export {folder.path}{words}\n" in said for words in take)


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
