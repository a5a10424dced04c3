"""Tests of rewards and parsers of the user's own that raise: the file, the line and its text are shown."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from rolegraph.engine.records.episodes import read_episodes
from tests.cli.conftest import Command
from tests.models.edges import chat_answer, serving

SPEC = """\
rolegraph: 2
name: near
data: {train: rows.jsonl, validation: rows.jsonl}
roles:
  solver:
    prompt: "{{ task.question }} Answer in <answer></answer>."
    parser: {tag: answer}
    reward: near
    estimator: grpo
  validator:
    needs: solver
    prompt: "{{ solver.action }} Say correct or incorrect in <answer></answer>."
    parser: {tag: answer}
    reward: action == ("correct" if solver.right else "incorrect")
    estimator: grpo
episode: {correct: validator.right, metrics: {validator_acc: all(validator.right)}}
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


def ran(
    rolegraph: Command,
    *words: str,
    answer: str = "<answer>7</answer>",
    environment: Mapping[str, str] = {},
) -> tuple[str, str]:
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
            **environment,
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


def screen(written: str, width: int) -> list[str]:
    """Return the lines that a terminal of a width shows of what was written, without colours."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[\??[\d;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]", written):
        if part == "\r":
            column = 0
        elif part == "\n" or (len(part) == 1 and column == width):
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part.endswith("A") and len(part) > 1:
            row -= int(part[2:-1] or 1)
        elif part == "\x1b[2K":
            lines[row] = ""
        if len(part) == 1 and part not in "\r\n":
            lines[row] = f"{lines[row][:column]:<{column}}{part}{lines[row][column + 1 :]}"
            column += 1
    return [line.rstrip() for line in lines]


def test_a_line_that_raises_is_shown_at_once_above_the_bar_and_no_second_time(
    rolegraph: Command, folder: Path
) -> None:
    rows = [{"id": f"t{number}", "question": "3 + 4?", "target": 7} for number in range(20)]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    terminal = {"FORCE_COLOR": "1", "COLUMNS": "80", "TERM": "xterm"}
    _, noted = ran(rolegraph, "--concurrency", "1", environment=terminal)
    assert "\x1b[2K" in noted, "a bar was drawn and erased"
    assert noted.index("near.py:6") < noted.index("20/20")
    shown = screen(noted, 80)
    flat = "".join(line.ljust(80) for line in shown)
    assert (
        flat.count(LINE) == 1 and flat.count("warning: solver reward_error: the reward raised KeyError") == 1
    )
    (bar,) = (line for line in shown if "/20" in line)
    assert bar.startswith("near") and "20/20" in bar


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
