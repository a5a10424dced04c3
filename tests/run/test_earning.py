"""Tests of rewards from other roles: teams, opponents, trees, failed turns, and skipped turns."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolegraph.engine.compile import compile_file
from rolegraph.engine.errors import ModelError, SpecError
from rolegraph.engine.models import Request
from rolegraph.engine.records import Episode, Task
from rolegraph.engine.training.advantages.ledger import Membership
from rolegraph.engine.training.analysis.metrics import failures
from rolegraph.engine.vocabulary import Reward, RewardInputs, Score, rewards
from tests.edge import COUNTDOWN, RIGHT, WRONG, ScriptedModel, by_role, run_one
from tests.run.written import plan, said


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the registry of rewards after each test."""
    for table in ("_factories", "_definitions"):
        monkeypatch.setattr(rewards, table, dict(getattr(rewards, table)))


BAD = "no tags"
"""Answer that the tag parsers cannot parse."""
ANSWERS = st.sampled_from([RIGHT, WRONG, BAD])
function_scoped = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def earned(episode: Episode, role: str) -> list[float | None]:
    return [trajectory.reward for trajectory in episode[role]]


RATED = {
    "solver": {
        "count": 2,
        "prompt": "Hi",
        "parser": {"tag": "answer"},
        "reward": {"sum": {"right": "countdown", "good": "(number(judge.action.score) if judge.ran else 0)"}},
        "estimator": "grpo",
    },
    "judge": {
        "needs": {"solver": "each"},
        "prompt": "{{ solver.action }}",
        "parser": "json",
        "reward": None,
        "estimator": None,
    },
}


@pytest.mark.parametrize("answer", [RIGHT, WRONG])
@pytest.mark.parametrize("verdict", ["down", "no JSON", '{"other": 1}', '{"score": "good"}'])
def test_a_turn_whose_rating_cannot_be_read_is_masked_in_a_sum_too(
    answer: str, verdict: str, tmp_path: Path
) -> None:
    def said_by(request: Request) -> str:
        role, index, _ = request.id.node
        if role == "solver":
            return answer
        if index == 2:
            return '{"score": 0.5}'
        if verdict == "down":
            raise ModelError("down")
        return verdict

    workflow = plan(
        tmp_path, RATED, episode={"correct": "all(solver.right)", "metrics": {"acc": "all(solver.right)"}}
    )
    episode = run_one(workflow, ScriptedModel(said_by))
    first, second = episode["solver"]
    assert (first.reward, first.masked) == (None, True)
    assert (second.reward, second.masked) == (1.5 if answer == RIGHT else 0.5, False)
    groups = Membership(workflow.trained, workflow.policy_of).add([episode]).groups()
    assert [t.index for group in groups if group.key.role == "solver" for t in group.members] == [2]
    assert failures([episode])["unrated/solver"] == 1
    assert episode.is_correct is (answer == RIGHT), "the answer is right, whoever rates it"
    assert episode.metrics["acc"] == float(answer == RIGHT)


@function_scoped
@given(pro=ANSWERS, con=ANSWERS, verdict=st.sampled_from(["1", "2", "3", None]), down=st.booleans())
def test_both_sides_of_a_debate_add_up_to_0_in_every_episode(
    pro: str, con: str, verdict: str | None, down: bool
) -> None:
    def answer(request: Request) -> str:
        role = request.id.node.role
        if role == "con" and down:
            raise ModelError("down")
        return {"pro": pro, "con": con, "judge": said(verdict) if verdict else BAD}[role]

    episode = run_one(compile_file("debate_judge"), ScriptedModel(answer))
    (one,), (other,) = earned(episode, "pro"), earned(episode, "con")
    assert one == {"1": 1.0, "2": -1.0}.get(verdict or "", 0.0)
    assert other == (0.0 if down else -one), "a side whose model is down takes no part"


