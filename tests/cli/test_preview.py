"""Tests of `rolegraph preview`, in the terminal and as a page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.pages.report.test_page import HOSTILE, Page

ESCAPE = "\x1b[31mred"


def test_each_role_s_prompts_are_shown_as_chat_with_no_model(rolegraph: Command) -> None:
    done = rolegraph("preview", "solver_judge")
    assert done.returncode == 0, done.stderr
    assert "answers are made up, in [brackets]" in done.stdout
    assert "solver 1–2 · user" in done.stdout
    assert "2: <answer>[solver 2]</answer>" in done.stdout
    assert "solution: hidden" in done.stdout


def test_one_role_alone_and_a_role_that_is_none(rolegraph: Command) -> None:
    assert "solver 1–2" not in rolegraph("preview", "solver_judge", "--role", "judge").stdout
    done = rolegraph("preview", "solver_judge", "--role", "jugde")
    assert (done.returncode, done.stderr) == (
        2,
        "error: --role: no role 'jugde'; did you mean 'judge'?\n",
    )


def test_the_answers_of_a_run_stand_in_the_prompts_of_those_who_see_them(
    rolegraph: Command, recording: Path
) -> None:
    done = rolegraph("preview", "solver_judge", "--with", str(recording), "--role", "judge")
    assert done.returncode == 0, done.stderr
    task = json.loads(recording.read_text().splitlines()[0])["task"]
    assert f"1: <answer>{task['solution']}</answer>" in done.stdout  # the recorded answer of solver 1
    assert "solution: hidden" in done.stdout


def test_a_file_without_episodes_is_the_person_s_mistake(rolegraph: Command, tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("")
    done = rolegraph("preview", "solver_judge", "--with", "none.jsonl")
    assert (done.returncode, done.stderr) == (
        2,
        "error: none.jsonl holds no episode; give what `rolegraph run` wrote\n",
    )


def test_special_tokens_and_counts_are_those_of_the_model_s_template(rolegraph: Command) -> None:
    done = rolegraph("preview", "solver_judge", "--tokens", "--role", "solver")
    assert re.search(r"solver 1–2 · \d+ tokens", done.stdout)
    assert "<|im_start|>user" in done.stdout
    assert done.stdout.count("<|im_start|>assistant") == 1


def test_without_a_tokenizer_here_it_says_that_there_is_none(rolegraph: Command) -> None:
    done = rolegraph("preview", "solver_judge", "--tokens", "--model", "openai:gpt-x", "--role", "solver")
    assert done.returncode == 0
    assert "no tokens are shown: the tokenizer of openai:gpt-x is not on this machine" in done.stdout
    assert "Show your steps" in done.stdout


def hostile_spec(folder: Path) -> None:
    task = {"id": "one", "question": f"{HOSTILE}{ESCAPE}", "answer": "the-secret"}
    (folder / "rows.jsonl").write_text(json.dumps(task))
    (folder / "own.yaml").write_text(
        "rolegraph: 2\nname: own\ndata: {train: rows.jsonl, hidden: [answer]}\nroles:\n"
        '  one: {prompt: "{{ task.question }}"}\n'
    )


@pytest.mark.parametrize("tokens", [(), ("--tokens",)])
def test_a_page_loads_nothing_and_runs_nothing_of_a_stranger_s(
    rolegraph: Command, tmp_path: Path, tokens: tuple[str, ...]
) -> None:
    hostile_spec(tmp_path)
    done = rolegraph("preview", "own.yaml", *tokens, "--html", "page.html")
    assert (done.returncode, done.stdout) == (0, "page.html\n"), done.stderr
    text = (tmp_path / "page.html").read_text("utf-8")
    page = Page(text)
    assert not page.open
    assert not page.loads
    assert not page.handlers
    assert "script" not in page.tags
    assert "default-src 'none'" in text
    assert "the-secret" not in text
    assert "{{ 7 * 7 }}" in text


def test_a_stranger_s_text_does_not_steer_the_terminal(rolegraph: Command, tmp_path: Path) -> None:
    hostile_spec(tmp_path)
    done = rolegraph("preview", "own.yaml")
    assert "\x1b" not in done.stdout
    assert "[31mred" in done.stdout
    assert "the-secret" not in done.stdout


def test_a_page_that_cannot_be_written_is_named(rolegraph: Command) -> None:
    done = rolegraph("preview", "solver_judge", "--html", "nowhere/page.html")
    assert done.returncode == 1
    assert done.stderr == "error: cannot write nowhere/page.html: No such file or directory\n"
