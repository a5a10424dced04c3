"""Tricks: answers that a careless parser or reward would pay wrongly, or would not pay.

Each row is the text of a model, the label of its task, and the result of parser and reward: the reward, or
the name of the failure. `MISSING` is a label that the reward refuses.
"""

from __future__ import annotations

from typing import Any

import pytest

from rolegraph.engine.records import Step
from rolegraph.engine.vocabulary import MissingLabel, ParseFailure, RewardInputs, View
from tests.roles.vocabulary import parser, reward

MALFORMED, UNPARSEABLE, MISSING, REFUSED = (
    "malformed_output",
    "unparseable_choice",
    "MissingLabel",
    "TypeError",
)
Trick = tuple[str, Any, float | str]
ANSWER = {"tag": "answer"}
FRACTIONS = {"number": {"fractions": True}}
FITS = {"json": {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}}
VERDICT = {"one_of": ["correct", "incorrect"]}
LETTERS = {"one_of": ["A", "B", "C", "D"]}
NO_PUNCTUATION = {"exact_match": {"punctuation": False}}
FIELD_A = {"json_field": "a", "field": "answer"}

TABLE: list[tuple[object, object, list[Trick]]] = [
    (
        ANSWER,
        "exact_match",
        [
            ("<answer>2</answer>", "2", 1.0),
            ("I will use <answer> tags. <answer>2</answer>", "2", 1.0),
            ("I will use <answer> tags. <answer>2</answer>", "tags. <answer>2", 0.0),
            ("Put it in `<answer></answer>`: <answer>2</answer>", "2", 1.0),
            ("The form is <answer>…</answer>. <answer>2</answer>", "2", 1.0),
            ("The form is <answer>...</answer>. <answer>2</answer>", "2", 1.0),
            ("Between <answer> and </answer>: <answer>2</answer>", "2", 1.0),
            ("Such as `<answer>9</answer>`. <answer>2</answer>", "2", 1.0),
            ("Such as `<answer>9</answer>`. <answer>2</answer>", "9", 0.0),
            ("`<answer>2</answer>`", "2", 1.0),
            ("<answer><answer>2</answer></answer>", "2", 1.0),
            ("I end with </answer>. <answer>2</answer>", "2", 1.0),
            ("<ANSWER>2</Answer>", "2", 1.0),
            ("<answer>1</answer> or <answer>2</answer>", "2", 1.0),
            ("<answer>1</answer> or <answer>2</answer>", "1", 0.0),
            ("<answer>2", "2", MALFORMED),
            ("2</answer>", "2", MALFORMED),
            ("</answer>2<answer>", "2", MALFORMED),
            ("the answer is 2", "2", MALFORMED),
            ("<thinking>maybe <answer>3</answer></thinking><answer>2</answer>", "2", 1.0),
            ("<THINK>maybe <answer>3</answer></THINK><answer>2</answer>", "2", 1.0),
            ("<think>maybe <answer>3</answer></think><answer>2</answer>", "3", 0.0),
            ("<reasoning effort='high'><answer>3</answer></reasoning><answer>2</answer>", "2", 1.0),
            ("◁think▷<answer>3</answer>◁/think▷<answer>2</answer>", "2", 1.0),
            ("[THINK]<answer>3</answer>[/THINK]<answer>2</answer>", "2", 1.0),
            ("<seed:think><answer>3</answer></seed:think><answer>2</answer>", "2", 1.0),
            ("<|begin_of_thought|><answer>3</answer><|end_of_thought|><answer>2</answer>", "2", 1.0),
            ("<|START_THINKING|><answer>3</answer><|END_THINKING|><answer>2</answer>", "2", 1.0),
            (
                "<|channel|>analysis<|message|><answer>3</answer><|end|><|start|>assistant"
                "<|channel|>final<|message|><answer>2</answer>",
                "2",
                1.0,
            ),
            ("So: <think>is it <answer>3</answer>?</think> no. <answer>2</answer>", "2", 1.0),
            ("<answer>2</answer><think>or <answer>3</answer>?", "2", 1.0),
            ("<think>it is <answer>2</answer>", "2", MALFORMED),
            ("<thinking>or <answer>3</answer></think><answer>2</answer>", "2", 1.0),
            ("<inner_thoughts><answer>3</answer></inner_thoughts><answer>2</answer>", "2", 1.0),
            ("<mm:think><answer>3</answer></mm:think><answer>2</answer>", "2", 1.0),
            ("<|think|><answer>3</answer><|/think|><answer>2</answer>", "2", 1.0),
            ("<answer>your answer</answer>: <answer>2</answer>", "2", 1.0),
            ("it is <answer>3</answer>? no.</think><answer>2</answer>", "2", 1.0),
            ("<think>a<think>b</think><answer>3</answer></think><answer>2</answer>", "2", 1.0),
            ("<answer>2.0</answer>", 2.0, 1.0),
            ("<answer>2</answer>", 2.0, 1.0),
            ("<answer>2</answer>", [5.0, 2.0], 1.0),
            ("<answer>2</answer>", 2.5, 0.0),
            ("<answer>true</answer>", True, 1.0),
            ("<answer>1</answer>", True, 0.0),
            ("<answer>caf\u00e9</answer>", "cafe\u0301", 1.0),
            ("<answer>cafe</answer>", "caf\u00e9", 0.0),
            ("<answer>STRASSE</answer>", "straße", 1.0),
            ("<answer>None</answer>", None, MISSING),
            ("<answer>null</answer>", None, MISSING),
            ("<answer>nan</answer>", float("nan"), MISSING),
            ("<answer></answer>", "", MISSING),
            ("<answer> </answer>", " \u00a0", MISSING),
            ("<answer>x</answer>", [], MISSING),
            ("<answer>none</answer>", ["x", None], MISSING),
            ("<answer>nan</answer>", ["x", float("nan")], MISSING),
            ("<answer></answer>", ["x", ""], MISSING),
            ("<answer></answer>", "x", 0.0),
            ("<answer>None</answer>", "None", 1.0),
            ("<answer>1</answer> no, <answer>2</answer>", "2", 1.0),
            ("<answer>2</answer>, in `<answer></answer>`", "2", 1.0),
            ("<answer>2</answer> <think><answer>3</answer></think>", "2", 1.0),
            ("<answer>1 <answer>2</answer> <answer>3", "2", 1.0),
        ],
    ),
    ({"tag": "reasoning"}, "exact_match", [("<reasoning>2</reasoning>", "2", 1.0)]),
    ({"regex": "<reasoning>(.*)</reasoning>"}, "exact_match", [("<reasoning>2</reasoning>", "2", 1.0)]),
    (
        {"regex": r"= (\d+)"},
        "exact_match",
        [
            ("<thinking>= 3</thinking>= 2", "2", 1.0),
            ("<thinking>= 3", "3", MALFORMED),
        ],
    ),
    (
        "text",
        "exact_match",
        [
            ("<thinking>3?</thinking>\n2", "2", 1.0),
            ("<thinking>2", "2", MALFORMED),
            (" \n", "2", MALFORMED),
        ],
    ),
    (
        "number",
        "close_to",
        [
            ("1{,}234", 1234, 1.0),
            (r"1\,234", 1234, 1.0),
            (r"1,\!234", 1234, 1.0),
            ("1\u00a0234", 1234, 1.0),
            ("1\u2009234", 1234, 1.0),
            ("1\u202f234", 1234, 1.0),
            ("1,234,567.5", 1234567.5, 1.0),
            ("1'234", 1234, 1.0),
            ("1_234", 1234, 1.0),
            ("1 234", 234, MALFORMED),
            ("1.234,56", 56, MALFORMED),
            ("1.234.567", 567, MALFORMED),
            ("1,23", 23, MALFORMED),
            ("0,234", 234, MALFORMED),
            ("12,34,567", 567, MALFORMED),
            ("1,234 567", 567, MALFORMED),
            ("3/4", 4, MALFORMED),
            (r"\frac{3}{4}", 4, MALFORMED),
            ("3½", 3, MALFORMED),
            ("12:30", 30, MALFORMED),
            ("10-12", 12, MALFORMED),
            ("10–12", 12, MALFORMED),
            ("5 - 3", 3, MALFORMED),
            ("3 + 4", 4, MALFORMED),
            ("2*3", 3, MALFORMED),
            ("2 × 3", 3, MALFORMED),
            ("25 - 18 = 7", 7, 1.0),
            ("2024-05-01", 1, MALFORMED),
            ("1.2.3", 3, MALFORMED),
            ("[1,2,3]", 3, MALFORMED),
            ("[1, 2, 3]", 3, 1.0),
            ("0x1F", 0, MALFORMED),
            ("2^10", 10, MALFORMED),
            ("2**10", 10, MALFORMED),
            ("x^2", 2, MALFORMED),
            ("10²", 10, MALFORMED),
            ("x_{2}", 2, MALFORMED),
            ("H2O", 2, MALFORMED),
            (r"\sqrt{2}", 2, MALFORMED),
            ("√2", 2, MALFORMED),
            ("sqrt(16)", 16, MALFORMED),
            (r"\binom{5}{2}", 2, MALFORMED),
            ("2π", 2, MALFORMED),
            (r"2\pi", 2, MALFORMED),
            ("5 million", 5, MALFORMED),
            ("5k", 5, MALFORMED),
            ("42kg", 42, 1.0),
            ("10%", 10, 1.0),
            ("6e-3", 0.006, 1.0),
            ("6.02×10^23", 6.02e23, 1.0),
            (r"2 \times 10^{5}", 200000, 1.0),
            (r"2 \times 10^{5}", 5, 0.0),
            ("3*10^-2", 0.03, 1.0),
            ("-5", 5, 0.0),
            ("−5", -5, 1.0),
            ("–5", 5, MALFORMED),
            ("x = - 5", 5, MALFORMED),
            ("-(5)", 5, MALFORMED),
            ("{-}5", 5, MALFORMED),
            ("--5", 5, MALFORMED),
            ("±5", 5, MALFORMED),
            (r"-\$5", -5, 1.0),
            ("-$5", 5, 0.0),
            ("٣", 3, MALFORMED),
            ("1٣", 1, MALFORMED),
            ("<thinking>7</thinking>", 7, MALFORMED),
            ("5 <thinking>or 7", 7, 0.0),
            ("9007199254740993", 9007199254740992, 0.0),
            ("9007199254740993", "9007199254740992", 0.0),
            ("9007199254740993.0", 9007199254740992, 0.0),
            ("99999999999999999999", 99999999999999999998, 0.0),
            ("2", 2.0, 1.0),
            ("0", None, MISSING),
            ("0", float("nan"), MISSING),
            ("0", "", MISSING),
            ("0", [1, None], MISSING),
            ("0", "none", REFUSED),
            ("1", True, REFUSED),
            ("56", "1.234,56", REFUSED),
            ("7", float("inf"), REFUSED),
        ],
    ),
    (
        FRACTIONS,
        "close_to",
        [
            ("3/4", 0.75, 1.0),
            ("3/4", 4, 0.0),
            (r"-\frac{3}{4}", -0.75, 1.0),
            ("3 1/2", 0.5, MALFORMED),
            ("1/2/3", 3, MALFORMED),
            ("3/0", 0, MALFORMED),
        ],
    ),
    ("text", {"close_to": {"relative": 0.03}}, [("97", 100, 1.0), ("96.99", 100, 0.0), ("1,23", 23, 0.0)]),
    ({"tag": "answer", "as": "number"}, "close_to", [("7 <answer>1,5</answer>", 5, MALFORMED)]),
    (
        FITS,
        FIELD_A,
        [
            ('```python\nx = {"a": 3}\n```\n```json\n{"a": 1}\n```', 1, 1.0),
            ('```\n{"a": 3}\n```\n```json\n{"a": 1}\n```', 1, 1.0),
            ('```json\n{"a": 1}```', 1, 1.0),
            ('[1] says {"a": 1}', 1, 1.0),
            ('{"b": 3} then {"a": 1}', 1, 1.0),
            ('{"b": {"a": 1}}', 1, MALFORMED),
            ('{"a": "x"} then {"a": 1}', 1, 1.0),
            ('```json\n{"b": 2}\n{"a": 1}\n```', 1, 1.0),
            ('{"a": 2, "a": 1}', 1, MALFORMED),
            ('{"a": 1e999} {"a": 1}', 1, 1.0),
            ('{"a": 1', 1, MALFORMED),
            ("{'a': 1}", 1, MALFORMED),
            ('<thinking>{"a": 3}</thinking>{"a": 1}', 1, 1.0),
            ('{"a": 1}', True, 0.0),
        ],
    ),
    (
        "json",
        FIELD_A,
        [
            ('{"a": true}', 1, 0.0),
            ('{"a": [true]}', [1], 0.0),
            ('{"a": {"b": [false]}}', {"b": [0]}, 0.0),
            ('{"a": {"b": [1]}}', {"b": [1.0]}, 1.0),
            ('{"a": [1, 2]}', [1], 0.0),
            ('{"a": {"b": 1, "c": 2}}', {"b": 1}, 0.0),
            ('{"a": null}', None, MISSING),
            ('{"a": ""}', "", MISSING),
            ('{"a": []}', [], 1.0),
            ('{"a": [null]}', [None], 1.0),
            ('{"a": "1"}', 1, 0.0),
            ("{}", 1, 0.0),
        ],
    ),
    (
        "boxed",
        "exact_match",
        [
            (r"First \boxed{5}. No, \boxed{7}.", "7", 1.0),
            (r"First \boxed{5}. No, \boxed{7}.", "5", 0.0),
            (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", 1.0),
            (r"\fbox{7}", "7", 1.0),
            (r"\boxed 7.", "7", 1.0),
            (r"\boxed{7}, in \boxed{}", "7", 1.0),
            (r"\boxed{7}, in \boxed{…}", "7", 1.0),
            (r"\boxed{\boxed{7}}", "7", 1.0),
            (r"\boxed{\text{Paris}}", "Paris", 1.0),
            (r"\boxed{5} or \boxed{7", "5", MALFORMED),
            (r"\boxed{\{1\}}", r"\{1\}", 1.0),
            ("7", "7", MALFORMED),
            (r"<thinking>\boxed{7}</thinking>", "7", MALFORMED),
        ],
    ),
    (
        VERDICT,
        "exact_match",
        [
            ("It is correct.", "correct", 1.0),
            ("INCORRECT!", "incorrect", 1.0),
            ("It is not correct.", "correct", MALFORMED),
            ("It isn't correct.", "correct", MALFORMED),
            ("It isn’t at all correct.", "correct", MALFORMED),
            ("I do not believe that this is correct.", "correct", MALFORMED),
            ("This is never correct", "correct", MALFORMED),
            ("There is no correct step.", "correct", MALFORMED),
            ("no longer correct", "correct", MALFORMED),
            ("far from correct", "correct", MALFORMED),
            ("I doubt it is correct.", "correct", MALFORMED),
            ("It fails to be correct.", "correct", MALFORMED),
            ("Partially correct.", "correct", MALFORMED),
            ("in-correct", "correct", MALFORMED),
            ("not incorrect", "incorrect", MALFORMED),
            ("Is it correct? No.", "correct", MALFORMED),
            ("Is it correct? Yes, it is correct.", "correct", 1.0),
            ("Correct it is not.", "correct", MALFORMED),
            ("No, it is correct.", "correct", 1.0),
            ("The steps do not err, so it is correct.", "correct", 1.0),
            ("I saw no error. It is correct.", "correct", 1.0),
            ("correct or incorrect", "correct", MALFORMED),
            ("correctness", "correct", MALFORMED),
            ("<thinking>correct?</thinking>incorrect", "incorrect", 1.0),
            ("<thinking>correct</thinking>", "correct", MALFORMED),
        ],
    ),
    (
        {"one_of": ["richtig", "falsch"]},
        "exact_match",
        [("Das ist nicht richtig.", "richtig", MALFORMED), ("Das ist richtig.", "richtig", 1.0)],
    ),
    (
        {"one_of": ["correct", "not correct"]},
        "exact_match",
        [("It is not correct.", "not correct", 1.0), ("It is not correct.", "correct", 0.0)],
    ),
    (
        LETTERS,
        "exact_match",
        [
            ("(A)", "A", 1.0),
            ("A is right", "A", 1.0),
            ("This is a hard one.", "A", MALFORMED),
            ("A hard question.", "A", MALFORMED),
            ("not A", "A", MALFORMED),
            ("A or B", "A", MALFORMED),
            ("It is a B.", "B", 1.0),
        ],
    ),
    (
        "text",
        NO_PUNCTUATION,
        [
            ("Paris.", "paris", 1.0),
            ("'Paris'!", "Paris", 1.0),
            ("", "+", MALFORMED),
            ("-", "+", 0.0),
            ("+", "+", 1.0),
            ("C", "C++", 0.0),
            ("C++.", "C++", 1.0),
            ("C#", "C++", 0.0),
            ("C", "C#", 0.0),
            ("5", "-5", 0.0),
            ("−5.", "-5", 1.0),
            ("314", "3.14", 0.0),
            ("3.14.", "3.14", 1.0),
            ("1234", "1,234", 1.0),
            ("15", "1,5", 0.0),
            ("34", "3/4", 0.0),
            ("1230", "12:30", 0.0),
            ("x1", "x-1", 0.0),
            ("x + 1", "x - 1", 0.0),
            ("23", "2^3", 0.0),
            (">5", "<5", 0.0),
            ("**42**", "42", 1.0),
            ("!!!", "???", 0.0),
        ],
    ),
    (
        "text",
        "f1",
        [
            ("the", "A", 0.0),
            ("A", "A", 1.0),
            ("B", "A", 0.0),
            ("an apple", "the apple", 1.0),
            ("vitamin", "vitamin A", 2 / 3),
            ("...", "+", 0.0),
            ("C", "C++", 0.0),
            ("5", "-5", 0.0),
            ("314", "3.14", 0.0),
            ("2", 2.0, 1.0),
            ("the", None, MISSING),
            ("the", "", MISSING),
            ("the", [], MISSING),
            ("the", ["x", ""], MISSING),
        ],
    ),
    (
        "text",
        "math",
        [
            (r"First \boxed{5}. No, \boxed{7}.", "7", 1.0),
            (r"\boxed{5} or \boxed{6} or \boxed{7}", "7", 1.0),
            (r"First \boxed{5}. No, \boxed{7}.", "5,7", 0.0),
            (r"First \boxed{5}. No, \boxed{7}.", "5", 0.0),
            (r"\boxed{5} or \boxed{7", "5", 0.0),
            (r"\boxed{7}", [6, 7], 1.0),
            (r"\boxed{7}", r"We get \boxed{6}, then \boxed{7}.", 1.0),
            ("5 or 7", "7", 0.0),
            ("None", None, MISSING),
            ("nan", float("nan"), MISSING),
        ],
    ),
    (
        "text",
        {"sum": {"right": "exact_match", "short": {"reward": {"length": {"under": 9}}, "weight": 0}}},
        [("2", 2.0, 1.0), ("None", None, MISSING), ("nan", [float("nan")], MISSING)],
    ),
    (
        {"choice": "solver"},
        "exact_match",
        [
            ("I use <answer> tags. <answer>2</answer>", "two", 1.0),
            ("<think><answer>1</answer></think><answer>2</answer>", "two", 1.0),
            ("<answer>3</answer>", "two", UNPARSEABLE),
        ],
    ),
    (
        {"fence": "any"},
        "exact_match",
        [
            ("<thinking>\n```\nbad\n```\n</thinking>\n```python\ngood\n```", "good", 1.0),
            ("```python\ngood", "good", MALFORMED),
        ],
    ),
]
TRICKS = [(read, earn, *trick) for read, earn, tricks in TABLE for trick in tricks]


@pytest.mark.parametrize(("read", "earn", "text", "label", "expected"), TRICKS, ids=str)
def test_no_trick_pays_wrongly(
    read: object, earn: object, text: str, label: object, expected: float | str
) -> None:
    if earn == "math":
        pytest.importorskip("math_verify")
    result: float | str | None
    try:
        action = parser(read).parse(text, {"solver": [View(1, "one"), View(2, "two")]})
        score = reward(earn).score({"id": "t", "answer": label}, action, RewardInputs())
        assert score is not None
        result = score.reward
        assert score.is_correct == (result == 1.0)
    except ParseFailure as failure:
        result = failure.name
    except (MissingLabel, TypeError) as error:
        result = type(error).__name__
    assert result == (pytest.approx(expected) if isinstance(expected, float) else expected)


@pytest.mark.parametrize(
    ("text", "nums", "target", "expected"),
    [
        ("12 + 1 / 1000000", [12, 1, 1000000], 12, 0.0),
        ("12 - 1 / 1000000", [12, 1, 1000000], 12, 0.0),
        ("8 / 3 * 3", [8, 3, 3], 8, 1.0),
        ("1 / 3 * 3", [1, 3, 3], 1.0, 1.0),
        ("3 + 4", [3, 4], 7.0, 1.0),
        ("34", [3, 4], 34, 0.0),
        ("3 + 4 + 0", [3, 4], 7, 0.0),
        ("3 // 2", [3, 2], 1, 0.0),
        ("3 + 4", [3, 4], None, MISSING),
        ("3 + 4", [3, 4], float("nan"), MISSING),
        ("3 + 4", [3, 4], "7", REFUSED),
        ("3 + 4", [3, 4], True, REFUSED),
        ("0", [], 0, MISSING),
        ("0", None, 0, MISSING),
    ],
)
def test_no_trick_solves_a_countdown(text: str, nums: object, target: object, expected: float | str) -> None:
    try:
        score = reward("countdown").score({"id": "t", "nums": nums, "target": target}, text, RewardInputs())
        assert score is not None
        result: float | str | None = score.reward
    except (MissingLabel, TypeError) as error:
        result = type(error).__name__
    assert result == expected


OVER, LONG = {"length": {"over": 5}}, {"length": {"over": 2, "unit": "words"}}
WORD = {"matches": "^42$"}
CALLED = {"tool_calls": {"over": 0}}


def called(*calls: str, error: bool = False) -> RewardInputs:
    """Return inputs of a turn that called tools by these names."""
    made = [{"name": name, "arguments": "{}", **({"error": "no"} if error else {})} for name in calls]
    return RewardInputs(steps=[Step(metadata={"calls": made})])


@pytest.mark.parametrize(
    ("earn", "action", "inputs", "expected"),
    [
        (OVER, "aaaaaa", RewardInputs(), 1.0),
        (OVER, "aaaaa", RewardInputs(), 0.0),
        (OVER, "     a     ", RewardInputs(), 0.0),
        (OVER, "a          b", RewardInputs(), 0.0),
        (OVER, "\n" * 9, RewardInputs(), 0.0),
        (OVER, "a" + "\u200b" * 9, RewardInputs(), 0.0),
        (OVER, "e\u0301" * 3, RewardInputs(), 0.0),
        (LONG, "one two three", RewardInputs(), 1.0),
        (LONG, "- - - -", RewardInputs(), 0.0),
        (LONG, "a \u200b \u200b", RewardInputs(), 0.0),
        (LONG, "one\u00a0two three", RewardInputs(), 1.0),
        ({"length": {"under": 5}}, "a" + "\u200b" * 9, RewardInputs(), 0.0),
        ({"length": {"under": 5}}, "aaaa", RewardInputs(), 1.0),
        (WORD, "42", RewardInputs(), 1.0),
        (WORD, 42, RewardInputs(), 1.0),
        (WORD, "142", RewardInputs(), 0.0),
        (WORD, "42\n", RewardInputs(), 0.0),
        (WORD, "41\n42", RewardInputs(), 0.0),
        (WORD, None, RewardInputs(), 0.0),
        ({"matches": "caf\u00e9"}, "cafe\u0301", RewardInputs(), 1.0),
        ({"matches": "cafe\u0301"}, "caf\u00e9", RewardInputs(), 1.0),
        ({"matches": "caf\u00e9"}, "cafe", RewardInputs(), 0.0),
        (CALLED, "", called("search"), 1.0),
        (CALLED, "search()", called(), 0.0),
        (CALLED, '<tool_call>{"name": "search"}</tool_call>', RewardInputs(), 0.0),
        ({"tool_calls": {"over": 0, "name": "search"}}, "", called("searches"), 0.0),
        ({"tool_calls": {"under": 1, "failed": True}}, "", called("search"), 1.0),
        ({"tool_calls": {"under": 1, "failed": True}}, "", called("search", error=True), 0.0),
        ("env", "I win", RewardInputs(env_reward=-1.0), -1.0),
        ("env", "I win", RewardInputs(), None),
        ("env", "", RewardInputs(env_reward=1.0), 1.0),
    ],
)
def test_no_trick_of_form_or_of_the_environment_pays(
    earn: object, action: object, inputs: RewardInputs, expected: float | None
) -> None:
    score = reward(earn).score({"id": "t"}, action, inputs)
    assert (score and score.reward) == expected


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("7", "7", 1.0),
        (" 7.0 ", "7", 1.0),
        ("8", "7", 0.0),
        ("", "7", 0.0),
        (None, "7", 0.0),
        (True, "1", 0.0),
        ("None", None, 0.0),
        ("null", None, 0.0),
        ("3 + 4", "7", 0.0),
    ],
)
def test_no_trick_solves_a_task_of_reasoning_gym(text: object, answer: object, expected: float) -> None:
    """The package's scorers pay a part for an answer within other text; only a whole answer is right."""
    pytest.importorskip("reasoning_gym")
    row = {"metadata": {"source_dataset": "chain_sum", "source_index": 0}, "config": {}}
    score = reward("reasoning_gym").score({"id": "t", "answer": answer, **row}, text, RewardInputs())
    assert score is not None
    assert (score.reward, score.is_correct) == (expected, expected == 1.0)
    within = reward("reasoning_gym").score(
        {"id": "t", "answer": answer, **row}, f"7 or {text}, 8 or 9", RewardInputs()
    )
    assert within is not None and within.reward is not None
    assert within.reward < 0.5 and not within.is_correct


