"""Tests of the findings about rewards and hidden fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rolegraph.engine.compile import CompileResult, check_file
from tests.edge import decided, write_spec

ROWS = '{"question": "q", "answer": "a", "hint": "h"}\n'


FORM: dict[str, Any] = {"matches": "x"}


def reading(role: dict[str, Any]) -> str:
    """Return a prompt that reads everything that a role needs."""
    needs = [role["needs"]] if isinstance(role.get("needs"), str) else role.get("needs", ())
    return "Hi" + "".join(f"{{% for one in {name} %}}{{{{ one.action }}}}{{% endfor %}}" for name in needs)


def compiled(
    folder: Path, roles: dict[str, dict[str, Any]], *, decides: bool = True, **more: Any
) -> CompileResult:
    (folder / "tasks.jsonl").write_text(ROWS, encoding="utf-8")
    spec = {
        "rolegraph": 2,
        "name": "x",
        "data": {"validation": "tasks.jsonl", "hidden": ["hint"]},
        "roles": {
            name: {"prompt": reading(role), **({"estimator": "grpo"} if role.get("reward") else {}), **role}
            for name, role in roles.items()
        },
        **more,
    }
    spec = decided(spec) if decides else spec
    return check_file(write_spec(folder, yaml.safe_dump(spec, sort_keys=False)))


def remarks(folder: Path, roles: dict[str, dict[str, Any]], **more: Any) -> list[tuple[str, str]]:
    found = compiled(folder, roles, **more).diagnostics
    # Warnings about prompts without their role's inputs do not matter here.
    return [(d.severity, d.message) for d in found if "does not mention" not in d.message]


SEES: dict[str, Any] = {"sees": ["answer"], "prompt": "{{ task.answer }}", "reward": "f1"}
PAID: dict[str, Any] = {"reward": "exact_match"}
CHAT: dict[str, Any] = {"memory": {"chat": "both"}}
DEAF: dict[str, Any] = {"prompt": "Hi"}
LEAK = "and its words reach {}, which is rewarded by it"


@pytest.mark.parametrize(
    ("roles", "reached"),
    [
        ({"judge": {**SEES, "needs": ["solver"], "reward": None}, "solver": PAID}, []),
        (
            {"tutor": {**SEES, "reward": "solver.reward"}, "solver": {**PAID, "needs": ["tutor"]}},
            ["and is rewarded by it", LEAK.format("solver")],
        ),
        (
            {
                "tutor": {**SEES, "reward": {"length": {"under": 9}}},
                "middle": {"needs": ["tutor"], "reward": {"length": {"under": 9}}},
                "solver": {"needs": ["middle"], "reward": {"sum": {"right": "exact_match"}}},
                "team": {"needs": ["middle"], "reward": "solver.reward"},
            },
            [LEAK.format("solver"), LEAK.format("team")],
        ),
        ({"judge": {**SEES}}, ["and is rewarded by it"]),
        (
            {
                "tutor": {**SEES, "reward": {"length": {"under": 9}}},
                "asker": {**CHAT, "needs": ["tutor"], "reward": {"length": {"under": 9}}},
                "middle": {**DEAF, "needs": ["asker"], "when": "asker.ran"},
                "solver": {**CHAT, **PAID, **DEAF, "needs": ["middle"], "when": "middle.ran"},
            },
            [LEAK.format("solver")],
        ),
    ],
    ids=["nobody after it", "the next", "further on", "itself", "in one conversation"],
)
def test_words_that_carry_a_hidden_field_to_who_is_rewarded_by_it_are_warned_of(
    roles: dict[str, Any], reached: list[str], tmp_path: Path
) -> None:
    first = next(name for name, role in roles.items() if "sees" in role)
    correct = "solver.right" if "solver" in roles else f"{first}.right"
    found = remarks(tmp_path, roles, episode={"correct": correct})
    assert found == [("warning", f"{first} sees task.answer, {how}") for how in reached]


def test_an_answer_that_only_gates_a_role_passes_no_words_on(tmp_path: Path) -> None:
    tutor = {**SEES, "reward": {"length": {"under": 9}}}
    gated = {**PAID, "needs": ["tutor"], "when": "tutor.action == 'a'", "prompt": "Hi"}
    found = remarks(tmp_path, {"tutor": tutor, "solver": gated})
    assert ("warning", f"tutor sees task.answer, {LEAK.format('solver')}") not in found


def test_a_label_that_a_role_sees_is_found_through_the_round_before(tmp_path: Path) -> None:
    roles = {
        "solver": {**PAID, "needs": {"judge": "previous"}},
        "judge": {**SEES, "needs": ["solver"], "reward": {"length": {"under": 9}}},
    }
    loops = {"l": {"roles": ["solver", "judge"], "times": 2}}
    found = remarks(tmp_path, roles, loops=loops)
    assert found == [("warning", f"judge sees task.answer, {LEAK.format('solver')}")]


def test_a_hidden_field_that_nobody_is_rewarded_by_may_be_shown_to_one(tmp_path: Path) -> None:
    tutor = {"sees": "hint", "prompt": "{{ task.hint }}", "reward": "solver.reward"}
    assert remarks(tmp_path, {"tutor": tutor, "solver": {**PAID, "needs": ["tutor"]}}) == []


@pytest.mark.parametrize(
    ("parser", "reward", "warned"),
    [
        ({"tag": "answer"}, {"matches": "<answer>.+</answer>"}, "<answer>, </answer>"),
        ({"tag": "answer"}, {"sum": {"right": "f1", "form": {"matches": "^<answer>"}}}, "<answer>"),
        ({"tag": "answer", "as": "number"}, {"matches": "<answer>"}, "<answer>"),
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


CRITIC: dict[str, Any] = {"needs": ["solver"]}
JUDGE: dict[str, Any] = {"needs": ["solver"], "reward": "solver.reward", "right": "solver.right"}


@pytest.mark.parametrize(
    ("roles", "decides"),
    [
        ({"solver": PAID, "critic": CRITIC}, "solver"),
        ({"solver": {"reward": FORM}}, "solver"),
        ({"solver": {**PAID, "count": 2}}, "solver"),
    ],
    ids=["no reward", "form alone", "several instances"],
)
def test_the_one_role_that_can_be_right_decides_of_the_episode(
    roles: dict[str, Any], decides: str, tmp_path: Path
) -> None:
    plan = compiled(tmp_path, roles).valid()
    assert plan.deciding == (decides,)
    assert plan.can_be_correct


@pytest.mark.parametrize(
    ("roles", "written"),
    [
        (
            {
                "solver": {**PAID, "count": 2},
                "critic": {
                    **CRITIC,
                    "reward": 'action == ("correct" if mean(solver.right) else "incorrect")',
                },
            },
            "{correct: critic.right}, or all(solver.right)",
        ),
        ({"judge": JUDGE, "solver": PAID}, "{correct: solver.right}, or judge.right"),
    ],
)
def test_where_several_can_be_right_the_spec_says_who_decides(
    roles: dict[str, Any], written: str, tmp_path: Path
) -> None:
    (fault,) = (it for it in compiled(tmp_path, roles, decides=False).diagnostics if it.severity == "error")
    assert fault.path == ("episode", "correct")
    assert all(name in fault.message for name in roles)
    assert written in fault.hint


@pytest.mark.parametrize(
    ("correct", "hint"),
    [
        ("judge", "write judge.right"),
        ("solver", "write all(solver.right)"),
        (["judge.right", "solver"], "write all(solver.right)"),
        ("judge.wrong", ""),
        ("juge.right", "did you mean 'judge'"),
        ("mean(solver.right)", "compare it"),
        ("judge.reward", "compare it"),
        ("solver.right", "all(…)"),
        ("judge.action == 3", "number(judge.action)"),
        ("judge.right and", ""),
    ],
)
def test_what_decides_is_an_expression_that_is_true_or_false(
    correct: object, hint: str, tmp_path: Path
) -> None:
    roles = {"solver": {**PAID, "count": 2}, "judge": {**JUDGE, "parser": {"tag": "answer"}}}
    roles["judge"] |= {"reward": "mean(solver.reward)", "right": "any(solver.right)"}
    found = compiled(tmp_path, roles, episode={"correct": correct}).diagnostics
    (fault,) = (it for it in found if it.severity == "error")
    assert fault.path[:2] == ("episode", "correct")
    assert hint in fault.hint


@pytest.mark.parametrize("right", ["solver.reward", "0.5 * tokens", "number(action)"])
def test_whether_an_answer_is_right_is_no_number(right: str, tmp_path: Path) -> None:
    roles = {"solver": PAID, "judge": {**JUDGE, "right": right}}
    found = compiled(tmp_path, roles, episode={"correct": "solver.right"}).diagnostics
    (fault,) = (it for it in found if it.severity == "error")
    assert fault.path == ("roles", "judge", "right") and "compare it" in fault.hint


@pytest.mark.parametrize("named", ["critic", "rated", "against"])
def test_a_named_role_that_can_never_be_right_is_warned_of_with_those_that_can(
    named: str, tmp_path: Path
) -> None:
    against = {"needs": ["solver"], "reward": "-solver.reward"}
    roles = {
        "solver": PAID,
        "critic": CRITIC,
        "rated": {"reward": "number(critic.action)"},
        "against": against,
    }
    found = compiled(tmp_path, roles, episode={"correct": f"{named}.right"}).diagnostics
    (said,) = (d for d in found if d.message.startswith("no episode can be correct"))
    assert said.severity == "warning"
    assert named in said.message
    assert said.hint == "name a role that can be right: solver"


def test_where_nobody_could_be_right_nothing_is_said_of_it(tmp_path: Path) -> None:
    rated = {**PAID, "reward": "number(critic.action)"}
    assert not [m for _, m in remarks(tmp_path, {"solver": rated, "critic": CRITIC}) if "ever correct" in m]


def rater(needs: Any, count: int = 1) -> dict[str, Any]:
    return {"needs": needs, "count": count, "parser": "number"}


@pytest.mark.parametrize(
    ("judge", "warned"),
    [
        (rater({"solver": "each"}), ""),
        (rater(["solver"]), ""),
        (rater(["solver"], 2), ""),
        (rater(["summary"], 3), ""),
        (rater([], 3), "that it rates"),
        (rater({"plan": "each"}), "that it rates"),
        (rater({"solver": "history"}, 3), "that it rates"),
        (rater({"solver": "history"}), ""),
    ],
    ids=[
        "each",
        "one of all",
        "two of all",
        "through another",
        "none",
        "a sibling",
        "no branch",
        "of rounds",
    ],
)
def test_a_rater_that_cannot_tell_answers_apart_is_warned_of(
    judge: dict[str, Any], warned: str, tmp_path: Path
) -> None:
    roles = {
        "plan": {"count": 3},
        "solver": {"count": 3, "needs": {"plan": "branch"}, "reward": "mean(number(judge.action))"},
        "summary": {"needs": ["solver"]},
        "judge": judge,
    }
    loops = {"l": {"roles": ["solver"], "times": 2}} if "history" in str(judge) else {}
    found = [message for _, message in remarks(tmp_path, roles, loops=loops)]
    assert [warned in message for message in found] == ([True] if warned else [])


@pytest.mark.parametrize(
    ("credit", "reward", "warned"),
    [
        ({"return": 1}, "judge.reward", True),
        ({"return": 0.9}, {"sum": {"own": "f1", "team": "judge.reward"}}, True),
        ({"return": 0}, "judge.reward", False),
        ("trajectory", "judge.reward", False),
        ("turn", "judge.reward", False),
        ({"return": 1}, 'action == ("correct" if judge.right else "incorrect")', False),
        ({"return": 1}, "inside.reward", False),
    ],
    ids=str,
)
def test_an_outcome_that_a_return_adds_for_every_turn_is_warned_of(
    credit: object, reward: object, warned: bool, tmp_path: Path
) -> None:
    roles = {
        "solver": {"reward": reward, "credit": credit},
        "inside": {"needs": ["solver"], "reward": "f1"},
        "judge": {"needs": ["solver", "inside"], "reward": "f1"},
    }
    loops = {"l": {"roles": ["solver", "inside"], "times": 3}}
    found = [m for _, m in remarks(tmp_path, roles, loops=loops) if "once per turn" in m]
    assert len(found) == warned


@pytest.mark.parametrize(
    ("needs", "run", "warned"),
    [
        (["one"], "equal", True),
        (["one", "many"], {"equal": ["one"]}, True),
        (["one"], {"argmax": "one", "by": "one"}, True),
        (["one", "many"], {"top": "one", "by": "many", "k": 1}, True),
        ({"many": "each"}, "equal", True),
        ({"many": "branch"}, "equal", False),
        (["many"], "equal", False),
        (["one", "other"], "equal", False),
        (["many"], {"argmax": "many", "by": "many"}, False),
        (["one"], "majority", False),
        ({"turn": "history"}, "equal", False),
    ],
    ids=str,
)
def test_a_comparison_of_one_action_is_warned_of(
    needs: object, run: object, warned: bool, tmp_path: Path
) -> None:
    roles: dict[str, Any] = {name: {} for name in ("one", "other", "many", "turn")}
    roles["many"]["count"] = 3
    text = {
        "rolegraph": 2,
        "name": "x",
        "roles": {
            **{name: {"prompt": "Hi", **role} for name, role in roles.items()},
            "best": {"needs": needs, "run": run},
        },
        "loops": {"l": {"roles": ["turn"], "times": 2}},
    }
    found = check_file(write_spec(tmp_path, yaml.safe_dump(text, sort_keys=False))).diagnostics
    assert ["nothing to compare" in d.message for d in found] == [True] * warned


def test_a_reward_of_an_unknown_role_is_a_fault_where_prompts_are_compared(tmp_path: Path) -> None:
    roles = {"a": {"count": 2, "group": "prompt", "reward": "nobody.reward"}}
    assert any("'nobody' does not exist here" in said for _, said in remarks(tmp_path, roles))
