"""Tests that train recipes of the documentation on a scripted service."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from statistics import fmean

import pytest

from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.engine.records import Episode, Task, Trajectory
from tests.compile.test_recipes import HEAD, RECIPES, ROW, write_files
from tests.edge import write_spec
from tests.models.edges import write_tokenizer
from tests.prompts.templates import HERMES
from tests.training.edge import Training

DATA = "data: {train: rows.jsonl}\n"


def recipe(training: Training, folder: Path, name: str) -> None:
    """Let a training be of a recipe, on rows that all recipes can read."""

    def rows(split: str, count: int) -> list[Task]:
        return [
            {**ROW, "id": f"{split}{n}", "question": f"Task {n}: {ROW['question']}"} for n in range(count)
        ]

    write_files(folder)
    text = RECIPES[name]
    training.spec = write_spec(folder, HEAD + ("" if text.startswith("data:") else DATA) + text)
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
    training.run("train.rollouts=4", "train.refill=1", steps=1)
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


def trained(training: Training, *overrides: str, steps: int = 1) -> list[Episode]:
    """Train for a step or more, and return the first step's episodes, none of which has a failure."""
    training.run("train.rollouts=4", *overrides, steps=steps)
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
        assert answer.is_correct == episode.is_correct
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
    training.run("train.rollouts=4", steps=1)
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


def calling(training: Training, folder: Path, name: str) -> None:
    """Let a training be of a recipe whose model calls functions in the form of Hermes."""
    recipe(training, folder, name)
    template = HERMES.replace("<|im_start|>", "<|start|>").replace("<|im_end|>", "<|end|>")
    training.tokenizer = write_tokenizer(folder / "hermes", template)
    training.workflow.tokenizer = load_tokenizer(training.tokenizer)


