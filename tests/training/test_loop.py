"""Training loop from rollouts to checkpoints, on a scripted service."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.compile.leaving import read_rule
from rolegraph.engine.errors import FailedRole, WorldError
from rolegraph.engine.records import MAIN, Event, Note, StepLogged
from rolegraph.engine.training.analysis.outcomes import GroupOutcome
from rolegraph.engine.training.loop.loop import train
from rolegraph.pages.report.digest import read_digest
from tests.edge import RIGHT, WRONG
from tests.models.tinker_edge import GAP, GRAD_NORM, failed
from tests.training.edge import KEY, LOGPROB, Training, comparable

# a run from beginning to end


def test_each_step_leaves_a_line_of_metrics(finished: Training) -> None:
    lines = finished.folder.metrics()
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    for line in lines[1:]:
        assert line["groups/num_groups"] == 4, "two tasks with two roles"
        assert line["groups/num_trajs_before_filter"] == 2 * 2 * 3
        assert line["optim/learning_rate"] == 0.01
        assert line["optim/grad_norm"] == GRAD_NORM
        assert line["kl/judge"] == pytest.approx(GAP)
        assert line["optim/data"] == line.get("loss/solver/mean", 0) + line.get("loss/judge/mean", 0)
        assert line["staleness/mean"] == 0
        assert {"time/rollout", "time/advantage", "time/update", "time/step"} <= line.keys()
    assert [("validation/correct" in line) for line in lines] == [True, False, True, True]


def test_tokens_are_told_in_all_and_in_the_mean_of_a_response(finished: Training) -> None:
    for step, line in enumerate(finished.folder.metrics()[1:], 1):
        steps = [s for e in finished.episodes("train", step) for t in e.trajectories for s in t.steps]
        lengths = [len(step.response_ids) for step in steps]
        assert line["tokens/response"] == sum(lengths)
        assert line["tokens/per_response"] == pytest.approx(sum(lengths) / len(lengths))


def test_every_step_of_an_episode_has_its_advantage_and_its_weights(finished: Training) -> None:
    for number in (1, 2, 3):
        episodes = finished.episodes("train", number)
        assert [episode.rollout for episode in episodes] == [0, 1, 0, 1]
        assert len({episode.task_id for episode in episodes}) == 2
        steps = [step for e in episodes for t in e.trajectories for step in t.steps]
        assert len(steps) == 2 * 2 * 3
        for step in steps:
            assert isinstance(step.advantage, float)
            assert (step.weight_version, step.metadata["staleness"]) == (number - 1, 0)
    judges = [e.trajectories[-1] for e in finished.episodes("train", 1)]
    assert [t.steps[0].advantage for t in judges] == [t.reward for t in judges], "reinforce"


def test_what_is_learnt_is_what_was_sampled(finished: Training) -> None:
    sent = [datum for body in finished.service.asked_for("forward_backward") for datum in body["data"]]
    share = 1 / (2 * 2 * 3)
    written = [
        ([*step.prompt_ids, *step.response_ids][:-1], step.advantage * share)
        for number in (1, 2, 3)
        for role in ("solver", "judge")
        for episode in finished.episodes("train", number)
        for t in episode.trajectories
        for step in t.steps
        if t.name == role and isinstance(step.advantage, float) and abs(step.advantage) > 1e-6
    ]
    assert [datum.tokens for datum in sent] == [tokens for tokens, _ in written]
    assert [datum.inputs["advantages"][-1] for datum in sent] == pytest.approx([a for _, a in written])
    assert {datum.inputs["logprobs"][-1] for datum in sent} == {LOGPROB}


LOOP = ("loops={l: {roles: [solver], times: 2}}", "roles.solver.credit=turn", "roles.solver.group=turn")


def test_turns_are_compared_learnt_from_and_on_record(training: Training) -> None:
    training.run(*LOOP)
    for number, line in enumerate(training.folder.metrics()[1:], 1):
        solvers = [t for e in training.episodes("train", number) for t in e["solver"]]
        rewards = [step.reward for t in solvers for step in t.steps]
        assert line["reward/solver/mean"] == pytest.approx(sum(rewards) / len(rewards))
        assert line["groups/num_groups"] == 2 * (2 + 1)
        assert line["groups/num_trajs_after_filter"] == 2 * 2 * (2 * 2 + 1)
        for step in (step for t in solvers for step in t.steps):
            assert isinstance(step.advantage, float)
        rows = [row for row in training.folder.credit_rows(number) or () if row.role == "solver"]
        assert sorted(row.reward or 0.0 for row in rows) == sorted(rewards)
        assert {(row.by, row.round) for row in rows} == {("turn", 1), ("turn", 2)}
    sent = [datum for body in training.service.asked_for("forward_backward") for datum in body["data"]]
    assert len(sent) == sum(line["optim/data"] for line in training.folder.metrics()[1:])


def test_events_tell_what_goes_on_in_order(finished: Training) -> None:
    texts = [
        event.text if isinstance(event, Note) else f"logged {event.step}"
        for event in finished.events
        if isinstance(event, Note | StepLogged)
    ]
    assert texts == [
        "step 0: validation",
        "step 0: greedy validation",
        "logged 0",
        "step 1: rollouts",
        "step 1: advantages",
        "step 1: update",
        "logged 1",
        "step 2: rollouts",
        "step 2: advantages",
        "step 2: update",
        "step 2: validation",
        "logged 2",
        "step 2: checkpoint",
        "step 3: rollouts",
        "step 3: advantages",
        "step 3: update",
        "step 3: validation",
        "step 3: greedy validation",
        "logged 3",
        "step 3: checkpoint",
    ]
    logged = [dict(event.metrics) for event in finished.events if isinstance(event, StepLogged)]
    assert logged == finished.folder.metrics()


def test_validation_asks_with_the_same_seeds_every_time(training: Training) -> None:
    asked: list[list[int]] = []
    calls = 0

    def note_seeds(event: Event) -> None:
        nonlocal calls
        if not isinstance(event, Note | StepLogged):
            return
        seeds = [body["sampling_params"]["seed"] for body in training.service.asked[calls:]]
        if isinstance(event, StepLogged) and "validation/correct" in event.metrics:
            asked.append(sorted(seeds))
        calls = len(training.service.asked)

    training.observe = note_seeds
    training.run()
    assert len(asked) == 3
    assert asked[0] == asked[1] == asked[2]
    assert len(set(asked[0])) == 2 * 3
    before, after = (comparable(training.episodes("validation", step), weights=False) for step in (0, 3))
    assert before == after


# failures


def test_a_batch_that_teaches_nothing_changes_nothing(training: Training) -> None:
    training.workflow.solve = lambda seed, updates: WRONG
    training.run()
    assert training.service.asked_for("forward_backward") == []
    assert training.service.asked_for("optim_step") == []
    first, *others = training.warnings()
    assert first == "step 1 has no gradient: every advantage in it is 0"
    assert [("one answer" in text, text.split()[6]) for text in others] == [(True, "solver"), (True, "judge")]
    assert [line["optim/data"] for line in training.folder.metrics()[1:]] == [0, 0, 0]
    assert [c.policies[MAIN].version for c in training.folder.checkpoints()] == [0, 0]
    snapshots = [
        body for body in training.service.asked_for("save_weights_for_sampler") if "path" not in body
    ]
    assert len(snapshots) == 1, "the weights are those of the beginning"


def test_reinforce_learns_from_a_group_of_equal_rewards_and_the_metrics_and_the_report_say_so(
    training: Training,
) -> None:
    training.workflow.solve = lambda seed, updates: RIGHT
    training.run()
    for line in training.folder.metrics()[1:]:
        assert line["batch/judge/fractions/too_easy"] == 1, "as rLLM counts"
        assert (line["outcome/judge/equal_rewards"], line["outcome/judge/too_easy"]) == (1, 0)
        assert (line["outcome/solver/taught"], line["outcome/solver/too_easy"]) == (0, 1)
    assert_report_agrees(training)


@pytest.mark.parametrize("then", ["zero", "mask"])
def test_a_role_whose_answers_all_fail_is_warned_of_once_and_its_groups_failed(
    training: Training, then: str
) -> None:
    training.workflow.solve = lambda seed, updates: "It is 3 + 4."
    training.keep_going = True
    training.run(f"roles.solver.on_failure={{then: {then}}}")
    (warning,) = [text for text in training.warnings() if "solver: " in text]
    assert warning.startswith("step 0: solver: 4 of 4 answers failed with malformed_output")
    assert "as in 'It is 3 + 4.'" in warning
    for line in training.folder.metrics()[1:]:
        assert (line["outcome/solver/failed"], line["outcome/solver/too_hard"]) == (1, 0)
    assert_report_agrees(training)
    solver, judge = training.folder.common_failures()
    assert solver.startswith("solver: 24 of 24 answers failed with malformed_output")
    assert "solver 1 has no answer to choose" in judge


def test_a_step_in_which_every_answer_of_a_role_failed_stops_the_training(training: Training) -> None:
    training.workflow.solve = lambda seed, updates: RIGHT if updates == 0 else "It is 3 + 4."
    with pytest.raises(FailedRole) as caught:
        training.run()
    for word in ("step 2", "solver", "malformed_output", "'It is 3 + 4.'", "--keep-going"):
        assert word in str(caught.value)
    assert len(training.episodes("train", 2)) == 4, "what failed can be looked at"
    assert [line["step"] for line in training.folder.metrics()] == [0, 1]


RAISING = "roles.solver.reward=action + 1"


def test_a_reward_that_raises_stops_the_training_at_its_first_validation(training: Training) -> None:
    with pytest.raises(FailedRole) as caught:
        training.run(RAISING)
    for word in ("step 0", "solver", "reward_error", "action + 1", "--keep-going"):
        assert word in str(caught.value)
    assert training.service.asked_for("optim_step") == []


def test_a_training_goes_on_with_a_warning_where_it_is_told_to(training: Training) -> None:
    training.keep_going = True
    training.run(RAISING)
    (warning,) = [text for text in training.warnings() if "reward_error" in text]
    assert warning.startswith("step 0: every answer of solver failed")
    assert [line["step"] for line in training.folder.metrics()] == [0, 1, 2, 3]


def test_the_metrics_and_the_report_count_the_same_groups(finished: Training) -> None:
    assert_report_agrees(finished)


def assert_report_agrees(training: Training) -> None:
    lines = {line["step"]: line for line in training.folder.metrics()}
    rule = read_rule(training.folder)
    for role in read_digest(training.folder.path, ("solver", "judge"), rule).groups:
        for step, counts in role.steps.items():
            for outcome in GroupOutcome:
                assert lines[step][outcome.metric(role.role)] == counts[outcome] / counts.total()


def test_a_service_that_fails_an_update_is_named_and_what_was_done_is_on_disk(training: Training) -> None:
    training.service.refusals["forward_backward"] = iter(
        [None] * 4 + [failed(f"out of memory, {KEY}", "server")]
    )
    with pytest.raises(WorldError, match="cannot train on this batch: out of memory") as caught:
        training.run("train.checkpoint_every=1")
    assert KEY not in str(caught.value)
    assert [line["step"] for line in training.folder.metrics()] == [0, 1, 2]
    assert [checkpoint.step for checkpoint in training.folder.checkpoints()] == [1, 2]
    assert len(training.episodes("train", 3)) == 4, "its episodes were finished"


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_the_training_with_its_role(training: Training, loss: float) -> None:
    def diverge(event: Event) -> None:
        if isinstance(event, StepLogged) and event.step == 2:
            training.service.per_datum = loss

    training.observe = diverge
    with pytest.raises(WorldError, match="the loss of solver is not finite") as caught:
        training.run("train.checkpoint_every=1")
    assert "rolegraph train --resume" in str(caught.value)
    assert [line["step"] for line in training.folder.metrics()] == [0, 1, 2]
    assert [checkpoint.step for checkpoint in training.folder.checkpoints()] == [1, 2]


def test_a_step_in_which_no_call_was_answered_is_a_service_that_is_gone(training: Training) -> None:
    answering = training.service.script

    def gone_after_one_update(body: dict[str, Any]) -> Any:
        if training.service.updates[body["sampling_session_id"]]:
            return failed("the machine is gone", "server")
        return answering(body)

    training.service.script = gone_after_one_update
    with pytest.raises(WorldError, match="no model call of step 2 was answered: the machine is gone"):
        training.run()
    assert [line["step"] for line in training.folder.metrics()] == [0, 1]
    assert not training.folder.episodes_file("train", 2).exists()


def test_rollouts_ahead_are_cancelled_when_a_run_ends_early(training: Training) -> None:
    training.service.refusals["optim_step"] = iter([failed("the machine is gone", "server")])

    async def run() -> None:
        async with training.setup(("train.staleness=2",), None) as setup:
            with pytest.raises(WorldError, match="the machine is gone"):
                await train(setup)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_a_call_that_is_not_answered_now_and_then_is_a_failure_that_is_counted(training: Training) -> None:
    answering = training.service.script

    def refusing_some(body: dict[str, Any]) -> Any:
        return failed("no", "user") if body["sampling_params"]["seed"] % 5 == 0 else answering(body)

    training.service.script = refusing_some
    training.run()
    lines = training.folder.metrics()[1:]
    failures = [sum(v for name, v in line.items() if name.startswith("failures/")) for line in lines]
    written = [
        sum(t.failure is not None for e in training.episodes("train", step) for t in e.trajectories)
        for step in (1, 2, 3)
    ]
    assert failures == written
    assert sum(failures) > 0


def test_a_constant_key_and_one_of_the_round_send_the_data_of_task_and_turn(
    training: Training, tokenizer: Path, tmp_path: Path
) -> None:
    loop = ("loops={l: {roles: [solver], times: 2}}", "roles.judge.needs=solver", "roles.solver.credit=turn")
    sent: list[Any] = []
    for number, group in enumerate(("task", "{by: 0}", "turn", "{by: self.round}")):
        before = len(training.service.asked_for("forward_backward"))
        run = Training(training.workflow, tokenizer, tmp_path / str(number))
        run.run(*loop, f"roles.solver.group={group}")
        sent.append([body["data"] for body in training.service.asked_for("forward_backward")[before:]])
    assert sent[0] == sent[1]
    assert sent[2] == sent[3] != sent[0]
