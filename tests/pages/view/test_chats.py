"""Tests of chats that are exported as rows for supervised fine-tuning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rolegraph as rg
from rolegraph.engine.records.episodes import read_episodes
from tests.cli.conftest import Command, rolegraph
from tests.edge import write_spec
from tests.pages.view.runs import write_run, write_training

__all__ = ["rolegraph"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("chats") / "run", tasks=6)


def exported(run: Path, file: Path, **where: str) -> list[dict[str, Any]]:
    count = rg.export_chats(run, file, **where)
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert len(rows) == count
    return rows


def answers(run: Path, role: str = "") -> list[rg.Trajectory]:
    """Return the trajectories of a run that did not fail."""
    episodes = read_episodes(run / "episodes.jsonl")
    return [t for e in episodes for t in e.trajectories if not t.failure and role in ("", t.name)]


def test_a_row_is_a_chat_with_its_reward(run: Path, tmp_path: Path) -> None:
    rows = exported(run, tmp_path / "new" / "rows.jsonl")
    assert sorted(json.dumps(row["messages"]) for row in rows) == sorted(
        json.dumps([dict(message) for message in t.steps[0].chat_completions]) for t in answers(run)
    )
    assert {"task", "rollout", "role", "index", "reward"} <= rows[0].keys()
    assert rows[0]["messages"][-1]["role"] == "assistant"


def test_a_reward_is_that_of_the_chat_itself(run: Path, tmp_path: Path) -> None:
    rows = exported(run, tmp_path / "rows.jsonl", role="solver", low="1")
    assert len(rows) == sum(t.reward == 1 for t in answers(run, "solver")) > 0
    assert {(row["role"], row["reward"]) for row in rows} == {("solver", 1.0)}


def test_other_filters_are_of_the_episode(run: Path, tmp_path: Path) -> None:
    right = {e.id for e in read_episodes(run / "episodes.jsonl") if e.is_correct}
    rows = exported(run, tmp_path / "rows.jsonl", correct="yes", task="t1")
    assert {f"{row['task']}:{row['rollout']}" for row in rows} <= {id for id in right if "t1" in id}


def test_rows_of_a_training_are_those_that_it_trained_on(tmp_path: Path) -> None:
    folder = write_training(tmp_path / "training", steps=2)
    assert len(exported(folder, tmp_path / "1.jsonl", step="1")) < len(
        exported(folder, tmp_path / "all.jsonl")
    )
    held_out = exported(folder, tmp_path / "held_out.jsonl", split="validation")
    assert len(held_out) < len(exported(folder, tmp_path / "again.jsonl"))


def test_a_conversation_over_several_turns_is_one_row(tmp_path: Path) -> None:
    text = """
rolegraph: 2
name: talk
roles:
  tutor: {prompt: "Turn {{ self.round }}", memory: chat}
loops: {lesson: {roles: [tutor], times: 3}}
"""
    run = write_run(tmp_path / "run", str(write_spec(tmp_path, text)), tasks=1)
    rows = exported(run, tmp_path / "rows.jsonl")
    for row in rows:
        asked = [message["content"] for message in row["messages"] if message["role"] == "user"]
        assert asked == ["Turn 1", "Turn 2", "Turn 3"]
    assert len({row["rollout"] for row in rows}) == len(rows)


def test_what_another_role_said_in_a_conversation_has_no_weight(tmp_path: Path) -> None:
    text = """
rolegraph: 2
name: talk
roles:
  ask: {prompt: "Ask {{ self.round }}", memory: {chat: both}}
  reply: {needs: ask, prompt: "Reply {{ self.round }}", memory: {chat: both}}
loops: {lesson: {roles: [ask, reply], times: 2}}
"""
    run = write_run(tmp_path / "run", str(write_spec(tmp_path, text)), tasks=1)
    found: set[tuple[str, int]] = set()
    for row in exported(run, tmp_path / "rows.jsonl"):
        answered = [m.get("weight", 1) for m in row["messages"] if m["role"] == "assistant"]
        assert answered == ([1, 0, 1] if row["role"] == "ask" else [0, 1, 0, 1])
        found.add((row["role"], row["rollout"]))
    assert {role for role, _ in found} == {"ask", "reply"}


def test_nothing_is_written_where_no_chat_fits_or_the_file_exists(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    with pytest.raises(rg.UsageError, match="no chat that fits"):
        rg.export_chats(run, file, low="2")
    assert not file.exists()
    file.write_text("mine")
    with pytest.raises(rg.UsageError, match="exists, and Rolegraph did not write it"):
        rg.export_chats(run, file)
    with pytest.raises(rg.UsageError, match="cannot be filtered by 'rol'"):
        rg.export_chats(run, tmp_path / "other.jsonl", rol="solver")


def test_the_command_writes_the_rows(rolegraph: Command, run: Path, tmp_path: Path) -> None:
    done = rolegraph("export", str(run), "--sft", "rows.jsonl", "--role", "solver", "--reward", "1:")
    assert done.returncode == 0 and done.stdout.endswith("chats\n"), done.stderr
    refused = rolegraph("export", str(run), "--sft", "rows2.jsonl", "--merged")
    assert refused.returncode == 2 and "options for weights" in refused.stderr
    refused = rolegraph("export", str(run), "--role", "solver")
    assert refused.returncode == 2 and "such as --sft" in refused.stderr
