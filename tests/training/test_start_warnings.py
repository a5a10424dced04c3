"""Tests of what the untrained weights' answers tell before a training moves any weights."""

from __future__ import annotations

import pytest

from rolegraph.engine.compile import compile_file
from rolegraph.engine.records import Episode, Step, Trajectory
from rolegraph.engine.training.analysis.metrics import start_warnings
from tests.edge import WRONG
from tests.training.edge import Training


def warned(rewards: list[float], reason: str = "stop", parser: str = "text") -> list[str]:
    words = (f"roles.solver.parser={parser}", "roles.solver.sampling.max_tokens=8")
    plan = compile_file("solver_judge", words)
    episodes = [
        Episode(
            f"t{number}",
            0,
            {},
            [Trajectory("solver", 1, [Step(metadata={"finish_reason": reason})], reward, reward == 1)],
        )
        for number, reward in enumerate(rewards)
    ]
    return [note.text for note in start_warnings(plan, episodes, "before training")]


def test_no_reward_at_all_is_told_with_the_remedies_in_order() -> None:
    (text,) = warned([0.0] * 48)
    head, _, remedies = text.partition("; ")
    learns = "GRPO learns from differences, and there is no difference"
    assert head == f"solver: 0 of 48 right before training: {learns}"
    places = [remedies.index(word) for word in ("data.examples", "train.stages", "--model")]
    assert places == sorted(places)
    assert "harder tasks" in warned([1.0] * 48)[0]
    assert not warned([0.0] * 47 + [1.0])
    assert not warned([0.0] * 7), "too few answers to say"


@pytest.mark.parametrize("parser", ["text", "number", "{tag: answer}"])
def test_too_few_tokens_are_the_cause_whatever_the_parser(parser: str) -> None:
    (text,) = warned([0.0] * 48, "length", parser)
    cut = "solver: 48 of 48 answers were cut off at max_tokens (8)"
    assert text == f"{cut}; raise roles.solver.sampling.max_tokens"


@pytest.mark.parametrize("validation", ["", "train.validation.tasks=2"])
def test_a_training_tells_it_at_its_start(training: Training, validation: str) -> None:
    training.workflow.solve = lambda seed, updates: WRONG
    if not validation:
        rows = training.rows
        training.rows = lambda split, count: rows(split, count) if split == "train" else []
    training.run("train.validation.rollouts=4", "train.rollouts=4", steps=1)
    when = "before training" if validation else "in the first step"
    assert any(f"right {when}: GRPO learns from differences" in text for text in training.warnings())
