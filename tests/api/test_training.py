"""Tests of the files of a training, and of each role's learning from its own reward or signal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker

import rolegraph as rg
from rolegraph import api
from rolegraph.engine.records.episodes import read_episodes
from rolegraph.engine.records.folder import RunFolder

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.local.launcher import LocalService
from tests.trainings import NEVER, SMALL, STEP, metrics, train

pytestmark = pytest.mark.service


def test_a_run_leaves_metrics_episodes_checkpoints_and_a_report(whole: Path) -> None:
    lines = metrics(whole)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert {"validation/solver_acc", "validation/judge_acc"} <= {*lines[0]} & {*lines[2]} & {*lines[4]}
    for key in (
        "reward/solver/mean",
        "advantage/judge/std",
        "batch/solver/informative",
        "groups/num_groups",
        "kl/solver",
    ):
        assert all(key in line for line in lines[1:]), key
    assert abs(lines[1]["kl/solver"]) < 1e-4  # on policy: the same weights sample and learn
    assert [len([*read_episodes(whole / "episodes" / f"train-{n:06d}.jsonl")]) for n in (1, 4)] == [8, 8]
    assert json.loads((whole / "checkpoints.jsonl").read_text().splitlines()[-1])["step"] == 4
    assert "<svg" in (whole / "report.html").read_text()
    names = [row["name"] for row in json.loads((whole / "controls.json").read_text())]
    assert names[0] == "untrained workflow" and names[-1] == "trained workflow"


def test_steps_on_disk_carry_their_advantages(whole: Path) -> None:
    episodes = [*read_episodes(whole / "episodes" / "train-000001.jsonl")]
    for task in {e.task_id for e in episodes}:
        own = [t for e in episodes if e.task_id == task for t in e.trajectories if t.name == "solver"]
        rewards = np.array([t.reward for t in own])
        expected = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        assert [t.steps[0].advantage for t in own] == pytest.approx([*expected], abs=1e-6)
    judges = [t for e in episodes for t in e.trajectories if t.name == "judge"]
    assert [t.steps[0].advantage for t in judges] == [t.reward for t in judges]


def figure(out: Path, name: str) -> tuple[float, float]:
    """Return a validation metric before and after training."""
    lines = [line for line in metrics(out) if f"validation/{name}" in line]
    return lines[0][f"validation/{name}"], lines[-1][f"validation/{name}"]


LEARN = (
    "train.batch_size=8",
    "train.rollouts=8",
    "train.steps=3",
    "train.learning_rate=0.004",
    "train.validation={every: 0, tasks: 32, rollouts: 1}",
)
UNMEASURED = ("train.validation={every: 0, tasks: 1, rollouts: 1}",)
RIGHT = [
    "episode.metrics.solver_right=mean(solver.terms.right | default(0))",
    "episode.metrics.judge_right=judge.terms.right | default(0)",
]


def reward(role: str, weight: float) -> str:
    """Return an override for `weight` times the countdown reward; the term `right` stays unweighted."""
    terms = f"right: {{reward: countdown, weight: {weight}}}, never: {{reward: {NEVER}, weight: 1}}"
    return f"roles.{role}.reward={{sum: {{{terms}}}}}"


def test_both_roles_of_a_shared_policy_learn_their_rewards(service: LocalService, tmp_path: Path) -> None:
    out = tmp_path / "run"
    rewards = [reward("solver", 1), reward("judge", 1), "roles.judge.estimator=grpo"]
    train(out, "solver_judge", *LEARN, *RIGHT, *rewards, service=service)
    for role in ("solver", "judge"):
        before, after = figure(out, f"{role}_right")
        assert after - before > 0.1, (role, before, after)


@pytest.mark.parametrize(("solver", "judge", "seed"), [(1, -1, 0), (-1, 1, 2)])
def test_a_step_moves_each_role_by_the_sign_of_its_own_reward(
    solver: int, judge: int, seed: int, service: LocalService, tmp_path: Path
) -> None:
    """Check that right answers gain likelihood over wrong answers, or lose it under an inverted reward."""
    rewards = [reward("solver", solver), reward("judge", judge), "roles.judge.estimator=grpo"]
    batch = [
        "train.batch_size=4",
        "train.rollouts=8",
        "train.steps=1",
        "train.validation={tasks: 1, rollouts: 1}",
    ]
    out = tmp_path / "run"
    train(out, "solver_judge", *batch, *rewards, seed=seed, service=service)
    sampler = sampler_of(service, last_weights(out))
    for role, sign in (("solver", solver), ("judge", judge)):
        moved = 0.0
        for steps in groups(out, role):
            gains = gained(sampler, [step for step, _ in steps])
            right = np.array([right for _, right in steps])
            moved += float(np.dot(right - right.mean(), gains))
        assert moved * sign > 0, (role, moved)


def last_weights(out: Path, policy: str = "main") -> str:
    """Return the path of a policy's sampling weights at the last checkpoint."""
    return RunFolder(out).checkpoints()[-1].policies[policy].sampler


