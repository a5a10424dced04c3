"""Advantages and metrics against rLLM's (tests/data/rllm_advantage_cases.json), and refused input."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.errors import AdvantageError
from rolegraph.engine.records import Episode, GroupKey, Step, Trajectory
from rolegraph.engine.records.credit import Group, Member
from rolegraph.engine.training.advantages.estimates import Estimates, estimate
from rolegraph.engine.training.advantages.ledger import Membership
from rolegraph.engine.vocabulary import Estimator, Floats, ItemCall, estimators

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "data" / "rllm_advantage_cases.json").read_text(encoding="utf-8")
)
FINE = [case["name"] for case in CASES if case["error"] is None]
REFUSED = [case["name"] for case in CASES if case["error"] is not None]


def build(name: str, **options: Any) -> Estimator:
    return estimators.build(ItemCall(name, options=options))


def case_named(name: str) -> dict[str, Any]:
    return next(case for case in CASES if case["name"] == name)


def episodes_of(case: Mapping[str, Any]) -> list[Episode]:
    return [
        Episode(
            task_id=episode["id"].partition(":")[0],
            rollout=int(episode["id"].partition(":")[2]),
            task={},
            trajectories=[
                Trajectory(
                    name=t["name"],
                    reward=t["reward"],
                    steps=tuple(
                        Step(response_ids=[7] * step["n_response"], advantage=step["advantage"])
                        for step in t["steps"]
                    ),
                )
                for t in episode["trajectories"]
            ],
        )
        for episode in case["episodes"]
    ]


def estimators_of(case: Mapping[str, Any], episodes: list[Episode]) -> dict[str, Estimator | None]:
    """Return each role's estimator; with rLLM's flag, a role with advantages has none."""
    config = case["config"]
    found: dict[str, Estimator | None] = {}
    for trajectory in (t for episode in episodes for t in episode.trajectories):
        role = trajectory.name
        carries = any(step.advantage is not None for step in trajectory.steps)
        if config["use_precomputed_advantage"] and carries:
            found[role] = None
        elif role not in found:
            name = config["estimator_map"].get(role, config["estimator"])
            found[role] = build(
                name, **({"std": config["norm_adv_by_std_in_grpo"]} if name == "grpo" else {})
            )
    return found


def run(case: Mapping[str, Any]) -> tuple[Estimates, dict[str, float]]:
    episodes = episodes_of(case)
    step = Membership().add(episodes).ledger()
    done = estimate(step.groups, estimators_of(case, episodes))
    return done, step.group_metrics | done.metrics


def test_there_are_17_cases_and_3_refusals() -> None:
    assert (len(FINE), len(REFUSED)) == (14, 3)


@pytest.mark.parametrize("name", FINE)
def test_advantages_and_metrics_are_those_of_rllm(name: str) -> None:
    case = case_named(name)
    done, metrics = run(case)
    groups = Membership().add(episodes_of(case)).groups()
    assert [(f"{group.key.task}:{group.key.role}", len(group.members)) for group in groups] == [
        (group["group_id"], group["size"]) for group in case["groups"]
    ]
    for (values_G, _, tokens), theirs in zip(done.groups, case["groups"], strict=True):
        for place, values in enumerate(theirs["advantages"]):
            for number, value in enumerate(values):
                got = [*tokens[place][number]] if tokens else values_G[place]
                assert got == pytest.approx(value, abs=1e-6)
    counted = metrics.pop("advantage/judge/wrong_length", 0.0)
    assert metrics == pytest.approx(case["metrics"], abs=1e-9)
    assert (counted > 0) == (name == "precomputed_length_mismatch")


@pytest.mark.parametrize("name", REFUSED)
def test_what_rllm_refuses_is_refused_with_role_task_and_step(name: str) -> None:
    with pytest.raises(AdvantageError) as caught:
        run(case_named(name))
    message = str(caught.value)
    assert "judge 1" in message and "task t" in message and "step 0" in message and "float" in message


def test_a_list_of_the_wrong_length_becomes_zeros_with_a_warning_and_a_count() -> None:
    case = case_named("precomputed_length_mismatch")
    done, metrics = run(case)
    assert metrics["advantage/judge/wrong_length"] == len(done.warnings) > 0
    assert "judge 1, task t0, rollout 0, step 0: 3 advantages for 2 response tokens" in done.warnings[0].text


def test_advantages_that_the_estimator_replaces_are_warned_of() -> None:
    done, _ = run(case_named("precomputed_but_flag_off"))
    assert len(done.warnings) == 1
    assert "its estimator is grpo" in done.warnings[0].text


def group_of(rewards: list[float], lengths: list[int] | None = None, role: str = "solver") -> Group:
    steps = [(Step(response_ids=[1] * length),) for length in lengths or [3] * len(rewards)]
    return group(
        *(
            Trajectory(role, reward=reward, steps=own, index=place)
            for place, (reward, own) in enumerate(zip(rewards, steps, strict=True), 1)
        )
    )


def group(*trajectories: Trajectory) -> Group:
    members = [
        Member("t1", rollout, one, 0, len(one.steps), one.reward, number=rollout)
        for rollout, one in enumerate(trajectories)
    ]
    return Group(GroupKey("t1", trajectories[0].name), members, trajectories[0].name)


def test_opo_weighs_the_baseline_by_response_length() -> None:
    done = estimate([group_of([1.0, 0.0], [1, 3])], {"solver": build("opo")})
    assert [it.advantages for it in done.groups] == [pytest.approx([0.75, -0.25])]


@pytest.mark.parametrize("reward", [math.nan, math.inf, None])
def test_a_reward_that_is_no_finite_number_is_named_and_placed(reward: float | None) -> None:
    good = Trajectory("solver", reward=1.0, steps=(Step(response_ids=[1]),))
    bad = good._replace(reward=reward, index=2)
    with pytest.raises(AdvantageError, match=r"solver 2, task t1, rollout 1 has .*finite number"):
        estimate([group(good, bad)], {"solver": build("grpo")})


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([], "gave 0 groups of advantages for 1 groups"),
        (
            [[1.0]],
            r"gave advantages of shape \[1\] for the group of solver 1, task t1, rollout 0, expected \[2\]",
        ),
        ([[1.0, math.nan]], "gave nan for solver 2, task t1"),
        ("what", "raised ValueError"),
    ],
)
def test_an_estimator_that_gives_nonsense_is_named(result: Any, message: str) -> None:
    broken = Estimator("mine", compute=lambda rewards, groups: result)
    with pytest.raises(AdvantageError, match=f"the estimator mine of solver {message}"):
        estimate([group_of([1.0, 0.0])], {"solver": broken})


def test_masked_and_unanswered_trajectories_are_in_no_group() -> None:
    step = (Step(response_ids=[1]),)
    episode = Episode(
        "t",
        0,
        {"id": "t"},
        [
            Trajectory("solver", 1, step, 1.0),
            Trajectory("solver", 2, step, 0.0, masked=True),
            Trajectory("solver", 3, (), 0.0),
        ],
    )
    step = Membership().add([episode]).ledger()
    metrics = step.group_metrics
    assert [[it.index for it in group.members] for group in step.groups] == [[1]]
    assert metrics["groups/num_trajs_before_filter"] == 3
    assert metrics["groups/num_trajs_after_filter"] == 1


def test_no_episodes_give_no_groups() -> None:
    assert Membership().ledger().group_metrics["groups/max_group_size"] == 0
    assert estimate([], {}).metrics == {}


def test_a_precomputed_role_and_an_estimated_one_share_a_run() -> None:
    judge = group(Trajectory("judge", reward=1.0, steps=(Step(response_ids=[1, 2], advantage=0.5),)))
    done = estimate([group_of([1.0, 0.0]), judge], {"solver": build("rloo"), "judge": None})
    solver, judged = done.groups
    assert (solver.advantages, solver.token_advantages) == ([1.0, -1.0], ())
    assert (judged.advantages, judged.token_advantages) == ((), [[(0.5, 0.5)]])


rewards_P_G = st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=8), min_size=1, max_size=5)


@given(rewards_P_G, st.sampled_from(["grpo", "rloo", "reinforce_plus_plus_baseline", "opo"]))
def test_a_group_without_spread_teaches_nothing(rewards: list[list[float]], name: str) -> None:
    equal: list[Floats] = [np.full(len(own) + 1, own[0]) for own in rewards]
    groups = [group_of(list(own)) for own in equal]
    compute = build(name).compute
    for values in compute(equal, groups):
        assert np.abs(values).max() < 1e-6


@given(rewards_P_G)
def test_advantages_follow_the_rewards_and_centre_on_zero(rewards: list[list[float]]) -> None:
    arrays: list[Floats] = [np.array([*own, own[0] + 1.0]) for own in rewards]
    groups = [group_of(list(own)) for own in arrays]
    for name in ("grpo", "rloo", "reinforce_plus_plus_baseline"):
        compute = build(name).compute
        for own, values in zip(arrays, compute(arrays, groups), strict=True):
            assert abs(values.sum()) < 1e-6 * max(1.0, np.abs(values).max())
            assert (np.diff(values[np.argsort(own)]) > -1e-9).all()


@given(
    rewards_P_G, st.sampled_from(["grpo", "reinforce", "rloo", "reinforce_plus_plus_baseline", "prpo", "opo"])
)
def test_an_advantage_is_the_reward_less_its_baseline_but_for_a_scale(
    rewards: list[list[float]], name: str
) -> None:
    arrays: list[Floats] = [np.array([*own, own[0] + 1.0]) for own in rewards]
    groups = [group_of(list(own)) for own in arrays]
    estimator = build(name)
    assert estimator.compute is not None and estimator.baseline is not None
    computed, taken = estimator.compute(arrays, groups), estimator.baseline(arrays, groups)
    for own, values, baseline in zip(arrays, computed, taken, strict=True):
        assert baseline.shape == own.shape
        scale = np.abs(own - baseline).max() / max(np.abs(values).max(), 1e-12)
        assert own - baseline == pytest.approx(values * scale, abs=1e-6)
        if name in ("reinforce", "rloo", "opo"):
            assert own - baseline == pytest.approx(values, abs=1e-9)