@function_scoped
@given(answers=st.fixed_dictionaries({"planner": ANSWERS, "solver": ANSWERS, "reviser": ANSWERS}))
def test_every_role_of_a_team_earns_what_the_team_does(answers: dict[str, str]) -> None:
    episode = run_one(compile_file("chain_team"), ScriptedModel(by_role({**answers})))
    paid = float(answers["reviser"] == RIGHT)
    assert {t.name: t.reward for t in episode.trajectories} == {
        name: 0.0 if name == "solver" and answer == BAD else paid for name, answer in answers.items()
    }, "an unreadable answer earns nothing of the team's"
    assert episode.is_correct == (answers["reviser"] == RIGHT)


@function_scoped
@given(right=st.sets(st.integers(1, 27)))
def test_in_a_tree_each_earns_the_mean_over_its_own_leaves(right: set[int], tmp_path: Path) -> None:
    tree = plan(
        tmp_path,
        {
            "generator": {"count": 3, "reward": "mean(refiner.reward)"},
            "verifier": {"count": 3, "needs": {"generator": "each"}, "reward": "mean(refiner.reward)"},
            "refiner": {"count": 3, "needs": {"verifier": "each"}},
        },
    )
    model = ScriptedModel(
        lambda r: RIGHT if r.id.node.role == "refiner" and r.id.node.index in right else WRONG
    )
    episode = run_one(tree, model)
    leaves = [float(index in right) for index in range(1, 28)]
    assert earned(episode, "generator") == pytest.approx([sum(leaves[n : n + 9]) / 9 for n in (0, 9, 18)])
    assert earned(episode, "verifier") == pytest.approx([sum(leaves[n : n + 3]) / 3 for n in range(0, 27, 3)])


def test_a_list_of_ratings_reaches_each_by_its_place(tmp_path: Path) -> None:
    rated = plan(
        tmp_path,
        {
            "solver": {
                "count": 3,
                "parser": "text",
                "reward": "0.1 * judge.action.scores[self.index - 1]",
            },
            "judge": {"needs": ["solver"], "parser": "json", "reward": "mean(solver.reward)"},
        },
    )
    episode = run_one(rated, ScriptedModel(by_role({"solver": "x", "judge": '{"scores": [1, 5, 9]}'})))
    assert earned(episode, "solver") == pytest.approx([0.1, 0.5, 0.9])
    assert earned(episode, "judge") == pytest.approx([0.5])
    assert not any(t.is_correct for t in episode.trajectories)


def test_in_a_loop_the_place_is_that_of_the_instance(tmp_path: Path) -> None:
    rated = plan(
        tmp_path,
        {
            "solver": {"count": 2, "parser": "text", "reward": "judge.action[self.index - 1]"},
            "judge": {"needs": ["solver"], "parser": "json", "reward": "countdown"},
        },
        {"l": {"roles": ["solver"], "times": 3}},
    )
    episode = run_one(rated, ScriptedModel(by_role({"solver": "x", "judge": "[3, 4]"})))
    assert earned(episode, "solver") == [3.0, 4.0]


def test_a_vote_is_what_all_are_held_against(tmp_path: Path) -> None:
    voted = plan(
        tmp_path,
        {
            "solver": {"count": 3, "reward": "action == vote.action"},
            "vote": {"needs": ["solver"], "prompt": "vote", "reward": "countdown"},
        },
    )
    answers = {"solver": [said("7"), said("8"), said("7")], "vote": said("7")}
    assert earned(run_one(voted, ScriptedModel(by_role(answers))), "solver") == [1.0, 0.0, 1.0]


def test_a_failed_turn_earns_what_is_set_for_it(tmp_path: Path) -> None:
    roles: dict[str, Any] = {
        "own": {"on_failure": {"reward": -0.5}},
        "theirs": {"reward": "2 * own.reward", "on_failure": {"reward": -0.25}},
        "unset": {"reward": "(2 * own.reward) | default(-1)"},
        "both": {"reward": {"sum": {"a": "(own.reward if own.ran else 0)", "b": "countdown"}}},
    }
    episode = run_one(plan(tmp_path, roles), ScriptedModel(lambda _: BAD))
    assert [t.reward for t in episode.trajectories] == [-0.5, -0.25, 0.0, 0.0]
    assert all(t.failure is not None and not t.is_correct for t in episode.trajectories)
    assert [t.reward for t in Membership().add([episode]).groups()[0].members] == [-0.5]


