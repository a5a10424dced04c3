"""Tests of examples: training rows that each task carries for its prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rolegraph as rg
from rolegraph import api
from rolegraph.engine.records import Task
from rolegraph.engine.vocabulary import DataError, Dataset, ExamplePool, with_examples
from rolegraph.engine.vocabulary.rows import dataset_of

Rows = Sequence[tuple[str, str]]
ROWS: Rows = [(f"question {n}", "yes" if n % 4 else "no") for n in range(40)]
SPEC = """
rolegraph: 2
name: own
data: {train: rows.jsonl, validation: held.jsonl, examples: EXAMPLES}
roles:
  solver:
    prompt: "PROMPT"
    parser: {one_of: [yes, no]}
    reward: {exact_match: {field: answer}}
    estimator: grpo
"""
SHOWN = "{count: 2, sees: [answer], by: answer}"
LOOP = (
    "{% for one in task.examples %}{{ one.question }} {{ one.answer }} {% endfor %}{{ task.question }} yes?"
)


def dataset(rows: Rows, split: api.Split = "train") -> Dataset:
    table: list[tuple[int, dict[str, Any]]] = [
        (number, {"question": question, "answer": answer})
        for number, (question, answer) in enumerate(rows, 1)
    ]
    return dataset_of(lambda: iter(table), hidden=["answer"], stem="rows", split=split, shown="rows.csv")


def drawn(train: Rows, rows: Rows, count: int, *, by: str | None = None, seed: int = 0) -> list[Task]:
    pool = ExamplePool(dataset(train), count, seed, frozenset(), frozenset({"question"}), by)
    return [*with_examples(dataset(rows, "validation"), pool).rows(None)]


@given(
    train=st.lists(st.tuples(st.text(max_size=2), st.sampled_from("abc")), min_size=1, max_size=12),
    rows=st.lists(st.tuples(st.text(max_size=2), st.sampled_from("abc")), min_size=1, max_size=4),
    count=st.integers(1, 4),
    by=st.sampled_from([None, "answer"]),
    seed=st.integers(0, 3),
)
def test_examples_are_other_training_rows_that_ask_something_else(
    train: Rows, rows: Rows, count: int, by: str | None, seed: int
) -> None:
    others = [len({question for question, _ in train} - {question}) for question, _ in rows]
    try:
        tasks = drawn(train, rows, count, by=by, seed=seed)
    except DataError:
        assert min(others) < count
        return
    assert min(others) >= count
    for task in tasks:
        pairs = [(one["question"], one["answer"]) for one in task["examples"]]
        assert len(pairs) == len({question for question, _ in pairs}) == count
        assert {*pairs} <= {*train}
        assert task["question"] not in {question for question, _ in pairs}
    assert tasks == drawn(train, rows, count, by=by, seed=seed)


def test_each_value_of_by_has_an_equal_share_whatever_the_label_of_the_row() -> None:
    tasks = drawn(ROWS, ROWS, 4, by="answer")
    assert {tuple(sorted(one["answer"] for one in task["examples"])) for task in tasks} == {
        ("no", "no", "yes", "yes")
    }
    first = Counter(task["examples"][0]["answer"] for task in tasks)
    assert min(first.values()) > len(tasks) // 4  # their order is drawn
    assert any(task["examples"] != other["examples"] for task in tasks for other in tasks)


def test_another_seed_draws_others_and_equal_rows_have_the_same() -> None:
    one, other = (drawn(ROWS, ROWS[:8], 3, seed=seed) for seed in (0, 1))
    assert [task["examples"] for task in one] != [task["examples"] for task in other]
    held = drawn(ROWS, ROWS[4:12], 3, seed=0)
    assert [task["examples"] for task in held[:4]] == [task["examples"] for task in one[4:]]


def written(folder: Path, examples: str = SHOWN, prompt: str = LOOP, extra: str = "") -> Path:
    for name, rows in (("rows", ROWS), ("held", [(f"held {n}", "yes") for n in range(5)])):
        lines = (f'{{"question": "{question}", "answer": "{answer}"}}\n' for question, answer in rows)
        (folder / f"{name}.jsonl").write_text("".join(lines))
    spec = folder / "own.yaml"
    spec.write_text(SPEC.replace("EXAMPLES", examples).replace("PROMPT", prompt) + extra)
    return spec


def test_validation_tasks_show_training_rows_in_their_prompts(tmp_path: Path) -> None:
    flow = rg.load(written(tmp_path))
    questions = {question for question, _ in ROWS}
    for task in flow.tasks("validation", None):
        assert {one["question"] for one in task["examples"]} <= questions
    (task,) = rg.preview(flow, split="validation").tasks
    (asked,) = task.roles[0].asked
    text = asked.messages[-1]["content"]
    assert sum(question in text.split(" yes")[0] or question in text for question in questions) >= 2
    assert "hidden" not in text


ANSWERED = '    examples: "{{ task.answer }}"\n'


def test_examples_are_turns_of_the_chat_where_the_role_says_their_answer(tmp_path: Path) -> None:
    flow = rg.load(written(tmp_path, prompt="{{ task.question }} yes?", extra=ANSWERED))
    (task,) = rg.preview(flow, split="validation").tasks
    (asked,) = task.roles[0].asked
    assert [message["role"] for message in asked.messages] == ["user", "assistant"] * 2 + ["user"]
    carried = task.task["examples"]
    assert [message["content"] for message in asked.messages[:-1]] == [
        text for one in carried for text in (f"{one['question']} yes?", one["answer"])
    ]
    assert asked.messages[-1]["content"] == f"{task.task['question']} yes?"


@pytest.mark.parametrize(
    ("examples", "prompt", "extra", "word"),
    [
        ("2", LOOP, "", "answer"),  # the label is hidden from prompts, in examples as well
        ("{count: 2}", "{{ task.examples[0].answer }} yes", "", "answer"),
        (SHOWN, "{% for one in task.examples %}{{ one.anser }}{% endfor %} yes", "", "anser"),
        (SHOWN, "{{ task.answer }} yes", "", "answer"),  # the row's own label stays hidden
        ("{count: 2, sees: [anser]}", "yes {{ task.question }}", "", "anser"),
        ("{count: 2, by: anser}", "yes {{ task.question }}", "", "anser"),
        ("null", LOOP, "", "examples"),
        ("null", "yes {{ task.question }}", ANSWERED, "examples"),
        (SHOWN, LOOP, ANSWERED, "examples"),  # an example carries none
        ("2", "yes {{ task.question }}", ANSWERED, "answer"),
    ],
)
def test_what_examples_do_not_have_is_a_fault_at_its_place(
    tmp_path: Path, examples: str, prompt: str, extra: str, word: str
) -> None:
    with pytest.raises(rg.SpecError) as raised:
        rg.load(written(tmp_path, examples, prompt, extra))
    lines = (tmp_path / "own.yaml").read_text().splitlines()
    places = [diagnostic.place for diagnostic in raised.value.diagnostics]
    assert any(
        place is not None and lines[place.line - 1][place.column - 1 :].startswith(word) for place in places
    )


def test_too_few_rows_are_an_error_of_the_data(tmp_path: Path) -> None:
    flow = rg.load(written(tmp_path, "{count: 60, sees: [answer]}"))
    with pytest.raises(DataError, match=r"data\.examples"):
        flow.tasks("train", 1)


def test_a_fault_in_the_examples_is_the_only_one_where_a_role_uses_them(tmp_path: Path) -> None:
    with pytest.raises(rg.SpecError) as raised:
        rg.load(written(tmp_path, "{count: 2, sees: [anser]}", "yes {{ task.question }}", ANSWERED))
    assert len(raised.value.diagnostics) == 1


@pytest.mark.parametrize("other", ["checker", "selfcheck"])
def test_the_prompt_of_an_example_reads_no_other_role_whatever_its_name(tmp_path: Path, other: str) -> None:
    more = f"{ANSWERED}    needs: [{other}]\n  {other}: {{prompt: '{{{{ task.question }}}}', parser: text}}\n"
    with pytest.raises(rg.SpecError) as raised:
        rg.load(written(tmp_path, SHOWN, f"yes {{{{ {other}.action }}}} {{{{ task.question }}}}", more))
    assert other in str(raised.value)
