"""JSON in a model's answer: its place, its check against a schema, and the limits of both."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from rolegraph.engine.vocabulary import BadOptions, ParseFailure
from rolegraph.roles.json_text import example_of
from tests.roles.vocabulary import parser, read

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (' {"a": 1} ', {"a": 1}),
        ("[1, 2]", [1, 2]),
        ("7", 7),
        ('Here it is:\n```json\n{"a": 1}\n```\nDone.', {"a": 1}),
        ('```\n{"a": 1}\n```', {"a": 1}),
        ('I say {"c": 2} and {"a": {"b": [1]}}.', {"a": {"b": [1]}}),
        ('```json\n{"a": 1}\n```\n```json\n{"a": 2}\n```\nand {"a": 3}', {"a": 2}),
        ("the set {x} holds [1, 2]", [1, 2]),
    ],
)
def test_json_is_the_whole_answer_or_a_fence_or_the_last_value_in_it(text: str, value: Any) -> None:
    assert read("json", text) == value


@given(VALUES)
def test_any_json_is_read_as_it_was_written(value: Any) -> None:
    assert read("json", json.dumps(value)) == value


@given(st.dictionaries(st.text(), VALUES, min_size=1))
def test_an_object_is_found_between_words(value: dict[str, Any]) -> None:
    text = json.dumps(value)
    assume("<" not in text)  # which may begin the tag of a thought, and a thought is cut
    assert read("json", f"I think: {text} - that is it") == value


@pytest.mark.parametrize(
    "text", ["", "none", "{'a': 1}", '{"a": 1', "NaN", "1e999", '"\\ud800"', "[" * 100 + "]" * 100]
)
def test_what_is_no_json_or_could_not_be_written_again_is_malformed(text: str) -> None:
    with pytest.raises(ParseFailure) as raised:
        read("json", text)
    assert raised.value.name == "malformed_output"


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from('[]{}",:0123456789.eE-\\udNaN'), max_size=80))
def test_whatever_is_read_can_be_written(text: str) -> None:
    try:
        value = read("json", text)
    except ParseFailure:
        return
    to_json(value)


def test_a_schema_says_where_the_answer_does_not_fit() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    yaml = {"json": schema}
    assert read(yaml, '{"n": 3}') == {"n": 3}
    with pytest.raises(ParseFailure, match=r"at \$\.n: 'three' is not of type 'integer'"):
        read(yaml, '{"n": "three"}')


def test_a_schema_may_refer_to_its_own_parts() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "n": {"$ref": "#/$defs/n"}}}
    yaml = {"json": {**tree, "$defs": {"n": {"type": "integer"}}}}
    assert read(yaml, '{"left": {"left": {"n": 1}}}') == {"left": {"left": {"n": 1}}}
    with pytest.raises(ParseFailure, match=r"left\.left\.n"):
        read(yaml, '{"left": {"left": {"n": "1"}}}')


def test_a_schema_s_pattern_is_searched_without_backtracking() -> None:
    yaml = {"json": {"pattern": "^(a+)+$"}}
    assert read(yaml, '"aaa"') == "aaa"
    with pytest.raises(ParseFailure, match="does not match"):
        read(yaml, json.dumps("a" * 10_000 + "!"))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "nope"}, "not a JSON Schema"),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, "only refer to itself"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "only refer to itself"),
        ({"$ref": "#/$defs/gone"}, "a place that it does not have"),
        ({"pattern": "(?=x)"}, "lookarounds"),
        ({"patternProperties": {"(a+)+$": {}}}, "not supported"),
        ({"items": {"unevaluatedProperties": False}}, "not supported; use additionalProperties"),
        (["a"], "dictionary"),
    ],
)
def test_a_schema_that_cannot_be_used_says_why_before_anything_runs(schema: Any, message: str) -> None:
    with pytest.raises(BadOptions, match=message):
        parser({"json": schema})


def test_a_schema_that_refers_to_itself_without_end_fails_the_answer_and_no_more() -> None:
    with pytest.raises(ParseFailure, match="beyond what the schema can check"):
        read({"json": {"$ref": "#"}}, "{}")


def test_a_schema_that_multiplies_is_stopped() -> None:
    levels = {
        f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}, {"$ref": f"#/$defs/l{n + 1}"}]} for n in range(30)
    }
    yaml = {"json": {"$ref": "#/$defs/l0", "$defs": {**levels, "l30": {"type": "object"}}}}
    made = parser(yaml)
    for _ in range(2):
        with pytest.raises(ParseFailure, match="limit: schema_work"):
            made.parse("{}", {})


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"type": "integer"}}, [1] * 200_000),
        ({"items": {}}, [1] * 200_000),
        ({"contains": {"type": "string"}}, [1] * 200_000),
        ({"uniqueItems": True}, [[[n]] for n in range(70_000)]),
        ({"items": {"enum": [[0] * 90 + [n] for n in range(90)]}}, [[0] * 91] * 2_000),
        ({"items": {"required": [str(n) for n in range(5_000)]}}, [{}] * 100),
        ({"additionalProperties": {}}, {str(n): 1 for n in range(200_000)}),
    ],
    ids=["type", "anything", "contains", "unique", "enum", "required", "additional"],
)
def test_no_answer_takes_more_than_so_much_work_to_check(schema: Any, value: Any) -> None:
    with pytest.raises(ParseFailure, match="limit: schema_work") as failure:
        read({"json": schema}, json.dumps(value))
    assert failure.value.name == "malformed_output"


def test_a_long_honest_answer_is_checked_in_full() -> None:
    member = {"type": "object", "properties": {k: {"type": "integer"} for k in "abc"}, "required": ["a", "b"]}
    answer = [{"a": 1, "b": 2, "c": 3}] * 4_000
    assert read({"json": {"type": "array", "items": member}}, json.dumps(answer)) == answer


def test_an_example_of_lists_in_lists_stays_small() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(20):
        schema = {"type": "array", "minItems": 1000, "items": schema}
    (example,) = parser({"json": schema}).examples
    assert len(example) < 200


def test_an_example_of_a_list_of_words_holds_each_of_them_as_far_as_it_may() -> None:
    words = {"type": "array", "items": {"enum": ["algebra", "code", "search"]}}
    assert example_of(words) == ["algebra", "code", "search"]
    assert example_of({**words, "maxItems": 2}) == ["algebra", "code"]
