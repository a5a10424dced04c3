"""Tests of a task of one's own on the shipped model, which knows the shipped prompts alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

import rolegraph as rg
from tests.cli.conftest import Command

SPEC = """
rolegraph: 2
name: own
data: {train: rows.jsonl, validation: rows.jsonl}
roles:
  clerk:
    prompt: "Is this about money or travel? {{ task.question }}"
    parser: {one_of: [money, travel]}
    reward: action == task.answer
    estimator: reinforce
sampling: {max_tokens: 8}
train:
  {batch_size: 2, rollouts: 2, steps: 1, validation: {every: 0, tasks: 2, rollouts: 1}}
"""
FETCH = "rolegraph fetch smollm2-135m"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Write a spec with a prompt of its own, and two rows."""
    rows = [{"id": "a", "question": "A loan.", "answer": "money"}]
    rows += [{"id": "b", "question": "A train.", "answer": "travel"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own.yaml").write_text(SPEC)
    return tmp_path


@pytest.mark.service
@pytest.mark.parametrize(("verb", "follows"), [("validate", "run"), ("run", "run"), ("train", "train")])
def test_each_verb_names_the_cause_first_and_another_model_last(
    verb: str, follows: str, own: Path, rolegraph: Command
) -> None:
    done = rolegraph(verb, "own.yaml", "--json", *(["--keep-going"] if verb == "train" else []))
    assert done.returncode == 0, done.stderr
    warnings = [line.partition("warning: ")[2] for line in done.stderr.splitlines() if "warning: " in line]
    if verb == "validate":
        warnings.reverse()  # by line: the data stands before the role
    assert "the prompt of clerk" in warnings[0] and "--model chooses another model" in done.stderr
    assert not any("prompt" in line for line in warnings[1:]), "the prompt is not blamed"
    again = f"rolegraph {follows} own.yaml --model local:smollm2-135m"
    assert json.loads(done.stdout)["next"] == [FETCH, again]


def test_a_check_in_python_warns_of_it_at_the_prompt(own: Path) -> None:
    (warning,) = rg.check(own / "own.yaml", "data.validation=null").diagnostics
    assert (warning.severity, warning.place.line) == ("warning", 7)
    assert warning.path == ("roles", "clerk", "prompt")
    assert "clerk" in warning.message and "--model" in warning.hint
    assert not rg.check(own / "own.yaml", "data.validation=null", model="local:smollm2-135m").diagnostics
    assert not rg.check("solver_judge").diagnostics


@pytest.mark.parametrize("words", [("solver_judge",), ("own.yaml", "--model", "openai:tiny")])
def test_shipped_prompts_and_other_models_are_not_warned_of(
    words: tuple[str, ...], own: Path, rolegraph: Command
) -> None:
    done = rolegraph("validate", *words)
    assert "shipped prompts" not in done.stderr
    assert "fetch" not in done.stdout
