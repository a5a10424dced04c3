"""Tests of the columns of a table: which is the label, of what kind, and what the prompts ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.errors import UsageError
from rolegraph.starter.columns import Columns, Kind, read_columns


def table(**columns: Sequence[Any]) -> list[dict[str, Any]]:
    size = max(map(len, columns.values()))
    filled = {name: [values[n % len(values)] for n in range(size)] for name, values in columns.items()}
    return [{"id": f"row-{n}", **{name: values[n] for name, values in filled.items()}} for n in range(size)]


QUESTIONS = [f"question {n}" for n in range(40)]


def read(rows: list[dict[str, Any]], label: str | None = None) -> Columns:
    return read_columns(rows, label, "rows.csv")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["good", "bad", "so-so"], "class"),
        (["0", "1"], "class"),
        (["True", "False"], "boolean"),
        ([True, False], "boolean"),
        (["yes", "No"], "boolean"),
        (["1", "2", "3", "4", "5"], "rating"),
        ([1, 2, 3], "rating"),
        ([str(n * 7) for n in range(40)], "number"),
        ([0.5, 2, 3.25, -1], "number"),
        ([f"word{n}" for n in range(40)], "text"),
        ([f"1999-01-{n + 1:02}" for n in range(28)], "text"),
        ([f"a long answer {n} " * 9 for n in range(40)], "long text"),
        ([{"a": n} for n in range(40)], "fields"),
        ([f'{{"a": {n}}}' for n in range(40)], "fields"),
        (["Good", "good", "bad"], "text"),  # two that differ in case alone cannot be told apart in an answer
    ],
)
def test_values_decide_the_kind(values: list[Any], kind: Kind) -> None:
    columns = read(table(question=QUESTIONS, answer=values))
    assert columns.label.kind == kind
    assert sum(columns.label.classes.values()) == (40 if kind in ("class", "boolean", "rating") else 0)


@pytest.mark.parametrize(
    ("columns", "label"),
    [
        ({"text": QUESTIONS, "Label": ["a", "b"]}, "Label"),
        ({"answer": ["a", "b"], "text": QUESTIONS}, "answer"),
        ({"text": QUESTIONS, "so called": ["a", "b"]}, "so called"),  # the last of two
        ({"text": QUESTIONS, "kind of": ["a", "b"], "note": QUESTIONS}, "kind of"),  # alone has few values
    ],
)
def test_one_column_that_fits_is_the_label(columns: dict[str, list[str]], label: str) -> None:
    assert read(table(**columns)).label.column == label


@pytest.mark.parametrize(
    ("columns", "named", "words"),
    [
        (
            {"text": QUESTIONS, "answer": ["a", "b"], "label": ["c", "d"]},
            None,
            ["'answer'", "'label'", "--label"],
        ),
        ({"one": QUESTIONS, "two": QUESTIONS, "three": QUESTIONS}, None, ["'one'", "'three'", "--label"]),
        ({"text": QUESTIONS, "answer": ["a", "b"]}, "anser", ["'anser'", "'answer'"]),
        ({"text": QUESTIONS, "answer": ["a"]}, None, ["'answer'", "'a'"]),
        ({"text": QUESTIONS, "answer": [None]}, None, ["'answer'"]),
        ({"answer": ["a", "b"]}, None, ["'answer'"]),  # nothing to ask about
        ({"only": QUESTIONS}, None, ["'only'", "--label"]),
    ],
)
def test_what_cannot_be_known_is_an_error_that_lists_the_columns(
    columns: dict[str, list[Any]], named: str | None, words: list[str]
) -> None:
    with pytest.raises(UsageError) as raised:
        read(table(**columns), named)
    assert all(word in str(raised.value) for word in words)


def test_columns_that_give_the_label_away_or_say_nothing_are_left_out() -> None:
    columns = read(
        table(
            number=[*map(str, range(40))],
            text=QUESTIONS,
            source=["web"],
            code=["0", "1"],
            label=["bad", "good"],
        )
    )
    assert columns.inputs == ["text"]
    assert {*columns.left_out} == {"number", "source", "code"}


@given(st.lists(st.text(min_size=1, max_size=12), min_size=2, max_size=6, unique=True))
def test_fields_are_names_that_templates_read_and_all_differ(names: list[str]) -> None:
    names = [name for name in names if name.strip() and name != "id"]
    if len(names) < 2:
        return
    rows = table(**{name: [f"{name} {n}" for n in range(30)] for name in names})
    fields = read(rows, names[-1]).fields
    assert {*fields} == {*names}
    assert len({*fields.values()}) == len(names)
    assert all(
        name.isidentifier() and name.isascii() and not name.startswith("_") for name in fields.values()
    )
    assert not {"id", "examples", *dir(dict)} & {*fields.values()}
