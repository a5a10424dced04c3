"""Tests that train recipes with signals, and with groups by value and by turn, on a scripted service."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from rolegraph.engine.records import Episode, Trajectory, read_episodes
from tests.compile.test_recipes import ROW
from tests.models.tinker_edge import score
from tests.training.edge import LOGPROB, STEPS, Training
from tests.training.test_recipes import of, recipe, trained

RIGHT, WRONG = "<answer>42</answer>", "<answer>41</answer>"


def whole(training: Training, *overrides: str) -> list[Episode]:
    """Train, and return the episodes of all steps."""
    trained(training, *overrides, steps=STEPS)
    return [episode for step in range(1, STEPS + 1) for episode in training.episodes("train", step)]


def gaps(trajectory: Trajectory) -> list[float]:
    """Return log p of the start less log p of the sample, for each token of the only call."""
    return [score(token, 0) - LOGPROB for token in trajectory.steps[0].response_ids]


def grpo(rewards: list[float]) -> list[float]:
    return [(reward - fmean(rewards)) / (float(np.std(rewards)) + 1e-6) for reward in rewards]


def by_task(episodes: list[Episode], role: str) -> list[list[Trajectory]]:
    """Return the role's trajectories on each task."""
    return [
        [t for e in episodes if e.task_id == task for t in e[role]] for task in {e.task_id for e in episodes}
    ]


