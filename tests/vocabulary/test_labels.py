"""Tests of rows without a label: refused with their place in a file, and a failure of the turn elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rolegraph as rg
from rolegraph import api
from rolegraph.engine.compile import Plan, check_file
from rolegraph.engine.errors import DataError
from rolegraph.engine.vocabulary import MissingLabel, Reward, RewardFacts, RewardInputs, Score
from tests.cli.conftest import Command
from tests.cli.conftest import rolegraph as rolegraph
from tests.edge import ScriptedModel, episode, limited, write_spec

SPEC: dict[str, Any] = {
    "rolegraph": 2,
    "name": "labels",
    "data": {"validation": "rows.jsonl"},
    "roles": {
        "solver": {
            "prompt": "{{ task.question }} <answer>",
            "parser": {"tag": "answer"},
            "reward": "exact_match",
        }
    },
}
REWARDS: list[Any] = [
    "exact_match",
    "f1",
    "math",
    "close_to",
    "action == task.answer",
    "action in task.answer",
    {"sum": {"right": "exact_match", "short": {"length": {"under": 9}}}},
    {"json_field": "a", "field": "answer"},
    {"python": "action == task['answer']"},
]


def spec(folder: Path, rows: Sequence[object], reward: object = "exact_match", **data: object) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text(text, encoding="utf-8")
    solver = {**SPEC["roles"]["solver"], "reward": reward}
    written = {**SPEC, "data": data or SPEC["data"], "roles": {"solver": solver}}
    return write_spec(folder, json.dumps(written))


def row(number: int, answer: object) -> dict[str, object]:
    return {"id": f"q{number}", "question": "How many?", "answer": answer}


@pytest.mark.parametrize("reward", REWARDS, ids=str)
def test_a_row_without_a_label_is_refused_with_its_line(reward: object, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    pytest.importorskip("pydantic_monty")
    path = spec(tmp_path, [row(1, 7), row(2, None), row(3, 8), row(4, "")], reward)
    with pytest.raises(DataError, match=r"rows\.jsonl:2 \(and 1 more: 4\): task\.answer is null"):
        rg.load(path, allow=["python"]).tasks()


@pytest.mark.parametrize("answer", [None, "", " \t", [], ["x", None], ["", "x"]], ids=repr)
def test_every_form_of_a_missing_label_is_a_fault(answer: object, tmp_path: Path, rolegraph: Command) -> None:
    spec(tmp_path, [row(1, "x"), row(2, answer)])
    checked = rolegraph("validate", "spec.yaml")
    assert checked.returncode == 2
    assert "rows.jsonl:2: task.answer" in checked.stderr


def test_an_empty_cell_of_a_csv_file_is_a_fault_with_its_line(tmp_path: Path, rolegraph: Command) -> None:
    spec(tmp_path, [], validation="rows.csv")
    (tmp_path / "rows.csv").write_text('question,answer\n"a\nb",1\nc,\n', encoding="utf-8")
    checked = rolegraph("validate", "spec.yaml")
    assert checked.returncode == 2
    assert "rows.csv:4: task.answer is empty" in checked.stderr


def test_nan_in_a_parquet_file_is_a_fault_with_its_row(tmp_path: Path, rolegraph: Command) -> None:
    pyarrow: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    spec(tmp_path, [], validation="rows.parquet")
    columns = {"question": ["a", "b"], "answer": [2.0, float("nan")]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "rows.parquet")
    checked = rolegraph("validate", "spec.yaml")
    assert checked.returncode == 2
    assert "rows.parquet:2: task.answer is NaN" in checked.stderr


def test_the_rows_of_both_sides_of_a_split_are_checked(tmp_path: Path) -> None:
    rows = [row(number, None if number == 7 else number) for number in range(1, 20)]
    flow = rg.load(spec(tmp_path, rows, train="rows.jsonl", split=0.5))
    for split in ("train", "validation"):
        with pytest.raises(DataError, match=r"rows\.jsonl:7: "):
            flow.tasks(split=split)


@pytest.mark.parametrize(
    ("reward", "answer"),
    [
        ({"json_field": "a", "field": "answer"}, []),
        ({"json_field": "a", "field": "answer"}, [1, None]),
        ("action == 'x' and task.answer is none", None),
        ("1 if task.answer else 0.5", ""),
        ({"length": {"under": 9}}, None),
        ("exact_match", "None"),
        ("exact_match", False),
        ("exact_match", 0),
    ],
    ids=str,
)
def test_no_other_value_is_a_missing_label(reward: object, answer: object, tmp_path: Path) -> None:
    (task,) = rg.load(spec(tmp_path, [row(1, answer)], reward)).tasks()
    assert task["answer"] == answer


def turn(plan: Plan, text: str, task: dict[str, object]) -> tuple[float | None, bool, list[str]]:
    done = asyncio.run(episode(plan, limited(plan, ScriptedModel(lambda _: text)), {**task, "id": "t"}))
    (trajectory,) = done["solver"]
    failures = [failure["name"] for failure in done.metadata.get("failures", ())]
    return trajectory.reward, trajectory.is_correct, failures


@pytest.mark.parametrize("reward", REWARDS[:-1], ids=str)
def test_a_task_from_elsewhere_without_a_label_fails_its_turn(reward: object, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    plan = check_file(spec(tmp_path, [row(1, "x")], reward)).valid()
    for text, answer in (("None", None), ("nan", float("nan")), ("", ""), ("none", ["x", None])):
        earned, is_correct, failures = turn(plan, f"<answer>{text}</answer>", row(2, answer))
        if reward == REWARDS[7] and isinstance(answer, list):  # a list is the value itself there
            assert (earned, is_correct) == (0.0, False)
        else:
            assert (is_correct, failures) == (False, ["reward_error"])


def test_a_reward_of_one_s_own_gets_the_same_check(tmp_path: Path, registries: None) -> None:
    @rg.reward("own_text", labels=["answer"], pure=True)
    def own_text(task: api.Task, action: str) -> bool:
        return action == str(task["answer"])

    with pytest.raises(DataError, match=r"rows\.jsonl:1: task\.answer is null"):
        rg.load(spec(tmp_path, [row(1, None)], "own_text")).tasks()
    plan = check_file(spec(tmp_path, [row(1, "x")], "own_text")).valid()
    assert turn(plan, "<answer>None</answer>", row(1, None))[1:] == (False, ["reward_error"])
    assert turn(plan, "<answer>x</answer>", row(1, "x")) == (1.0, True, [])


def test_a_reward_of_a_package_may_leave_a_label_out() -> None:
    def score(task: Any, action: Any, inputs: RewardInputs) -> Score:
        return Score(1.0, True)

    strict = Reward(score, RewardFacts(fields=("gold",), labels=("gold",)))
    lenient = Reward(score, RewardFacts(fields=("gold",), labels=("gold",), required=()))
    with pytest.raises(MissingLabel, match=r"task\.gold is null"):
        strict.score({"id": "t", "gold": None}, "x", RewardInputs())
    with pytest.raises(MissingLabel, match=r"task\.gold is not in the row"):
        strict.score({"id": "t"}, "x", RewardInputs())
    assert lenient.score({"id": "t", "gold": None}, "x", RewardInputs()) == Score(1.0, True)
