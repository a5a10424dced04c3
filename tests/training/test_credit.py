"""Credit of turns, from a spec's keys to the advantages, and its notes in the episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolegraph.engine.models import Request
from rolegraph.engine.spec import Credit
from rolegraph.engine.training.advantages.credit import credited, loss_weights, notes
from rolegraph.engine.training.advantages.estimates import estimate
from rolegraph.engine.training.advantages.groups import group_episodes
from rolegraph.engine.training.advantages.recorded import merge_details
from rolegraph.engine.training.analysis.figures import rewards_by_role
from tests.training.credited import (
    advantages,
    drawn,
    learnt,
    looped,
    plan,
    rollouts,
)

# credit of a turn


@pytest.mark.parametrize(
    ("credit", "rewards", "expected"),
    [
        ("turn", [1.0, 0.0, 0.5], [1.0, 0.0, 0.5]),
        ({"return": 0.5}, [1.0, 0.0, 0.5], [1.125, 0.25, 0.5]),
        ({"return": 0.0}, [1.0, 0.0, 0.5], [1.0, 0.0, 0.5]),
        ({"return": 1.0}, [1.0, 0.0, 0.5, -1.0], [0.5, -0.5, -0.5, -1.0]),
        ("margin", [1.0, 0.0, 0.5], [1.0, -1.0, 0.0]),
        ("margin", [0.0, 1.0, 0.5, 1.0], [0.0, 1.0, 0.0, 0.5]),
        ("margin", [0.25], [0.25]),
        ({"return": 0.9}, [], []),
    ],
)
def test_a_turn_is_credited_by_the_table(credit: Any, rewards: list[float], expected: list[float]) -> None:
    assert credited(rewards, Credit.model_validate(credit)) == pytest.approx(expected)


def test_a_trajectory_that_is_credited_as_a_whole_is_compared_as_one(tmp_path: Path) -> None:
    spec = looped(tmp_path, "trajectory")
    episodes = rollouts(spec, drawn)
    groups, metrics = group_episodes(episodes, spec.trained)
    assert [(len(g.trajectories), g.of_turns) for g in groups] == [(4, False)] * 2
    assert metrics["groups/num_trajs_before_filter"] == 8
    done, _ = learnt(spec, episodes)
    assert all(len(set(own)) == 1 for own in advantages(done, "a"))
    assert not any("credit" in s.metadata for e in done for t in e.trajectories for s in t.steps)


def test_turns_of_a_round_are_compared_with_what_their_trajectories_earned(tmp_path: Path) -> None:
    spec = looped(tmp_path, "trajectory", "turn")
    groups, _ = group_episodes(rollouts(spec, drawn), spec.trained)
    assert [(g.key.task, g.key.round, len(g.trajectories)) for g in groups] == [
        (task, number, 4) for task in ("t0", "t1") for number in (1, 2, 3)
    ]
    for task in ("t0", "t1"):
        rewards = [[t.reward for t in g.trajectories] for g in groups if g.key.task == task]
        assert rewards[0] == rewards[1] == rewards[2]


def test_a_masked_turn_is_in_no_group_and_the_turns_around_it_are(tmp_path: Path) -> None:
    spec = looped(tmp_path, "margin", "turn", on_failure={"then": "mask"})

    def answer(request: Request) -> str:
        return "no tags" if request.id.node.round == 2 and request.id.rollout == 0 else drawn(request)

    episodes = rollouts(spec, answer)
    groups, metrics = group_episodes(episodes, spec.trained)
    assert [(g.key.round, len(g.trajectories)) for g in groups] == [
        *[(1, 4), (3, 4), (2, 3)],
        *[(1, 4), (3, 4), (2, 3)],
    ]
    assert metrics["groups/num_trajs_before_filter"] == 24
    steps = episodes[0].trajectories[0].steps
    (third,) = (t for t in groups[1].trajectories if t.uid.startswith("t0:0/"))
    assert third.reward == steps[2].reward - steps[0].reward, (
        "the mean of those before, without the masked one"
    )
    done, _ = learnt(spec, episodes)
    assert [value is None for value in advantages(done, "a")[0]] == [False, True, False]


# figures


def test_a_role_s_reward_is_that_of_its_trajectories_or_of_its_turns_where_these_are_compared(
    tmp_path: Path,
) -> None:
    whole, apart = looped(tmp_path, "trajectory"), looped(tmp_path, "margin")
    episodes = rollouts(whole, drawn)
    assert rewards_by_role(whole, episodes)["a"] == [t.reward for e in episodes for t in e.trajectories]
    turns = [step.reward for e in episodes for t in e.trajectories for step in t.steps]
    assert rewards_by_role(apart, episodes)["a"] == turns


# notes in the episodes


def test_each_member_is_noted_with_its_baseline_and_what_it_counts_in_the_loss(tmp_path: Path) -> None:
    spec = plan(tmp_path, {"a": {"count": 2, "weight": 3}, "b": {"estimator": "reinforce"}})
    made = rollouts(spec, drawn)
    groups, _ = group_episodes(made, spec.trained, spec.policy_of)
    estimated = estimate(
        groups, {name: role.estimator for name, role in spec.trained.items() if role.estimator}
    )
    weights = loss_weights(made, spec.trained, spec.policy_of)
    whole = 8 * (2 * 3 + 1)
    assert weights == pytest.approx({("main", "a"): 3 / whole, ("main", "b"): 1 / whole})
    noted = notes(groups, estimated.baselines, weights)
    for group in groups:
        mean = np.mean([member.reward for member in group.trajectories]) if group.key.role == "a" else 0.0
        for member in group.trajectories:
            (note,) = noted[member.uid]
            assert note["baseline"] == pytest.approx(mean)
            assert note["loss_weight"] == weights["main", group.key.role]


def test_what_a_signal_left_of_a_step_stays_beside_what_its_group_notes() -> None:
    taught = {"t:0/judge/1": [{"demonstration": {"text": "so", "ids": [1]}}]}
    noted = {"t:0/judge/1": [{"group": {"policy": "judge"}}], "t:0/solver/1": [{"loss_weight": 0.5}]}
    assert merge_details(taught, noted) == {
        "t:0/judge/1": [{**taught["t:0/judge/1"][0], **noted["t:0/judge/1"][0]}],
        "t:0/solver/1": [{"loss_weight": 0.5}],
    }
