"""Tests of reads and comparisons of actions against the types that parsers give."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.compile import check_file
from tests.edge import write_spec

SPEC = """rolegraph: 2
name: typed
data: {train: countdown}
roles:
  num: {prompt: "A number in <score></score>.", parser: {tag: score, as: number}}
  word:
    prompt: "algebra or code, in <r></r>."
    parser: {tag: r, as: [algebra, code], default: neither}
  obj:
    prompt: "JSON with `score`."
    parser:
      json:
        type: object
        required: [score]
        properties: {score: {type: number}, of: {type: object, properties: {a: {type: string}}}}
        additionalProperties: false
      default: {score: 0}
  txt: {prompt: "Say <answer></answer>.", parser: {tag: answer}, reward: countdown, estimator: grpo}
  arr:
    prompt: A JSON list.
    parser: {json: {type: array, items: {type: string}, maxItems: 3}, default: []}
  free: {prompt: JSON., parser: json}
  z:
    needs: [num, word, obj, txt, arr, free]
    prompt: PROMPT
    KEY
    parser: {tag: answer}
    reward: REWARD
    estimator: grpo
episode: {correct: txt.right}
"""
PROMPT = (
    "'{{ num.action }} {{ word.action }} {{ obj.action.score }} {{ txt.action }} {{ arr.action | length }} "
    "{{ free.action.any.thing }} Say <answer></answer>.'"
)


def told(
    folder: Path, *, key: str = "timeout: 60", prompt: str = PROMPT, reward: str = "countdown"
) -> list[str]:
    text = SPEC.replace("KEY", key).replace("PROMPT", prompt).replace("REWARD", reward)
    found = check_file(write_spec(folder, text)).diagnostics
    return [str(it) for it in found if it.code == "answer" or it.severity == "error"]


@pytest.mark.parametrize(
    ("condition", "written"),
    [
        ('word.action == "Algebra"', "algebra"),
        ('word.action != "Code"', "code"),
        ('word.action in ["Code", "maths"]', "code"),
        ("word.action == 1", "algebra, code"),
        ('num.ok == "passed"', "num.ok is true or false"),
        ("word.failed.name == 1", "word.failed is true or false"),
        ("txt.failure == 3", "txt.failure is text"),
        ("txt.chosen.index == 1", "choice: ROLE"),
        ("txt.chosen.reward > 1", "no 'reward' here"),
        ('"cod" == word.action', "code"),
        ('word.action == ("yes" if num.ran else "no")', "algebra, code"),
        ("word.action.name == 1", "one of algebra, code"),
        ("txt.action > 3", "number(txt.action)"),
        ("txt.action == 42", "number(txt.action)"),
        ("3 < txt.action", "action"),
        ("txt.action.ok", "JSON"),
        ("txt.action - 1 > 0", "number(txt.action)"),
        ("-txt.action < 0", "number(txt.action)"),
        ("word.action * 2 > 0", "{'algebra': 0, 'code': 1, 'neither': 2}[word.action]"),
        ('num.action == "7"', "a number"),
        ('num.action < "7"', "a number"),
        ("num.action.value > 1", "a number"),
        ("obj.action.scroe > 3", "score"),
        ("obj.action > 3", "a mapping"),
        ('obj.action == "x"', "a mapping"),
        ('obj.action.score == "high"', "a number"),
        ("obj.action.score.mean > 1", "a number"),
        ("obj.action.of.b == 1", "it has a"),
        ("arr.action > 2", "a list"),
        ("arr.action.first == 2", "a list"),
        ("arr.action[0] == 3", "number(arr.action[0])"),
        ("txt.action", "compare it"),
        ("first(txt).action == 2", "number("),
    ],
)
def test_a_value_that_no_action_has_is_told_with_what_to_write(
    tmp_path: Path, condition: str, written: str
) -> None:
    quoted = condition.replace("'", "''")
    found = told(tmp_path, key=f"when: '{quoted}'")
    assert any(written in it for it in found), found


@pytest.mark.parametrize(
    "condition",
    [
        'word.action == "algebra"',
        'word.action == "neither"',
        'word.action in ["code", "maths"]',
        'word.action != "code" and num.action > 3',
        "num.action == 7 or num.action is none",
        "txt.action == task.question",
        'txt.action == "42"',
        "number(txt.action) > 3",
        "txt.action | length > 3",
        "obj.action.score >= 0.5",
        'obj.action.of.a == "x"',
        "arr.action | length > 2",
        'arr.action[0] == "x"',
        '"x" in arr.action',
        "free.action.any[3].thing > 3",
        'free.action == "x" or free.action > 3',
        "word.action ~ 1 == 'code1'",
    ],
)
def test_a_value_that_some_action_has_is_not_told(tmp_path: Path, condition: str) -> None:
    quoted = condition.replace("'", "''")
    assert told(tmp_path, key=f"when: '{quoted}'") == []


def test_prompts_and_rewards_are_checked_too(tmp_path: Path) -> None:
    assert told(tmp_path) == []
    (fault,) = told(tmp_path, prompt=PROMPT.replace("txt.action", "txt.action.ratings"))
    assert "'ratings'" in fault
    (fault,) = told(tmp_path, reward='"action.score"')
    assert "'score'" in fault
    (fault,) = told(tmp_path, reward="\"word.action == ('correct' if txt.right else 'incorrect')\"")
    assert "algebra, code" in fault


def test_a_fault_in_a_file_stands_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "z.j2").write_text("Say <answer></answer>.\n\n{{ txt.action.ratings }}\n")
    (fault,) = told(tmp_path, prompt="z.j2")
    assert "z.j2:3:15" in fault
