"""Tests of expressions: the three-valued operators, aggregates over instances, scorers, and budgets."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.prompts import Expression, PromptError, TemplateScope
from rolegraph.engine.prompts.templates import compile_expression
from rolegraph.engine.vocabulary import OF_A_TURN, TURN_FIELDS, UNKNOWN, View, Views


def turn(index: int, **fields: Any) -> View:
    """Return a readable turn of solver `index`, which is on the branch of every cell of the same number."""
    within = {"solver": frozenset({index})}
    return View(index, within=within, **fields)


READABLE = turn(1, action="7", reward=1.0, right=True, tokens=4)
UNREADABLE = turn(2, reward=0.0, right=False, tokens=9, failure="malformed_output")
UNRATED = turn(3, action="8", tokens=2)
UNANSWERED = View(4, failure="model_error").public
SKIPPED: list[View] = []
SCOPE = TemplateScope(
    {"solver": 3, "judge": 1, "critic": 1},
    ("solver", "judge", "critic"),
    fields=TURN_FIELDS,
    is_condition=True,
    has_value=True,
    is_after=True,
    values=OF_A_TURN,
)
VARIABLES: Mapping[str, Any] = {
    "task": {"answer": "7", "list": ["7", "8"], "n": 7},
    "action": "7",
    "tokens": 3,
    "calls": 1,
    "step": 50,
    "ok": True,
    "response": "",
    "thought": "",
    "solver": Views([READABLE, UNREADABLE, UNRATED]),
    "judge": Views([READABLE]),
    "critic": Views(SKIPPED),
}


def expression(text: str) -> Expression:
    made, faults = compile_expression(text, SCOPE)
    assert made is not None, faults
    return made


def value(text: str, **more: Any) -> Any:
    return expression(text).value({**VARIABLES, **more})


LOGIC = {"true": True, "false": False, "critic.right": UNKNOWN}


@pytest.mark.parametrize(("left", "right"), [*product(LOGIC, LOGIC)])
def test_and_or_not_are_those_of_kleene(left: str, right: str) -> None:
    one, other = LOGIC[left], LOGIC[right]
    both = False if one is False or other is False else UNKNOWN if UNKNOWN in (one, other) else True
    either = True if one is True or other is True else UNKNOWN if UNKNOWN in (one, other) else False
    assert value(f"{left} and {right}") is both
    assert value(f"{left} or {right}") is either
    assert value(f"not {left}") is (UNKNOWN if one is UNKNOWN else not one)
    assert value(f"any([{left}, {right}])") is either
    assert value(f"all([{left}, {right}])") is both


@pytest.mark.parametrize("given", ["critic.reward", "task.missing", "judge.action[9]", "({'a': 1})['b']"])
@pytest.mark.parametrize(
    "text",
    [
        "{} == 1",
        "{} != 1",
        "0 < {} < 2",
        "{} + 1",
        "1 - {}",
        "-{}",
        "{} ~ 'x'",
        "{} * 0",
        "{} | abs",
        "{} | round(1)",
        "1 | round({})",
        "{} is odd",
        "{} in ['x']",
        "'x' in ['y', {}]",
        "1 if {} else 2",
        "math({}, 1)",
        "exact_match('a', {})",
        "number({})",
        "[1, {}] | sum",
        "[1, {}] | length",
        "sum([1, {}])",
        "count([1, {}])",
        "mean([{}])",
        "min([{}])",
        "first([{}])",
        "sorted([{}])",
        "any([false, {}])",
        "all([true, {}])",
        "ramp({}, 0, 10)",
    ],
)
def test_an_operation_on_an_unknown_value_is_unknown(text: str, given: str) -> None:
    assert value(text.format(given)) is UNKNOWN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("critic.reward | default(0)", 0),
        ("0 | default(5)", 0),
        ("critic.reward is defined", False),
        ("critic.reward is undefined", True),
        ("critic.ran", False),
        ("critic.failed and false", False),
        ("'x' in ['x', critic.action]", True),
        ("false and 1 / 0", False),
        ("true or 1 / 0", True),
        ("critic.reward and false", False),
        ("[1, critic.reward, 3] | max", 3),
        ("mean([1, critic.reward, 3])", 2),
        ("min(1, critic.reward, 3)", 1),
        ("max(0, 0.1 - step)", 0),
        ("first([critic.reward, 2])", 2),
        ("last([2, critic.reward])", 2),
        ("sorted([3, critic.reward, 2])", [2, 3]),
        ("any([critic.reward, true])", True),
        ("all([critic.reward, false])", False),
        ("sum([])", 0),
        ("count([])", 0),
        ("mean([])", UNKNOWN),
        ("any([])", UNKNOWN),
        ("math('1/2', '0.5')", True),
        ("exact_match(' seven ', ['eight', 'Seven'])", True),
        ("exact_match('Seven', 'seven', ignore_case=false)", False),
        ("f1('x b', 'b c')", 0.5),
        ("close_to('about 41.9', 42, absolute=0.2)", True),
        ("number('it is 1,200 or so')", 1200),
        ("number('none')", UNKNOWN),
        ("ramp(0.1, 0, 100)", 0.05),
        ("ramp(1, 0, 10, 100)", 1),
        ("ramp(1, 0, 10, after=45)", 0.5),
        ("range(3) | sum", 3),
    ],
)
def test_what_is_known_of_an_unknown_value(text: str, expected: object) -> None:
    result = value(text)
    assert result is expected if expected is UNKNOWN else result == pytest.approx(expected)


@pytest.mark.parametrize("text", ["1 / 0", "'a' + 1", "action > 3", "action.score", "mean(['a'])", "sum(3)"])
def test_an_error_is_no_unknown(text: str) -> None:
    with pytest.raises(PromptError):
        value(f"({text}) | default(0)")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mean(solver.reward)", 0.5),
        ("sum(solver.reward)", UNKNOWN),
        ("sum(solver.tokens)", 15),
        ("min(solver.reward)", 0.0),
        ("count(solver)", 3),
        ("count(solver.right)", UNKNOWN),
        ("count(solver.right, where=solver.right is defined)", 1),
        ("any(solver.right)", True),
        ("all(solver.right)", False),
        ("mean(solver.tokens, where=not solver.failed)", 3),
        ("first(solver.action)", "7"),
        ("last(solver.action)", "8"),
        ("first(solver).tokens", 4),
        ("sorted(solver.tokens)", [2, 4, 9]),
        ("mean(solver.action == action)", 0.5),
        ("mean(solver.action == judge.action)", 1.0),
        ("solver[0].reward - solver[1].reward", 1.0),
        ("solver | map(attribute='tokens') | sum", 15),
        ("solver | map(attribute='action') | join(',')", "7,8"),
        ("mean(critic.reward)", UNKNOWN),
        ("sum(critic.reward)", 0),
        ("mean(task.list | map('int'))", 7.5),
    ],
)
def test_an_aggregate_goes_over_the_instances_of_the_first_role_that_it_names(
    text: str, expected: object
) -> None:
    result = value(text)
    assert result is expected if expected is UNKNOWN else result == pytest.approx(expected)


@pytest.mark.parametrize(
    ("field", "unreadable", "unrated", "unanswered"),
    [
        ("ran", True, True, True),
        ("failed", True, False, True),
        ("ok", False, True, UNKNOWN),
        ("action", UNKNOWN, "8", UNKNOWN),
        ("right", False, UNKNOWN, UNKNOWN),
        ("reward", 0.0, UNKNOWN, UNKNOWN),
        ("tokens", 9, 2, UNKNOWN),
    ],
)
def test_the_fields_of_a_turn_by_what_became_of_it(
    field: str, unreadable: object, unrated: object, unanswered: object
) -> None:
    for it, expected in ((UNREADABLE, unreadable), (UNRATED, unrated), (UNANSWERED, unanswered)):
        assert value(f"judge.{field}", judge=Views([it])) is expected or expected == 0.0


def test_another_role_in_an_aggregate_is_on_the_branch_of_the_instance() -> None:
    def cell(index: int, parent: int, action: str) -> View:
        within = {"solver": frozenset({parent}), "judge": frozenset({index})}
        return turn(index, action=action)._replace(within=within)

    judges = Views([cell(1, 1, "7"), cell(2, 1, "8"), cell(3, 3, "8")])
    assert value("mean(solver.action == first(judge.action))", judge=judges) == 1.0
    assert value("sorted(solver.index * count(judge), where=solver.ok)", judge=judges) == [2, 3]


@pytest.mark.parametrize(
    ("text", "word", "hint"),
    [
        ("solver.reward > 0", "reward", "mean(solver.reward)"),
        ("meen(solver.reward)", "meen", "mean"),
        ("mean()", "", "mean"),
        ("mean(task.list, where=true)", "", "selectattr"),
        ("math(action)", "math", ""),
        ("exact_match(action, 'x', colour=1)", "exact_match", ""),
        ("judge == 7", "judge", "judge.action"),
        ("mean(solver)", "solver", "solver.action"),
        ("judge.verdict", "verdict", ""),
    ],
)
def test_a_fault_names_its_word_and_what_to_write(text: str, word: str, hint: str) -> None:
    made, faults = compile_expression(text, SCOPE)
    assert made is None
    assert word in [fault.word for fault in faults] or not word
    assert any(hint in f"{fault.message} {fault.hint}" for fault in faults)


def test_a_scorer_has_no_place_before_the_end_of_the_episode() -> None:
    before = TemplateScope({"judge": 1}, ("judge",), is_condition=True)
    for text in ("math(judge.action, task.answer)", "judge.right", "judge.reward > 0"):
        made, faults = compile_expression(text, before)
        assert made is None
        assert any("leak" in fault.message for fault in faults)


def test_an_expression_goes_to_another_process(tmp_path: object) -> None:
    sent = pickle.loads(pickle.dumps((expression("mean(solver.reward)"), VARIABLES)))
    assert sent[0].value(sent[1]) == 0.5
    assert pickle.loads(pickle.dumps(UNKNOWN)) is UNKNOWN


def test_work_over_many_instances_is_paid_for() -> None:
    many = Views([READABLE] * 3_000)
    with pytest.raises(PromptError, match="takes"):
        value("mean(solver.tokens * count(judge.tokens * first(solver).tokens))", solver=many, judge=many)


NUMBERS = st.sampled_from(["1", "2", "critic.reward", "solver[0].tokens"])


@given(st.lists(NUMBERS, min_size=1, max_size=4))
def test_what_is_known_does_not_change_when_more_becomes_known(items: list[str]) -> None:
    """A known truth value of `any`, `all`, `and` and `or` stays as it is, whatever the unknown part is."""
    for form in ("any([{}])", "all([{}])"):
        text = form.format(", ".join(f"{item} > 1" for item in items))
        before = value(text)
        for reward in (0, 5):
            after = value(text, critic=Views([READABLE._replace(reward=reward)]))
            assert before is UNKNOWN or after is before
