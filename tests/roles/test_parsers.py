"""Parsers: the actions that they read, their failures, and hostile text."""

from __future__ import annotations

import contextlib
import decimal
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rolegraph as rg
from rolegraph.engine.records import FailureName
from rolegraph.engine.vocabulary import BadOptions, ParseFailure, Parser, View, Views
from tests.counting import calls
from tests.roles.vocabulary import parser, read, solvers

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "data" / "rllm_solver_judge_replay.json").read_text()
)


def failure(yaml: object, text: str, *candidates: Any) -> FailureName:
    with pytest.raises(ParseFailure) as raised:
        read(yaml, text, solvers(*candidates))
    return raised.value.name


# tag


def test_a_tag_holds_the_action_without_the_space_around_it() -> None:
    assert read({"tag": "answer"}, "so <answer> 3 + 4\n</answer> it is") == "3 + 4"


def test_a_tag_s_case_does_not_count_unless_asked_for() -> None:
    assert read({"tag": "answer"}, "<ANSWER>7</Answer>") == "7"
    assert failure({"tag": "answer", "ignore_case": False}, "<ANSWER>7</ANSWER>") == "malformed_output"


def test_the_last_of_several_tags_counts() -> None:
    text = "<answer>1</answer> no, <answer>2</answer></answer>"
    assert read("text", text) == text
    assert read({"tag": "answer"}, text) == "2"
    assert read({"tag": "answer"}, "<answer>1 <answer>2</answer> <answer>3") == "2"


def test_keep_tag_leaves_the_tags_on_as_the_spec_writes_them() -> None:
    assert read({"tag": "answer", "keep_tag": True}, "<ANSWER> 7 </ANSWER>") == "<answer>7</answer>"


@pytest.mark.parametrize(
    "text", ["", "7", "<answer>7", "7</answer>", "</answer>7<answer>", "< answer>7</answer>"]
)
def test_text_without_the_whole_tag_is_malformed(text: str) -> None:
    assert failure({"tag": "answer"}, text) == "malformed_output"


def test_words_take_a_listed_one_in_the_list_s_own_spelling() -> None:
    verdict = {"tag": "verdict", "as": ["Correct", "incorrect"]}
    assert read(verdict, "<verdict> CORRECT </verdict>") == "Correct"
    assert failure(verdict, "<verdict>perhaps</verdict>") == "malformed_output"


def test_the_default_is_what_later_roles_see() -> None:
    assert parser({"tag": "answer", "default": "No solution found"}).default == "No solution found"
    assert parser({"tag": "answer"}).default == ""


@pytest.mark.parametrize(
    "options",
    [
        {"tag": "<answer>"},
        {"tag": ""},
        {"tag": "a b"},
        {"tag": "a", "which": "last"},
        {"tag": "a", "one_of": ["x"]},
        {"tag": "a", "as": []},
        {"tag": "a", "as": ["x", "X "]},
        {"tag": "a", "as": [1]},
        {"tag": "a", "as": "nubmer"},
        {"tag": "a", "as": {"number": {"most": 3}}},
        {"tag": "a", "as": 3},
        {"tag": "a", "as": "number", "keep_tag": True},
        {"tag": "a", "keep_tags": True},
        {"tag": "a", "default": 3},
        {"tag": "a", "as": "number", "default": "none"},
        {"tag": "a", "as": ["x"], "default": 3},
        {"tags": {}},
        {"tags": {"<a>": "text"}},
        {"tags": {"a": "nubmer"}},
        {"tags": {"a": "number"}, "default": {"b": 1}},
        {"number": {"min": 3, "max": 2}},
        {"json": {"type": "object"}, "default": []},
        {"json": {"schema": {"type": "object"}}},
        {"json": {"default": {}}},
    ],
)
def test_options_that_make_no_sense_are_refused(options: object) -> None:
    with pytest.raises(BadOptions):
        parser(options)


# what the text of a place is


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ({"tag": "a"}, "<a>{}</a>"),
        ({"fence": "any"}, "```\n{}\n```"),
        ("boxed", r"so \boxed{{{}}}"),
        ({"regex": "= (.*)"}, "it is = {}"),
    ],
    ids=str,
)
def test_every_place_may_hold_every_kind_of_text(place: object, text: str) -> None:
    places = {place: None} if isinstance(place, str) else place
    assert read({**places, "as": "number"}, text.format("about 7")) == 7
    assert read({**places, "as": ["Red", "blue"]}, text.format("red")) == "Red"
    assert read({**places, "as": {"json": {"type": "array"}}}, text.format("[7]")) == [7]
    assert read({**places, "as": "text"}, text.format("x")) == read(place, text.format("x")) == "x"
    assert failure({**places, "as": "number"}, text.format("x")) == "malformed_output"
    made = parser({**places, "as": ["Red", "blue"], "default": "none"})
    assert made.gives == {"enum": ["Red", "blue", "none"]}
    assert [made.parse(it, {}) for it in made.examples] in ([], ["Red", "blue"])


