"""Tests of one training step of recipes whose groups or estimators no shipped spec has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph.engine.records import Episode, NodeId, RunFolder, Step
from rolegraph.engine.records.episodes import read_episodes

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.local.launcher import LocalService
from tests.compile.test_recipes import DATA, HEAD, RECIPES, ROW
from tests.edge import write_spec
from tests.trainings import STEP, train

pytestmark = pytest.mark.service


def trained(recipe: str, folder: Path, service: LocalService, *overrides: str, data: str = "") -> rg.Run:
    spec = write_spec(folder, HEAD + data + RECIPES[recipe] + "train: {steps: 1}\n")
    settings = (*STEP, "sampling.max_tokens=24", *overrides)
    return train(folder / "run", str(spec), *settings, service=service)


def test_groups_in_groups_train_for_a_step(service: LocalService, tmp_path: Path) -> None:
    done = trained("Groups in groups", tmp_path, service)
    episodes = [*read_episodes(done.folder / "episodes" / "train-000001.jsonl")]
    rows = RunFolder(done.folder).credit_rows(1) or []
    assert {(row.grouping, row.by) for row in rows} == {(0, "task"), (1, "self.observation")}
    for episode in episodes:
        own = [it for it in rows if (it.task, it.rollout) == (episode.task_id, episode.rollout)]
        for step in episode["agent"][0].steps:
            covering = [it.advantage or 0.0 for it in own if it.round in (0, step.round)]
            assert len(covering) == 2 and step.advantage == pytest.approx(sum(covering))


CALLED = """\
rolegraph: 2
name: called
data: {train: countdown, validation: countdown}
roles:
  agent:
    prompt: react.j2
    tools: [{role: calculator}]
    max_calls: 3
    parser: {tag: answer, default: No solution found}
    reward: countdown
    estimator: grpo
  calculator:
    callable: {describe: Compute an arithmetic expression., arguments: {expression: string}}
    prompt: "Use {{ self.arguments.expression }}. Answer in <answer></answer>."
    parser: {tag: answer, default: "?"}
    reward: agent.reward
    estimator: grpo
train: {steps: 1}
"""
"""Spec whose agent calls a role as it was taught to call the calculator."""


def test_a_role_that_the_base_model_calls_trains_for_a_step(service: LocalService, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, CALLED)
    done = train(tmp_path / "run", str(spec), *STEP, "sampling.max_tokens=48", service=service)
    episodes = [*read_episodes(done.folder / "episodes" / "train-000001.jsonl")]
    calls = [t for episode in episodes for t in episode.trajectories if t.name == "calculator"]
    assert calls
    for episode in episodes:
        own = [t for t in episode.trajectories if t.name == "calculator"]
        used = [call for step in episode["agent"][0].steps for call in step.metadata.get("calls", ())]
        assert len(own) <= len(used)
        for called in own:
            assert called.reward == episode["agent"][0].reward
            assert all(step.advantage is not None and step.logprobs for step in called.steps)


def conversing(
    recipe: str, folder: Path, service: LocalService, *overrides: str
) -> tuple[rg.Run, list[Episode]]:
    """Train a recipe of conversations on rewards that differ, and return its episodes, too."""
    rows = [json.dumps({**ROW, "id": str(number), "question": f"What is 6*{number}?"}) for number in range(4)]
    (folder / "rows.jsonl").write_text("\n".join(rows))
    done = trained(recipe, folder, service, *overrides, data=DATA)
    return done, [*read_episodes(done.folder / "episodes" / "train-000001.jsonl")]


def chats(episode: Episode) -> dict[NodeId, Step]:
    """Return the last step of each turn."""
    return {
        trajectory.node._replace(round=step.round): step
        for trajectory in episode.trajectories
        for step in trajectory.steps
    }


def test_a_folded_branch_goes_on_from_the_agents_tokens_and_trains_for_a_step(
    service: LocalService, tmp_path: Path
) -> None:
    always = ("roles.branch.when=null", "loops.work.until=null", "loops.subtask.until=null")
    paid = ("roles.branch.reward=tokens", "roles.agent.reward=tokens")
    done, episodes = conversing("Context folding", tmp_path, service, *always, *paid)
    last = RunFolder(done.folder).metrics()[-1]
    assert last["outcome/agent/taught"] == last["outcome/branch/taught"] == 1
    forked = 0
    for episode in episodes:
        last = chats(episode)
        for step in (step for t in episode["branch"] for step in t.steps):
            assert step.advantage is not None
            if (trunk := step.metadata.get("forked")) is not None:
                before = last[NodeId(**trunk)]
                tokens = [*before.prompt_ids, *before.response_ids]
                assert [*step.prompt_ids[: len(tokens)]] == tokens
                forked += 1
        for trajectory in episode["agent"]:
            assert not any("forked" in step.metadata for step in trajectory.steps)
    assert forked >= len(episodes)


def test_a_thinker_that_begins_anew_trains_for_a_step(service: LocalService, tmp_path: Path) -> None:
    anew = (
        'roles.thinker.memory={reset: "self.round == 2"}',
        "roles.thinker.when=null",
        "roles.meta.parser=text",
    )
    paid = ("roles.thinker.reward=tokens", "roles.meta.reward=tokens")
    done, episodes = conversing("Lazy agents", tmp_path, service, *anew, *paid)
    assert RunFolder(done.folder).metrics()[-1]["outcome/thinker/taught"] == 1
    for episode in episodes:
        for step in (step for t in episode["thinker"] for step in t.steps):
            if step.round == 2:
                assert step.metadata.get("restarted") is True
                assert len(step.chat_completions) == 2
