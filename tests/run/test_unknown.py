"""Tests of what is unknown: a turn whose answer or reward failed says nothing to the rewards that read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.compile import Plan, check_file
from rolegraph.engine.errors import ModelError
from rolegraph.engine.models import Request
from rolegraph.engine.records import Episode
from rolegraph.engine.records.episodes import EpisodeFile, figures, write_episodes
from rolegraph.engine.training.advantages.ledger import Membership
from tests.edge import COUNTDOWN, RIGHT, WRONG, ScriptedModel, run_one, write_spec
from tests.run.written import plan, said

BAD = "no tags"
RAISES: dict[str, Any] = "exact_match(action + 1, task.target)"
"""Reward that cannot be computed for any answer."""
FAILING = {
    "its reward raises": ({"reward": "exact_match(action + 1, task.target)"}, RIGHT),
    "its answer is malformed": ({}, BAD),
    "its model is down": ({}, None),
}
VALIDATOR = 'action == ("correct" if solver.right else "incorrect")'


def team(folder: Path, reward: object, solver: dict[str, Any], **more: Any) -> Plan:
    roles = {"solver": solver, "reader": {"reward": reward, "needs": ["solver"], "prompt": "read"}}
    return plan(folder, roles, **more)


def answered(made: Plan, **answers: str | list[str | None] | None) -> Episode:
    def answer(request: Request) -> str:
        words = answers[request.id.node.role]
        word = words[request.id.node.index - 1] if isinstance(words, list) else words
        if word is None:
            raise ModelError("down")
        return word

    return run_one(made, ScriptedModel(answer))


def earned(done: Episode) -> tuple[float | None, bool, bool]:
    """Return the reader's reward, and whether it is masked and whether it is in a group."""
    (reader,) = done["reader"]
    grouped = any(group.key.role == "reader" for group in Membership().add([done]).groups())
    return reward if (reward := reader.reward) is not None else None, reader.masked, grouped


@pytest.mark.parametrize(
    ("reward", "malformed"),
    [
        ("solver.reward", 0.0),
        ("1 - solver.reward", 1.0),
        (VALIDATOR, 0.0),
        ("solver.reward if solver.ran else 0", 0.0),
        ("action == solver.action", None),
    ],
)
def test_an_unreadable_turn_is_wrong_and_all_else_that_failed_is_unknown(
    tmp_path: Path, reward: str, malformed: float | None
) -> None:
    for failing, (solver, answer) in FAILING.items():
        paid = malformed if failing == "its answer is malformed" else None
        if "action ==" in reward and "raises" in failing and reward != VALIDATOR:
            paid = 0.0
        answers = {"solver": answer, "reader": said("correct")}
        for written in (reward, {"sum": {"theirs": reward}}):
            got = earned(answered(team(tmp_path, written, solver), **answers))
            assert got == (paid, paid is None, paid is not None), failing
        summed = {"sum": {"form": "10", "theirs": reward}}
        got = earned(answered(team(tmp_path, summed, solver), **answers))
        assert got == (None if paid is None else 10 + paid, paid is None, paid is not None)
        declared = team(tmp_path, f"({reward}) | default(0.25)", solver)
        assert earned(answered(declared, **answers)) == (0.25 if paid is None else paid, False, True)


@pytest.mark.parametrize("reward", [-0.5, 1.0])
def test_a_failed_turn_is_read_with_the_reward_that_is_set_for_it(tmp_path: Path, reward: float) -> None:
    solver = {"on_failure": {"reward": reward}}
    done = answered(team(tmp_path, "solver.reward", solver), solver=BAD, reader=RIGHT)
    assert done["solver"][0].reward == reward
    assert earned(done) == (reward, False, True)


def test_the_default_of_an_unreadable_turn_is_its_action(tmp_path: Path) -> None:
    solver: dict[str, Any] = {"parser": {"tag": "answer", "default": "x"}}
    same = team(tmp_path, "action == solver.action", solver)
    for answer in ("x", "y"):
        paid = float(answer == "x")
        assert earned(answered(same, solver=BAD, reader=said(answer)))[:2] == (paid, False)
        assert earned(answered(same, solver=None, reader=said(answer)))[:2] == (None, True)
    several = team(tmp_path, "mean(solver.action == action)", {**solver, "count": 3})
    done = answered(several, solver=[BAD, None, said("y")], reader=said("x"))
    assert earned(done)[:2] == (0.5, False), "the share of those that are known"


def test_the_answer_of_a_turn_whose_reward_failed_is_compared(tmp_path: Path) -> None:
    same = team(tmp_path, "action == solver.action", {"reward": RAISES})
    assert earned(answered(same, solver=said("x"), reader=said("x")))[:2] == (1.0, False)


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ([RIGHT, RIGHT, RIGHT], True),
        ([RIGHT, WRONG, BAD], False),
        ([RIGHT, BAD, RIGHT], False),
        ([WRONG, None, RIGHT], False),
        ([RIGHT, None, RIGHT], None),
    ],
)
def test_all_are_right_one_is_wrong_or_it_is_not_known(
    tmp_path: Path, answers: list[str | None], verdict: bool | None
) -> None:
    judged = team(tmp_path, VALIDATOR.replace("solver.right", "all(solver.right)"), {"count": 3})
    for word, claim in (("correct", True), ("incorrect", False)):
        reward = None if verdict is None else float(claim is verdict)
        assert earned(answered(judged, solver=answers, reader=said(word)))[:2] == (reward, reward is None)
    paid = answered(team(tmp_path, "mean(solver.reward)", {"count": 3}), solver=answers, reader=RIGHT)
    rewards = [float(answer == RIGHT) for answer in answers if answer is not None]
    assert earned(paid)[0] == pytest.approx(sum(rewards) / len(rewards)), "the mean of those known"


