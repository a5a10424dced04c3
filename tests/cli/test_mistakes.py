"""Tests of the mistakes that new users make first: each is answered early, with its place and advice."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rolegraph as rg
from tests import replays
from tests.cli.conftest import Command
from tests.models.edges import chat_answer, serving

SPEC = """\
rolegraph: 2
name: tickets
description: Two clerks sort a ticket, a lead picks one.

data:
  train: rows.jsonl
  split: 0.5

roles:
  clerk:
    count: 2
    prompt: clerk.j2
    parser: {tag: answer}
    reward: exact_match
    estimator: grpo
  lead:
    needs: [clerk]
    prompt: lead.j2
    parser: {choice: clerk}
    reward: exact_match
    estimator: reinforce

episode:
  correct: lead.right
  metrics:
    clerk_acc: mean(clerk.right)

sampling: {temperature: 1.0, max_tokens: 200}
train: {steps: 10, batch_size: 4, learning_rate: 0.001}
"""
CLERK = "Is this about billing or travel? {{ task.question }}\nWrite it in <answer></answer>.\n"
LEAD = """\
{{ task.question }}
{% for it in clerk %}{{ it.index }}: {{ it.action }}
{% endfor %}
Write the number of the better one in <answer></answer>.
"""
ROWS = "".join(
    json.dumps({"id": f"t{n}", "question": f"Ticket {n}", "answer": ("billing", "travel")[n % 2]}) + "\n"
    for n in range(8)
)
REWARD = """\
import rolegraph as rg


@rg.reward("near", labels=["answer"])
def near(task, action):
    return float(str(action) == task["anwser"])
