"""Tests of `--allow`, which a run stores for its resumption."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolegraph import check, load
from rolegraph.engine.errors import SpecError
from rolegraph.engine.records.episodes import read_episodes
from tests.cli.conftest import Command
from tests.edge import write_spec

pytest.importorskip("pydantic_monty")

SPEC = """rolegraph: 2
name: shell
data: {validation: tasks.jsonl}
model: replay:none.jsonl
roles:
  shell: {run: {python: "{{ task.code }}"}}
  page: {needs: shell, when: shell.action == "never", run: {http: "{}", url: "http://127.0.0.1:1/x"}}
"""
ALLOW = ("--allow", "python", "--allow", "http://127.0.0.1:1")


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "tasks.jsonl").write_text('{"code": "6 * 7"}\n{"code": "1 / 0"}\n')
    return write_spec(tmp_path, SPEC)


def test_a_run_is_refused_with_the_place_until_it_is_allowed(
    spec: Path, rolegraph: Command, tmp_path: Path
) -> None:
    refused = rolegraph("run", "spec.yaml", "--out", "out", "--allow", "python")
    assert refused.returncode == 2
    assert "spec.yaml:7:" in refused.stderr and "hint: --allow http://127.0.0.1:1/x" in refused.stderr
    assert "python" not in refused.stderr
    assert not (tmp_path / "out").exists()
    done = rolegraph("run", "spec.yaml", "--out", "out", *ALLOW)
    assert "program_error" in done.stdout, done.stderr
    found = {e["shell"][0].action for e in read_episodes(tmp_path / "out" / "episodes.jsonl")}
    assert found == {"42", "ZeroDivisionError: division by zero (line 1)"}
    noted = json.loads((tmp_path / "out" / "run.json").read_text())
    assert noted["allowed"] == ["python", "http://127.0.0.1:1"]


def test_a_stranger_s_spec_can_be_validated(spec: Path, rolegraph: Command) -> None:
    done = rolegraph("validate", "spec.yaml")
    assert done.returncode == 0
    assert "warning" in done.stderr and "--allow python" in done.stderr
    assert rolegraph("validate", "spec.yaml", *ALLOW).stderr == ""


def test_a_spec_cannot_allow_anything_itself(spec: Path) -> None:
    spec.write_text(SPEC + "allow: [python]\n")
    assert "unknown key 'allow'" in str(check(spec).diagnostics)


def test_in_python_a_workflow_can_be_loaded_and_looked_at_and_not_opened(spec: Path) -> None:
    flow = load(spec)
    assert [name for name, _ in flow.plan.permissions] == ["python", "http://127.0.0.1:1/x"]
    with pytest.raises(SpecError, match="--allow python"):
        flow.open()
    load(spec, allow=["python", "http://127.0.0.1:1/x"]).check_allowed()
