"""Pure parts of training: task order, learning rate, datums, figures and comparisons."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import tinker
from hypothesis import given, settings
from hypothesis import strategies as st

import rolegraph as rg
from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import Episode, Step, Trajectory
from rolegraph.engine.spec import Schedule, Train
from rolegraph.engine.training.advantages.ledger import Membership
from rolegraph.engine.training.analysis.compare import by_task, controls
from rolegraph.engine.training.analysis.metrics import answer_metrics, gradient_shares, sign_warnings
from rolegraph.engine.training.loop.schedule import batch_tasks, learning_rate, planned_steps
from rolegraph.engine.training.policies.batches import (
    RoleBatch,
    SampledSpan,
    build_datum,
    policy_batches,
    step_advantages,
    token_sequences,
)
from rolegraph.engine.vocabulary import reward_call, rewards
from tests.edge import solver_judge
from tests.training.credited import ledger

ROWS = [{"id": str(i)} for i in range(10)]


# order


def test_an_epoch_goes_through_the_data_once_and_each_in_its_own_order() -> None:
    train = Train(batch_size=3)
    epochs = [
        [t["id"] for step in steps for t in batch_tasks(ROWS, train, 7, step)]
        for steps in ((1, 2, 3), (4, 5, 6))
    ]
    assert all(len(set(epoch)) == 9 for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_the_same_seed_and_step_give_the_same_tasks_whatever_went_before() -> None:
    train = Train(batch_size=4)
    assert batch_tasks(ROWS, train, 1, 5) == batch_tasks(ROWS, train, 1, 5)
    assert [batch_tasks(ROWS, train, 1, s) for s in range(1, 6)] != [
        batch_tasks(ROWS, train, 2, s) for s in range(1, 6)
    ]


@given(st.integers(1, 10), st.integers(1, 60), st.integers(0, 5))
def test_a_batch_never_holds_a_task_twice(size: int, step: int, seed: int) -> None:
    ids = Counter(t["id"] for t in batch_tasks(ROWS, Train(batch_size=size), seed, step))
    assert len(ids) == size
    assert max(ids.values()) == 1


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({}, 3),
        ({"epochs": 2}, 6),
        ({"steps": 5}, 5),
        ({"epochs": 1, "steps": 5}, 3),
        ({"epochs": 4, "steps": 5}, 5),
    ],
)
def test_steps_and_epochs_end_a_run_whichever_comes_first(keys: dict[str, int], steps: int) -> None:
    assert planned_steps(Train(batch_size=3, **keys), 10) == steps


def test_data_that_does_not_fill_a_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="10 tasks, which do not fill a batch of 16"):
        planned_steps(Train(), 10)


# rate


def test_the_rate_rises_in_the_warm_up_and_falls_to_the_floor() -> None:
    linear = Schedule(kind="linear", warmup=2, floor=0.1)
    rates = [learning_rate(linear, 1.0, step, 6) for step in range(1, 7)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.7, 0.4, 0.1])
    cosine = Schedule(kind="cosine")
    assert [learning_rate(cosine, 1.0, step, 3) for step in (1, 2, 3)] == pytest.approx([1.0, 0.5, 0.0])
    assert learning_rate(Schedule(), 0.5, 100, 100) == 0.5


# datums

STEP = Step(prompt_ids=[1, 2, 3], response_ids=[4, 5], logprobs=[-0.1, -0.2], advantage=2.0)


Learnt = tuple[tinker.Datum, list[SampledSpan]]


def learnt(*steps: Step, loss: str = "ppo", share: float = 0.5) -> list[Learnt]:
    """Return a trajectory's datums, each with its spans of sampled tokens."""
    trajectory = Trajectory("solver", steps=steps, uid="t:0/solver/1")
    own = step_advantages(Episode("t", 0, {"id": "t"}, [trajectory]), trajectory)
    return [build_datum(sequence, loss, share) for sequence in token_sequences(own)]


def arrays(*steps: Step, loss: str = "ppo", share: float = 0.5) -> dict[str, list[float]]:
    ((found, _),) = learnt(*steps, loss=loss, share=share)
    return {"tokens": found.model_input.to_ints(), **{k: v.tolist() for k, v in found.loss_fn_inputs.items()}}


