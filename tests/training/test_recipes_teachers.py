"""Tests that train recipes with teachers' prompts, and with likelihoods, on a scripted service."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import rolegraph as rg
from rolegraph.engine.records import Episode, Trajectory
from rolegraph.pages.report import write_report
from tests.models.tinker_edge import score
from tests.training.edge import LOGPROB, STEPS, Training
from tests.training.test_recipes import recipe, trained
from tests.training.test_recipes_signals import RIGHT, WRONG, by_task, grpo


def scored(training: Training) -> list[str]:
    """Return the texts that a teacher, or the model of a likelihood, scored, without those of the start."""
    texts = [decoded(training, body) for body in training.service.scored]
    return [text for text in texts if "What is 6*7?" in text]


def decoded(training: Training, body: Mapping[str, Any]) -> str:
    ids = [token for chunk in body["prompt"]["chunks"] for token in chunk["tokens"]]
    decode = training.workflow.tokenizer.decode
    return decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def parts(trajectory: Trajectory, factor: float, updates: int = 0) -> list[float]:
    """Return `factor` × (log p of the teacher - log p of the sample) for each token."""
    return [factor * (score(token, updates) - LOGPROB) for token in trajectory.steps[0].response_ids]


def answers(prompt: str, seed: int) -> str:
    if "What went wrong?" in prompt:
        return f"verdict{seed % 7}"
    return f"{'so ' * (seed % 4)}{RIGHT if seed % 2 else WRONG}"


def check_added(episodes: list[Episode], gate: float | None) -> None:
    """Assert that solvers' advantages are GRPO's plus the teacher's, times the gate for right answers."""
    for group in by_task(episodes, "solver"):
        for one, reward in zip(group, grpo([t.reward or 0.0 for t in group]), strict=True):
            factor = 0.5 if gate is None or not one.is_correct else gate
            expected = [reward + part for part in parts(one, factor)]
            assert [*one.steps[0].advantages] == pytest.approx(expected, abs=1e-6)


def test_sdpo_scores_each_answer_after_the_judges_words(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    recipe(training, tmp_path, "SDPO")
    training.workflow.answers = answers
    episodes = trained(training)
    check_added(episodes, None)
    texts = scored(training)
    assert len(texts) == len(episodes)
    said = {str(episode["judge"][0].action) for episode in episodes}
    assert {text.split("A judge said: ")[1].split("<")[0] for text in texts} == said
    for episode in episodes:
        messages = [message for step in episode["solver"][0].steps for message in step.chat_completions]
        assert not any(word in json.dumps(messages) for word in said)
    line = training.folder.metrics()[1]
    assert line["signal/solver/reverse_kl"] == pytest.approx(
        -fmean(part for e in episodes for part in parts(e["solver"][0], 1.0)), abs=1e-6
    )
    assert "Signal reverse_kl: solver" in write_report(training.folder.path).read_text()


def test_the_teacher_of_a_step_has_that_steps_weights(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    recipe(training, tmp_path, "SDPO")
    training.workflow.answers = answers
    training.run("train.rollouts=4")
    for step in range(1, STEPS + 1):
        for episode in training.episodes("train", step):
            (solver,) = episode["solver"]
            mean = fmean(parts(solver, 0.5, updates=step - 1))
            assert solver.steps[0].metadata["signal"] == pytest.approx(mean, abs=1e-6)


def test_opsd_learns_from_the_start_that_sees_the_answer(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    recipe(training, tmp_path, "OPSD")
    training.workflow.answers = answers
    episodes = trained(training)
    for episode in episodes:
        (solver,) = episode["solver"]
        assert [*solver.steps[0].advantages] == pytest.approx(parts(solver, 1.0), abs=1e-6)
    assert all("The answer is 42: reason" in text for text in scored(training))
    assert {body["loss_fn"] for body in training.service.asked_for("forward_backward")} == {
        "importance_sampling"
    }


def test_sdar_teaches_wrong_answers_alone(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    recipe(training, tmp_path, "SDAR")
    training.workflow.answers = answers
    episodes = trained(training)
    check_added(episodes, 0.0)
    wrong = [episode for episode in episodes if not episode.is_correct]
    assert 0 < len(wrong) < len(episodes) and len(scored(training)) == len(wrong)
    line = training.folder.metrics()[1]
    assert line["signal/solver/gate"] == pytest.approx(len(wrong) / len(episodes))
    page = training.folder.path / "page.html"
    rg.view(training.folder.path).write(page, hidden=True)
    text = html.unescape(page.read_text("utf-8"))
    assert "gate 0</span>" in text and "gate 1</span>" in text


def test_a_gate_reads_the_step(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    recipe(training, tmp_path, "SDAR")
    training.workflow.answers = answers
    training.run("train.rollouts=4", "roles.solver.signal.reverse_kl.gate=step / 2")
    gates = [line["signal/solver/gate"] for line in training.folder.metrics()[1:]]
    assert gates == [0.0, 0.5, 1.0]
    assert [e.metadata.get("step") for e in training.episodes("train", 3)] == [2] * len(
        training.episodes("train", 3)
    )


def test_each_domain_has_its_teacher(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    recipe(training, tmp_path, "Teachers by domain")
    training.workflow.answers = answers
    rows = training.rows
    domains = ("math", "code", "law", "math", "code")
    training.rows = lambda split, count: [
        {**row, "domain": domain} for row, domain in zip(rows(split, count), domains, strict=False)
    ]
    training.run("train.rollouts=2", "train.batch_size=5", steps=1)
    line = training.folder.metrics()[1]
    assert {key for key in line if key.startswith("signal/solver/")} == {
        "signal/solver/reverse_kl",
        "signal/solver/reverse_kl/math",
        "signal/solver/reverse_kl/code",
        "signal/solver/masked",
    }
    assert line["signal/solver/masked"] == 2
    for episode in training.episodes("train", 1):
        (solver,) = episode["solver"]
        expected = parts(solver, float(episode.task["domain"] != "law"))
        assert [*solver.steps[0].advantages] == pytest.approx(expected, abs=1e-6)


def test_verifree_pays_the_probability_of_the_reference(training: Training, tmp_path: Path) -> None:
    recipe(training, tmp_path, "VeriFree")
    training.service.per_token = -0.01
    training.workflow.answers = lambda prompt, seed: "so " * (1 + seed % 5)
    for episode in trained(training):
        (solver,) = episode["solver"]
        (call,) = solver.steps
        encode = training.workflow.tokenizer.encode
        of, after = (encode(text, add_special_tokens=False) for text in ("42", "\nThe answer is "))
        length = len(call.prompt_ids) + len(call.response_ids) - 1 + len(after) + len(of)
        expected = math.exp(sum(score(token, 0) - 0.01 * length for token in of))
        assert solver.reward == pytest.approx(expected, rel=1e-5)
        assert not solver.is_correct
    assert all("The answer is 42" in text for text in scored(training))


def test_peer_prediction_pays_what_a_turn_tells(training: Training, tmp_path: Path) -> None:
    recipe(training, tmp_path, "Peer prediction")
    training.service.per_token = -0.01
    training.workflow.answers = lambda prompt, seed: (
        "so " * (1 + seed % 5) + (RIGHT if "<answer>" in prompt else "")
    )
    for episode in trained(training):
        (witness,) = episode["witness"]
        sampled = len(witness.steps[0].response_ids) - 1
        assert witness.reward == pytest.approx(-0.01 * sampled, abs=1e-5)
        assert {*witness.terms} == {"after", "without"}
