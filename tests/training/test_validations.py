"""Trainings that other workflows validate: figures, episodes, the best checkpoint, resuming, faults."""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest.mock import patch

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

import rolegraph as rg
from rolegraph.engine.records import RunFolder
from rolegraph.engine.records.episodes import read_episodes
from rolegraph.local.launcher import LocalService
from rolegraph.pages.run_folders import runs_in
from tests.trainings import assert_same, key, metrics, start, train, wait_for_lines

SOLVER = """
rolegraph: 2
name: {name}
extends: solver_only.yaml
{data}
roles:
  solver:
    prompt: "{words} {{{{ task.question }}}} Answer in <answer></answer>."
    sees: {sees}
episode: {{metrics: {{measured: any(solver.right)}}}}
"""
GAME = """
rolegraph: 2
name: game
extends: solver_judge.yaml
train:
  batch_size: 2
  rollouts: 2
  steps: 3
  learning_rate: 0.002
  checkpoint_every: 1
  validation: {every: 1, tasks: 2, rollouts: 1, workflow: [alone.yaml, below/other.yaml], best: measured}
"""
ROWS = [
    {"id": f"v{n}", "question": f"Use 3 and {n} to make {n + 3}.", "nums": [3, n], "target": n + 3}
    for n in range(4)
]


@pytest.fixture
def game(tmp_path: Path) -> Path:
    """Write a game, and two workflows that validate it."""
    (tmp_path / "below").mkdir()
    rows = "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "below" / "rows.jsonl").write_text(
        "".join(json.dumps({**row, "secret": "hush"}) + "\n" for row in ROWS)
    )
    data = "data: {validation: rows.jsonl}"
    hiding = "data: {train: rows.jsonl, validation: rows.jsonl, hidden: [secret]}"
    alone = SOLVER.format(name="alone", words="Solve:", data=data, sees="[]")
    other = SOLVER.format(name="other", words="Secretly {{ task.secret }}.", data=hiding, sees="[secret]")
    (tmp_path / "alone.yaml").write_text(alone)
    (tmp_path / "below" / "other.yaml").write_text(other)
    file = tmp_path / "game.yaml"
    file.write_text(GAME)
    return file


pytestmark = pytest.mark.service


def test_another_workflow_validates_with_its_own_data_prompts_and_figures(
    game: Path, service: LocalService, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    result = train(out, str(game), service=service)
    lines = metrics(out)
    for line in lines:
        assert {"validation/measured", "validation/other/measured", "validation/other/correct"} <= line.keys()
        assert "validation/judge_acc" not in line
        assert line["validation/n/measured"] == 2
    assert "episode/judge_acc" in lines[1]
    assert {"greedy/measured", "greedy/other/measured"} <= lines[-1].keys()
    best = (
        next(c for c in reversed(result.checkpoints) if c.best)
        if any(c.best for c in result.checkpoints)
        else None
    )
    figures = [line["validation/measured"] for line in lines]
    assert (best is None) == (max(figures) == figures[0])
    folder = RunFolder(out)
    alone, other = folder.validations()
    assert [it.path.name for it in (alone, other)] == ["alone", "other"]
    for it in (alone, other):
        assert [step for step, _ in it.episodes_files("validation")] == [0, 1, 2, 3]
        assert [step for step, _ in it.episodes_files("greedy")] == [0, 3]
    assert not folder.episodes_files("validation")
    first = [*read_episodes(alone.episodes_file("validation", 0))]
    assert {episode.task_id for episode in first} == {"v0", "v1"}
    assert {t.name for episode in first for t in episode.trajectories} == {"solver"}
    (step,) = first[0]["solver"][0].steps
    assert step.chat_completions[0]["content"].startswith("Solve:")
    versions = [
        next(iter(read_episodes(alone.episodes_file("validation", n))))["solver"][0].steps[0].weight_version
        for n in range(4)
    ]
    assert versions == [0, 1, 2, 3], "the weights in training, not the workflow's own"
    assert any(row.name == "trained workflow" for row in folder.controls())


def test_pages_show_the_figures_and_keep_what_the_validation_hides(
    game: Path, service: LocalService, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    train(out, str(game), "train.steps=1", service=service)
    assert [folder.name for folder in runs_in(out)] == ["run", "alone", "other"]
    report = (out / "report.html").read_text()
    assert "measured" in report and "other/measured" in report
    viewer = rg.view(out)
    viewer.write(tmp_path / "all.html", hidden=True)
    viewer.write(tmp_path / "fit.html", hidden=False)
    words = "Secretly hush"
    assert words in (tmp_path / "all.html").read_text()
    assert words not in (tmp_path / "fit.html").read_text()
    rg.compare(out, out)


def test_a_killed_training_goes_on_with_the_same_validations(
    game: Path, service: LocalService, tmp_path: Path
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(whole, str(game), service=service)
    process = start(broken, str(game), service=service)
    wait_for_lines(broken, 2, process)
    process.kill()
    process.wait()
    with patch.dict(os.environ, key(service)):
        import asyncio

        from rolegraph.api.training import TrainingJob

        asyncio.run(TrainingJob.resume(broken).run())
    assert_same(metrics(broken), metrics(whole))
    for name in ("alone", "other"):
        ours, theirs = (
            RunFolder(it / "validations" / name).episodes_files("validation") for it in (broken, whole)
        )
        assert [step for step, _ in ours] == [step for step, _ in theirs]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({**row, "target": 9}) + "\n" for row in ROWS))
    from rolegraph.engine.errors import RolegraphError

    with pytest.raises(RolegraphError, match="row"):
        TrainingJob.resume(broken)


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("missing.yaml", "there is no spec"),
        ("/etc/hosts", "lies outside"),
        ("../game.yaml", "lies outside"),
        ("link.yaml", "lies outside"),
        ("stranger.yaml", "asks the policy"),
        ("tools.yaml", "asks none of the policies"),
        ("blind.yaml", "has no validation data"),
        ("[alone.yaml, alone.yaml]", "are called alone"),
        ("broken.yaml", "rol"),
    ],
)
def test_a_workflow_that_cannot_validate_is_a_fault(
    game: Path, tmp_path: Path, written: str, fault: str
) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside.yaml"
    outside.write_text((tmp_path / "alone.yaml").read_text())
    (tmp_path / "link.yaml").symlink_to(outside)
    base = "rolegraph: 2\nextends: solver_only.yaml\nname: "
    (tmp_path / "stranger.yaml").write_text(
        f"{base}stranger\nroles: {{solver: {{policy: other}}}}\npolicies: {{other: {{}}}}\n"
    )
    (tmp_path / "tools.yaml").write_text(f"{base}tools\nroles: {{solver: {{estimator: null}}}}\n")
    (tmp_path / "blind.yaml").write_text(f"{base}blind\ndata: {{validation: null, train: rows.jsonl}}\n")
    (tmp_path / "broken.yaml").write_text(f"{base}broken\nrols: {{}}\n")
    game.write_text(GAME.replace("[alone.yaml, below/other.yaml]", written))
    result = rg.check(game)
    assert result.plan is None
    assert any(fault in str(diagnostic) for diagnostic in result.diagnostics), [*map(str, result.diagnostics)]


def test_the_best_figure_is_one_of_the_validations(game: Path) -> None:
    assert rg.check(game, "train.validation.best=other/measured").plan
    result = rg.check(game, "train.validation.best=judge_acc")
    assert [d.severity for d in result.diagnostics] == ["error"]
    assert result.diagnostics[0].expected.count("measured") == 2
