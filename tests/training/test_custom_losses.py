"""Trainings with custom losses: dpo, a file's own loss, and losses that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

import rolegraph as rg
from rolegraph.engine.errors import AdvantageError, UsageError
from rolegraph.engine.models.service_traits import ServiceTraits
from rolegraph.engine.records import MAIN
from rolegraph.engine.training.policies.batches import check_service
from rolegraph.engine.vocabulary import LossSequence
from rolegraph.local.launcher import LocalService
from tests.edge import RIGHT, WRONG
from tests.models.tinker_edge import GAP
from tests.training.edge import LOGPROB, STEPS, Training, comparable
from tests.trainings import SMALL, metrics, train

URL = "https://tinker.example"


@pytest.fixture(autouse=True)
def names(registries: None) -> None:
    """Keep the names that a test registers from other tests."""


def weighted(sequences: Sequence[LossSequence]) -> Any:
    """Return the mean over trajectories of -Σ p/q · advantage, the service's `importance_sampling`."""
    terms = [-((it.logprobs - it.sampled).exp() * it.advantages * it.mask).sum() for it in sequences]
    return sum(terms) / len({it.member for it in sequences})


@pytest.mark.service
@pytest.mark.parametrize("clip", [1.0, 1e-4])
def test_a_loss_over_trajectories_is_weighted_and_clipped_as_a_loss_of_the_service(
    service: LocalService, tmp_path: Path, clip: float
) -> None:
    rg.loss("weighted")(weighted)
    shared = (*SMALL, "train.steps=2", f"train.gradient_clip={clip}", "roles.judge.weight=3")
    lines = {}
    for loss in ("importance_sampling", "weighted"):
        out = tmp_path / loss
        train(out, "solver_judge", *shared, f"roles.solver.loss={loss}", service=service)
        lines[loss] = metrics(out)
    for ours, theirs in zip(lines["weighted"], lines["importance_sampling"], strict=True):
        # A function sees the answers without an advantage, too.
        assert ours.pop("optim/data", 0) >= theirs.pop("optim/data", 0)
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-3)
    assert lines["weighted"][1]["optim/grad_norm"] > 1e-4, "the clip of 0.0001 binds"


def test_dpo_compares_the_best_with_the_worst_and_shows_its_metrics(training: Training) -> None:
    training.workflow.solve = lambda seed, updates: f"{'so ' * (seed % 3)}{RIGHT if seed % 2 else WRONG}"
    training.run("roles.solver.loss={dpo: {beta: 0.2}}", "roles.solver.count=4")
    lines = training.folder.metrics()[1:]
    assert len(lines) == STEPS
    assert {line["loss/solver/pairs"] for line in lines} <= {0, 1, 2}
    assert any(line["loss/solver/pairs"] for line in lines)
    for line in lines:
        assert {"loss/solver/gap", "loss/solver/preferred"} <= line.keys() or not line["loss/solver/pairs"]
        assert "loss/judge/mean" in line or not line.get("optim/data")
    assert training.service.scored, "the start of the policy scored the answers"


@pytest.mark.parametrize("grouped", ["task", "turn"])
def test_the_sequences_hold_what_was_sampled_and_how_it_is_compared(training: Training, grouped: str) -> None:
    seen: list[Sequence[LossSequence]] = []

    @rg.loss("watching")
    def watching(sequences: Sequence[LossSequence]) -> float:
        """Keep the sequences."""
        seen.append(sequences)
        return 0.0

    assert watching
    training.run("roles.solver.loss=watching", f"roles.solver.group={grouped}", steps=1)
    episodes = training.episodes("train", 1)
    rewards = [t.reward for episode in episodes for t in episode["solver"]]
    (sequences,) = seen
    assert [it.reward for it in sequences] == rewards
    assert len({it.member for it in sequences}) == len(rewards)
    assert len({it.group for it in sequences}) == len({episode.task_id for episode in episodes})
    steps = [t.steps[0] for episode in episodes for t in episode["solver"]]
    for it, step in zip(sequences, steps, strict=True):
        assert it.start is None and it.mask.sum() == len(step.response_ids)
        assert it.sampled[it.mask > 0].tolist() == pytest.approx(step.logprobs)
        assert it.advantages[it.mask > 0].tolist() == pytest.approx(step.advantages, abs=1e-6)
        assert not it.advantages[it.mask == 0].any()
    assert len(training.service.asked_for("optim_step")) == 1, "the judge's loss moved the policy"


