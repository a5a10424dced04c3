"""Tests of the rules of divergence, on measured trainings, and of the words on constant answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.training.analysis.constants import constant_remark
from rolegraph.engine.training.analysis.divergence import divergences

DATA = Path(__file__).parents[1] / "data" / "kept_trainings.json"
KEPT: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
"""Measured trainings on two cores, by name: `ok-` shipped specs with 14 steps of 8 tasks as they ship, `bad-`
with a learning rate of 0.01 or 0.02 in place of 0.002, `real-` a classifier on SmolLM2-135M."""
DIVERGED = {"bad-0.02-solver_judge-1": 6, "bad-0.02-solver_judge_validator-0": 6}
DIVERGED |= {"bad-0.02-solver_judge_validator-1": 5}
"""Step at which a kept training is first said to diverge."""


def first_step(kept: dict[str, Any]) -> int | None:
    """Return the first step at which a role of a training diverges."""
    lines = kept["lines"]
    steps = range(1, len(lines) + 1)
    return next((step for step in steps if divergences(lines[:step], kept["roles"])), None)


@pytest.mark.parametrize("name", KEPT)
def test_a_healthy_training_never_diverges_and_another_does_within_two_steps(name: str) -> None:
    assert first_step(KEPT[name]) == DIVERGED.get(name)


FIRST = {
    "step": 1.0,
    "answers/n/a": 64.0,
    "reward/a/mean": 0.4,
    "reward/a/std": 0.5,
    "reward/a/n": 64.0,
    "entropy/a": 0.5,
    "kl/a": 0.001,
}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"reward/a/mean": 0.1}, "reward"),
        ({"failures/a/malformed_output": 40.0}, "answers failed"),
        ({"kl/a": 0.2}, "KL sampler‖trainer"),
        ({"entropy/a": 0.01, "reward/a/mean": 0.3}, "entropy"),
        ({"entropy/a": 0.01, "reward/a/mean": 0.9}, None),
        ({"failures/a/model_error": 64.0}, None),
        ({"reward/a/mean": 0.25}, None),
        ({"kl/a": 0.05}, None),
    ],
)
def test_a_rule_holds_for_two_steps_in_a_row(change: dict[str, float], word: str | None) -> None:
    second, third = ({**FIRST, **change, "step": step} for step in (2.0, 3.0))
    assert divergences([FIRST, second], ["a"]) == []
    found = divergences([FIRST, second, third], ["a"])
    assert [(it.role, it.since, word in it.reason) for it in found if word] == (
        [("a", 2, True)] if word else []
    )
    assert bool(found) is bool(word)
    assert divergences([FIRST, second, third, {**FIRST, "step": 4.0}], ["a"]) == [], "it recovered"


def test_one_step_in_which_every_answer_failed_is_enough() -> None:
    lost = {
        "step": 2.0,
        "answers/n/a": 64.0,
        "failures/a/malformed_output": 60.0,
        "failures/a/special_token": 4.0,
    }
    assert [it.since for it in divergences([FIRST, lost], ["a"])] == [2]


def test_a_role_that_loses_what_another_gains_does_not_diverge() -> None:
    both = {name.replace("/a", "/b"): value for name, value in FIRST.items()} | FIRST
    now = {**both, "reward/a/mean": 0.0, "reward/b/mean": 0.8}
    lines = [both, {**now, "step": 2.0}, {**now, "step": 3.0}]
    assert divergences(lines, ["a", "b"]) == []
    assert [it.role for it in divergences([{**it, "reward/b/mean": 0.4} for it in lines], ["a", "b"])] == [
        "a"
    ]


@pytest.mark.parametrize(
    ("reward", "constant", "n", "is_constant"),
    [
        (0.41, 0.41, 64.0, True),
        (0.5, 0.41, 64.0, True),
        (0.6, 0.41, 64.0, False),
        (0.5, 0.41, 1024.0, False),
        (0.41, None, 64.0, False),
        (0.41, 0.41, None, False),
    ],
)
def test_a_reward_stands_beside_what_one_answer_gets(
    reward: float, constant: float | None, n: float | None, is_constant: bool
) -> None:
    words = constant_remark(reward, constant, n, "negative")
    assert words == ("no better than always saying 'negative' (0.41)" if is_constant else "")
