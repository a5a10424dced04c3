"""A forecast against what then happened."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import rolegraph as rg
from rolegraph.engine.compile import compile_file
from rolegraph.engine.records import Episode, Step, Trajectory
from rolegraph.engine.shipped import MODELS
from rolegraph.engine.spec import Lora
from rolegraph.engine.training.adapter_size import adapter_parameters
from rolegraph.engine.training.forecast import ObservedEpisodes, forecast
from rolegraph.engine.training.order import batch
from tests import replays


def an_episode(task: str, rollout: int, *rewards: float, tokens: int = 10) -> Episode:
    """Of solver_only: as many solvers as rewards, each with one Step."""
    trajectories = tuple(
        Trajectory(
            "solver",
            index,
            (
                Step(
                    prompt_ids=(1,) * 5, response_ids=(2,) * tokens, logprobs=(-0.1,) * tokens, reward=reward
                ),
            ),
            reward,
            uid=f"{task}:{rollout}/solver.{index}",
        )
        for index, reward in enumerate(rewards, 1)
    )
    return Episode(task, rollout, {"id": task}, trajectories)


def trial(random: np.random.Generator, tasks: int) -> list[Episode]:
    """Tasks that are each of their own difficulty, 4 rollouts of one solver."""
    chances = random.beta(0.5, 0.5, size=tasks)
    return [
        an_episode(f"t{task}", rollout, float(random.random() < chance))
        for task, chance in enumerate(chances)
        for rollout in range(4)
    ]


SMALL = ("roles.solver.count=1", "train.rollouts=4")


def test_without_episodes_there_are_the_bounds_of_the_spec() -> None:
    found = forecast(compile_file("solver_judge"))
    assert (found.episodes, found.calls_at_most, found.chain) == (16 * 8, 16 * 8 * 3, 2)
    assert found.roles["solver"].group_sizes == (16, 16)
    assert found.roles["judge"].calls_at_most == 128
    assert found.roles["solver"].teaching is found.seconds is found.cost is None


def test_tokens_and_costs_are_those_of_as_many_episodes_as_the_step_has() -> None:
    plan = compile_file("solver_only", (*SMALL, "train.batch_size=8"))
    seen = [an_episode(f"t{n}", k, k % 2, tokens=10 + n) for n in range(4) for k in range(4)]
    prices = {"default": rg.Price(prompt=2.0, response=4.0, train=1.0)}
    found = forecast(plan, ObservedEpisodes("seen", seen, seconds=8.0), prices=prices)
    solver = found.roles["solver"]
    assert solver.response_tokens and solver.response_tokens.mean == 32 * 11.5
    assert solver.response_tokens.low < 32 * 11.5 < solver.response_tokens.high
    assert found.tokens("prompt") == 32 * 5
    assert found.cost == pytest.approx((160 * 2 + 368 * 4 + 528) / 1e6)
    assert found.seconds == 16.0
    assert (solver.groups, solver.group_sizes, solver.share) == (8, (4, 4), 1.0)


def test_the_share_of_groups_that_teach_is_inside_its_interval() -> None:
    plan = compile_file("solver_only", SMALL)
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(40):
        told = forecast(plan, ObservedEpisodes("a probe", trial(random, 8))).roles["solver"].teaching
        came = forecast(plan, ObservedEpisodes("the step", trial(random, 16))).roles["solver"].teaching
        assert told and came
        inside += told.low <= came.mean <= told.high
    assert inside >= 36


def test_a_probe_is_of_tasks_that_a_training_of_the_same_seed_begins_with(tmp_path: Path) -> None:
    replays.answers(tmp_path / "model.jsonl", replays.solved(0, 2), tasks=1)
    flow = rg.load("solver_only", *SMALL, model=f"replay:{tmp_path / 'model.jsonl'}")
    for seed in (0, 1):
        asked: list[str] = []

        def hear(event: rg.Event, asked: list[str] = asked) -> None:
            if isinstance(event, rg.EpisodeDone):
                asked.append(event.episode.task_id)

        rg.forecast(flow, probe=8, seed=seed, observe=hear)
        first = batch(flow.tasks("train"), flow.plan.spec.train, seed, step=1)
        once = {task["id"]: 1 for task in first[2:4]}
        assert Counter(asked) == {task["id"]: 4 for task in first[:2]} | once


def test_a_role_that_will_not_learn_is_warned_of() -> None:
    plan = compile_file("solver_only", SMALL)
    flat = [an_episode(f"t{n}", k, 1.0) for n in range(3) for k in range(4)]
    (said,) = forecast(plan, ObservedEpisodes("seen", flat)).warnings
    assert said == "solver: no group taught; its reward was 1 every time"
    few = [an_episode(f"t{n}", 0, 1.0) for n in range(3)]
    (said,) = forecast(plan, ObservedEpisodes("seen", few)).warnings
    assert said.startswith("solver: no task has 4 episodes")


def test_an_adapters_parameters_are_those_of_its_layers(tmp_path: Path) -> None:
    assert adapter_parameters(tmp_path, Lora()) is None
    base, rank = MODELS["rolegraph-base"], 4
    config = json.loads((base / "config.json").read_text())
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    only = Lora(rank=rank, mlp=False, unembed=False)
    assert adapter_parameters(base, only) == layers * 4 * rank * 2 * hidden


def test_prices_are_by_model(tmp_path: Path) -> None:
    plan = compile_file("solver_only", SMALL)
    seen = ObservedEpisodes("seen", [an_episode("t", k, k % 2) for k in range(4)])
    found = forecast(plan, seen, prices={"openai:x": rg.Price(1.0, 1.0)})
    assert found.cost is None
    assert "no price for the model of solver: its tokens are not in the cost" in found.warnings