def groups(out: Path, role: str) -> list[list[tuple[rg.Step, float]]]:
    """Return a role's Steps of the first batch, grouped by task, each with its term `right`."""
    tasks: dict[str, list[tuple[rg.Step, float]]] = {}
    for episode in read_episodes(out / "episodes" / "train-000001.jsonl"):
        for trajectory in episode.trajectories:
            if trajectory.name == role:
                right = trajectory.terms.get("right", 0.0)  # no term if parsing failed
                tasks.setdefault(episode.task_id, []).append((trajectory.steps[0], right))
    return [*tasks.values()]


def gained(sampler: tinker.SamplingClient, steps: list[rg.Step]) -> list[float]:
    """Return the increase of each answer's log-probability since it was sampled, in nats."""
    sequences = [tinker.ModelInput.from_ints([*step.prompt_ids, *step.response_ids]) for step in steps]
    asked = [sampler.compute_logprobs(sequence) for sequence in sequences]
    after = [
        sum(request.result()[len(step.prompt_ids) :]) for request, step in zip(asked, steps, strict=True)
    ]
    return [now - sum(step.logprobs) for now, step in zip(after, steps, strict=True)]


def sampler_of(service: LocalService, path: str | None) -> tinker.SamplingClient:
    """Return a sampling client of a checkpoint, or of the base model where `path` is None."""
    client = tinker.ServiceClient(base_url=service.base_url, api_key=service.api_key)
    base = None if path else service.model_name
    return client.create_sampling_client(model_path=path, base_model=base).result()


def probe(service: LocalService, path: str | None) -> np.ndarray[Any, Any]:
    """Return the log-probabilities of a fixed text under a checkpoint; the base model if `path` is None."""
    tokens = tinker.ModelInput.from_ints([5, 9, 33, 120, 64, 77, 12, 230, 8, 41, 300, 15])
    return np.array(sampler_of(service, path).compute_logprobs(tokens).result()[1:], dtype=float)


