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
RAISES: dict[str, Any] = {"value": "exact_match(action + 1, task.target)"}
"""Reward that cannot be computed for any answer."""
FAILING = {
    "its reward raises": ({"reward": {"value": "exact_match(action + 1, task.target)"}}, RIGHT),
    "its answer is malformed": ({}, BAD),
    "its model is down": ({}, None),
}
READERS: dict[str, dict[str, Any]] = {
    "of": {"of": "solver"},
    "against": {"of": "solver", "scale": -1},
    "agrees_with": {"agrees_with": "solver"},
}


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


@pytest.mark.parametrize("verdict", ["correct", "incorrect"])
@pytest.mark.parametrize("failing", FAILING)
@pytest.mark.parametrize("reader", READERS)
def test_who_reads_a_reward_that_is_not_known_is_masked_or_earns_what_else_says(
    tmp_path: Path, reader: str, failing: str, verdict: str
) -> None:
    solver, answer = FAILING[failing]
    reward = READERS[reader]
    answers = {"solver": answer, "reader": said(verdict)}
    assert earned(answered(team(tmp_path, reward, solver), **answers)) == (None, True, False)
    summed = {"weighted": {"form": {"value": "10"}, "theirs": reward}}
    assert earned(answered(team(tmp_path, summed, solver), **answers)) == (None, True, False)
    declared = team(tmp_path, {**reward, "else": 0.25}, solver)
    assert earned(answered(declared, **answers)) == (0.25, False, True)
    masked = team(tmp_path, {**reward, "else": "mask"}, solver)
    assert earned(answered(masked, **answers)) == (None, True, False)


@pytest.mark.parametrize("reward", [-0.5, 1.0])
def test_what_a_failed_turn_earns_is_no_reward_that_others_are_paid(tmp_path: Path, reward: float) -> None:
    solver = {"on_failure": {"reward": reward}}
    done = answered(team(tmp_path, {"of": "solver"}, solver), solver=BAD, reader=RIGHT)
    assert done["solver"][0].reward == reward
    assert earned(done) == (None, True, False)


@pytest.mark.parametrize("default", ["", "x", "correct"])
def test_an_action_is_never_compared_with_the_default_of_a_failed_role(tmp_path: Path, default: str) -> None:
    solver: dict[str, Any] = {"parser": {"tag": "answer", "default": default}}
    same = team(tmp_path, {"same_as": "solver"}, solver)
    for answer in ("", "x", "correct"):
        assert earned(answered(same, solver=BAD, reader=said(answer)))[:2] == (None, True)
    several = team(tmp_path, {"same_as": "solver"}, {**solver, "count": 3})
    done = answered(several, solver=[BAD, said("x"), said("y")], reader=said("x"))
    assert earned(done)[:2] == (0.5, False), "the share of those that answered"
    other = team(tmp_path, {"same_as": "solver", "else": -1}, solver)
    assert earned(answered(other, solver=BAD, reader=said(default)))[:2] == (-1.0, False)


def test_the_answer_of_a_turn_whose_reward_failed_is_compared(tmp_path: Path) -> None:
    same = team(tmp_path, {"same_as": "solver"}, {"reward": RAISES})
    assert earned(answered(same, solver=said("x"), reader=said("x")))[:2] == (1.0, False)


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ([RIGHT, RIGHT, RIGHT], True),
        ([RIGHT, WRONG, BAD], False),
        ([BAD, BAD, WRONG], False),
        ([RIGHT, BAD, RIGHT], None),
        ([RIGHT, None, RIGHT], None),
        ([BAD, BAD, BAD], None),
    ],
)
def test_all_are_right_one_is_wrong_or_it_is_not_known(
    tmp_path: Path, answers: list[str | None], verdict: bool | None
) -> None:
    judged = team(tmp_path, {"agrees_with": "solver"}, {"count": 3})
    for word, claim in (("correct", True), ("incorrect", False)):
        reward = None if verdict is None else float(claim is verdict)
        assert earned(answered(judged, solver=answers, reader=said(word)))[:2] == (reward, reward is None)
    paid = answered(team(tmp_path, {"of": "solver"}, {"count": 3}), solver=answers, reader=RIGHT)
    rewards = [float(answer == RIGHT) for answer in answers if answer in (RIGHT, WRONG)]
    mean = sum(rewards) / len(rewards) if rewards else None
    assert earned(paid)[0] == pytest.approx(mean), "failed ones are no part of the mean"


