"""Tests that train recipes of the documentation on a scripted service."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from statistics import fmean

import pytest

from rolegraph.engine.records import Episode, Task
from tests.compile.test_recipes import HEAD, RECIPES, ROW
from tests.edge import write_spec
from tests.training.edge import Training

DATA = "data: {train: rows.jsonl}\n"


def recipe(training: Training, folder: Path, name: str) -> None:
    """Let a training be of a recipe, on rows that all recipes can read."""

    def rows(split: str, count: int) -> list[Task]:
        return [
            {**ROW, "id": f"{split}{n}", "question": f"Task {n}: {ROW['question']}"} for n in range(count)
        ]

    (folder / "rows.jsonl").write_text(json.dumps({"id": "1", **ROW}))
    training.spec = write_spec(folder, HEAD + DATA + RECIPES[name])
    training.rows = rows


def test_self_play_is_against_a_past_self(training: Training, tmp_path: Path) -> None:
    text = RECIPES["Self-play against past selves"]
    training.spec = write_spec(tmp_path, HEAD + text)
    training.rows = lambda split, count: [{"id": f"{split}{n}", "seed": n} for n in range(count)]
    training.workflow.solve = lambda seed, updates: f"<answer>{1 + seed % 9}</answer>"
    training.run("policies.past.every=1", "policies.past.pick=latest", "train.rollouts=4")
    assert training.service.asked_for("optim_step")
    for episode in training.episodes("train", 3):
        versions = {t.name: {s.weight_version for s in t.steps} for t in episode.trajectories}
        assert versions.get("x", {2}) == {2} == versions.get("o", {2})
        assert all(s.advantage is None for t in episode.trajectories if t.name == "o" for s in t.steps)


def test_rejection_sampling_learns_right_answers_alone(training: Training, tmp_path: Path) -> None:
    recipe(training, tmp_path, "Rejection-sampling fine-tuning")
    training.workflow.solve = lambda seed, updates: f"<answer>{42 if seed % 3 else 41}</answer>"
    training.run("train.rollouts=4", "train.refill=1")
    sent = training.service.asked_for("forward_backward")
    assert {body["loss_fn"] for body in sent} == {"cross_entropy"}
    used = [e for e in training.episodes("train", 1) if "unused" not in e.metadata]
    assert {t.reward for e in used for t in e.trajectories} == {0.0, 1.0}
    right = [e for e in used if e.is_correct]
    data = sent[0]["data"]
    assert len(data) == len(right)
    for datum, episode in zip(data, right, strict=True):
        ids = episode.trajectories[0].steps[0].response_ids
        weights = datum.inputs["weights"]
        assert weights[-len(ids) :] == pytest.approx([1 / len(used)] * len(ids))
        assert not any(weights[: -len(ids)])


def trained(training: Training, *overrides: str) -> list[Episode]:
    """Train for a step, and return the step's episodes, none of which has a failure."""
    training.run("train.steps=1", "train.rollouts=4", *overrides)
    episodes = training.episodes("train", 1)
    assert training.service.asked_for("forward_backward")
    assert not [episode.metadata["failures"] for episode in episodes if "failures" in episode.metadata]
    return episodes