def test_a_failed_reward_earns_what_is_set_for_failing(tmp_path: Path) -> None:
    failing = plan(tmp_path, {"a": {"on_failure": {"reward": -0.5}}})
    (trajectory,) = run_one(
        failing, ScriptedModel(lambda _: RIGHT), {**COUNTDOWN, "nums": "3 4"}
    ).trajectories
    assert trajectory.reward == -0.5
    assert trajectory.failure is not None and trajectory.failure.name == "reward_error"


def test_who_was_skipped_is_read_by_nobody_and_counts_0_in_a_sum(tmp_path: Path) -> None:
    roles: dict[str, Any] = {
        "a": {"when": "task.target == 0"},
        "alone": {"reward": "a.reward"},
        "chained": {"reward": "alone.reward"},
        "summed": {"reward": {"sum": {"theirs": "(a.reward if a.ran else 0)", "own": "countdown"}}},
    }
    means = {"metrics": {name: f"{name}.reward" for name in roles}}
    episode = run_one(plan(tmp_path, roles, episode=means), ScriptedModel(lambda _: RIGHT))
    assert [(t.reward, t.masked) for t in episode.trajectories] == [(None, True), (None, True), (1.0, False)]
    assert [group.key.role for group in Membership().add([episode]).groups()] == ["summed"]
    assert episode.metrics == {"summed": 1.0}
    assert episode.is_correct


def test_rewards_are_computed_in_the_order_in_which_they_read_each_other(tmp_path: Path) -> None:
    chain = plan(
        tmp_path,
        {
            "first": {"reward": "2 * second.reward"},
            "second": {"reward": "third.reward + 1"},
            "third": {"needs": ["first"], "prompt": "{{ first.action }}", "reward": "fourth.reward"},
            "fourth": {},
        },
    )
    assert [chain.roles[position].name for position in chain.reward_order] == ["third", "second", "first"]
    episode = run_one(chain, ScriptedModel(lambda _: RIGHT))
    assert [t.reward for t in episode.trajectories] == [4.0, 2.0, 1.0, 1.0]


def met(folder: Path, task: Task, action: Any, seen: RewardInputs) -> Score:
    """Return the score 1 once a second process runs this reward, too."""
    (folder / str(os.getpid())).touch()
    while len([*folder.iterdir()]) < 2:
        time.sleep(0.01)
    return Score(1.0, True)


def test_rewards_with_a_time_limit_run_together_and_who_reads_them_waits(tmp_path: Path) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()

    @rewards.register("meets")
    def meets(role: str, /) -> Reward:
        return Reward(partial(met, meeting), views=(role,), timeout=60.0)

    both = plan(
        tmp_path,
        {
            "a": {"reward": {"meets": "c"}},
            "b": {"reward": {"meets": "c"}},
            "c": {
                "reward": {
                    "sum": {
                        "a": "(a.reward if a.ran else 0)",
                        "b": "(b.reward if b.ran else 0)",
                        "own": "countdown",
                    }
                }
            },
        },
    )
    episode = run_one(both, ScriptedModel(lambda _: RIGHT))
    assert [t.reward for t in episode.trajectories] == [1.0, 1.0, 3.0]


def test_a_late_reward_that_fails_may_end_the_episode(tmp_path: Path) -> None:
    @rewards.register("raises")
    def raises(role: str, /) -> Reward:
        def score(task: Task, action: Any, seen: RewardInputs) -> Score:
            raise ValueError("no")

        return Reward(score, roles=(role,))

    ends = plan(
        tmp_path,
        {"a": {"reward": {"raises": "b"}, "on_failure": {"then": "fail"}}, "b": {}},
    )
    episode = run_one(ends, ScriptedModel(lambda _: RIGHT))
    assert episode.termination_reason == "error"
    assert episode.metadata["failures"][0]["message"] == "the reward raised ValueError: no"


