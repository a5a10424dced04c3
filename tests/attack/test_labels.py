"""Tests that hidden fields of a file of tasks reach a role on no way but `sees`."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.cli.conftest import Command, rolegraph

pytest.importorskip("bm25s", reason="needs the extra `search`")
__all__ = ["rolegraph"]
TASK = {"id": "1", "question": "Which river?", "text": "the Seine", "title": "Paris"}
SPEC = """\
rolegraph: 2
name: x
data: {DATA}
roles:
  a: {ROLE}
"""
HIDDEN = "validation: tasks.jsonl, hidden: [text]"
ASKS = "prompt: hi, max_calls: 2, tools: [{search: {corpus: OTHER}}]"
WAYS: Mapping[str, str] = {
    "a search": "run: {search: river, corpus: OTHER}",
    "a search of the model": ASKS,
    "a prompt": "prompt: OTHER",
    "a system prompt": "prompt: hi, system: OTHER",
}
FILES: Mapping[str, Callable[[Path, Path], object]] = {
    "the file": lambda tasks, other: None,
    "a link": lambda tasks, other: other.symlink_to(tasks.name),
    "a hard link": lambda tasks, other: os.link(tasks, other),
    "a copy": shutil.copy,
}


def written(folder: Path, role: str, data: str = HIDDEN) -> None:
    (folder / "tasks.jsonl").write_text(json.dumps(TASK) + "\n")
    (folder / "x.yaml").write_text(SPEC.replace("DATA", data).replace("ROLE", role))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("file", FILES)
def test_no_tool_and_no_prompt_quotes_the_file_of_the_tasks(
    tmp_path: Path, rolegraph: Command, way: str, file: str
) -> None:
    name = "tasks.jsonl" if file == "the file" else "other.jsonl"
    written(tmp_path, WAYS[way].replace("OTHER", name))
    FILES[file](tmp_path / "tasks.jsonl", tmp_path / "other.jsonl")
    done = rolegraph("validate", "x.yaml")
    assert done.returncode == 2
    assert f"x.yaml:5:{SPEC.splitlines()[4].index('ROLE') + 1 + WAYS[way].index('OTHER')}" in done.stderr
    assert ("is no template" if "prompt" in way else ".jsonl would leak the label") in done.stderr


@pytest.mark.parametrize(
    "data",
    [
        "train: tasks.jsonl, split: 0.5, hidden: [text]",
        "train: {file: tasks.jsonl, hidden: [title]}, validation: countdown",
        "train: countdown, validation: {file: tasks.jsonl, hidden: [text]}",
    ],
)
def test_a_field_that_any_data_hides_is_hidden_in_all(tmp_path: Path, rolegraph: Command, data: str) -> None:
    written(tmp_path, WAYS["a search"].replace("OTHER", "tasks.jsonl"), data)
    done = rolegraph("validate", "x.yaml")
    assert "tasks.jsonl would leak the label" in done.stderr


def test_the_field_of_a_reward_is_hidden_as_well(tmp_path: Path, rolegraph: Command) -> None:
    with (tmp_path / "tasks.csv").open("w") as out:
        csv.writer(out).writerows([["question", "text"], ["Which river?", "the Seine"]])
    compares = f"{ASKS.replace('OTHER', 'tasks.csv')}, reward: {{exact_match: {{field: text}}}}"
    written(tmp_path, compares, "validation: tasks.csv")
    done = rolegraph("validate", "x.yaml")
    assert "tasks.csv would leak the label" in done.stderr


def test_an_id_cannot_be_hidden(tmp_path: Path, rolegraph: Command) -> None:
    written(tmp_path, "prompt: hi", "validation: tasks.jsonl, hidden: [id]")
    done = rolegraph("validate", "x.yaml")
    assert "x.yaml:3:" in done.stderr and "warning: task.id names the task" in done.stderr


@pytest.mark.parametrize("way", WAYS)
def test_a_role_may_be_shown_a_field(tmp_path: Path, rolegraph: Command, way: str) -> None:
    written(tmp_path, WAYS[way].replace("OTHER", "tasks.jsonl") + ", sees: text")
    assert "would leak" not in rolegraph("validate", "x.yaml").stderr


@pytest.mark.parametrize("data", ["validation: tasks.jsonl", "validation: tasks.jsonl, hidden: [question]"])
def test_a_search_of_tasks_that_quotes_nothing_hidden_is_fine(
    tmp_path: Path, rolegraph: Command, data: str
) -> None:
    written(tmp_path, WAYS["a search"].replace("OTHER", "tasks.jsonl"), data)
    assert "would leak" not in rolegraph("validate", "x.yaml").stderr