def test_a_router_pays_for_the_tokens_of_the_model_that_it_chose(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    recipe(training, tmp_path, "A router that pays for tokens")

    def answers(prompt: str, seed: int) -> str:
        if "small or large" in prompt:
            return f"{'so ' * (seed % 5)}<route>{'small' if seed % 2 else 'large'}</route>"
        return f"{'so ' * (seed % 7)}<answer>{42 if seed % 3 else 41}</answer>"

    training.workflow.answers = answers
    own = ("roles.small.policy=main", "roles.large.policy=main", "roles.large.model=null")
    rewards = set[float]()
    for episode in trained(training, *own):
        (router,), (answer,) = episode["router"], episode["answer"]
        (expert,) = [t for t in episode.trajectories if t.name in ("small", "large")]
        price = (10 if expert.name == "large" else 1) * len(expert.steps[0].response_ids)
        expected = float(answer.is_correct) - 0.0001 * (price + len(router.steps[0].response_ids))
        assert router.reward == pytest.approx(expected)
        assert router.is_correct == answer.is_correct == episode.is_correct
        rewards.add(expected)
    assert len(rewards) > 2


CODE = {"x + 1": 1, "x": 0}
"""Two programs, and whether each is right."""
TEST = {"f(1) == 2": (1, 0), "f(1) == 1": (0, 1), "True": (1, 1)}
"""Tests, and whether the right program and the wrong one pass each."""


def test_cure_pays_a_tester_for_judging_programs_as_the_true_tests_do(
    training: Training, tmp_path: Path
) -> None:
    pytest.importorskip("pydantic_monty")
    recipe(training, tmp_path, "CURE")
    training.allow = ("python",)

    def answers(prompt: str, seed: int) -> str:
        if "one assert" in prompt:
            return f"```python\nassert {[*TEST][seed % 3]}\n```"
        return f"```python\ndef f(x): return {[*CODE][seed % 2]}\n```"

    training.workflow.answers = answers
    training.run("train.rollouts=4")
    episodes = training.episodes("train", 1)
    assert training.service.asked_for("forward_backward")
    for episode in episodes:
        right = [CODE[str(t.action).removeprefix("def f(x): return ")] for t in episode["coder"]]
        assert [t.reward for t in episode["coder"]] == right
        for tester in episode["tester"]:
            passes = TEST[str(tester.action).removeprefix("assert ")]
            judged = [passes[0] if is_right else passes[1] for is_right in right]
            assert tester.reward == fmean(a == b for a, b in zip(judged, right, strict=True))


def test_agents_earn_their_shapley_values(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    recipe(training, tmp_path, "Shapley values")

    def answers(prompt: str, seed: int) -> str:
        return f"hint{seed % 9}" if "A hint?" in prompt else f"<answer>{42 if seed % 2 else 41}</answer>"

    training.workflow.answers = answers
    for episode in trained(training, "roles.coalition.policy=main"):
        agents = [t.action for t in episode["agent"]]
        worth = [float(t.is_correct) for t in episode["coalition"]]
        for number, coalition in enumerate(episode["coalition"]):
            shown = coalition.steps[0].chat_completions[0]["content"].splitlines()[1:-1]
            assert shown == [agent for k, agent in enumerate(agents) if number >> k & 1]
        for k, agent in enumerate(episode["agent"]):
            before = [sum(1 << one for one in order[: order.index(k)]) for order in permutations(range(3))]
            expected = fmean(worth[joined | 1 << k] - worth[joined] for joined in before)
            assert agent.reward == pytest.approx(expected)


def test_agentverse_composes_a_text_of_what_its_experts_said(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    recipe(training, tmp_path, "AgentVerse")

    def answers(prompt: str, seed: int) -> str:
        if "kinds of experts" in prompt:
            return json.dumps(["a poet", "a cook", "a judge"][: seed % 4])
        if "You are" in prompt:
            return f"I say {seed % 10}"
        if "what to change" in prompt:
            return "done" if seed % 2 else "more"
        return f"<answer>{42 if seed % 3 else 41}</answer>"

    training.workflow.answers = answers
    talks = 0
    for episode in trained(training, "roles.evaluator.policy=main"):
        for round_number in range(1, episode.metadata["rounds"]["plan"] + 1):
            said = {
                (t.name, t.index): step
                for t in episode.trajectories
                for step in t.steps
                if step.round == round_number
            }
            experts = said["recruiter", 1].action
            lines = [f"{name}: {said['expert', n].action}\n" for n, name in enumerate(experts, 1)]
            assert said["talk", 1].action == "".join(lines)
            assert "".join(lines).strip() in said["solver", 1].chat_completions[0]["content"]
            talks += bool(lines)
    assert talks