def test_a_number_outside_of_its_bounds_is_malformed_or_clipped() -> None:
    score = {"min": 0, "max": 10}
    assert read({"number": score}, "10") == 10
    with pytest.raises(ParseFailure, match="11 is above 10"):
        read({"number": score}, "11")
    with pytest.raises(ParseFailure, match=r"<s>: -0\.5 is below 0"):
        read({"tag": "s", "as": {"number": score}}, "<s>-0.5</s>")
    clipped = {"tag": "s", "as": {"number": {**score, "clip": True}}}
    assert [read(clipped, f"<s>{text}</s>") for text in ("-0.5", "7", "11")] == [0, 7, 10]
    assert parser({"number": {"min": 3}}).examples == ("3",)


def test_several_tags_are_the_fields_of_the_action() -> None:
    yaml = {"tags": {"ratings": {"json": {"type": "array"}}, "answer": "text", "sure": ["yes", "no"]}}
    text = "<answer>x</answer> <ratings>[1, 2]</ratings> <answer>y</answer> <sure>Yes</sure>"
    assert read(yaml, text) == {"ratings": [1, 2], "answer": "y", "sure": "yes"}
    with pytest.raises(ParseFailure, match=r"no <answer>…</answer>"):
        read(yaml, "<ratings>[]</ratings>")
    made = parser({**yaml, "default": {"ratings": [], "answer": "", "sure": "no"}})
    assert made.default == {"ratings": [], "answer": "", "sure": "no"}
    assert [made.parse(it, {})["sure"] for it in made.examples] == ["yes", "no"]
    assert {"<sure>", "</answer>"} <= {*made.strips} and ("<ratings>",) in made.expects


def test_a_parser_of_one_s_own_reads_the_text_of_a_place(registries: None) -> None:
    @rg.parser("halved")
    def halved(text: str, *, by: int = 2) -> float:
        return float(text) / by

    assert read({"tag": "x", "as": "halved"}, "<x>3</x>") == 1.5
    assert read({"tags": {"x": {"halved": {"by": 3}}}}, "<x>3</x>") == {"x": 1}
    assert failure({"tag": "x", "as": "halved"}, "<x>three</x>") == "malformed_output"


# choice


@given(count=st.integers(1, 40), data=st.data())
def test_every_valid_number_chooses_that_candidate(count: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(1, count))
    space = data.draw(st.sampled_from(["", " ", "\n"]))
    actions = [f"action {index}" for index in range(1, count + 1)]
    text = f"I pick <answer>{space}{number}{space}</answer>."
    assert read({"choice": "solver"}, text, solvers(*actions)) == f"action {number}"


@pytest.mark.parametrize(
    "picked", ["0", "-1", "3", "99", "1.0", "one", "", "1 2", "solver 1", "9" * 5000, "+2", "２", "0_2"]
)
def test_a_choice_that_names_no_candidate_is_unparseable(picked: str) -> None:
    assert failure({"choice": "solver"}, f"<answer>{picked}</answer>", "a", "b") == "unparseable_choice"


def test_a_choice_is_by_the_number_of_an_instance_and_not_by_its_place_in_what_is_seen() -> None:
    upstream = {"solver": Views([View(2, "second"), View(5, "fifth")])}
    assert read({"choice": "solver"}, "<answer>5</answer>", upstream) == "fifth"
    assert read({"choice": "solver"}, "<answer>02</answer>", upstream) == "second"
    with pytest.raises(ParseFailure):
        read({"choice": "solver"}, "<answer>1</answer>", upstream)


def test_no_choice_at_all_is_malformed() -> None:
    assert failure({"choice": "solver"}, "the first one", "a", "b") == "malformed_output"


def test_a_choice_says_whom_it_picks_from_and_may_stand_in_another_tag() -> None:
    made = parser({"choice": "solver", "tag": "pick"})
    assert made.roles == ("solver",)
    assert made.parse("<answer>1</answer><pick>2</pick>", solvers("a", "b")) == "b"


def test_a_chosen_action_is_handed_on_as_it_is() -> None:
    action = {"steps": [1, 2]}
    assert read({"choice": "solver"}, "<answer>1</answer>", solvers(action)) is action


# what rLLM recorded