def test_what_is_unknown_stays_unknown_along_a_chain(tmp_path: Path) -> None:
    roles: dict[str, Any] = {
        "solver": {"reward": RAISES},
        "team": {"reward": "solver.reward", "right": "solver.right"},
        "reader": {"reward": 'action == ("correct" if team.right else "incorrect")'},
        "last": {"reward": "reader.reward | default(0.5)"},
    }
    done = run_one(plan(tmp_path, roles), ScriptedModel(lambda _: said("incorrect")))
    assert [t.reward for t in done.trajectories] == [None, None, None, 0.5]


def test_a_side_that_failed_is_rated_all_the_same_where_it_says_so(tmp_path: Path) -> None:
    roles: dict[str, Any] = {
        "pro": {"reward": "number(judge.action)", "on_failure": {"then": "reward"}},
        "con": {"reward": "-pro.reward"},
        "judge": {"parser": "number", "reward": None, "estimator": None},
    }
    done = answered(plan(tmp_path, roles), pro=BAD, con=RIGHT, judge="0.75")
    assert [done[role][0].reward for role in ("pro", "con")] == [0.75, -0.75]


def test_an_episode_that_a_failed_reward_decides_is_in_no_mean(tmp_path: Path) -> None:
    metrics = {
        "acc": "all(solver.right)",
        "any": "any(solver.right)",
        "agrees": "all(reader.right)",
    }
    solver = {"reward": "exact_match(action if task.target > 5 else action + 1, '7')"}
    made = team(
        tmp_path,
        'action == ("correct" if solver.right else "incorrect")',
        solver,
        episode={"correct": "all(solver.right)", "metrics": metrics},
    )

    def one(task: str, target: int) -> Episode:
        model = ScriptedModel(lambda r: said("7" if r.id.node.role == "solver" else "correct"))
        return run_one(made, model, {**COUNTDOWN, "id": task, "target": target})

    known, unknown = one("a", 7), one("b", 4)
    assert (known.is_correct, dict(known.metrics)) == (True, {"acc": 1.0, "any": 1.0, "agrees": 1.0})
    assert (unknown.is_correct, dict(unknown.metrics)) == (False, {})
    assert "correct" not in unknown.figures and "not judged" in repr(unknown)
    write_episodes(tmp_path / "episodes.jsonl", [known, unknown])
    means = figures(EpisodeFile(tmp_path / "episodes.jsonl").entries())
    assert (means["correct"], means["n/correct"], means["acc"], means["n/acc"]) == (1.0, 1, 1.0, 1)


def test_an_answer_that_failed_is_wrong(tmp_path: Path) -> None:
    made = team(
        tmp_path,
        'action == ("correct" if solver.right else "incorrect")',
        {},
        episode={"correct": "all(solver.right)"},
    )
    done = answered(made, solver=BAD, reader=said("correct"))
    assert done.figures["correct"] == 0.0


@pytest.mark.parametrize("second", ["right", "wrong", "raises"])
def test_one_wrong_answer_decides_whatever_else_is_not_known(tmp_path: Path, second: str) -> None:
    reward = "exact_match(action if action != 'raises' else action + 1, '7')"
    metrics = {"acc": "all(solver.right)", "any": "any(solver.right)"}
    roles = {"solver": {"count": 2, "reward": reward}}
    made = plan(tmp_path, roles, episode={"correct": "all(solver.right)", "metrics": metrics})
    word = {"right": "7"}.get(second, second)
    done = answered(made, solver=[said("raises"), said(word)])
    expected = {"right": {"any": 1.0}, "wrong": {"acc": 0.0, "correct": 0.0}, "raises": {}}[second]
    assert dict(done.figures) == expected


def test_a_verdict_on_a_role_that_cannot_be_right_is_a_fault(tmp_path: Path) -> None:
    text = (
        "rolegraph: 2\nname: faulty\ndata: {train: countdown}\nroles:\n"
        '  solver: {prompt: "Hi", reward: number(reader.action), estimator: grpo}\n'
        "  reader:\n"
        '    prompt: "{{ solver.action }}"\n    needs: solver\n    estimator: grpo\n'
        "    reward: action == ('correct' if solver.right else 'incorrect')\n"
    )
    (error,) = (d for d in check_file(write_spec(tmp_path, text)).diagnostics if d.severity == "error")
    assert "tells no right from wrong" in str(error)
    assert ":10:13:" in str(error)


@pytest.mark.parametrize(("on_failure", "masked"), [({}, True), ({"reward": -0.5}, False)])
def test_a_turn_whose_reward_failed_is_masked_unless_a_reward_is_set(
    tmp_path: Path, on_failure: dict[str, float], masked: bool
) -> None:
    made = plan(tmp_path, {"solver": {"reward": RAISES, "on_failure": on_failure}})
    (trajectory,) = run_one(made, ScriptedModel(lambda _: RIGHT)).trajectories
    assert (trajectory.masked, trajectory.reward) == (masked, on_failure.get("reward"))
    assert trajectory.failure is not None and trajectory.failure.name == "reward_error"
