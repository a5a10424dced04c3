"""Tests of the commands that a verb names as next: they run as they are."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.cli.printed import write_spec
from tests.models.edges import Endpoint, chat_answer, serving


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving(lambda body: chat_answer("<answer>1</answer>")) as served:
        yield served


def write(folder: Path, reward: str) -> None:
    write_spec(folder, reward)
    (folder / "rows.jsonl").write_text(json.dumps({"question": "1?", "answer": "1"}))


def next_of(rolegraph: Command, *words: str) -> list[str]:
    done = rolegraph(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["next"]


def test_a_missing_permission_is_in_the_command(
    rolegraph: Command, endpoint: Endpoint, tmp_path: Path
) -> None:
    pytest.importorskip("pydantic_monty", reason="needs the extra `sandbox`")
    write(tmp_path, "{python: 'action == task.answer'}")
    (command,) = next_of(rolegraph, "validate", "own.yaml")
    assert command.endswith("--allow python")
    done = rolegraph(*shlex.split(command)[1:], "--base-url", endpoint.base_url)
    assert done.returncode == 0, done.stderr


def test_no_training_is_named_for_a_model_that_cannot_be_trained(
    rolegraph: Command, endpoint: Endpoint, tmp_path: Path
) -> None:
    write(tmp_path, "exact_match")
    where = ("--base-url", endpoint.base_url)
    (command,) = next_of(rolegraph, "run", "own.yaml", *where, "--out", "run")
    assert "train" not in shlex.split(command)
    assert not next_of(rolegraph, "forecast", "own.yaml", "--from", "run")
    assert rolegraph(*shlex.split(command)[1:]).returncode == 0


def test_a_spec_without_tasks_is_not_run(rolegraph: Command, tmp_path: Path) -> None:
    write(tmp_path, "exact_match")
    assert not next_of(rolegraph, "validate", "own.yaml", "data=null")


def test_an_answer_without_the_form_leads_to_the_prompts_and_names_the_form(
    rolegraph: Command, endpoint: Endpoint, tmp_path: Path
) -> None:
    write(tmp_path, "exact_match")
    parser = "roles.solver.parser={tag: result}"
    where = ("--base-url", endpoint.base_url, "--out", "run", "--json")
    done = rolegraph("run", "own.yaml", parser, *where)
    assert "<result>" in done.stderr and "malformed" in done.stderr
    preview, view = json.loads(done.stdout)["next"]
    assert shlex.split(preview)[1:] == ["preview", "own.yaml", parser]
    assert rolegraph(*shlex.split(preview)[1:]).returncode == 0
    shown = rolegraph(*shlex.split(view)[1:], "--static", "page.html", "--no-hidden")
    assert "1 episodes" in shown.stdout


REWARD = """
import rolegraph as rg

@rg.reward("mine")
def mine(task, action):
    return float(action == task["answer"])
"""


@pytest.mark.parametrize("command", ["validate", "run"])
def test_an_import_that_a_trusted_file_adds_is_not_repeated(
    rolegraph: Command, endpoint: Endpoint, tmp_path: Path, command: str
) -> None:
    write(tmp_path, "mine")
    (tmp_path / "mine.py").write_text(REWARD)
    where = () if command == "validate" else ("--base-url", endpoint.base_url, "--out", "run")
    (before,) = next_of(rolegraph, command, "own.yaml", "--import", "mine.py", *where)
    assert "--import mine.py" in before
    (tmp_path / "rolegraph.toml").write_text('imports = ["mine.py"]')
    assert rolegraph("trust", ".", "--yes").returncode == 0
    where = () if command == "validate" else ("--base-url", endpoint.base_url, "--out", "again")
    (after,) = next_of(rolegraph, command, "own.yaml", *where)
    assert "--import" not in after
    sent = () if command == "run" else ("--base-url", endpoint.base_url)
    assert rolegraph(*shlex.split(after)[1:], *sent).returncode == 0