@pytest.mark.parametrize("number", range(len(CASES)))
def test_actions_are_those_that_rllm_recorded(number: int) -> None:
    case = CASES[number]
    solver = parser({"tag": "answer", "keep_tag": True, "default": "No solution found"})
    judge = parser({"choice": "solver"})

    def action(made: Parser, text: str, views: list[View]) -> Any:
        try:
            return made.parse(text, {"solver": views})
        except ParseFailure:
            return made.default

    # rLLM reads the first of several answers, and a parser reads the last.
    texts = [text.partition(" no wait ")[0] for text in case["solver_responses"]]
    views = [View(index, action(solver, text, [])) for index, text in enumerate(texts, 1)]
    found = [view.action for view in views] + [action(judge, case["judge_response"], views)]
    assert found == [trajectory["action"] for trajectory in case["expected"]["trajectories"]]


# regex


def test_a_pattern_s_named_group_is_the_action_else_its_first_else_all_of_it() -> None:
    text = "Result = 42."
    assert read({"regex": r"(\w+) = (?P<action>\d+)"}, text) == "42"
    assert read({"regex": r"= (\d+)"}, text) == "42"
    assert read({"regex": r"\d+"}, text) == "42"


def test_a_pattern_takes_the_last_match_and_may_ignore_case() -> None:
    assert read({"regex": r"\d+"}, "1 2 3") == "3"
    assert read({"regex": "result: (.*)", "ignore_case": True}, "RESULT: a\nb") == "a\nb"


def test_a_pattern_that_finds_nothing_is_malformed() -> None:
    assert failure({"regex": r"\d+"}, "none") == "malformed_output"
    assert failure({"regex": "a(b)?"}, "a") == "malformed_output"
    assert failure({"regex": "a"}, "\ud800") == "malformed_output"


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(unclosed", "missing"),
        ("(?=ahead)", "no lookarounds"),
        ("((a{1000}){1000}){1000}", "repetition"),
        ("a" * 1001, "too long"),
        ("(a)" * 21, "groups"),
        ("\ud800", "Unicode"),
    ],
)
def test_a_pattern_that_cannot_be_used_says_why_before_anything_runs(pattern: str, message: str) -> None:
    with pytest.raises(BadOptions, match=message):
        parser({"regex": pattern})


@pytest.mark.parametrize("pattern", ["(a+)+$", "(x+x+)+y", "(a|aa)+$", "(.*)*(.*)*y", "(?:a?){30}a{30}b"])
def test_no_pattern_backtracks_forever(pattern: str) -> None:
    with pytest.raises(ParseFailure):
        read({"regex": pattern}, "a" * 20_000 + "!")


# number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 + 4 makes 7.", 7),
        ("-3.50", -3.5),
        ("x = −3", -3),
        ("+5", 5),
        ("1,234,567.5 in all", 1234567.5),
        ("it costs -$1,200", -1200),
        ("6e-3", 0.006),
        ("**42**", 42),
        ("_42_", 42),
        ("\\boxed{42}", 42),
        ("42kg, 10%", 10),
        (".5", 0.5),
        ("so...5", 5),
    ],
)
def test_the_last_number_is_read_as_people_write_it(text: str, number: float) -> None:
    found = read("number", text)
    assert (found, type(found)) == (number, type(number))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("f(x)-3", 3),
        ("[1, 2, 3]", 3),
        ("7 in H2O", 7),
        ("3, not v2.5", 3),
    ],
)
def test_a_dash_is_no_sign_and_a_name_no_number(text: str, number: float) -> None:
    assert read("number", text) == number


def test_the_last_number_of_the_last_tag_may_be_meant() -> None:
    text = "<answer>1 or 2</answer> no, <answer>3 or 4</answer> of 5"
    assert read("number", text) == 5
    assert read({"tag": "answer", "as": "number"}, text) == 4
    assert failure({"tag": "answer", "as": "number"}, "5") == "malformed_output"


def test_a_fraction_is_one_number_where_asked_for() -> None:
    fractions = {"number": {"fractions": True}}
    assert read(fractions, "that is -3/4") == -0.75
    assert read(fractions, "8 / 4") == 2
    assert isinstance(read(fractions, "8/4"), int)
    assert read(fractions, "3") == 3
    with pytest.raises(ParseFailure, match="3/0 divides by zero"):
        read(fractions, "3/0")


@pytest.mark.parametrize("text", ["", "forty-two", "H2O", "½", "٣", "1e999", "9" * 5000])
def test_text_without_a_number_that_can_be_held_is_malformed(text: str) -> None:
    assert failure("number", text) == "malformed_output"