def test_what_a_reward_reads_of_its_own_turn(tmp_path: Path) -> None:
    @rewards.register("looks")
    def looks(*, role: str | None = None) -> Reward:
        def score(task: Task, action: Any, seen: RewardInputs) -> Score:
            assert seen.turn is not None
            (step,) = seen.steps
            return Score(float(len(step.model_response)), seen.turn.action == action)

        return Reward(score, views=(role,) if role else (), reads_turn=True)

    turns = plan(tmp_path, {"now": {"reward": "looks"}, "late": {"reward": {"looks": {"role": "now"}}}})
    episode = run_one(turns, ScriptedModel(lambda _: RIGHT))
    assert [(t.reward, t.is_correct) for t in episode.trajectories] == [(len(RIGHT), True)] * 2


def test_hidden_fields_are_shown_to_the_role_that_asks_for_them_alone(tmp_path: Path) -> None:
    roles: dict[str, Any] = {
        "judge": {
            "sees": ["solution"],
            "when": 'task.solution == "3 + 4"',
            "prompt": "{{ task.solution }}",
            "system": "{{ task.question }} {{ task.solution }}",
        },
        "other": {
            "needs": ["judge"],
            "prompt": "{{ judge.action }} {{ task.question }}",
        },
    }
    model = ScriptedModel(lambda _: RIGHT)
    episode = run_one(plan(tmp_path, roles), model)
    judge, other = (t.steps[0].chat_completions for t in episode.trajectories)
    assert [message["content"] for message in judge[:2]] == ["Make 7 from 3 and 4 3 + 4", "3 + 4"]
    assert other[0]["content"].endswith("Make 7 from 3 and 4")
    other_asks = {**roles, "other": {"needs": ["judge"], "prompt": "{{ judge.action }} {{ task.solution }}"}}
    with pytest.raises(SpecError, match=r"task\.solution would leak the label"):
        plan(tmp_path, other_asks)


def test_each_instance_of_a_role_that_asks_for_itself_is_shown_them(tmp_path: Path) -> None:
    shown = plan(
        tmp_path, {"a": {"count": 2, "sees": ["solution"], "prompt": "{{ self.index }} {{ task.solution }}"}}
    )
    episode = run_one(shown, ScriptedModel(lambda _: RIGHT))
    assert [t.steps[0].chat_completions[0]["content"] for t in episode["a"]] == ["1 3 + 4", "2 3 + 4"]


def test_a_judge_rates_each_answer_by_the_reference(tmp_path: Path) -> None:
    model = ScriptedModel(
        by_role(
            {
                "solver": [RIGHT, WRONG],
                "judge": ["<verdict>correct</verdict>", "<verdict>incorrect</verdict>"],
            }
        )
    )
    episode = run_one(compile_file("judge_with_reference"), model)
    assert earned(episode, "solver") == [1.0, 0.0]
    asked = {r.id.node.role: r.messages[-1]["content"] for r in model.requests}
    assert "One solution: 3 + 4" in asked["judge"]
    assert "One solution" not in asked["solver"]


@pytest.mark.parametrize(("right", "earns"), [(0, 0.0), (1, 0.75), (2, 1.0), (4, 0.0)])
def test_a_proposer_earns_most_where_half_of_its_solvers_are_right(right: int, earns: float) -> None:
    words = ["correct"] * right + ["incorrect"] * (4 - right)
    verdicts = [f"<verdict>{word}</verdict>" for word in words]
    model = ScriptedModel(by_role({"proposer": "a task", "solver": RIGHT, "judge": verdicts}))
    episode = run_one(compile_file("proposer_solver_judge"), model)
    assert earned(episode, "proposer") == [earns]
    assert earned(episode, "solver") == [float(word == "correct") for word in words]


def test_an_episode_cancelled_while_it_scores_leaves_no_task_behind(tmp_path: Path) -> None:
    @rewards.register("hangs")
    def hangs(role: str, /) -> Reward:
        return Reward(partial(met, tmp_path), views=(role,), timeout=60.0)

    from tests.edge import episode, limited

    hanging = plan(tmp_path, {"a": {"reward": {"hangs": "b"}}, "b": {}})

    async def cancelled() -> int:
        running = asyncio.create_task(episode(hanging, limited(hanging, ScriptedModel(lambda _: RIGHT))))
        await asyncio.sleep(0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return len(asyncio.all_tasks()) - 1

    assert asyncio.run(cancelled()) == 0
