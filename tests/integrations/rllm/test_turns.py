"""Loops under rLLM: whole trajectories are sent as they are, compared turns one by one."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rllm", reason="needs rLLM: uv pip install --group rllm .")

from rllm.trainer.algorithms import AlgorithmConfig
from rllm.trainer.algorithms.advantage import collect_reward_and_advantage_from_trajectory_groups
from rllm.trainer.algorithms.config import TransformConfig
from rllm.trainer.algorithms.transform import transform_episodes_to_trajectory_groups
from rllm.trainer.tinker.transform import transform_trajectory_groups_to_datums
from rllm.types import Episode, TrajectoryGroup

from rolegraph.engine.compile import Plan
from rolegraph.engine.records import Episode as OurEpisode
from rolegraph.engine.training.advantages.estimates import estimate
from rolegraph.engine.training.advantages.ledger import Membership
from rolegraph.integrations.rllm import compile_workflow, grouping_hook
from rolegraph.integrations.rllm.estimators import estimator_map, hook_reasons
from tests.edge import RIGHT, WRONG
from tests.integrations.rllm.edge import RecordedEngine, run_all, tasks
from tests.training.test_credit import plan

pytestmark = pytest.mark.rllm

LOOP = {"l": {"roles": ["a"], "times": 3}}
WHO = "{{ task.question }} {{ self.index }}, {{ self.round }}"


def looped(folder: Path, **role: Any) -> Plan:
    until = role.pop("until", None)
    loops = {"l": {**LOOP["l"], "until": until}} if until else LOOP
    return plan(folder, {"a": {"prompt": WHO, "count": 2, **role}}, loops)


class RandomAnswers:
    """Right or wrong answers, by prompt and number of calls; `special` is for second turns."""

    def __init__(self, special: str = "") -> None:
        self.special, self.calls = special, Counter[str]()

    def __call__(self, prompt: str) -> str:
        self.calls[prompt] += 1
        text = random.Random(f"{prompt} {self.calls[prompt]}").choice([RIGHT, WRONG])
        return self.special or text if prompt.endswith("1, 2") else text


def episodes_of(spec: Plan, special: str = "") -> list[Episode]:
    return run_all(
        compile_workflow(spec), RecordedEngine(RandomAnswers(special)), tasks(4), rollouts=3, parallel=1
    )


def grouped(episodes: list[Episode], **hook: Any) -> list[TrajectoryGroup]:
    return transform_episodes_to_trajectory_groups(episodes, TransformConfig(), **hook)[0]


def test_a_trajectory_that_is_compared_as_one_leaves_as_it_is(tmp_path: Path) -> None:
    for episode in episodes_of(looped(tmp_path)):
        assert [(t.name, len(t.steps)) for t in episode.trajectories] == [("a", 3), ("a", 3)]
        for trajectory in episode.trajectories:
            assert [s.reward for s in trajectory.steps] == [0.0, 0.0, trajectory.reward], "rLLM adds them up"
            assert [s.prompt_ids for s in trajectory.steps] == [
                s.model_output.prompt_ids for s in trajectory.steps
            ]


def test_a_masked_turn_is_withheld_and_comes_back_in_its_place(tmp_path: Path) -> None:
    spec = looped(tmp_path, on_failure={"then": "mask"})
    episode = episodes_of(spec, "no tags")[0]
    first = episode.trajectories[0]
    assert [re.findall(r"\d$", s.chat_completions[0]["content"]) for s in first.steps] == [["1"], ["3"]]
    back = OurEpisode.from_dict(episode.to_dict())
    assert [step.round for step in back.trajectories[0].steps] == [1, 2, 3]


@pytest.mark.parametrize("credit", ["turn", "margin", {"return": 0.5}, "trajectory"])
def test_turns_of_a_round_are_rllm_s_own_groups_and_advantages(credit: Any, tmp_path: Path) -> None:
    spec = looped(tmp_path, credit=credit, group="turn")
    assert hook_reasons(spec, "tinker") == {}
    groups = grouped(episodes_of(spec))
    assert [group.group_id for group in groups[:3]] == ["t0:a@1", "t0:a@2", "t0:a@3"]
    known = estimator_map(spec, "tinker")
    assert {"a@1", "a@2", "a@3"} < known.keys()
    collect_reward_and_advantage_from_trajectory_groups(groups, AlgorithmConfig(estimator_map=known))
    assert rounded(of_rllm(groups)) == rounded(of_ours(tmp_path, credit, "turn"))


def test_turns_that_are_pooled_keep_the_role_s_name(tmp_path: Path) -> None:
    groups = grouped(episodes_of(looped(tmp_path, credit="margin")))
    assert [(group.group_id, len(group.trajectories)) for group in groups] == [
        (f"t{n}:a", 18) for n in range(4)
    ]


def test_turns_that_share_a_prompt_are_grouped_by_the_hook(tmp_path: Path) -> None:
    spec = looped(tmp_path, credit="turn", group="prompt")
    assert "share a prompt" in hook_reasons(spec, "verl")["a"]
    groups = grouped(episodes_of(spec), traj_grouping_hook=grouping_hook(spec))
    assert {group.group_role for group in groups} == {"a"}
    assert [len(group.trajectories) for group in groups] == [3] * 4 * 6, (
        "each turn of each instance, in all rollouts"
    )
    algorithm = AlgorithmConfig(estimator_map=estimator_map(spec, "tinker"))
    datums, metrics = transform_trajectory_groups_to_datums(groups, algorithm)
    assert (len(datums["a"]), metrics["batch/dropped_malformed_sequences"]) == (4 * 3 * 6, 0)
    assert rounded(of_rllm(groups)) == rounded(of_ours(tmp_path, "turn", "prompt"))


def test_groups_that_skips_left_too_small_are_not_trained_on(tmp_path: Path) -> None:
    spec = looped(tmp_path, credit="turn", group="turn", until=f'a[0].action == "{RIGHT}"', count=1)
    assert "too small" in hook_reasons(spec, "verl")["a"]
    episodes = episodes_of(spec)
    sizes = [len(group.trajectories) for group in grouped(episodes)]
    assert 1 in sizes
    kept = grouped(episodes, traj_grouping_hook=grouping_hook(spec))
    assert [len(group.trajectories) for group in kept] == [size for size in sizes if size > 1]


Values = list[tuple[list[float], list[float]]]


def of_rllm(groups: Sequence[TrajectoryGroup]) -> Values:
    return [
        ([t.reward for t in g.trajectories], [t.steps[0].advantage for t in g.trajectories]) for g in groups
    ]


def of_ours(folder: Path, credit: Any, group: str) -> Values:
    """Group the same episodes by our own loop."""
    whole = looped(folder)
    ran = [OurEpisode.from_dict(episode.to_dict()) for episode in episodes_of(whole)]
    earned = [_own_rewards(episode) for episode in ran]
    spec = looped(folder, credit=credit, group=group)
    groups = Membership(spec.trained).add(earned).groups()
    estimated = estimate(groups, {"a": spec.roles[0].estimator})  # pyright: ignore[reportArgumentType]
    return [
        ([it.reward or 0.0 for it in one.members], [*group_estimate.advantages])
        for one, group_estimate in zip(groups, estimated.groups, strict=True)
    ]


def _own_rewards(episode: OurEpisode) -> OurEpisode:
    """Return each turn's reward, which whole trajectories do not have."""
    return episode._replace(
        trajectories=[
            t._replace(steps=[s._replace(reward=float(s.model_response == RIGHT)) for s in t.steps])
            for t in episode.trajectories
        ]
    )


def rounded(values: Values) -> list[Any]:
    return sorted([sorted((round(r, 6), round(a, 6)) for r, a in zip(*pair, strict=True)) for pair in values])
