"""Tests of the findings about rewards and hidden fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rolegraph.engine.compile import check_file
from tests.edge import write_spec

ROWS = '{"question": "q", "answer": "a", "hint": "h"}\n'


def remarks(folder: Path, roles: dict[str, dict[str, Any]], **more: Any) -> list[tuple[str, str]]:
    (folder / "tasks.jsonl").write_text(ROWS, encoding="utf-8")
    spec = {
        "rolegraph": 1,
        "name": "x",
        "data": {"validation": "tasks.jsonl", "hidden": ["hint"]},
        "roles": {
            name: {"prompt": {"inline": "Hi"}, "estimator": "grpo", **role} for name, role in roles.items()
        },
        **more,
    }
    found = check_file(write_spec(folder, yaml.safe_dump(spec, sort_keys=False))).diagnostics
    # Warnings about prompts without their role's inputs do not matter here.
    return [(d.severity, d.message) for d in found if "does not mention" not in d.message]


SEES: dict[str, Any] = {"shows": ["answer"], "prompt": {"inline": "{{ task.answer }}"}, "reward": "f1"}
PAID: dict[str, Any] = {"reward": "exact_match"}
LEAK = "and its words reach {}, which is rewarded by it"


@pytest.mark.parametrize(
    ("roles", "reached"),
    [
        ({"judge": {**SEES, "needs": ["solver"], "trainable": False, "reward": None}, "solver": PAID}, []),
        (
            {"tutor": {**SEES, "reward": {"of": "solver"}}, "solver": {**PAID, "needs": ["tutor"]}},
            ["and is rewarded by it", LEAK.format("solver")],
        ),
        (
            {
                "tutor": {**SEES, "reward": {"length": {"under": 9}}},
                "middle": {"needs": ["tutor"], "reward": {"length": {"under": 9}}},
                "solver": {"needs": ["middle"], "reward": {"weighted": {"right": "exact_match"}}},
                "team": {"needs": ["middle"], "reward": {"of": "solver"}},
            },
            [LEAK.format("solver"), LEAK.format("team")],
        ),
        ({"judge": {**SEES}}, ["and is rewarded by it"]),
    ],
    ids=["nobody after it", "the next", "further on", "itself"],
)
def test_words_that_carry_a_hidden_field_to_who_is_rewarded_by_it_are_warned_of(
    roles: dict[str, Any], reached: list[str], tmp_path: Path
) -> None:
    first = next(name for name, role in roles.items() if "shows" in role)
    found = remarks(tmp_path, roles, episode={"correct": "solver" if "solver" in roles else first})
    assert found == [("warning", f"{first} sees task.answer, {how}") for how in reached]


def test_they_are_found_through_the_round_before_too(tmp_path: Path) -> None:
    roles = {
        "solver": {**PAID, "needs": {"judge": "last"}},
        "judge": {**SEES, "needs": ["solver"], "reward": {"length": {"under": 9}}},
    }
    loops = {"l": {"roles": ["solver", "judge"], "times": 2}}
    found = remarks(tmp_path, roles, loops=loops)
    assert found == [("warning", f"judge sees task.answer, {LEAK.format('solver')}")]


def test_a_hidden_field_that_nobody_is_rewarded_by_may_be_shown_to_one(tmp_path: Path) -> None:
    tutor = {"shows": "hint", "prompt": {"inline": "{{ task.hint }}"}, "reward": {"of": "solver"}}
    assert remarks(tmp_path, {"tutor": tutor, "solver": {**PAID, "needs": ["tutor"]}}) == []


@pytest.mark.parametrize(
    ("parser", "reward", "warned"),
    [
        ({"tag": "answer"}, {"matches": "<answer>.+</answer>"}, "<answer>, </answer>"),
        ({"tag": "answer"}, {"weighted": {"right": "f1", "form": {"matches": "^<answer>"}}}, "<answer>"),
        ({"number": {"tag": "answer"}}, {"matches": "<answer>"}, "<answer>"),
        ({"tag": "answer", "keep_tag": True}, {"matches": "<answer>"}, ""),
        ({"tag": "answer"}, {"matches": "<think>"}, ""),
        ("text", {"matches": "<answer>"}, ""),
        ({"tag": "answer"}, "f1", ""),
    ],
    ids=str,
)
def test_a_parser_that_takes_off_what_the_reward_looks_for_is_warned_of(
    parser: object, reward: object, warned: str, tmp_path: Path
) -> None:
    message = f"the reward of solver looks for {warned}, which its parser takes off"
    found = remarks(tmp_path, {"solver": {"parser": parser, "reward": reward}})
    assert found == ([("warning", message)] if warned else [])


CRITIC: dict[str, Any] = {"needs": ["solver"], "trainable": False}


@pytest.mark.parametrize(
    ("critic", "more", "warned"),
    [
        (CRITIC, {}, True),
        (CRITIC, {"episode": {"correct": "critic"}}, False),
        (CRITIC, {"episode": {"correct": "solver"}}, False),
        ({**CRITIC, "reward": {"agrees_with": "solver"}}, {}, False),
    ],
    ids=["left to the last", "said", "said of the solver", "the last is rewarded"],
)
def test_an_episode_that_the_last_role_leaves_without_right_is_warned_of(
    critic: dict[str, Any], more: dict[str, Any], warned: bool, tmp_path: Path
) -> None:
    said = ("warning", "no episode can be correct: the last role decides, and critic has no reward")
    assert (said in remarks(tmp_path, {"solver": PAID, "critic": critic}, **more)) is warned


def test_where_nobody_could_be_right_nothing_is_said_of_it(tmp_path: Path) -> None:
    rated = {**PAID, "reward": {"rated_by": "critic"}}
    assert not [m for _, m in remarks(tmp_path, {"solver": rated, "critic": CRITIC}) if "ever correct" in m]


def test_a_reward_of_an_unknown_role_is_a_fault_where_prompts_are_compared(tmp_path: Path) -> None:
    roles = {"a": {"count": 2, "group": "prompt", "reward": {"of": "nobody"}}}
    assert ("error", "no role 'nobody'") in remarks(tmp_path, roles)
