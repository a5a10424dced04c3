"""Tests of the warnings of prompts that do not mention what their role's parser looks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import rolegraph as rg
from rolegraph.engine.compile import check_file
from tests.edge import decided, write_spec

ROW = {
    "question": "How many?",
    "answer": "<answer>4</answer>",
    "asks": "Reply in <form>",
    "options": ["A", "B"],
}


def warned(folder: Path, solver: dict[str, Any], **more: Any) -> list[str]:
    """Return the words of the warnings, in their order."""
    (folder / "rows.jsonl").write_text(json.dumps(ROW), encoding="utf-8")
    others = more.pop("roles", {})
    prompts = {key: solver[key] for key in ("prompt", "system") if key in solver}
    roles = {**others, "solver": {**solver, **prompts}}
    data = {"validation": "rows.jsonl", "hidden": ["answer"]}
    spec = {"rolegraph": 2, "name": "x", "data": data, "roles": roles, **more}
    checked = check_file(write_spec(folder, yaml.safe_dump(decided(spec), sort_keys=False)))
    before, after = "the prompt of solver does not mention ", ", which its parser looks for"
    said = [d for d in checked.diagnostics if after in d.message]
    assert checked.plan is not None
    assert {d.severity for d in said} <= {"warning"}
    return [d.message.removeprefix(before).removesuffix(after) for d in said]


SCHEMA = {
    "type": "object",
    "required": ["score", "parts"],
    "properties": {
        "score": {"type": "number"},
        "remark": {"type": "string"},
        "parts": {"type": "array", "items": {"type": "object", "required": ["why"]}},
    },
}


@pytest.mark.parametrize(
    ("parser", "prompt", "words"),
    [
        ({"tag": "answer"}, "{{ task.question }} Give the answer.", ["<answer>"]),
        ({"tag": "answer"}, "{# in <answer> #}{{ task.question }}", ["<answer>"]),
        ({"tag": "answer"}, "{{ task.question }} in <answers>", ["<answer>"]),
        ({"choice": "draft"}, "{{ draft.action }}", ["<answer>"]),
        ({"tag": "n", "as": "number"}, "{{ task.question }}", ["<n>"]),
        ({"tag": "v", "as": ["yes", "no"]}, "In <v></v>: true or false?", ["yes or no"]),
        ({"one_of": ["yes", "no"]}, "Is it knowable?", ["yes or no"]),
        ({"json": SCHEMA}, "Give JSON with a score.", ["parts", "why"]),
        ({"regex": "<move>(.+)</move>"}, "Move.", ["<move>"]),
        ({"tag": "answer", "default": "none"}, "{{ task.question }}", ["<answer>"]),
    ],
    ids=str,
)
def test_a_prompt_that_does_not_mention_what_its_parser_looks_for_is_warned_of(
    parser: object, prompt: str, words: list[str], tmp_path: Path
) -> None:
    draft = {
        "prompt": "Draft in <answer></answer>.",
        "parser": {"tag": "answer"},
    }
    solver = {"parser": parser, "prompt": prompt, "needs": ["draft"]}
    assert warned(tmp_path, solver, roles={"draft": draft}) == words


@pytest.mark.parametrize(
    ("parser", "prompt"),
    [
        ({"tag": "answer"}, "{{ task.question }} In <ANSWER> and </ANSWER>."),
        ({"tag": "answer"}, "{{ task.question }} Put it into answer tags."),
        ({"tag": "answer"}, "{% if task.question == 'x' %}In <answer>.{% endif %}"),
        ({"tag": "answer"}, "{% set name = 'answer' %}In <{{ name }}>."),
        ({"tag": "form"}, "{{ task.asks }}"),
        ({"one_of": ["A", "B", "C"]}, "{{ task.options | join(', ') }}"),
        ({"json": SCHEMA}, 'Give {"Score": 1, "parts": [{"why": "…"}]}'),
        ({"regex": r"(?P<action>\d+)"}, "Count."),
        ({"regex": "<a>(.+)</a>|done"}, "Say done."),
        ({"regex": "(?:<think>.*</think>)?(.+)"}, "Think."),
        ("json", "{{ task.question }}"),
        ("number", "{{ task.question }}"),
        ({"fence": "any"}, "{{ task.question }}"),
    ],
    ids=str,
)
def test_a_prompt_that_mentions_it_is_not(parser: object, prompt: str, tmp_path: Path) -> None:
    assert warned(tmp_path, {"parser": parser, "prompt": prompt}) == []


ASKS = {"prompt": "Write a prompt that asks for <answer></answer>."}
READS = {"parser": {"tag": "answer"}, "prompt": "{{ other.action }}", "needs": ["other"]}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (ASKS, []),
        ({"run": {"http": "{}", "url": "http://127.0.0.1:9/"}}, []),
        ({"run": {"calculator": "1 + 1"}}, ["<answer>"]),
        ({"prompt": "Write a prompt."}, ["<answer>"]),
    ],
    ids=["a role that is told", "a service", "a calculator", "a role that is not told"],
)
def test_another_role_may_pass_it_on(other: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    assert warned(tmp_path, READS, roles={"other": other}) == words


def test_whole_responses_keep_the_tags_that_a_parser_removes(tmp_path: Path) -> None:
    other = {
        "prompt": "Answer in <answer></answer>.",
        "parser": {"tag": "answer"},
    }
    assert warned(tmp_path, READS, roles={"other": other}) == ["<answer>"]
    whole = {**READS, "prompt": "{{ other.response }}"}
    assert warned(tmp_path, whole, roles={"other": other}) == []


def test_a_system_prompt_and_a_demonstration_mention_it_too(tmp_path: Path) -> None:
    solver = {"parser": {"tag": "answer"}, "prompt": "{{ task.question }}"}
    assert warned(tmp_path, {**solver, "system": "You answer in <answer></answer>."}) == []
    shown = {"imitation": {"demonstration": "<answer>{{ task.answer }}</answer>"}}
    taught = {**solver, "signal": shown}
    assert warned(tmp_path, taught) == []


def test_an_observation_may_mention_it(tmp_path: Path) -> None:
    solver = {"parser": {"tag": "move"}, "prompt": "{{ self.observation }}", "reward": "env"}
    assert warned(tmp_path, solver, loops={"play": {"roles": ["solver"], "times": 2, "env": "grid"}}) == []


@pytest.mark.usefixtures("registries")
def test_a_parser_of_ones_own_says_what_it_expects(tmp_path: Path) -> None:
    def expected(*, word: str = "HERE:") -> list[str]:
        return [word]

    @rg.parser("shouted_instruction", expects=expected)
    def shouted(text: str, *, word: str = "HERE:") -> str:
        return text.partition(word)[2]

    solver = {"parser": {"shouted_instruction": None, "word": "THERE:"}, "prompt": "{{ task.question }}"}
    assert shouted("HERE: 4") == " 4"
    assert warned(tmp_path, solver) == ["THERE:"]
    assert warned(tmp_path, {**solver, "parser": "shouted_instruction"}) == ["HERE:"]
    assert warned(tmp_path, {**solver, "prompt": "Write THERE: before the answer."}) == []


def test_a_template_with_a_fault_is_not_warned_of(tmp_path: Path) -> None:
    spec = """rolegraph: 2
name: x
data: {validation: countdown}
roles: {solver: {prompt: "{{ nobody }}", parser: {tag: answer}}}
"""
    found = check_file(write_spec(tmp_path, spec)).diagnostics
    assert [d.severity for d in found] == ["error"]