def of(episode: Episode, role: str) -> list[Trajectory]:
    """Return the trajectories of a role, none for one that was skipped."""
    return [trajectory for trajectory in episode.trajectories if trajectory.name == role]


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_sub_agents_learn_from_each_of_their_calls(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    calling(training, tmp_path, "M-GRPO")

    def answers(prompt: str, seed: int) -> str:
        if "How useful" in prompt:
            return f"<score>{seed % 11}</score>"
        if "<report>" in prompt:
            return f"<report>{seed % 5}</report>"
        called = prompt.count("<tool_response>")
        if called < seed % 3:
            return call("helper", question=f"q{seed}", why="b") * (1 + seed % 2)
        return f"<answer>{42 if seed % 2 else 41}</answer>"

    training.workflow.answers = answers
    episodes = trained(training, "roles.expert.policy=main")
    called = [len(of(episode, "helper")) for episode in episodes]
    assert len({*called}) > 1, "the rollouts differ in the number of calls"
    for episode in episodes:
        (main,) = episode["main"]
        scores = {t.index: float(t.action) for t in of(episode, "expert")}
        offered = [used for step in main.steps for used in step.metadata.get("calls", ())]
        assert len([used for used in offered if "error" not in used]) == len(of(episode, "helper"))
        for helper in of(episode, "helper"):
            assert helper.terms["team"] == main.reward
            assert helper.terms["expert"] == pytest.approx(0.1 * scores[helper.index])
            assert all(step.advantage is not None for step in helper.steps)
    by_task: dict[str, list[float]] = {}
    for episode in episodes:
        by_task.setdefault(episode.task_id, []).extend(t.reward or 0.0 for t in of(episode, "helper"))
    for episode in episodes:
        mean = fmean(by_task[episode.task_id]) if of(episode, "helper") else 0.0
        for helper in of(episode, "helper"):
            advantage = helper.steps[-1].advantage
            assert isinstance(advantage, float) and helper.reward is not None
            assert (advantage > 0) == (helper.reward > mean + 1e-9)


def test_workers_are_paid_what_their_result_adds_to_the_others(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    calling(training, tmp_path, "SHARP")

    def answers(prompt: str, seed: int) -> str:
        if "<result>" in prompt:
            return f"<result>part{seed % 7}</result>"
        if "Ask workers" in prompt and "<tool_response>" not in prompt:
            return (
                "".join(call("worker", part=f"{seed} {n}") for n in range(seed % 4)) or "<answer>41</answer>"
            )
        return f"<answer>{42 if seed % 2 else 41}</answer>"

    training.workflow.answers = answers
    compared = 0
    for episode in trained(training, "roles.without.policy=main"):
        (planner,) = episode["planner"]
        results = [str(worker.action) for worker in of(episode, "worker")]
        for place, (worker, without) in enumerate(
            zip(of(episode, "worker"), of(episode, "without"), strict=True)
        ):
            assert planner.reward is not None and without.reward is not None
            marginal = planner.reward - without.reward
            assert worker.reward == pytest.approx(planner.reward + 0.5 * marginal)
            lines = without.steps[0].chat_completions[0]["content"].splitlines()[1:-1]
            assert [line for line in lines if line] == results[:place] + results[place + 1 :]
            compared += 1
    assert compared


GAMES = {"ttt": "[4]", "poker": "[check]", "talk": "I make no offer."}
"""Games of the recipe, with a first move in each."""


def test_three_games_are_played_in_one_spec_each_side_with_its_own_mean(
    training: Training, tmp_path: Path
) -> None:
    pytest.importorskip("textarena")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"id": "1", "game": "ttt", "seed": 1}))
    training.spec = write_spec(tmp_path, HEAD + RECIPES["Self-play in three games"])
    training.rows = lambda split, count: [
        {"id": f"{split}{n}", "game": [*GAMES][n % 3], "seed": n} for n in range(count)
    ]

    def answers(prompt: str, seed: int) -> str:
        game = next(name for name, word in zip(GAMES, ("Tic", "Kuhn", "trad"), strict=True) if word in prompt)
        return f"<answer>{GAMES[game] if seed % 3 else '[fold]'}</answer>"

    training.workflow.answers = answers
    training.run("train.rollouts=4", "train.batch_size=3", steps=1)
    means: dict[str, float] = {}
    for episode in training.episodes("train", 1):
        game = episode.task["game"]
        assert {t.name for t in episode.trajectories} <= {f"{game}_first", f"{game}_second"}
        assert {name for name, count in episode.metadata["rounds"].items() if count} == {game}
        assert {name for name, cause in episode.metadata["ended"].items() if cause == "when"} == {*GAMES} - {
            game
        }
        assert {*episode.metadata.get("environment", ())} <= {game}
        for trajectory in episode.trajectories:
            mean = means.get(trajectory.name, 0.0)
            assert trajectory.reward is not None
            expected = [trajectory.reward - mean] * len(trajectory.steps)
            assert [step.advantage for step in trajectory.steps] == pytest.approx(expected)
            means[trajectory.name] = 0.95 * mean + 0.05 * trajectory.reward
    assert len(means) >= 3
    assert training.service.asked_for("forward_backward")


def test_werewolf_ends_with_the_wolves_or_all_but_one_of_them(training: Training, tmp_path: Path) -> None:
    recipe(training, tmp_path, "Werewolf")

    def answers(prompt: str, seed: int) -> str:
        if "Whom do you kill" in prompt:
            return f"<kill>{(1, 3, 5)[seed % 3]}</kill>"
        return f"<ban>{seed % 5 + 1}</ban>" if "Whom do you ban" in prompt else f"hm {seed % 7}"

    training.workflow.answers = answers
    outcomes = set[str]()
    for episode in trained(training):
        rounds = episode.metadata["rounds"]
        (winner,), (living,) = episode["winner"], episode["living"]
        alive = [[wolf for wolf in (2, 4) if wolf in step.action] for step in living.steps]
        assert rounds["game"] == len(alive) == (2 if len(alive[0]) == 1 else 1)
        wolves = alive[-1]
        outcomes.add(f"{len(wolves)} in {rounds['game']}")
        assert winner.action["wolves"] == bool(wolves)
        for player in episode["speech"]:
            assert player.reward == ((player.index in (2, 4)) == bool(wolves))
        assert {t.reward for t in episode["plot"]} == {float(bool(wolves))}
        assert {step.round for t in episode["plot"] for step in t.steps} <= set(range(1, 7))
    assert len(outcomes) > 1
