"""Tests of data sets from rows: one file that is divided into training and validation rows."""

from __future__ import annotations

import csv
import io
import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rolegraph as rg
from rolegraph import api
from rolegraph.engine.records import Task
from rolegraph.engine.vocabulary import DataError, Dataset, shared_rows
from rolegraph.engine.vocabulary.rows import dataset_of, part_of

Rows = Sequence[tuple[str, int]]
SPLITS: tuple[api.Split, ...] = ("train", "validation")
ROWS: Rows = [(f"question {n}", n) for n in range(200)]
SPEC = """
rolegraph: 2
name: own
model: local:smollm2-135m
data: {train: rows.csv, split: 0.25}
roles:
  solver:
    prompt: "{{ task.question }} <answer>"
    parser: {tag: answer}
    reward: exact_match
    estimator: grpo
"""


def whole(rows: Rows) -> Dataset:
    table = [(number, {"question": text, "answer": value}) for number, (text, value) in enumerate(rows, 1)]
    return dataset_of(lambda: iter(table), hidden=[], stem="rows", split="train", shown="rows.csv")


def part(rows: Rows, split: api.Split, *, share: float = 0.25, seed: int = 0) -> list[Task]:
    try:
        return [*part_of(whole(rows), split, share=share, seed=seed).rows(None)]
    except DataError:  # no row falls into the split
        return []


@given(
    rows=st.lists(st.tuples(st.text(max_size=3), st.integers(0, 2)), min_size=1, max_size=20),
    added=st.lists(st.tuples(st.text(max_size=3), st.integers(0, 2)), max_size=10),
    seed=st.integers(),
    data=st.data(),
)
def test_rows_change_sides_in_one_direction_only_when_others_are_added(
    rows: Rows, added: Rows, seed: int, data: st.DataObject
) -> None:
    new = [row for row in added if row not in rows]
    more = data.draw(st.permutations([*rows, *new]))
    before, after = (
        {
            split: {task["id"]: (task["question"], task["answer"]) for task in part(table, split, seed=seed)}
            for split in SPLITS
        }
        for table in (rows, more)
    )
    assert not after["train"].keys() & after["validation"].keys()
    assert len(after["train"]) + len(after["validation"]) == len(more) or not all(after.values())
    kept = after["train"] | after["validation"]
    assert all(kept.get(name, row) == row for side in before.values() for name, row in side.items())
    moved = [after["train"].keys() & before["validation"], after["validation"].keys() & before["train"]]
    assert not all(moved)
    if not new:
        assert before == after


@pytest.mark.parametrize("count", [2, 3, 5, 10, 48, 60, 1_000])
@pytest.mark.parametrize("share", [0.001, 0.1, 0.2, 0.5, 0.9, 0.999])
def test_as_many_rows_are_held_out_as_the_share_says(count: int, share: float) -> None:
    rows = [(f"question {n}", n) for n in range(count)]
    for seed in range(5):
        held_out, rest = (part(rows, split, share=share, seed=seed) for split in ("validation", "train"))
        assert abs(len(held_out) - share * count) <= 0.5 or 1 in (len(held_out), len(rest))
        assert held_out and rest and len(held_out) + len(rest) == count


def test_equal_rows_are_on_one_side() -> None:
    sides = [part([row for row in ROWS for _ in range(2)], split) for split in ("train", "validation")]
    assert sum(map(len, sides)) == 400 and all(sides)
    assert not shared_rows(*sides)


def test_the_share_of_the_rows_is_held_out_and_another_seed_holds_out_others() -> None:
    held_out = part(ROWS, "validation")
    assert len(held_out) == 50
    others = part(ROWS, "validation", seed=1)
    assert {task["id"] for task in others} != {task["id"] for task in held_out}
    both = {task["id"]: task for task in held_out}.keys() & {task["id"] for task in others}
    assert both, "a row's id does not depend on the seed"


def test_ids_of_the_rows_are_kept() -> None:
    table = [(n, {"id": f"own-{n}", "question": str(n)}) for n in range(1, 20)]
    own = dataset_of(lambda: iter(table), hidden=[], stem="rows", split="train", shown="rows.csv")
    assert {task["id"] for task in part_of(own, "train", share=0.5, seed=0).rows(None)} < {
        row["id"] for _, row in table
    }


def test_a_limit_counts_the_rows_of_its_split() -> None:
    assert len([*part_of(whole(ROWS), "validation", share=0.25, seed=0).rows(5)]) == 5


def test_any_limit_is_a_number_of_rows() -> None:
    assert len([*whole(ROWS).rows(10**40)]) == len(ROWS)
    assert [*part_of(whole(ROWS), "train", share=0.25, seed=0).rows(10**40)]


def test_a_split_without_a_row_says_so() -> None:
    with pytest.raises(DataError, match="validation"):
        next(part_of(whole(ROWS[:1]), "validation", share=1e-9, seed=0).rows(None))


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    text = io.StringIO()
    csv.writer(text).writerows([("question", "answer"), *ROWS])
    (tmp_path / "rows.csv").write_text(text.getvalue())
    (tmp_path / "own.yaml").write_text(SPEC)
    return tmp_path / "own.yaml"


def test_a_spec_divides_one_file(spec: Path) -> None:
    flow = rg.load(spec)
    train, validation = flow.tasks("train"), flow.tasks("validation")
    assert len(train) + len(validation) == len(ROWS)
    assert not shared_rows(train, validation)
    assert flow.tasks(limit=3) == validation[:3], "a run takes the held-out rows"
    sent = pickle.loads(pickle.dumps(flow.plan.data["validation"]))  # as a plan goes to another process
    assert [*sent.rows(None)] == validation


@pytest.mark.parametrize("option", ["split: 0.9", "seed: 1"])
def test_a_file_divides_no_rows_by_itself(option: str, spec: Path) -> None:
    data = f"{{train: {{file: rows.csv, {option}}}}}"
    (fault,) = (d for d in rg.check(spec, f"data={data}").diagnostics if d.severity == "error")
    assert "has no option" in fault.message


@pytest.mark.parametrize(
    "override",
    ["data.split=1", "data.split=0", "data.split={seed: 1}", "data.validation=rows.csv", "data.train=null"],
)
def test_what_cannot_be_divided_is_a_fault_in_the_data(override: str, spec: Path) -> None:
    result = rg.check(spec, override)
    (fault,) = [diagnostic for diagnostic in result.diagnostics if diagnostic.severity == "error"]
    assert "split" in fault.message or "share" in fault.message


def test_validation_rows_that_are_training_rows_are_a_warning(spec: Path) -> None:
    overrides = ("data.split=null", "data.validation=rows.csv")
    (warning,) = rg.check(spec, *overrides).diagnostics
    assert warning.severity == "warning" and "200 validation rows" in warning.message
    assert not rg.check(spec).diagnostics


def test_more_validation_tasks_than_rows_are_a_warning_with_both_numbers(spec: Path) -> None:
    (warning,) = rg.check(spec, "train.validation.tasks=51").diagnostics
    assert warning.severity == "warning" and warning.place.file == "command line"
    assert "51" in warning.message and "50 rows" in warning.message
    assert not rg.check(spec, "train.validation.tasks=50").diagnostics
    assert not rg.check(spec).diagnostics, "a default asks for nothing"
