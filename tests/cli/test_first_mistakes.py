"""Tests of the mistakes that new users make first: each is answered with its file and line, and early."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.models.edges import chat_answer, serving

SPEC = """\
rolegraph: 2
name: sums
data: {train: rows.jsonl, split: 0.5}
roles:
  solver:
    prompt: "{{ task.question }} Answer in <answer></answer>."
    parser: {tag: answer}
    reward: near
    estimator: grpo
  judge:
    needs: solver
    prompt: "{{ solver.action }} Say yes or no in <answer></answer>."
    parser: {tag: answer}
    reward: {exact_match: {field: target}}
    estimator: grpo
episode: {correct: judge.right}
"""
ROWS = "".join(f'{{"id": "t{n}", "question": "{n} + 4?", "target": "{n + 4}"}}\n' for n in range(8))
REWARD = """\
import rolegraph as rg


@rg.reward("near", labels=["target"])
def near(task, action):
    return float(str(action) == task["target"])
"""
FILES = {"sums.yaml": SPEC, "rows.jsonl": ROWS, "near.py": REWARD}

MISTAKES = [
    pytest.param("sums.yaml", "    parser: {tag", "    praser: {tag", "sums.yaml:7:5:", id="misspelt key"),
    pytest.param("sums.yaml", "name: sums", "nmae: sums", "sums.yaml:2:1:", id="misspelt key at the top"),
    pytest.param("sums.yaml", "tag: answer", "tga: answer", "sums.yaml:7:14:", id="misspelt item"),
    pytest.param("sums.yaml", "task.question", "task.questoin", "sums.yaml:6:22:", id="wrong column"),
    pytest.param(
        "sums.yaml", "field: target", "field: targt", "sums.yaml:14:", id="wrong column of a reward"
    ),
    pytest.param("sums.yaml", "  solver:\n", "  solver:\n    needs: judge\n", "sums.yaml:6:12:", id="cycle"),
    pytest.param(
        "sums.yaml", "needs: solver", "needs: judge", "sums.yaml:11:12:", id="role that needs itself"
    ),
    pytest.param("rows.jsonl", ', "question": "5 + 4?"', "", "rows.jsonl:6:", id="missing field"),
    pytest.param("rows.jsonl", ', "target": "9"', "", "rows.jsonl:6:", id="missing label"),
]
"""File with the mistake, its text, the text in its place, and the place that the message names."""


def write(folder: Path, file: str = "", right: str = "", wrong: str = "") -> None:
    """Write the files of a workflow, one of them with a mistake."""
    for name, text in FILES.items():
        (folder / name).write_text(text.replace(right, wrong, 1) if name == file else text)


def answered(rolegraph: Command, *words: str) -> tuple[int, str, int]:
    """Return the exit code and output of a command, and the number of answers that it asked a model for."""
    with serving(lambda _: chat_answer("<answer>7</answer>")) as endpoint:
        model = ("--model", "openai:tiny", "--base-url", endpoint.base_url)
        verb, *rest = words
        options = () if verb == "validate" else model
        done = rolegraph(
            verb, "sums.yaml", "--import", "near.py", *options, *rest, OPENAI_API_KEY="sk-1234567890"
        )
    return done.returncode, " ".join((done.stdout + done.stderr).split()), len(endpoint.bodies)


@pytest.mark.parametrize("verb", ["validate", "run"])
@pytest.mark.parametrize(("file", "right", "wrong", "place"), MISTAKES)
def test_a_mistake_in_a_file_is_answered_before_a_model_is_asked(
    rolegraph: Command, tmp_path: Path, verb: str, file: str, right: str, wrong: str, place: str
) -> None:
    write(tmp_path, file, right, wrong)
    code, text, asked = answered(rolegraph, verb)
    assert (code, asked) == (2, 0), text
    assert place in text


@pytest.mark.parametrize("verb", ["validate", "run"])
def test_the_files_without_a_mistake_are_used(rolegraph: Command, tmp_path: Path, verb: str) -> None:
    write(tmp_path)
    assert answered(rolegraph, verb)[0] == 0


def test_a_reward_that_raises_is_answered_at_the_first_turn(rolegraph: Command, tmp_path: Path) -> None:
    write(tmp_path, "near.py", 'task["target"]', 'task["targt"]')
    _, text, asked = answered(rolegraph, "run", "--limit", "1")
    assert asked == 2
    assert 'near.py:6: return float(str(action) == task["targt"])' in text