@pytest.mark.parametrize(
    ("earn", "text", "task", "expected"),
    [
        ("tests", "```bash\nls\n```\n```python\nx = 1\n```", {"tests": "assert x == 1"}, 1.0),
        ("tests", "```python\nx = 2\n```", {"tests": "assert x == 1"}, 0.0),
        ("tests", "x = 1", {"tests": ""}, MISSING),
        ("tests", "x = 1", {"tests": []}, MISSING),
        ("tests", "x = 1", {"tests": ["assert x == 1", ""]}, MISSING),
        ({"python": "action == task['answer']"}, None, {"answer": None}, MISSING),
        ({"python": "action == task['answer']"}, "", {"answer": ""}, MISSING),
        ({"python": "action == task.get('answer', 1)"}, "1", {"answer": "1"}, 1.0),
        ({"python": "0.5 if task.get('hint') is None else 1"}, "1", {"hint": None}, 0.5),
    ],
)
def test_no_trick_of_a_program_pays(
    earn: object, text: object, task: dict[str, object], expected: float | str
) -> None:
    pytest.importorskip("pydantic_monty")
    try:
        score = reward(earn).score({"id": "t", **task}, text, RewardInputs())
        assert score is not None
        result: float | str | None = score.reward
    except MissingLabel as error:
        result = type(error).__name__
    assert result == expected


def test_the_table_holds_two_hundred_tricks() -> None:
    assert len(TRICKS) >= 200
