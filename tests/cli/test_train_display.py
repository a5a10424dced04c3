"""The live table of a training, on a terminal."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import rolegraph as rg
from engine.cli.train_display import TrainDisplay
from engine.records import RunFolder

METRICS = {
    "step": 1.0,
    "batch/judge/fractions/effective": 0.25,
    "batch/judge/fractions/too_easy": 0.75,
    "outcome/judge/taught": 1.0,
    "outcome/judge/too_easy": 0.0,
    "outcome/judge/too_hard": 0.0,
}


def test_the_table_says_what_taught_as_the_report_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    training = SimpleNamespace(
        flow=rg.load("solver_judge"), folder=RunFolder(tmp_path / "run"), steps=1, done=0
    )
    with TrainDisplay(cast("rg.Training", training)) as display:
        display.log(1, METRICS)
    table = capsys.readouterr().err
    assert "taught" in table
    (judge,) = {line for line in table.splitlines() if "reinforce" in line and "%" in line}
    assert "100%" in judge and "75%" not in judge