def test_a_datum_is_shifted_by_one_and_counts_only_the_response() -> None:
    assert arrays(STEP) == {
        "tokens": [1, 2, 3, 4],
        "target_tokens": [2, 3, 4, 5],
        "logprobs": pytest.approx([0, 0, -0.1, -0.2]),
        "advantages": [0, 0, 1.0, 1.0],
    }


def test_advantages_of_tokens_keep_their_places() -> None:
    assert arrays(STEP._replace(advantage=(1.0, -1.0)))["advantages"] == [0, 0, 0.5, -0.5]


def test_a_demonstration_takes_the_place_of_what_was_sampled() -> None:
    step = STEP._replace(advantage=1.0, metadata={"demonstration": {"text": "…", "ids": [7, 8, 9]}})
    found = arrays(step, loss="cross_entropy")
    assert found["target_tokens"] == [2, 3, 7, 8, 9]
    assert found["weights"] == [0, 0, 0.5, 0.5, 0.5]


def test_nothing_is_sent_where_there_is_nothing_to_learn() -> None:
    assert learnt(STEP._replace(advantage=0.0)) == []


def test_a_step_without_tokens_is_refused_by_its_place() -> None:
    with pytest.raises(UsageError, match="t:0/solver/1, step 0 has no token ids"):
        learnt(STEP._replace(prompt_ids=()))


def test_a_step_whose_log_probabilities_were_unusable_is_left_out_and_others_are_learnt() -> None:
    unusable = STEP._replace(
        advantage=1.0, logprobs=(), metadata={"unusable_numbers": ["log-probability nan"]}
    )
    assert learnt(unusable) == []
    with pytest.raises(UsageError, match="has 0 log-probabilities for 2 tokens"):
        learnt(unusable._replace(metadata={}))
    after = NEXT._replace(metadata={})
    assert arrays(unusable, after, share=1.0) == {
        "tokens": [1, 2, 3, 4, 5, 6, 7, 8],
        "target_tokens": [2, 3, 4, 5, 6, 7, 8, 9],
        "logprobs": pytest.approx([0, 0, 0, 0, 0, -0.3, -0.4, -0.5]),
        "advantages": [0, 0, 0, 0, 0, -1, -1, -1],
    }


NEXT = Step([1, 2, 3, 4, 5, 6], [7, 8, 9], [-0.3, -0.4, -0.5], advantage=-1.0, metadata={"round": 2})
OTHER = Step([1, 2, 3, 4, 6], [5], [-0.6], advantage=1.0, metadata={"round": 3})


def test_steps_that_continue_each_other_token_for_token_are_one_sequence() -> None:
    assert arrays(STEP, NEXT, share=1.0) == {
        "tokens": [1, 2, 3, 4, 5, 6, 7, 8],
        "target_tokens": [2, 3, 4, 5, 6, 7, 8, 9],
        "logprobs": pytest.approx([0, 0, -0.1, -0.2, 0, -0.3, -0.4, -0.5]),
        "advantages": [0, 0, 2, 2, 0, -1, -1, -1],
    }
    ((_, spans),) = learnt(STEP, NEXT)
    assert spans == [SampledSpan(2, STEP.logprobs), SampledSpan(5, NEXT.logprobs)]


def test_steps_that_do_not_are_a_datum_each() -> None:
    assert [len(found.model_input.to_ints()) for found, _ in learnt(STEP, NEXT, OTHER)] == [8, 5]
    assert len(learnt(NEXT, STEP)) == 2


def test_what_teaches_nothing_counts_nothing_in_a_sequence_and_ends_none() -> None:
    masked = STEP._replace(metadata={"masked": True}, advantage=None)
    assert arrays(masked, NEXT, share=1.0)["advantages"] == [0, 0, 0, 0, 0, -1, -1, -1]
    ((_, spans),) = learnt(masked, NEXT)
    assert spans == [SampledSpan(5, NEXT.logprobs)]
    assert arrays(STEP, NEXT._replace(advantage=0.0)) == arrays(STEP)


