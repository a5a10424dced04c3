"""Tests of `--allow python=INTERPRETER`, and of programs that Monty cannot run, as a person meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolegraph.engine.records import FailureName
from rolegraph.engine.records.episodes import read_episodes
from tests.cli.conftest import Command
from tests.edge import write_spec
from tests.sandbox.stub_engine import add_stub_engine

pytest.importorskip("pydantic_monty")

RIGHT = "import heapq\ndef f(x): return heapq.nsmallest(1, x)[0]\n"
SPEC = """rolegraph: 2
name: programs
data: {validation: tasks.jsonl}
model: replay:none.jsonl
episode: {correct: plain.right}
roles:
  plain: {run: {echo: "{{ task.code }}"}, reward: tests, on_failure: {reward: -0.5}}
  both: {run: {echo: "{{ task.code }}"}, reward: {sum: {right: tests, one: {python: "1"}}}}
  value: {run: {python: "{{ task.code }}\\nf([2, 1])"}}
"""
ECHO = """from contextlib import nullcontext
from rolegraph.engine.vocabulary import Function, Tool, tools

@tools.register("echo")
def echo(text: str, /) -> Tool:
    async def call(arguments):
        return arguments["text"]
    function = Function("echo", "echoes", {"properties": {"text": {"type": "string"}}}, call)
    return Tool(lambda: nullcontext((function,)), source=text)
"""
IMPORT = ("--import", "echo.py")


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    row = {"code": RIGHT, "tests": ["assert f([2, 1]) == 1"]}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "echo.py").write_text(ECHO)
    return write_spec(tmp_path, SPEC)


def test_in_monty_a_program_that_it_cannot_run_has_no_reward_and_is_counted(
    spec: Path, rolegraph: Command, tmp_path: Path
) -> None:
    done = rolegraph("run", "spec.yaml", *IMPORT, "--out", "out", "--allow", "python")
    assert done.returncode == 0, done.stderr
    assert "unsupported_program" in done.stdout and "unrated" not in done.stdout
    (episode,) = read_episodes(tmp_path / "out" / "episodes.jsonl")
    for role in ("plain", "both"):
        (trajectory,) = episode[role]
        assert trajectory.failure is not None
        assert trajectory.failure.name is FailureName.UNSUPPORTED_PROGRAM
        assert trajectory.masked and trajectory.reward is None
    assert "Monty" in str(episode["value"][0].action)
    assert episode["value"][0].failure is not None and episode["value"][0].failure.name == "tool_error"


def test_in_cpython_it_is_right_and_a_resumed_run_uses_the_same(
    spec: Path, rolegraph: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_stub_engine(tmp_path, monkeypatch)
    allow = ("--allow", "python=docker:any")
    done = rolegraph("run", "spec.yaml", *IMPORT, "--out", "out", *allow)
    assert done.returncode == 0, done.stderr
    (episode,) = read_episodes(tmp_path / "out" / "episodes.jsonl")
    assert [episode[role][0].reward for role in ("plain", "both")] == [1.0, 2.0]
    assert episode["value"][0].action == "1"
    assert json.loads((tmp_path / "out" / "run.json").read_text())["allowed"] == ["python=docker:any"]
    assert rolegraph("run", "--resume", "--out", "out", *IMPORT, *allow).returncode == 0
    other = rolegraph("run", "spec.yaml", *IMPORT, "--resume", "--out", "out", "--allow", "python")
    assert other.returncode == 2


def test_validate_says_which_interpreter_the_programs_meet(
    spec: Path, rolegraph: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_stub_engine(tmp_path, monkeypatch)
    monty = rolegraph("validate", "spec.yaml", *IMPORT, "--allow", "python")
    assert (monty.returncode, monty.stderr) == (0, "")
    assert "python: Monty" in monty.stdout and "--allow python=docker:IMAGE" in monty.stdout
    full = rolegraph("validate", "spec.yaml", *IMPORT, "--allow", "python=docker:any", "--json")
    assert json.loads(full.stdout)["specs"][0]["python"] == "docker:any"
    plain = rolegraph("validate", "countdown_solver")
    assert "python" not in plain.stdout


def test_a_malformed_or_missing_interpreter_is_refused_with_the_fix(
    spec: Path, rolegraph: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wrong = rolegraph("validate", "spec.yaml", *IMPORT, "--allow", "python=python3.12")
    assert wrong.returncode == 2
    assert "python=docker:python:3.12-slim" in wrong.stderr
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = rolegraph("run", "spec.yaml", *IMPORT, "--out", "out", "--allow", "python=podman:x")
    assert missing.returncode == 2
    assert "podman is not installed" in missing.stderr


def test_a_server_that_is_down_earns_no_reward(spec: Path, rolegraph: Command, tmp_path: Path) -> None:
    rolegraph("run", "spec.yaml", *IMPORT, "--out", "out", "--allow", "python=http://127.0.0.1:9")
    (episode,) = read_episodes(tmp_path / "out" / "episodes.jsonl")
    for role in ("plain", "both"):
        assert episode[role][0].failure is not None and episode[role][0].failure.name == "reward_error"
        assert episode[role][0].masked and episode[role][0].reward is None


def test_a_spec_cannot_choose_its_interpreter(spec: Path, rolegraph: Command) -> None:
    spec.write_text(SPEC.replace("reward: tests,", "reward: {tests: {interpreter: 'docker:evil'}},"))
    refused = rolegraph("validate", "spec.yaml", *IMPORT, "--allow", "python")
    assert refused.returncode == 2
    assert "interpreter" in refused.stderr
