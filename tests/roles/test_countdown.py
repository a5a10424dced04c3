"""Countdown: tasks, their solutions, and hostile text for the checker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolegraph.roles.countdown import evaluate, generate, is_solution, last_answer, reward, split_of
from tests.counting import calls

CASES = json.loads((Path(__file__).parent.parent / "data" / "rllm_solver_judge_replay.json").read_text())
ARITHMETIC = st.text(alphabet="0123456789+-*/() ", max_size=80)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    split=st.sampled_from(["train", "validation"]),
    numbers=st.sampled_from([(2, 3), (2,), (3, 4), (5,)]),
    high=st.integers(6, 60),
    operators=st.sampled_from(["+-*/", "+-", "+*", "-/+"]),
)
def test_every_task_is_solved_by_its_own_solution(seed, split, numbers, high, operators):
    for task in generate(8, seed=seed, split=split, numbers=numbers, high=high, operators=operators):
        assert is_solution(task["solution"], task["nums"], task["target"])
        assert 1 <= task["target"] <= high * high
        assert set(task["solution"]) <= set(operators + "()0123456789")
        assert all(1 <= number <= high for number in task["nums"])


def test_a_seed_gives_the_same_tasks_and_a_longer_list_begins_with_the_shorter():
    tasks = generate(40, seed=7, split="train")
    assert tasks == generate(40, seed=7, split="train")
    assert tasks[:10] == generate(10, seed=7, split="train")
    assert tasks != generate(40, seed=8, split="train")


def test_train_and_validation_share_no_task():
    keys = {
        split: {(tuple(sorted(t["nums"])), t["target"]) for t in generate(2000, seed=seed, split=split)}
        for seed, split in ((0, "train"), (1, "validation"))
    }
    assert not keys["train"] & keys["validation"]
    assert split_of([3, 4, 5], 17) == split_of([5, 3, 4], 17)


def test_tasks_do_not_repeat_while_there_are_new_ones():
    tasks = generate(64, seed=0, split="validation")
    assert len({(tuple(sorted(task["nums"])), task["target"]) for task in tasks}) == 64


def test_sizes_take_turns_and_ids_count_without_colons():
    tasks = generate(4, seed=0, split="validation", numbers=(2, 3))
    assert [len(task["nums"]) for task in tasks] == [2, 3, 2, 3]
    assert [task["id"] for task in tasks] == [f"countdown-validation-{i}" for i in range(4)]


def test_the_question_names_the_numbers_and_the_target_but_not_the_solution():
    for task in generate(50, seed=0, split="train"):
        assert all(str(number) in task["question"] for number in [*task["nums"], task["target"]])
        assert task["solution"] not in task["question"]


@pytest.mark.parametrize(
    "options",
    [{"operators": "^"}, {"operators": ""}, {"low": 5, "high": 3}, {"numbers": ()}, {"low": 0}],
)
def test_settings_that_make_no_sense_are_refused(options):
    with pytest.raises(ValueError, match="must"):
        generate(1, seed=0, split="train", **options)


def test_settings_that_allow_no_task_say_so():
    with pytest.raises(ValueError, match="widen the range"):
        generate(1, seed=0, split="train", numbers=(3,), low=11, operators="*")


@pytest.mark.parametrize(
    ("expression", "value"),
    [("3 * (4 + 5)", 27), ("-3+4", 1), ("8/4", 2), ("1/3*3", 1), ("(2)", 2), ("+7", 7), ("1/8", 0.125)],
)
def test_arithmetic_has_its_value(expression, value):
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "",
            "x",
            "2**3",
            "9**9**9",
            "7//2",
            "1/0",
            "3(4)",
            "1_0",
            "0x1",
            "2;3",
            "(1",
            "3.5",
            "[1]",
            "4 = 4",
        ),
        *("4 = 4", "__import__('os')", "03+1", "1+" * 150 + "1", "-" * 60 + "1", "٣+1", "1if 1else 2"),
    ],
)
def test_anything_else_has_none(expression):
    assert evaluate(expression) is None


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), ARITHMETIC))
def test_no_text_makes_the_checker_raise_or_hang(text):
    evaluate(text)
    is_solution(text, [1, 2], 3)
    reward(text, [1, 2], 3)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789+-*() ", max_size=30))
def test_values_are_those_of_python(text):
    if "**" in text:
        return
    try:
        expected = eval(text, {"__builtins__": {}}) if text.strip() else None
    except (SyntaxError, TypeError):
        expected = None
    assert evaluate(text) == (expected if isinstance(expected, int) else None)


def test_a_million_characters_of_tags_are_read_at_once():
    assert reward("<answer>" * 125_000, [1, 2], 3) == 0.0
    assert reward("<answer>" * 60_000 + "</answer>" * 60_000, [1, 2], 3) == 0.0


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1+2</answer> or rather <answer> 2+1 </answer>", "2+1"),
        ("<answer>1+2</answer>\nas said", "1+2"),
        ("<ANSWER>1+2</ANSWER>", None),
        ("<answer>\n1+2\n</answer>", None),
        ("<answer>1+2", None),
        ("1+2", None),
    ],
)
def test_the_last_answer_counts(text, answer):
    assert last_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "pays"),
    [
        ("1+2", 1.0),
        (" 2 + 1\n", 1.0),
        ("<answer>1+2</answer>", 1.0),
        ("<answer>1-2</answer> 1+2", 0.0),
        ("<answer></answer>1+2", 0.0),
        ("<answer>\n1+2\n</answer>", 0.0),
        ("<answer>1+2", 0.0),
        ("1+2 = 3", 0.0),
        ("so 1+2", 0.0),
        ("1+2" + " " * 300, 1.0),
        ("1+2" + "+0" * 100, 0.0),
    ],
)
def test_an_expression_counts_bare_where_there_are_no_tags(text, pays):
    assert reward(text, [1, 2], 3) == pays


def test_each_number_counts_exactly_once():
    assert is_solution("(3+3)*4", [3, 4, 3], 24)
    assert not is_solution("3*8", [3, 4, 3], 24)
    assert not is_solution("(3+3)*4", [3, 4], 24)
    assert is_solution("7/3*3/7", [7, 3, 3, 7], 1)


def test_a_typical_answer_is_judged_in_few_calls():
    texts = [
        f"<answer>({a}+{b})*{c}-{d}</answer>"
        for a in range(9)
        for b in range(9)
        for c in (3, 5)
        for d in (1, 2)
    ]
    assert calls(lambda: [reward(text, [1, 2, 3, 4], 8) for text in texts]) < 250 * len(texts)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_rewards_are_those_that_rllm_recorded(case):
    task = case["task"]
    for trajectory in case["expected"]["trajectories"]:
        assert reward(trajectory["action"], task["nums"], task["target"]) == trajectory["reward"]


def test_what_is_done_to_a_task_is_not_seen_in_the_next_list() -> None:
    (task,) = generate(1, seed=0, split="train")
    task["nums"].append(0)
    task["question"] = ""
    (again,) = generate(1, seed=0, split="train")
    assert 0 not in again["nums"] and again["question"]