def test_a_constant_reward_moves_nothing_where_the_true_one_does(
    service: LocalService, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    rewards = [f"roles.{role}.reward={NEVER}" for role in ("solver", "judge")]
    heard: list[api.Event] = []
    train(out, "solver_judge", *SMALL, *STEP, *rewards, service=service, observe=heard.append)
    assert any("has no gradient" in event.text for event in heard if isinstance(event, api.Note))
    last = [last_weights(run) for run in (out, whole)]
    base = probe(service, None)
    constant, true = (np.abs(probe(service, path) - base).max() for path in last)
    assert constant < 1e-5
    assert true > 1e-2


def test_three_estimators_share_a_run_and_show_their_own(service: LocalService, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ("train.rollouts=4", "roles.judge.estimator=rloo")
    train(out, "solver_judge_validator", *STEP, *words, service=service)
    about = json.loads((out / "run.json").read_text())
    assert {n: r["estimator"] for n, r in about["roles"].items()} == {
        "solver": "grpo",
        "judge": "rloo",
        "validator": "reinforce",
    }
    for line in metrics(out)[1:]:
        assert abs(line["advantage/solver/mean"]) < 1e-6
        assert abs(line["advantage/judge/mean"]) < 1e-6
        assert line["advantage/validator/mean"] == pytest.approx(line["reward/validator/mean"])
        assert {"loss/solver/mean", "loss/judge/mean", "loss/validator/mean"} <= {*line}


def test_training_begins_at_a_checkpoint_that_a_policy_names(
    whole: Path, service: LocalService, tmp_path: Path
) -> None:
    begin = f"policies={{main: {{checkpoint: '{whole}'}}}}"
    out = train(tmp_path / "run", "solver_judge", *SMALL, "train.steps=1", begin, service=service).folder
    best = RunFolder(whole).best()
    first = metrics(out)[0]
    assert {name: first[name] for name in best.validation} == pytest.approx(best.validation)
    assert RunFolder(out).checkpoints()[-1].policies["main"].version == 1


def test_a_frozen_role_needs_no_estimator_to_be_reported(service: LocalService, tmp_path: Path) -> None:
    frozen = ("roles.judge.estimator=null",)
    result = train(tmp_path / "run", "solver_judge", *STEP, *frozen, service=service)
    assert "<dt>judge</dt><dd>not trained</dd>" in result.report.read_text("utf-8")
    assert [control.name for control in result.controls][-1] == "trained workflow"


def test_a_judge_learns_from_a_teacher_while_the_solver_stays_on_grpo(
    service: LocalService, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    train(out, "solver_judge_distill", *SMALL, *UNMEASURED, "train.steps=3", service=service)
    gaps = [line["signal/judge/reverse_kl"] for line in metrics(out)[1:]]
    assert gaps[-1] < gaps[0] / 2
    episodes = [*read_episodes(out / "episodes" / "train-000001.jsonl")]
    for task in {e.task_id for e in episodes}:
        own = [t for e in episodes if e.task_id == task for t in e.trajectories if t.name == "solver"]
        rewards = np.array([t.reward for t in own])
        expected = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        assert [t.steps[0].advantage for t in own] == pytest.approx([*expected], abs=1e-6)
    judge = next(t for t in episodes[0].trajectories if t.name == "judge").steps[0]
    assert isinstance(judge.advantage, list) and len(judge.advantage) == len(judge.response_ids)


def test_a_judge_learns_to_imitate_what_a_demonstration_writes(service: LocalService, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = "{% if loop.first %}<answer>{{ c.index }}</answer>{% endif %}"
    template = f"{{% for c in solver if c.right %}}{first}{{% endfor %}}"
    signal = f"roles.judge.signal={{imitation: {{demonstration: '{template}'}}}}"
    words = (
        *SMALL,
        *UNMEASURED,
        "train.learning_rate=0.01",
        "train.steps=3",
        "roles.judge.estimator=null",
        signal,
    )
    train(out, "solver_judge", *words, service=service)
    lines = metrics(out)[1:]
    assert all(0 < line["signal/judge/demonstrations"] <= 16 for line in lines)
    assert lines[-1]["loss/judge/mean"] < lines[0]["loss/judge/mean"] * 0.6


def test_rollouts_may_run_ahead_and_say_by_how_much(service: LocalService, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(out, "solver_only", *STEP, "train.staleness=1", "train.steps=3", service=service)
    assert [line["staleness/mean"] for line in metrics(out)[1:]] == [0.0, 1.0, 1.0]
    step = next(read_episodes(out / "episodes" / "train-000003.jsonl")).trajectories[0].steps[0]
    assert (step.weight_version, step.metadata["staleness"]) == (1, 1)


def test_each_loss_trains_a_role_and_what_is_set_of_it_counts(service: LocalService, tmp_path: Path) -> None:
    """Train one step per loss from the same weights on the same answers, where every ratio is 1."""
    losses: dict[str, float] = {}
    for written in ("ppo", "{ppo: {clip_high_threshold: 0.9}}", "cispo", "gspo"):
        out = tmp_path / str(len(losses))
        words = ("train.rollouts=4", f"roles.solver.loss={written}")
        train(out, "solver_only", *STEP, *words, service=service)
        *_, last = metrics(out)
        losses[written] = last["loss/solver/mean"]
        assert last["optim/grad_norm"] > 0, written
    assert losses["ppo"] == pytest.approx(losses["gspo"], abs=1e-3)
    assert abs(losses["ppo"] - losses["{ppo: {clip_high_threshold: 0.9}}"]) > 1e-3
    assert abs(losses["ppo"] - losses["cispo"]) > 1e-3, "cispo's is the log-probability, not the ratio"
    assert RunFolder(out).info().roles["solver"].loss == "gspo"