def test_a_penalty_for_leaving_the_start_is_added_to_grpo(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    recipe(training, tmp_path, "GRPO with a KL penalty")
    training.workflow.solve = lambda seed, updates: f"{'so ' * (seed % 5)}{RIGHT if seed % 3 else WRONG}"
    episodes = trained(training)
    mean = fmean(gap for episode in episodes for gap in gaps(episode["solver"][0]))
    for group in by_task(episodes, "solver"):
        for solver, reward in zip(group, grpo([t.reward or 0.0 for t in group]), strict=True):
            expected = [reward + 0.05 * (gap - mean) for gap in gaps(solver)]
            assert solver.steps[0].advantages == pytest.approx(expected, abs=1e-6)
    assert {body["loss_fn"] for body in training.service.asked_for("forward_backward")} == {"ppo"}


def test_score_pays_progress_and_keeps_the_first_turn_near_the_start(
    training: Training, tmp_path: Path
) -> None:
    pytest.importorskip("math_verify")
    recipe(training, tmp_path, "SCoRe")
    training.workflow.answers = lambda prompt, seed: RIGHT if seed % 2 else WRONG
    episodes = trained(training)
    for episode in episodes:
        (first,), (second,) = episode["first"], episode["second"]
        assert second.reward == 11 * second.is_correct - 10 * first.is_correct
        assert str(first.action) in second.steps[0].chat_completions[0]["content"]
    for role, coefficient in (("first", 0.1), ("second", 0.01)):
        for group in by_task(episodes, role):
            rewards = [t.reward or 0.0 for t in group]
            for one, reward in zip(group, rewards, strict=True):
                others = (sum(rewards) - reward) / (len(rewards) - 1)
                expected = [reward - others + coefficient * gap for gap in gaps(one)]
                assert one.steps[0].advantages == pytest.approx(expected, abs=1e-5)


def learnt(training: Training, role: Callable[[str], bool]) -> list[tuple[str, float]]:
    """Return the text and the weight of each datum whose text `role` accepts."""
    decode = training.workflow.tokenizer.decode
    found: list[tuple[str, float]] = []
    for body in training.service.asked_for("forward_backward"):
        assert body["loss_fn"] == "cross_entropy"
        for datum in body["data"]:
            text = decode(datum.tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            if role(text):
                found.append((text, max(datum.inputs["weights"])))
    return found


def test_star_learns_a_hinted_answer_as_if_without_the_hint(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    recipe(training, tmp_path, "STaR")

    def answers(prompt: str, seed: int) -> str:
        if "(It is 42.)" in prompt:
            return f"hinted {RIGHT if seed % 4 else WRONG}"
        return f"first {RIGHT if seed % 3 == 0 else WRONG}"

    training.workflow.answers = answers
    episodes = whole(training)
    kinds = {"first": 0, "hinted": 0, "nothing": 0}
    for episode in episodes:
        (solver,), hinted = episode["solver"], of(episode, "hinted")
        assert bool(hinted) != solver.is_correct, "rationalised where the first answer is wrong"
        if solver.is_correct:
            kinds["first"] += 1
        else:
            kinds["hinted" if hinted[0].is_correct else "nothing"] += 1
        shown = solver.steps[0].metadata.get("demonstration", {}).get("text")
        assert shown == (hinted[0].steps[0].model_response if hinted and hinted[0].is_correct else None)
    assert min(kinds.values()) > 0
    texts = learnt(training, lambda text: True)
    assert len(texts) == kinds["first"] + kinds["hinted"]
    assert sum("hinted " in text for text, _ in texts) == kinds["hinted"]
    for text, weight in texts:
        assert "It is 42" not in text and "42" in text
        assert weight == pytest.approx(STEPS / len(episodes))


def test_sirius_learns_right_episodes_and_repaired_answers(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    recipe(training, tmp_path, "SiriuS")

    def answers(prompt: str, seed: int) -> str:
        if "as a first answer" in prompt:
            return f"again {RIGHT if seed % 3 else WRONG}"
        if "Revise it." in prompt:
            return "revised"
        if "What went wrong?" in prompt:
            return "feedback"
        return "analysis" if "What matters here?" in prompt else f"first {RIGHT if seed % 2 else WRONG}"

    training.workflow.answers = answers
    episodes = whole(training, "roles.feedback.policy=solver")
    right = [episode for episode in episodes if episode["solver"][0].is_correct]
    repaired = [e for e in episodes if not e["solver"][0].is_correct and e["again"][0].is_correct]
    assert 0 < len(right) < len(episodes) and repaired
    analysts = learnt(training, lambda text: "What matters here?" in text)
    solvers = learnt(training, lambda text: "What matters here?" not in text)
    assert len(analysts) == len(right)
    assert len(solvers) == len(right) + len(repaired)
    assert sum("again " in text for text, _ in solvers) == len(repaired)
    assert not [text for text, _ in solvers if "feedback" in text or "revised" in text]


def test_a_tree_compares_one_role_in_one_state(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty")
    recipe(training, tmp_path, "A tree of turns and roles")
    training.allow = ("python",)

    def answers(prompt: str, seed: int) -> str:
        if "What should change?" in prompt:
            return f"critique {seed % 1000}"
        return f"```python\ndef f(x): return {['x + 1', 'x', '1'][seed % 3]}\n```"

    training.workflow.answers = answers
    training.run("train.rollouts=1", "train.validation={every: 0, tasks: 1, rollouts: 1}", steps=1)
    for episode in training.episodes("train", 1):
        for turn in (0, 1):
            critics = [t.steps[turn] for t in episode["critic"]]
            coders = [t.steps[turn] for t in episode["coder"]]
            assert len({str(step.chat_completions[0]["content"]) for step in critics}) == 1
            for number, critic in enumerate(critics):
                own = coders[4 * number : 4 * number + 4]
                assert critic.reward == pytest.approx(fmean(step.reward for step in own))
                assert {
                    str(critic.model_response) in step.chat_completions[0]["content"] for step in own
                } == {True}
                expected = grpo([step.reward for step in own])
                assert [step.advantages[0] for step in own] == pytest.approx(expected, abs=1e-5)
            expected = grpo([step.reward for step in critics])
            assert [step.advantages[0] for step in critics] == pytest.approx(expected, abs=1e-5)
        (program,) = episode["program"]
        chosen = str(program.steps[0].action)
        assert chosen in episode["critic"][0].steps[1].chat_completions[0]["content"]


def test_bids_are_compared_with_those_of_the_same_value(training: Training, tmp_path: Path) -> None:
    recipe(training, tmp_path, "An auction by private value")
    training.workflow.answers = lambda prompt, seed: f"<bid>{seed % 6}</bid>"
    groups: dict[tuple[str, int], list[Trajectory]] = {}
    values: list[int] = ROW["values"]
    for episode in trained(training):
        bids = [t.action for t in episode["bidder"]]
        for bidder, value in zip(episode["bidder"], values, strict=True):
            won = bidder.action == max(bids)
            assert bidder.reward == pytest.approx(
                (value - bidder.action) / bids.count(bidder.action) if won else 0
            )
            assert f"worth {value} " in bidder.steps[0].chat_completions[0]["content"]
            groups.setdefault((episode.task_id, value), []).append(bidder)
    for group in groups.values():
        expected = grpo([bidder.reward or 0.0 for bidder in group])
        assert [bidder.steps[0].advantages[0] for bidder in group] == pytest.approx(expected, abs=1e-5)
    assert {len(group) for group in groups.values()} == {4, 8}


def test_influence_is_the_change_in_the_answers_of_others(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    recipe(training, tmp_path, "Influence on others")
    training.workflow.answers = lambda prompt, seed: RIGHT if seed % 2 else WRONG
    paid = set[float]()
    for episode in trained(training):
        changes = [
            after.is_correct - before.is_correct
            for before, after in zip(episode["opening"], episode["reply"], strict=True)
        ]
        for number, opening in enumerate(episode["opening"]):
            influence = sum(changes) - changes[number]
            assert opening.reward == pytest.approx(opening.is_correct + 0.5 * influence)
            paid.add(influence)
    assert len(paid) > 2


def test_a_batch_compares_questions_of_as_many_hops(training: Training, tmp_path: Path) -> None:
    recipe(training, tmp_path, "Groups over a batch")
    rows = training.rows
    training.rows = lambda split, count: [
        {**row, "hops": 1 + number % 2} for number, row in enumerate(rows(split, count))
    ]

    def answers(prompt: str, seed: int) -> str:
        if "hops, as JSON" in prompt:
            return json.dumps({"question": f"{seed % 5} and 41?", "answer": "42"})
        if " and 41?" not in prompt:  # of the validation
            return RIGHT if seed % 2 else WRONG
        return RIGHT if seed % (1 + int(prompt[prompt.index(" and 41?") - 1])) == 0 else WRONG

    training.workflow.answers = answers
    training.run("train.rollouts=1", "train.batch_size=5", steps=1)
    assert training.service.asked_for("forward_backward")
    episodes = training.episodes("train", 1)
    for hops in (1, 2):
        proposers = [e["proposer"][0] for e in episodes if e.task["hops"] == hops]
        assert len(proposers) > 1
        expected = grpo([t.reward or 0.0 for t in proposers])
        assert [t.steps[0].advantage for t in proposers] == pytest.approx(expected)
    for episode in episodes:
        right = sum(t.reward or 0.0 for t in episode["solver"])
        assert episode["proposer"][0].reward == pytest.approx((4 - right) / 3 if right else 0)
    assert len({e["proposer"][0].reward for e in episodes}) > 1
    rows_of = [it for it in training.folder.credit_rows(1) or () if it.role == "proposer"]
    assert len(rows_of) == 5 and all(it.over == "batch" for it in rows_of)
    (alone,) = training.folder.path.glob("validations/alone/episodes/validation-000001.jsonl")
    measured = [*read_episodes(alone)]
    assert {t.name for e in measured for t in e.trajectories} == {"solver"}
    last = training.folder.metrics()[-1]
    assert last["validation/correct"] == pytest.approx(fmean(e.is_correct for e in measured))
    assert "validation/reward/proposer" not in last


def test_dpo_learns_from_the_best_and_the_worst_of_a_group(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    pytest.importorskip("torch", reason="custom losses need it")
    recipe(training, tmp_path, "DPO on the best and worst of a group")
    training.workflow.solve = lambda seed, updates: f"{'so ' * (seed % 3)}{RIGHT if seed % 3 else WRONG}"
    episodes = trained(training)
    groups = by_task(episodes, "solver")
    pairs = [group for group in groups if len({t.reward for t in group}) > 1]
    line = training.folder.metrics()[-1]
    assert line["loss/solver/pairs"] == len(pairs) > 0
    sent = training.service.asked_for("forward_backward")[-1]
    assert sent["loss_fn"] == "cross_entropy"
    moved = [datum for datum in sent["data"] if any(datum.inputs["weights"])]
    assert len(moved) == 2 * len(pairs) < len(sent["data"])


def test_a_share_for_parts_fades_from_step_to_step(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    recipe(training, tmp_path, "A reward that fades")

    def answers(prompt: str, seed: int) -> str:
        if "as JSON with `parts`" in prompt:
            return json.dumps({"parts": ["6 * 7?"] * (seed % 4)})
        return RIGHT if seed % 2 else WRONG

    training.workflow.answers = answers
    trained(training, steps=STEPS)
    for step in range(1, STEPS + 1):
        share = 0.1 * (1 - (step - 1) / 100)
        for episode in training.episodes("train", step):
            (planner,), (answer,) = episode["planner"], episode["answer"]
            assert len(of(episode, "worker")) == 3 * planner.terms["parallel"]
            expected = (1 - share) * (answer.reward or 0.0) + share * planner.terms["parallel"]
            assert planner.reward == pytest.approx(expected)