"""
FILES = {"tickets.yaml": SPEC, "clerk.j2": CLERK, "lead.j2": LEAD, "rows.jsonl": ROWS}
PROMPT, GRPO, LAST = "prompt: clerk.j2", "estimator: grpo", "reward: exact_match\n    estimator: reinforce"

SPEC_MISTAKES = [
    ("indentation", f"    {PROMPT}", f"   {PROMPT}", "12:1", "yaml", "4 spaces"),
    ("tab", f"    {PROMPT}", f"\t{PROMPT}", "12:1", "yaml", "spaces"),
    ("key", PROMPT, "promt: clerk.j2", "12:5", "unknown-key", "'prompt'"),
    ("role in needs", "needs: [clerk]", "needs: [clrek]", "17:13", "unknown-name", "'clerk'"),
    ("estimator", GRPO, "estimator: grop", "15:16", "unknown-name", "'grpo'"),
    ("loss as estimator", GRPO, "estimator: ppo", "15:16", "unknown-name", "loss: ppo"),
    ("template's file", PROMPT, "prompt: clark.j2", "12:13", "unknown-name", "'clerk.j2'"),
    ("field in an expression", LAST, "reward: mean(clerk.rewrad)", "20:24", "unknown-name", "'reward'"),
    ("version 1", "rolegraph: 2", "rolegraph: 1", "1:12", "version", "rolegraph migrate tickets.yaml"),
    ("key of version 1", GRPO, "trainable: false", "15:5", "unknown-key", "`estimator`"),
    ("list for a mapping", "  clerk:\n", "  - clerk:\n", "10:3", "yaml", "write clerk:"),
    ("key twice", "    reward", "    parser: boxed\n    reward", "14:5", "yaml", "line 13"),
    ("number in words", "count: 2", "count: two", "11:12", "wrong-value", "a whole number"),
    ("circle", "    count: 2", "    needs: [lead]", "11:13", "workflow", "remove one"),
    ("parser without its option", "{tag: answer}", "tag", "13:13", "item", "{tag: …}"),
    ("reward of several", LAST, "reward: clerk.reward", "20:19", "template", "mean(clerk.reward)"),
    ("unknown aggregate", "mean(clerk", "avg(clerk", "26:16", "template", "mean(…)"),
    ("policy", GRPO, f"{GRPO}\n    policy: clerks", "16:13", "unknown-name", "policies: {clerks: {}}"),
    ("sampling out of range", "temperature: 1.0", "temperature: -1", "28:25", "wrong-value", "at least 0"),
    ("setting at a role", "count: 2", "temperature: 0.7", "11:5", "unknown-key", "`sampling`"),
    ("correct without a reward", LAST, "when: self.index == 1", "23:12", "reward", "clerk"),
    ("comma in a number", "0.001", "0,001", "29:50", "yaml", "learning_rate: 0.001"),
    ("comma in a value", "split: 0.5", "split: 0,5", "7:10", "wrong-value", "0.5"),
    ("text that begins with braces", PROMPT, "prompt: {{ task.question }}", "12:13", "yaml", "'{{ task.q"),
    ("text with a colon", PROMPT, "prompt: Sort: {{ task.question }}", "12:17", "yaml", "'Sort: {{"),
    ("model without a provider", "data:\n", "model: gpt-4o\ndata:\n", "5:8", "wrong-value", "openai:gpt-4o"),
]
"""Name of the mistake, the right text in tickets.yaml, the text in its place; place, code and advice of the
message."""
FILE_MISTAKES = [
    ("clerk.j2", "{{ task.question }}", "{{ question }}", "clerk.j2:1:37", "template", "task.question"),
    ("clerk.j2", "task.question", "task.qestion", "clerk.j2:1:42", "unknown-name", "task.question"),
    ("clerk.j2", "{{ task.question }}", "{question}", "clerk.j2:1:34", "template", "{{ task.question }}"),
    ("clerk.j2", "task.question", "task.answer", "clerk.j2:1:42", "template", "sees: [answer]"),
]
"""The same in a file, which stands in place of the name."""
ROW_MISTAKES = [
    ("rows.jsonl", ', "question": "Ticket 5"', "", "rows.jsonl:6: no 'question'"),
    ("rows.jsonl", ', "answer": "travel"', "", "rows.jsonl:2: no 'answer'"),
]
"""The same in the data, of which validate reads every row: the beginning of its error."""
COMMAND_MISTAKES = [
    ("run solver_jugde", "did you mean solver_judge?"),
    ("run tickts.yaml", "did you mean tickets.yaml?"),
    ("run rows.jsonl", "rolegraph new NAME --data"),
    ("trian solver_judge", "rolegraph train"),
    ("run solver_judge --limt 4", "'--limit'"),
    ("train solver_judge --steps 5", "write train.steps="),
    ("train solver_judge train.steps 5", "command line:1:1: error write train.steps=…"),
    ("train solver_judge train.step=5", "command line:1:1: error did you mean 'steps'?"),
    ("train solver_judge train.steps=ten", "command line:1:13: error a whole number"),
    ("run solver_judge --out notes", "notes choose a new or an empty folder"),
    ("run solver_judge --model gpt-4o", "did you mean openai:gpt-4o?"),
    ("train solver_judge --track wandb", "pip install 'rolegraph[wandb]'"),
    ("episodes runs/done --where jugde.right", "where:1:1: error did you mean 'judge'?"),
    ("view done", "did you mean runs/done?"),
    ("compare runs/done runs/dnoe", "did you mean runs/done?"),
]
"""Command, and words of the message in their order."""


def _await_run() -> object:
    async def work() -> None:
        rg.run(rg.load("solver_judge"), limit=1)

    return asyncio.run(work())


PYTHON_MISTAKES: list[tuple[str, Callable[[], Any], str]] = [
    ("spec", lambda: rg.load("solver_jugde"), "solver_judge"),
    ("setting as an argument", lambda: rg.load("solver_judge", steps=5), "'train.steps=5'"),
    ("mapping as an override", lambda: rg.load("solver_judge", {"train": 1}), "'train.steps=5'"),
    ("name for a workflow", lambda: rg.run("solver_judge"), "rg.load('solver_judge')"),
    ("argument", lambda: rg.run(rg.load("solver_judge"), limits=4), "'limit'"),
    ("type", lambda: rg.run(rg.load("solver_judge"), limit="ten"), "limit int"),
    ("word", lambda: rg.run(rg.load("solver_judge"), split="test"), "split 'validation'"),
    (
        "late override",
        lambda: rg.train(rg.load("solver_judge"), "train.steps=3"),
        "rg.load(SPEC, 'train.steps=3')",
    ),
    ("missing argument", lambda: rg.evaluate(rg.load("solver_judge")), "rg.evaluate 'checkpoint'"),
    ("event loop", _await_run, "await rg.run_async"),
    ("folder", lambda: rg.Run("runs/dnoe").episodes(), "runs/dnoe runs/done"),
    ("expression", lambda: rg.Run("runs/done").episodes("jugde.right"), "where:1:1: 'judge'"),
    ("function", lambda: rg.evalute, "'evalute' 'evaluate'"),
]
"""Name of the mistake, the call, and words of the message in their order."""


def write(folder: Path, file: str = "", right: str = "", wrong: str = "") -> None:
    """Write the files of a workflow, one of them with a mistake."""
    for name, text in FILES.items():
        assert name != file or right in text
        (folder / name).write_text(text.replace(right, wrong, 1) if name == file else text)


def in_order(words: str, text: str) -> bool:
    """Return True if a text has these words, one after the other."""
    at = 0
    for word in words.split():
        at = text.find(word, at)
        if at < 0:
            return False
    return True


@pytest.mark.parametrize(
    ("file", "right", "wrong", "place", "code", "advice"),
    [
        *(
            pytest.param("tickets.yaml", *rest[:2], f"tickets.yaml:{rest[2]}", *rest[3:], id=name)
            for name, *rest in SPEC_MISTAKES
        ),
        *FILE_MISTAKES,
    ],
)
def test_a_mistake_in_a_file_is_answered_with_its_place_and_what_to_write(
    rolegraph: Command,
    tmp_path: Path,
    file: str,
    right: str,
    wrong: str,
    place: str,
    code: str,
    advice: str,
) -> None:
    write(tmp_path, file, right, wrong)
    done = rolegraph("validate", "tickets.yaml", "--json")
    (spec,) = json.loads(done.stdout)["specs"]
    found = [
        (f"{it['place']['file']}:{it['place']['line']}:{it['place']['column']}", it["code"])
        for it in spec["diagnostics"]
        if advice in f"{it['expected']} {it['hint']}"
    ]
    assert (place, code) in found, done.stderr


@pytest.mark.parametrize("verb", ["validate", "run"])
@pytest.mark.parametrize(("file", "right", "wrong", "answer"), [FILE_MISTAKES[0][:4], *ROW_MISTAKES])
def test_a_run_with_a_mistake_asks_no_model(
    rolegraph: Command, tmp_path: Path, verb: str, file: str, right: str, wrong: str, answer: str
) -> None:
    write(tmp_path, file, right, wrong)
    with serving(lambda _: chat_answer("<answer>1</answer>")) as endpoint:
        model = ("--model", "openai:tiny", "--base-url", endpoint.base_url)
        options = model if verb == "run" else ()
        done = rolegraph(verb, "tickets.yaml", *options, OPENAI_API_KEY="sk-1234567890")
    assert (done.returncode, len(endpoint.bodies)) == (2, 0), done.stderr
    assert answer in done.stderr


def test_the_files_without_a_mistake_are_used(rolegraph: Command, tmp_path: Path) -> None:
    write(tmp_path)
    with serving(lambda _: chat_answer("<answer>1</answer>")) as endpoint:
        model = ("--model", "openai:tiny", "--base-url", endpoint.base_url)
        done = rolegraph("run", "tickets.yaml", *model, OPENAI_API_KEY="sk-1234567890")
    assert (done.returncode, len(endpoint.bodies)) == (0, 12), done.stderr


def test_a_reward_that_raises_is_answered_at_the_first_turn(rolegraph: Command, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "near.py").write_text(REWARD)
    with serving(lambda _: chat_answer("<answer>1</answer>")) as endpoint:
        model = ("--model", "openai:tiny", "--base-url", endpoint.base_url)
        words = ("roles.clerk.reward=near", "roles.clerk.count=1", "--import", "near.py", "--limit", "1")
        done = rolegraph("run", "tickets.yaml", *words, *model, OPENAI_API_KEY="sk-1234567890")
    assert len(endpoint.bodies) == 2
    text = " ".join((done.stdout + done.stderr).split())
    assert 'near.py:6: return float(str(action) == task["anwser"])' in text


@pytest.mark.parametrize(("words", "answer"), COMMAND_MISTAKES)
def test_a_mistake_in_a_command_is_answered_with_what_to_type(
    rolegraph: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, answer: str
) -> None:
    write(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("dear diary")
    replays.run(tmp_path / "runs" / "done", replays.solved(0), tasks=1)
    monkeypatch.setitem(sys.modules, "wandb", None)
    done = rolegraph(*words.split())
    assert done.returncode == 2, done.stderr
    assert in_order(answer, done.stderr), done.stderr


@pytest.mark.parametrize(
    ("call", "answer"), [pytest.param(*rest, id=name) for name, *rest in PYTHON_MISTAKES]
)
def test_a_mistake_in_python_is_answered_with_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any], answer: str
) -> None:
    replays.run(tmp_path / "runs" / "done", replays.solved(0), tasks=1)
    monkeypatch.chdir(tmp_path)
    with pytest.raises((rg.UsageError, rg.SpecError, AttributeError)) as raised:
        call()
    assert in_order(answer, str(raised.value)), raised.value