def test_a_turn_to_imitate_is_no_part_of_the_conversation_after_it() -> None:
    shown = STEP._replace(advantage=1.0, metadata={"demonstration": {"text": "…", "ids": [7]}})
    after = NEXT._replace(advantage=1.0, metadata={"demonstration": {"text": "…", "ids": [8]}, "round": 2})
    assert [len(found.model_input.to_ints()) for found, _ in learnt(shown, after, loss="cross_entropy")] == [
        3,
        6,
    ]


@given(st.data())
@settings(deadline=None)
def test_the_loss_of_a_sequence_is_that_of_its_steps_apart(data: st.DataObject) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra `local`")
    from rolegraph.local.service.losses import LOSSES, TokenScores

    tokens = st.integers(0, 5)
    steps: list[Step] = []
    for number in range(1, data.draw(st.integers(1, 5)) + 1):
        before = (
            [*steps[-1].prompt_ids, *steps[-1].response_ids] if steps and data.draw(st.booleans()) else []
        )
        prompt = before + data.draw(st.lists(tokens, min_size=1, max_size=3))
        response = data.draw(st.lists(tokens, min_size=1, max_size=4))
        logprobs = [data.draw(st.floats(-3, 0)) for _ in response]
        advantage = data.draw(st.sampled_from([0.0, 1.0, -0.5]))
        steps.append(Step(prompt, response, logprobs, advantage=advantage, metadata={"round": number}))
    loss: str = data.draw(st.sampled_from(["ppo", "importance_sampling", "cross_entropy"]))

    def total(found: list[Learnt]) -> tuple[float, list[float]]:
        """Return the loss by a policy that reads the whole prefix, and each sampled token's log ratio."""
        value, gaps = 0.0, list[float]()
        for one, spans in found:
            inputs = {name: torch.tensor(v.tolist()) for name, v in one.loss_fn_inputs.items()}
            ids = [*one.model_input.to_ints(), int(inputs["target_tokens"][-1])]
            now = [-1 - random.Random(str(ids[: n + 1])).random() for n in range(1, len(ids))]
            scored = TokenScores(torch.tensor(now), inputs, [len(now)])
            value += float(LOSSES[loss].compute(scored, LOSSES[loss].settings))
            for start, sampled in spans:
                gaps += [q - p for q, p in zip(sampled, now[start : start + len(sampled)], strict=True)]
        return value, gaps

    together, apart = learnt(*steps, loss=loss), [one for step in steps for one in learnt(step, loss=loss)]
    assert len(together) <= len(apart)
    assert total(together)[0] == pytest.approx(total(apart)[0], abs=1e-4)
    assert total(together)[1] == pytest.approx(total(apart)[1])


