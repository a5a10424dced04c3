"""Who decides whether an episode is correct: the names of version 1, as expressions of version 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rolegraph.engine.compile import check_file
from rolegraph.migrate.files import migrate_file
from tests.edge import write_spec

SPEC = """rolegraph: 1
name: old
data: {train: countdown}
roles:
  solver: {count: 2, prompt: solver.j2, parser: {tag: answer}, reward: countdown, estimator: grpo}
  judge: {needs: [solver], prompt: judge.j2, parser: {choice: solver}, reward: JUDGE, estimator: reinforce}
# the end
REST
"""


def migrated(folder: Path, rest: str, judge: str = "countdown", spec: str = SPEC) -> tuple[str, list[str]]:
    path = write_spec(folder, spec.replace("REST", rest).replace("JUDGE", judge))
    done = migrate_file(path)
    return path.read_text(), [message for _, message in done.problems]


@pytest.mark.parametrize(
    ("rest", "judge", "correct"),
    [
        ("episode: {correct: judge}", "countdown", "judge.right"),
        ("episode: {correct: solver}", "countdown", "all(solver.right)"),
        ("episode: {correct: [solver, judge]}", "countdown", ["all(solver.right)", "judge.right"]),
        ("episode:\n  correct: # who\n    - judge\n", "countdown", ["judge.right"]),
        ("", "countdown", "judge.right"),
        ("train: {steps: 1}", "countdown", "judge.right"),
        ("episode: {metrics: {m: {correct: solver}}}", "countdown", "judge.right"),
        ("episode:\n  # as before\n  metrics: {m: {correct: solver}}", "countdown", "judge.right"),
        ("episode: {}", "countdown", "judge.right"),
        ("", "{of: solver}", "judge.right"),
        ("", "{length: {under: 9}}", "judge.right"),
        ("", "registered_elsewhere", "judge.right"),
        ("", "null", None),
        ("", "{value: 1 + 1}", None),
    ],
)
def test_what_version_1_did_is_said(rest: str, judge: str, correct: object, tmp_path: Path) -> None:
    text, problems = migrated(tmp_path, rest, judge)
    spec: dict[str, Any] = yaml.safe_load(text)
    assert spec.get("episode", {}).get("correct") == correct
    assert problems == []
    assert "# the end" in text
    if "elsewhere" not in judge:
        assert not [
            it for it in check_file(tmp_path / "spec.yaml").diagnostics if it.path == ("episode", "correct")
        ]


def test_a_role_that_others_call_decided_of_nothing(tmp_path: Path) -> None:
    spec = SPEC.replace("judge: {", "judge: {tool: {describe: help}, ")
    spec = spec.replace("solver: {", "solver: {tools: [{role: judge}], calls: 2, ").replace(
        "needs: [solver], ", ""
    )
    text, _ = migrated(tmp_path, "", spec=spec.replace("{choice: solver}", "{tag: answer}"))
    assert yaml.safe_load(text)["episode"] == {"correct": "all(solver.right)"}


def test_a_spec_that_extends_another_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("rolegraph: 2\nname: base\n")
    text, problems = migrated(tmp_path, "", spec=SPEC.replace("name: old", "extends: base.yaml"))
    assert "episode" not in text
    (problem,) = problems
    assert "solver and judge can be right" in problem
