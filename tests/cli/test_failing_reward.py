"""Tests of rewards and parsers of the user's own that raise: the file, the line and its text are shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolegraph.engine.records.episodes import read_episodes
from tests.cli.conftest import Command
from tests.models.edges import chat_answer, serving

SPEC = """\
rolegraph: 1
name: near
data: {train: rows.jsonl, validation: rows.jsonl}
roles:
  solver:
    prompt: {inline: "{{ task.question }} Answer in <answer></answer>."}
    parser: {tag: answer}
    reward: near
    estimator: grpo
  validator:
    needs: solver
    prompt: {inline: "{{ solver.action }} Say correct or incorrect in <answer></answer>."}
    parser: {tag: answer}
    reward: {agrees_with: solver}
    estimator: grpo
episode: {metrics: {validator_acc: {correct: validator}}}
"""
REWARDS = """\
import rolegraph as rg


@rg.reward("near", labels=["target"])
def near(task, action):
    return int(action) == task["targt"]
"""
LINE = 'near.py:6: return int(action) == task["targt"]'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "rows.jsonl").write_text('{"id": "t", "question": "3 + 4?", "target": "hidden 7"}\n')
    (tmp_path / "near.py").write_text(REWARDS)
    return tmp_path


def ran(rolegraph: Command, *words: str, answer: str = "<answer>7</answer>") -> tuple[str, str]:
    """Run the spec on an endpoint that gives one answer; return the two outputs."""
    with serving(lambda _: chat_answer(answer)) as endpoint:
        model = ("--model", "openai:tiny", "--base-url", endpoint.base_url)
        done = rolegraph(
            "run",
            "spec.yaml",
            "--import",
            "near.py",
            *model,
            "--out",
            "out",
            *words,
            OPENAI_API_KEY="sk-1234567890",
        )
    return done.stdout, done.stderr


def test_the_line_that_raised_is_in_the_terminal_the_log_the_episodes_and_the_viewer(
    rolegraph: Command, folder: Path
) -> None:
    shown, noted = ran(rolegraph)
    flat = " ".join(shown.split())
    assert "reward_error" in flat and "KeyError: 'targt'" in flat and LINE in flat
    assert "solver: every answer failed with reward_error" in " ".join(noted.split())
    assert LINE in (folder / "out" / "log.txt").read_text()
    (episode,) = read_episodes(folder / "out" / "episodes.jsonl")
    (solver, validator) = episode.trajectories
    assert solver.failure is not None and solver.failure.place == LINE
    assert (validator.reward, validator.masked) == (None, True), "whether the solver is right is not known"
    assert episode.metadata["failures"][0].get("place") == LINE
    page = rolegraph("view", "out", "--static", "seen.html", "--hidden")
    assert page.returncode == 0, page.stderr
    assert "near.py:6:" in (folder / "seen.html").read_text()


def test_what_is_not_known_is_in_no_figure(rolegraph: Command, folder: Path) -> None:
    figures = json.loads(ran(rolegraph, "--json")[0])["figures"]
    assert not {"correct", "validator_acc", "reward/validator"} & set(figures)


def test_a_page_without_hidden_fields_quotes_no_failed_reward(rolegraph: Command, folder: Path) -> None:
    quoting = REWARDS.replace('task["targt"]', 'int(task["target"])')
    (folder / "near.py").write_text(quoting)
    assert "hidden 7" in ran(rolegraph)[0]
    assert rolegraph("view", "out", "--static", "seen.html", "--no-hidden").returncode == 0
    page = (folder / "seen.html").read_text()
    assert "hidden 7" not in page and "near.py" not in page and "reward error" in page