def test_a_batch_says_how_many_steps_went_into_its_data_and_which_were_written_anew() -> None:
    def conversation(*turns: Step) -> Trajectory:
        messages: list[dict[str, str]] = []
        steps: list[Step] = []
        for turn in turns:
            messages += [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
            steps.append(turn._replace(chat_completions=tuple(messages)))
        return Trajectory("solver", steps=steps, reward=1.0)

    roles = {"solver": solver_judge().roles[0]}
    one = conversation(STEP, NEXT, OTHER)
    plan = solver_judge()
    step = Membership(roles, plan.policy_of).add([Episode("t", 0, {"id": "t"}, [one])]).ledger()
    (found,) = policy_batches(step)["main"]
    assert (found.steps, len(found.data), found.rewritten) == (3, 2, 1)


def unlearnt(action: object) -> Step:
    return STEP._replace(advantage=None, action=action)


def episode(task: str, rollout: int, solvers: list[float], judge: float) -> Episode:
    own = [
        Trajectory(
            "solver",
            i + 1,
            (STEP._replace(advantage=None, action=str(r)),),
            r,
            r > 0,
            f"{task}/{rollout}/s{i}",
        )
        for i, r in enumerate(solvers)
    ]
    last = Trajectory("judge", 1, (unlearnt(None),), judge, judge > 0, f"{task}/{rollout}/j")
    figures = {"solver_acc": sum(solvers) / len(solvers), "judge_acc": judge}
    return Episode(task, rollout, {"id": task}, [*own, last], judge > 0, figures)


def learning(plan: Plan, episodes: Sequence[Episode]) -> dict[str, list[RoleBatch]]:
    """Return the datums of episodes with rewards, by policy."""
    return policy_batches(ledger(plan, episodes))


def test_zero_advantages_are_left_out_but_count_in_the_mean() -> None:
    plan = solver_judge()
    episodes = [episode("a", 0, [1.0, 0.0], 1.0), episode("b", 0, [1.0, 1.0], 0.0)]
    solver, judge = learning(plan, episodes)["main"]
    assert (solver.role, solver.loss.name, len(solver.data)) == (
        "solver",
        "ppo",
        2,
    )  # the group of b is all equal
    assert (judge.role, judge.loss.name, len(judge.data)) == ("judge", "importance_sampling", 1)
    assert judge.data[0].loss_fn_inputs["advantages"].tolist()[-1] == pytest.approx(1 / 6)


def judged(weight: float) -> list[dict[str, float]]:
    """Return the gradient shares of a judge and its solvers, and the judge's weighted advantage."""
    plan = solver_judge(f"roles.judge.weight={weight}")
    episodes = [episode("a", 0, [1.0, 0.0], 1.0), episode("b", 0, [1.0, 1.0], 0.0)]
    batches = learning(plan, episodes)
    sent = batches["main"][1].data[0].loss_fn_inputs["advantages"].tolist()[-1]
    return [gradient_shares(batches, plan), {"sent": sent}]


def test_a_weight_counts_in_the_mean_and_in_the_share() -> None:
    (equal, one), (more, three) = judged(1), judged(3)
    # Solvers: |a| = 1 twice, of two tokens; judge: 1 once.
    assert equal == pytest.approx({"optim/share/solver": 2 / 3, "optim/share/judge": 1 / 3}, rel=1e-4)
    assert more == pytest.approx({"optim/share/solver": 2 / 5, "optim/share/judge": 3 / 5}, rel=1e-4)
    assert one["sent"] == pytest.approx(1 / 6)
    assert three["sent"] == pytest.approx(3 / (4 * 1 + 2 * 3))


def test_a_role_that_has_its_policy_for_itself_is_told_of_once() -> None:
    plan = solver_judge()
    steps = [{"optim/share/solver": 0.95, "optim/share/judge": 0.05}] * 25
    warned = [
        n for n in range(26) for note in sign_warnings(steps[:n], plan) if "solver has over" in note.text
    ]
    assert warned == [10]
    interrupted = [*steps[:9], {"optim/share/solver": 0.5, "optim/share/judge": 0.5}, *steps]
    warned = [n for n in range(len(interrupted) + 1) for _ in sign_warnings(interrupted[:n], plan)]
    assert warned == [20]
    quiet = [*steps[:5], {"optim/data": 0.0}, *steps[:5]]
    assert [n for n in range(len(quiet) + 1) for _ in sign_warnings(quiet[:n], plan)] == [11], (
        "that had no gradient"
    )
    apart = solver_judge("policies={judge: {}}", "roles.judge.policy=judge")
    assert not [*sign_warnings([{"optim/share/solver": 1.0, "optim/share/judge": 1.0}] * 10, apart)]


@pytest.mark.parametrize(
    ("metric", "first", "later", "word"),
    [
        ("outcome/judge/taught", 0.5, 0.0, "groups"),
        ("entropy/judge", 0.8, 0.07, "entropy"),
        ("tokens/per_response/judge", 30.0, 9.0, "length"),
        ("tokens/per_response/judge", 30.0, 91.0, "length"),
    ],
)
def test_a_role_that_collapses_is_told_of_once(metric: str, first: float, later: float, word: str) -> None:
    plan = solver_judge()
    lines = [{metric: first}, *[{metric: later}] * 9]
    warned = {n: note.text for n in range(len(lines) + 1) for note in sign_warnings(lines[:n], plan)}
    assert [*warned] == [6] and "judge" in warned[6] and word in warned[6]
    assert not [*sign_warnings([{metric: first}] * 9, plan)]


def test_a_role_that_has_learnt_its_answer_does_not_collapse() -> None:
    plan, n = solver_judge(), {"validation/n/reward/judge": 64.0}
    alike = [{"entropy/judge": 0.8}, *[{"entropy/judge": 0.01}] * 5]
    for end, warned in ((0.9, 0), (0.53, 1), (0.2, 1)):
        lines = [{"validation/reward/judge": 0.5, **n}, *alike]
        lines[-1] = {**lines[-1], "validation/reward/judge": end, **n}
        assert len([*sign_warnings(lines, plan)]) == warned


def test_a_role_whose_answers_collapse_is_named_at_the_second_step() -> None:
    plan = solver_judge()
    for first in (0.6, 0.97):
        lines = [{"answers/same/judge": first}, *[{"answers/same/judge": 0.97}] * 9]
        warned = [n for n in range(len(lines) + 1) for _ in sign_warnings(lines[:n], plan)]
        assert warned == [3 if first < 0.9 else 2]


def test_a_dead_role_is_named_and_no_other_is_to_weigh_less() -> None:
    plan = solver_judge()
    line = {"optim/share/solver": 1.0, "optim/share/judge": 0.0}
    line |= {"outcome/solver/taught": 0.5, "outcome/judge/taught": 0.0}
    about = [note.about for n in range(30) for note in sign_warnings([line] * n, plan)]
    assert about == ["outcome/judge/taught"]
    (note,) = sign_warnings([line] * 5, plan)
    assert "judge is dead" in note.text
    by_signal = line | {"signal/judge/advantage/min": -0.2, "signal/judge/advantage/max": 0.0}
    assert not [*sign_warnings([by_signal] * 5, plan)], "a signal teaches whatever the rewards"


def test_figures_of_answers_are_those_of_a_role() -> None:
    episodes = [episode("a", 0, [1.0, 1.0], 1.0), episode("b", 0, [1.0, 0.0], 0.0)]
    roles = {"solver": solver_judge().trained["solver"]}
    found = answer_metrics(roles, episodes)
    assert found["answers/same/solver"] == 3 / 4
    assert found["tokens/per_response/solver"] == len(STEP.response_ids)
    assert found["entropy/solver"] == pytest.approx(-sum(STEP.logprobs) / len(STEP.logprobs))
    assert "answers/same/solver" not in answer_metrics(roles, episodes[:1]), "of one task"


# comparisons


def test_figures_are_means_for_each_task() -> None:
    found = by_task(solver_judge(), [episode("a", 0, [1.0, 0.0], 1.0), episode("a", 1, [1.0, 1.0], 0.0)])
    assert found["correct"] == {"a": 0.5}
    assert found["reward/solver"] == {"a": 0.75}


def test_controls_tell_the_solver_alone_from_the_workflow() -> None:
    plan = solver_judge()
    untrained = [episode("a", 0, [0.0, 0.0], 0.0)]
    trained = [episode("a", k, [1.0, 0.0] if k else [1.0, 1.0], 1.0) for k in range(2)]
    rows = [(row.name, row.figure, row.mean) for row in controls(plan, untrained, trained)]
    assert rows == [
        ("untrained workflow", "correct", 0.0),
        ("trained solver alone", "pass@1", 0.75),
        ("trained solver alone", "majority of 4", 1.0),
        ("trained workflow", "correct", 1.0),
    ]


def test_a_control_of_a_role_that_is_not_trained_says_so() -> None:
    plan = rg.load("solver_judge", "roles.solver.estimator=null").plan
    rows = controls(plan, [episode("a", 0, [0.0, 0.0], 0.0)], [episode("a", 0, [1.0, 0.0], 1.0)])
    assert [row.name for row in rows[1:3]] == ["untrained solver alone"] * 2


def test_a_first_role_that_earns_what_others_do_is_no_answer_by_itself() -> None:
    plan = solver_judge()
    planner = replace(
        plan.roles[0],
        reward=rewards.build(reward_call('action == ("correct" if judge.right else "incorrect")')),
    )
    team = replace(plan, roles=(planner, *plan.roles[1:]))
    rows = controls(team, [episode("a", 0, [0.0, 0.0], 0.0)], [episode("a", 0, [1.0, 0.0], 1.0)])
    assert [row.name for row in rows] == ["untrained workflow", "trained workflow"]