def test_a_step_without_any_gradient_makes_no_update(training: Training) -> None:
    rg.loss("still")(lambda sequences: 0.0)
    training.run("roles.solver.loss=still", "roles.judge.estimator=null")
    assert not training.service.asked_for("optim_step")
    assert any("has no gradient" in text for text in training.warnings())
    assert [line["loss/solver/mean"] for line in training.folder.metrics()[1:]] == [0.0] * STEPS


def raising(sequences: Sequence[LossSequence]) -> float:
    raise LookupError("no such table")


FAILING: Mapping[str, Callable[[Sequence[LossSequence]], Any]] = {
    "no such table": raising,
    "nan": lambda sequences: sum(it.logprobs.sum() for it in sequences) * float("nan"),
    "its gradient is not finite": lambda sequences: (sequences[0].logprobs[0] * 0).sqrt(),
    "str, which is no number": lambda sequences: "0.5",
    "its metric depth is": lambda sequences: (0.0, {"depth": float("inf")}),
}


@pytest.mark.parametrize("reason", FAILING)
def test_a_loss_that_fails_ends_the_step_by_name_with_nothing_lost(
    training: Training, tokenizer: Path, tmp_path: Path, reason: str
) -> None:
    calls: Iterator[bool] = iter([True, True, False])

    @rg.loss("mine")
    def mine(sequences: Sequence[LossSequence]) -> Any:
        """Fail in the third call."""
        return weighted(sequences) if next(calls, True) else FAILING[reason](sequences)

    assert mine
    every = ("roles.solver.loss=mine", "train.checkpoint_every=5")
    with pytest.raises(AdvantageError, match=rf"the loss mine of solver: .*{reason}"):
        training.run(*every)
    assert [checkpoint.step for checkpoint in training.folder.checkpoints()] == [2]
    assert len(training.service.asked_for("optim_step")) == 2
    assert training.episodes("train", 3), "the step's episodes are kept"
    training.run(*every, start=training.folder.rewind())
    whole = Training(training.workflow, tokenizer, tmp_path / "whole")
    whole.run(*every)
    assert whole.figures() == training.figures()
    assert comparable(whole.episodes("train", 3)) == comparable(training.episodes("train", 3))


def test_dpo_is_resumed_with_the_same_start(training: Training, tmp_path: Path) -> None:
    training.workflow.solve = lambda seed, updates: RIGHT if seed % 2 else f"{WRONG} {updates}"
    every = "roles.solver.loss=dpo"
    training.run(every)
    training.resumed(tmp_path / "broken", 2, every)
    gaps = [line["loss/solver/gap"] for line in training.folder.metrics() if "loss/solver/gap" in line]
    assert gaps and GAP + LOGPROB


@pytest.mark.parametrize(
    "traits",
    [
        ServiceTraits(takes_means=True),
        ServiceTraits(losses=("importance_sampling", "ppo")),
    ],
    ids=["means", "no cross_entropy"],
)
def test_a_service_without_sums_of_cross_entropies_is_refused_by_name(traits: ServiceTraits) -> None:
    plan = rg.load("solver_only", "roles.solver.loss=dpo").plan
    check_service(plan, MAIN, URL, ServiceTraits())
    with pytest.raises(UsageError, match=f"{URL} cannot train solver with dpo"):
        check_service(plan, MAIN, URL, traits)


@pytest.mark.parametrize(
    ("loss", "path"),
    [
        ("dop", ("roles", "solver", "loss")),
        ("{dpo: {beta: 0}}", ("roles", "solver", "loss")),
        ("{dpo: {gamma: 1}}", ("roles", "solver", "loss")),
        ("{ppo: {clip_low_threshold: 2, clip_high_threshold: 1}}", ("roles", "solver", "loss")),
    ],
)
def test_a_loss_that_is_none_or_has_no_such_setting_is_a_fault(loss: str, path: Any) -> None:
    result = rg.check("solver_only", f"roles.solver.loss={loss}")
    assert result.plan is None and len(result.diagnostics) == 1


def test_a_loss_over_one_group_takes_no_list_of_groupings() -> None:
    result = rg.check(
        "solver_only", "roles.solver.loss=dpo", "roles.solver.group=[task, {by: 0, over: batch}]"
    )
    assert [d.severity for d in result.diagnostics if "dpo" in d.message] == ["error"]
    assert rg.check("solver_only", "roles.solver.loss=dpo", "roles.solver.group={by: 0, over: batch}").plan


@pytest.mark.parametrize("backend", ["tinker", "verl", "fireworks"])
def test_rllm_refuses_a_loss_that_is_a_function_by_name(backend: str) -> None:
    rllm = pytest.importorskip("rllm")
    assert rllm
    result = rg.check("solver_only", "roles.solver.loss=dpo", backend=backend)
    assert any(d.severity == "error" and "dpo" in d.message for d in result.diagnostics)
