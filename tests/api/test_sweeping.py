"""Tests of sweeps: one folder per run, resumption without finished runs, and one picture."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from unittest.mock import patch
from xml.etree import ElementTree

import pytest

import rolegraph as rg
from rolegraph import api
from rolegraph.local.launcher import LocalService
from tests import replays
from tests.trainings import SMALL

WORDS = ("roles.judge.estimator=reinforce,grpo", "train.learning_rate=1e-3,2e-3", "description=fixed")


def model(folder: Path, *numbers: int) -> str:
    return f"replay:{replays.answers(folder / 'model.jsonl', replays.solved(*numbers), tasks=4)}"


def test_every_point_is_a_run_in_a_folder_of_its_own(tmp_path: Path) -> None:
    swept = rg.sweep("solver_judge", *WORDS, model=model(tmp_path, 0, 2), limit=4, out=tmp_path / "sweep")
    assert [point.overrides for point in swept.points] == [
        ("roles.judge.estimator=reinforce", "train.learning_rate=1e-3"),
        ("roles.judge.estimator=reinforce", "train.learning_rate=2e-3"),
        ("roles.judge.estimator=grpo", "train.learning_rate=1e-3"),
        ("roles.judge.estimator=grpo", "train.learning_rate=2e-3"),
    ]
    assert swept.figures == ["correct", "solver_acc", "judge_acc", "tokens out"]
    assert {point.figures["correct"].mean for point in swept.points} == {0.5}
    for point in swept.points:
        info = json.loads((swept.folder / point.name / "run.json").read_text())
        assert info["overrides"] == [*point.overrides, "description=fixed"]
        assert info["figures"]["episodes"] == 4
    picture = ElementTree.parse(swept.picture).getroot()
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"solver_acc", "roles.judge.estimator=grpo train.learning_rate=2e-3"} <= {*texts}
    assert sum(1 for _ in picture.iter("{http://www.w3.org/2000/svg}circle")) == 16


def test_what_is_finished_is_not_run_again_and_what_is_missing_is_made(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    begun = rg.SweepJob.create(
        api.Source.of("solver_judge", *WORDS, model=model(tmp_path, 0)), limit=4, out=out
    )
    with begun.open_folder():
        asyncio.run(begun.points[0].job().run())
        asyncio.run(begun.points[1].job().run())
    half = begun.points[1].folder
    lines = (half / "episodes.jsonl").read_text().splitlines(keepends=True)
    (half / "episodes.jsonl").write_text("".join(lines[:2]))
    whole = begun.points[0].folder / "episodes.jsonl"
    before = whole.stat().st_mtime_ns

    again = rg.SweepJob.resume(out)
    assert [point.finished for point in again.points] == [True, False, False, False]
    swept = asyncio.run(again.run())
    assert whole.stat().st_mtime_ns == before
    assert len((half / "episodes.jsonl").read_text().splitlines()) == 4
    assert all(point.finished for point in rg.SweepJob.resume(out).points)
    assert len(swept.points) == 4


def test_a_grid_can_grow(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    rg.sweep("solver_judge", "train.steps=1,2", model=model(tmp_path, 0), limit=2, out=out)
    grown = rg.SweepJob.resume(out, "train.steps=2,3")
    assert [(point.name, point.finished) for point in grown.points] == [
        ("train.steps=2", True),
        ("train.steps=3", False),
    ]
    with grown.open_folder():
        pass
    assert [point.name for point in rg.SweepJob.resume(out).points] == ["train.steps=2", "train.steps=3"]


def test_a_sweep_runs_over_seeds(tmp_path: Path) -> None:
    out, words = tmp_path / "sweep", ("train.steps=1,2", "seed=3,4")
    swept = rg.sweep("solver_judge", *words, model=model(tmp_path, 0), limit=1, out=out)
    assert [point.overrides for point in swept.points][:2] == [
        ("train.steps=1", "seed=3"),
        ("train.steps=1", "seed=4"),
    ]
    infos = [json.loads((out / point.name / "run.json").read_text()) for point in swept.points]
    assert [(info["seed"], info["overrides"]) for info in infos[1:3]] == [
        (4, ["train.steps=1"]),
        (3, ["train.steps=2"]),
    ]
    grown = rg.SweepJob.resume(out, "train.steps=1,2", "seed=3,4,5")
    assert [(point.seed, point.finished) for point in grown.points] == [
        *((3, True), (4, True), (5, False)),
        *((3, True), (4, True), (5, False)),
    ]
    with pytest.raises(rg.UsageError, match="seed=x is not a whole number"):
        rg.SweepJob.create(
            api.Source.of("solver_judge", "seed=x,2", model=model(tmp_path)), out=tmp_path / "other"
        )


def test_all_points_are_checked_before_the_first_begins(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    with pytest.raises(rg.SpecError, match="count cannot be 0"):
        rg.sweep("solver_judge", "roles.solver.count=2,0", model=model(tmp_path), limit=1, out=out)
    assert not out.exists()


def test_a_point_of_another_spec_is_refused(tmp_path: Path) -> None:
    spec = tmp_path / "mine.yaml"
    spec.write_text("extends: solver_judge.yaml\n")
    out = tmp_path / "sweep"
    rg.sweep(spec, "train.steps=1,2", model=model(tmp_path), limit=1, out=out)
    with pytest.raises(rg.UsageError, match="already holds a sweep; go on with --resume"):
        rg.sweep(spec, "train.steps=1,2", model=model(tmp_path), limit=1, out=out)
    spec.write_text("extends: solver_judge.yaml\nsampling: {temperature: 0.5}\n")
    with pytest.raises(rg.UsageError, match="was started with another spec"):
        rg.SweepJob.resume(out)


def test_a_sweep_is_found_by_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(rg.UsageError, match="no sweep in runs/"):
        rg.SweepJob.resume()
    swept = rg.sweep("solver_judge", "train.steps=1,2", model=model(tmp_path), limit=1)
    assert swept.folder.parent == Path("runs")
    assert rg.SweepJob.resume().folder == swept.folder
    with pytest.raises(rg.UsageError, match="holds a sweep of `rolegraph run`"):
        rg.SweepJob.resume(swept.folder, kind="train")


@pytest.mark.service
def test_trainings_and_evaluations_are_swept_too(tmp_path: Path, service: LocalService) -> None:
    tiny = (*SMALL, "train.steps=1", "train.checkpoint_every=1", "train.validation.every=1")
    with patch.dict(os.environ, TINKER_API_KEY=service.api_key):
        trained = rg.sweep(
            "solver_judge",
            *tiny,
            "train.learning_rate=1e-3,2e-3",
            kind="train",
            base_url=service.base_url,
            out=tmp_path / "trainings",
        )
        again = rg.SweepJob.resume(trained.folder, kind="train")
        assert [point.finished for point in again.points] == [True, True]
        assert {point.figures["judge_acc"].n for point in trained.points} == {4}
        evaluated = rg.sweep(
            "solver_judge",
            "sampling.temperature=0.5,1",
            kind="eval",
            checkpoint=rg.Run(trained.folder / "train.learning_rate=1e-3").best,
            base_url=service.base_url,
            limit=2,
            out=tmp_path / "evaluations",
        )
    assert {"judge_acc", "judge_acc change"} <= {*evaluated.figures}
    assert all(point.finished for point in rg.SweepJob.resume(evaluated.folder, kind="eval").points)
    point = evaluated.folder / "sampling.temperature=1"
    assert [side.name for side in rg.compare(point).sides] == ["base", "checkpoint"]
