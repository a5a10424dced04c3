"""What each parser reads, and by what name it fails."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.episode import FailureName
from engine.registry import BadOptions, Call
from roles import parsers
from roles.vocabulary import ParseFailure, Parser, RoleView

CANDIDATES = {"solver": [RoleView(1, "first"), RoleView(2, "second"), RoleView(3, "third")]}


def made(raw: Any) -> Parser:
    return parsers.build(Call.parse(raw))


def read(raw: Any, response: str) -> Any:
    return made(raw).parse(response, CANDIDATES)


def failure(raw: Any, response: str) -> FailureName:
    with pytest.raises(ParseFailure) as caught:
        read(raw, response)
    return caught.value.name


@pytest.mark.parametrize(
    ("parser", "response", "action"),
    [
        ({"tag": "answer"}, "so <answer> 3 + 4 </answer>, done", "3 + 4"),
        ({"tag": "answer"}, "<ANSWER>x</Answer>", "x"),
        ({"tag": "answer", "keep_tag": True}, "<answer>x</answer>", "<answer>x</answer>"),
        ({"tag": "answer"}, "<answer>a</answer><answer>b</answer>", "a"),
        ({"tag": "answer", "which": "last"}, "<answer>a</answer><answer>b</answer>", "b"),
        ({"tag": "verdict", "one_of": ["correct", "incorrect"]}, "<verdict>Correct</verdict>", "correct"),
        ({"choice": "solver"}, "I take <answer> 2 </answer>", "second"),
        ({"regex": "is (\\d+)"}, "it is 12, or is 13", "12"),
        ({"regex": "is (?P<action>\\w+)", "which": "last"}, "is a, is b", "b"),
        ({"regex": "\\d+"}, "it is 12", "12"),
        ("json", '{"a": [1, 2]}', {"a": [1, 2]}),
        ("json", 'Here:\n```json\n{"a": 1}\n```', {"a": 1}),
        ("json", 'I think {"a": {"b": 2}} fits', {"a": {"b": 2}}),
        ({"one_of": ["yes", "no"]}, "Well, YES.", "yes"),
        ("text", "  all of it ", "all of it"),
    ],
)
def test_a_response_is_read(parser: Any, response: str, action: Any) -> None:
    assert read(parser, response) == action


MALFORMED, UNPARSEABLE = FailureName.MALFORMED_OUTPUT, FailureName.UNPARSEABLE_CHOICE


@pytest.mark.parametrize(
    ("parser", "response", "name"),
    [
        ({"tag": "answer"}, "<answer>3 + 4", MALFORMED),
        ({"tag": "verdict", "one_of": ["correct"]}, "<verdict>maybe</verdict>", MALFORMED),
        ({"choice": "solver"}, "the second one", MALFORMED),
        *(
            ({"choice": "solver"}, f"<answer>{n}</answer>", UNPARSEABLE)
            for n in ("0", "-1", "4", "2.0", "one", "")
        ),
        ({"regex": "is (\\d+)"}, "none", MALFORMED),
        ("json", "no object", MALFORMED),
        ("json", "NaN", MALFORMED),
        ({"json": {"schema": {"type": "object", "required": ["a"]}}}, '{"b": 1}', MALFORMED),
        ({"one_of": ["yes", "no"]}, "yes and no", MALFORMED),
        ({"one_of": ["yes", "no"]}, "yesterday", MALFORMED),
        ("text", "   ", MALFORMED),
    ],
)
def test_what_cannot_be_read_has_a_name(parser: Any, response: str, name: FailureName) -> None:
    assert failure(parser, response) is name


@pytest.mark.parametrize(
    "raw",
    [
        {"tag": "<answer>"},
        {"regex": "(open"},
        {"json": {"schema": {"type": 7}}},
        {"one_of": []},
        {"tag": ["x"]},
    ],
)
def test_bad_options_are_refused_when_the_parser_is_made(raw: Any) -> None:
    with pytest.raises(BadOptions):
        made(raw)


def test_a_pattern_that_backtracks_forever_is_stopped() -> None:
    assert failure({"regex": "(a|aa)+$"}, "a" * 5000 + "b") is MALFORMED


EVERY = [
    {"tag": "answer"},
    {"tag": "answer", "which": "last", "one_of": ["a"]},
    {"choice": "solver"},
    {"regex": "<(.*?)>"},
    "json",
    {"one_of": ["yes", "no"]},
    "text",
]
PIECES = st.sampled_from(
    ["<answer>", "</answer>", "<ANSWER>", "1", "-", "{", "}", "[", "]", '"', ":", "yes", "\n", "\x00"]
)


@given(st.sampled_from(EVERY), st.one_of(st.text(), st.lists(PIECES).map("".join)))
def test_any_text_is_read_or_fails_by_name(raw: Any, response: str) -> None:
    parser = made(raw)
    try:
        parser.parse(response, CANDIDATES)
    except ParseFailure as error:
        assert error.name in (MALFORMED, UNPARSEABLE)


@given(st.lists(st.text(), min_size=1, max_size=9), st.data())
def test_the_kth_candidate_is_chosen_by_k(actions: list[str], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(actions)))
    upstream = {"solver": [RoleView(i, action) for i, action in enumerate(actions, 1)]}
    assert made({"choice": "solver"}).parse(f"<answer>{k}</answer>", upstream) == actions[k - 1]
