"""Tests of overrides with several values: their syntax, and the points of the grid."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.errors import UsageError
from rolegraph.engine.spec.sweep import grid_points, point_name, split_values, varied_overrides


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("roles.solver.count=1,2,4", ["1", "2", "4"]),
        ("roles.solver.count=1, 2", ["1", "2"]),
        ("roles.solver.count=4", ["4"]),
        ("sampling.stop=[a,b]", ["[a,b]"]),
        ("sampling.stop=[a,b],[c]", ["[a,b]", "[c]"]),
        ("roles.s.parser={tag: a, of: {x: [1,2]}},text", ["{tag: a, of: {x: [1,2]}}", "text"]),
        ("description='a, b',c", ["'a, b'", "c"]),
        ('description="a, b"', ['"a, b"']),
        ("roles.s.when='x in [1,2]',\"y, z\"", ["'x in [1,2]'", '"y, z"']),
        ("description=it's one,it's two", ["it's one", "it's two"]),
        ("x={a: 'b}, c'},d", ["{a: 'b}, c'}", "d"]),
        ("train.epochs=1,1,2", ["1", "2"]),
        ("roles.judge.signal=", [""]),
        ("nothing", [""]),
    ],
)
def test_commas_part_values_but_not_in_brackets_and_quotes(word: str, values: list[str]) -> None:
    key, equals, _ = word.partition("=")
    assert split_values(word) == [f"{key}{equals}{value}" for value in values]


def test_the_last_word_goes_round_first() -> None:
    assert grid_points(["a=1,2", "b=x", "c=3,4"]) == [
        ("a=1", "b=x", "c=3"),
        ("a=1", "b=x", "c=4"),
        ("a=2", "b=x", "c=3"),
        ("a=2", "b=x", "c=4"),
    ]
    assert varied_overrides(["a=1,2", "b=x", "c=3,4"], ("a=1", "b=x", "c=4")) == ("a=1", "c=4")


def test_an_empty_value_and_a_grid_of_one_point_are_mistakes() -> None:
    with pytest.raises(UsageError, match="empty value"):
        grid_points(["a=1,,2"])
    with pytest.raises(UsageError, match="several values"):
        grid_points(["a=1", "b=[1,2]"])
    with pytest.raises(UsageError, match="several values"):
        grid_points([])


@given(st.lists(st.text(alphabet="ab12.=[]{}'\", /\\é\n", min_size=1), min_size=1, max_size=3, unique=True))
def test_points_have_names_that_a_folder_can_have_and_no_two_the_same(words: list[str]) -> None:
    names = {point_name([word]) for word in words}
    assert len(names) == len(words)
    assert all(len(name.encode()) < 255 and "/" not in name and "\n" not in name for name in names)
    assert point_name(["train.learning_rate=1e-3", "roles.solver.count=2"]) == (
        "train.learning_rate=1e-3,roles.solver.count=2"
    )