def test_what_is_unknown_stays_unknown_along_a_chain(tmp_path: Path) -> None:
    roles: dict[str, Any] = {
        "solver": {"reward": RAISES},
        "team": {"reward": {"of": "solver"}},
        "reader": {"reward": {"agrees_with": "team"}},
        "last": {"reward": {"of": "reader", "else": 0.5}},
    }
    done = run_one(plan(tmp_path, roles), ScriptedModel(lambda _: said("incorrect")))
    assert [t.reward for t in done.trajectories] == [None, None, None, 0.5]


def test_a_side_that_failed_passes_on_what_its_rater_gave_it(tmp_path: Path) -> None:
    roles: dict[str, Any] = {
        "pro": {"reward": {"rated_by": "judge"}},
        "con": {"reward": {"of": "pro", "scale": -1}},
        "judge": {"parser": "number", "reward": None, "estimator": None, "trainable": False},
    }
    done = answered(plan(tmp_path, roles), pro=BAD, con=RIGHT, judge="0.75")
    assert [done[role][0].reward for role in ("pro", "con")] == [0.75, -0.75]


def test_an_episode_that_a_failed_reward_decides_is_in_no_mean(tmp_path: Path) -> None:
    metrics = {
        "acc": {"correct": "solver"},
        "any": {"any_correct": "solver"},
        "agrees": {"correct": "reader"},
    }
    solver = {"reward": {"value": "exact_match(action if task.target > 5 else action + 1, '7')"}}
    made = team(
        tmp_path, {"agrees_with": "solver"}, solver, episode={"correct": "solver", "metrics": metrics}
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
    made = team(tmp_path, {"agrees_with": "solver"}, {}, episode={"correct": "solver"})
    done = answered(made, solver=BAD, reader=said("correct"))
    assert done.figures["correct"] == 0.0


@pytest.mark.parametrize("second", ["right", "wrong", "raises"])
def test_one_wrong_answer_decides_whatever_else_is_not_known(tmp_path: Path, second: str) -> None:
    reward = {"value": "exact_match(action if action != 'raises' else action + 1, '7')"}
    metrics = {"acc": {"correct": "solver"}, "any": {"any_correct": "solver"}}
    roles = {"solver": {"count": 2, "reward": reward}}
    made = plan(tmp_path, roles, episode={"correct": "solver", "metrics": metrics})
    word = {"right": "7"}.get(second, second)
    done = answered(made, solver=[said("raises"), said(word)])
    expected = {"right": {"any": 1.0}, "wrong": {"acc": 0.0, "correct": 0.0}, "raises": {}}[second]
    assert dict(done.figures) == expected


def test_a_verdict_on_a_role_that_cannot_be_right_is_a_fault(tmp_path: Path) -> None:
    text = (
        "rolegraph: 2\nname: faulty\ndata: {train: countdown}\nroles:\n"
        '  solver: {prompt: "Hi", reward: {rated_by: reader}, estimator: grpo}\n'
        "  reader:\n"
        '    prompt: "{{ solver.action }}"\n    needs: solver\n    estimator: grpo\n'
        "    reward: {agrees_with: solver}\n"
    )
    (error,) = (d for d in check_file(write_spec(tmp_path, text)).diagnostics if d.severity == "error")
    assert "tells no right from wrong" in str(error)
    assert ":10:27:" in str(error)


@pytest.mark.parametrize(("on_failure", "masked"), [({}, True), ({"reward": -0.5}, False)])
def test_a_turn_whose_reward_failed_is_masked_unless_a_reward_is_set(
    tmp_path: Path, on_failure: dict[str, float], masked: bool
) -> None:
    made = plan(tmp_path, {"solver": {"reward": RAISES, "on_failure": on_failure}})
    (trajectory,) = run_one(made, ScriptedModel(lambda _: RIGHT)).trajectories
    assert (trajectory.masked, trajectory.reward) == (masked, on_failure.get("reward"))
    assert trajectory.failure is not None and trajectory.failure.name == "reward_error"