@given(st.integers(-(10**15), 10**15) | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_read_back_as_it_was_written(number: float) -> None:
    assert read("number", f"I get {number}!") == number
    assert read("number", f"I get {number:,}!") == number


# one_of and text


def test_one_of_finds_the_one_word_that_stands_in_the_answer() -> None:
    words = {"one_of": ["correct", "incorrect", "not sure"]}
    assert read(words, "I find it INCORRECT.") == "incorrect"
    assert read(words, "correct! Yes, correct.") == "correct"
    assert read(words, "I am not sure") == "not sure"


@pytest.mark.parametrize("text", ["", "perhaps", "correct or incorrect", "correctness", "in_correct"])
def test_one_of_refuses_none_and_two(text: str) -> None:
    assert failure({"one_of": ["correct", "incorrect"]}, text) == "malformed_output"


def test_the_longest_of_overlapping_words_is_meant() -> None:
    words = {"one_of": ["correct", "not correct"]}
    assert read(words, "This is not correct.") == "not correct"
    assert read({"one_of": ["yes", "yes please"]}, "Yes please") == "yes please"


@pytest.mark.parametrize("words", ["yes", [], [""], ["a", "A"], [True]])
def test_one_of_needs_different_words(words: object) -> None:
    with pytest.raises(BadOptions):
        parser({"one_of": words})


def test_text_is_the_whole_answer_and_an_empty_one_is_malformed() -> None:
    assert read("text", "  a\nb \n") == "a\nb"
    assert failure("text", " \n") == "malformed_output"


# no text does harm

ANY_PARSER = [
    {"tag": "answer"},
    {"tag": "answer", "keep_tag": True},
    {"tags": {"answer": "number", "b": "text"}},
    {"fence": "json", "as": "json"},
    {"boxed": {"as": "number"}},
    {"tag": "answer", "as": ["kiss", "is"]},
    {"choice": "solver"},
    {"regex": r"<(\w+)>", "ignore_case": True},
    "json",
    {"json": {"type": "object", "required": ["a"], "properties": {"a": {"multipleOf": 0.1}}}},
    {"one_of": ["kiss", "is"]},
    {"number": {"fractions": True}},
    "text",
]
PIECES = st.sampled_from(
    [
        *'<>/[]{}",:0.-',
        "<answer>",
        "</answer>",
        "ANSWER",
        "```json\n",
        "kiſſ",
        "İS",
        "1e999",
        "NaN",
        "\\ud800",
    ]
)
ANY_TEXT = st.one_of(
    st.text(), st.text(st.characters(exclude_categories=())), st.lists(PIECES, max_size=30).map("".join)
)


@settings(max_examples=300, deadline=None)
@given(text=ANY_TEXT, number=st.integers(0, len(ANY_PARSER) - 1))
def test_a_parser_reads_any_text_or_names_the_failure(text: str, number: int) -> None:
    try:
        read(ANY_PARSER[number], text, solvers("a", "b"))
    except ParseFailure as failure:
        assert failure.name in ("malformed_output", "unparseable_choice")
        assert len(str(failure)) < 500


@pytest.mark.parametrize("yaml", ANY_PARSER, ids=str)
@pytest.mark.parametrize(
    "piece", ["<answer>", "</answer>", "[", "```json\n", "kiss ", '{"a":', "<answer>1</answer>", "1,111"]
)
def test_a_long_answer_is_read_in_time_that_grows_with_its_length(yaml: object, piece: str) -> None:
    with contextlib.suppress(ParseFailure):
        read(yaml, piece * (3_000_000 // len(piece)), solvers("a"))


@pytest.mark.parametrize("yaml", [{"tag": "answer", "keep_tag": True}, {"choice": "solver"}], ids=str)
def test_a_typical_answer_is_read_in_few_calls(yaml: object) -> None:
    text = "Let me think. 25 - 18 = 7, then times 15.\n" * 20 + "<answer>2</answer>"
    made, upstream = parser(yaml), solvers("a", "b")
    assert calls(lambda: made.parse(text, upstream)) < 50


# examples


@pytest.mark.parametrize(
    "yaml",
    [
        "text",
        {"tag": "answer"},
        {"tag": "verdict", "as": ["correct", "incorrect"]},
        {"choice": "solver"},
        "number",
        {"tag": "score", "as": "number"},
        "json",
        {"one_of": ["yes", "no"]},
        {
            "json": {
                "type": "object",
                "required": ["score", "why", "parts"],
                "properties": {
                    "score": {"type": "number", "minimum": 3},
                    "why": {"type": "string"},
                    "parts": {"type": "array", "items": {"enum": ["a", "b"]}},
                },
            }
        },
    ],
    ids=str,
)
def test_a_parser_reads_its_own_examples(yaml: object) -> None:
    made = parser(yaml)
    assert made.examples
    for example in made.examples:
        read(yaml, example, solvers("one"))


def test_the_last_of_very_many_matches_is_found_from_the_end() -> None:
    answer = "12 and " * 50_000 + "77 in all" + " or so" * 100
    assert read({"regex": r"\d+"}, answer) == "77"


def test_a_number_is_read_whatever_precision_another_library_sets() -> None:
    with decimal.localcontext(prec=5):
        assert read("number", "9007199254740993.0") == 9007199254740993
