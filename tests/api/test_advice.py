"""Tests of the advice at the end of a run, a training and an evaluation, as a table."""

from __future__ import annotations

import pytest

from rolegraph.api import Action, Outcome, RoleOutcome, advise

FINE = RoleOutcome("solver", 8, {"malformed_output": 3}, "<answer>…</answer>")
MALFORMED = RoleOutcome("solver", 8, {"malformed_output": 6, "unparseable_choice": 2}, "<answer>…</answer>")
MARKED = RoleOutcome("solver", 8, {"malformed_output": 6, "special_token": 2}, "<answer>…</answer>")
SILENT = RoleOutcome("solver", 8, {"model_error": 8})
RAISED = RoleOutcome("judge", 8, {"reward_error": 8})
DEAD = RoleOutcome("judge", 8, dead=True)


@pytest.mark.parametrize(
    ("outcome", "actions"),
    [
        (Outcome("run", 4, 4, [FINE], trainable=True), [Action.TRAIN]),
        (Outcome("run", 4, 4, [FINE]), [Action.REPLAY]),
        (Outcome("run", 3, 4, [FINE], trainable=True), [Action.RESUME]),
        (Outcome("run", 4, 4, [MALFORMED], trainable=True), [Action.PREVIEW, Action.VIEW]),
        (Outcome("run", 4, 4, [MARKED], trainable=True), [Action.PREVIEW, Action.VIEW]),
        (Outcome("run", 2, 4, [MALFORMED], trainable=True), [Action.PREVIEW, Action.RESUME]),
        (Outcome("run", 4, 4, [SILENT], trainable=True), [Action.RETRY]),
        (Outcome("run", 4, 4, [FINE, RAISED], trainable=True), [Action.VIEW]),
        (Outcome("train", 4, 4, [FINE], has_weights=True), [Action.RUN_WEIGHTS, Action.EXPORT]),
        (Outcome("train", 4, 4, [FINE], has_weights=True, better=True), [Action.RUN_WEIGHTS, Action.EXPORT]),
        (Outcome("train", 4, 4, [FINE], has_weights=True, better=False), [Action.VIEW]),
        (Outcome("train", 4, 4, [FINE], has_weights=True, learnt=False), [Action.VIEW]),
        (Outcome("train", 4, 4, [MALFORMED], has_weights=True, learnt=False), [Action.PREVIEW, Action.VIEW]),
        (Outcome("train", 2, 4, [FINE]), [Action.RESUME]),
        (Outcome("train", 0, 4, learnt=False), [Action.RESUME]),
        (
            Outcome("train", 2, 4, [FINE], has_weights=True),
            [Action.RESUME, Action.RUN_WEIGHTS, Action.EXPORT],
        ),
        (Outcome("eval", 1, 1, has_weights=True, better=True), [Action.COMPARE, Action.EXPORT]),
        (Outcome("eval", 1, 1, has_weights=True, better=False), [Action.COMPARE]),
        (Outcome("eval", 1, 1, has_weights=True), [Action.COMPARE]),
        (Outcome("eval", 1, 1, better=True), [Action.COMPARE]),
    ],
)
def test_advice_follows_the_outcome(outcome: Outcome, actions: list[Action]) -> None:
    assert [it.action for it in advise(outcome).actions] == actions


def test_the_role_at_fault_is_what_to_look_at() -> None:
    (view,) = advise(Outcome("run", 4, 4, [FINE, RAISED])).actions
    assert (view.role, view.failures) == ("judge", True)
    (view,) = advise(Outcome("train", 4, 4, [FINE, DEAD], learnt=False)).actions
    assert (view.role, view.failures) == ("judge", False)


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome("run", 4, 4, [MALFORMED]), ["solver", "malformed", "<answer>…</answer>"]),
        (Outcome("train", 4, 4, [FINE, DEAD], has_weights=True, better=True), ["judge", "dead"]),
        (
            Outcome("train", 4, 4, [FINE], has_weights=True, rate=0.001, better=False),
            ["no weights", "up as well as down (train.learning_rate=0.003, train.learning_rate=0.00033)"],
        ),
    ],
)
def test_a_remark_names_the_reason(outcome: Outcome, words: list[str]) -> None:
    (remark,) = advise(outcome).remarks
    assert all(word in remark for word in words)


def test_a_role_whose_answers_all_failed_is_named_once() -> None:
    dead = RoleOutcome("solver", 8, {"malformed_output": 8}, dead=True)
    assert len(advise(Outcome("train", 4, 4, [dead], learnt=False)).remarks) == 1
    assert not advise(Outcome("run", 4, 4, [FINE])).remarks
