"""Tests of the credit trace of random turns against the papers' formulas, written out by hand."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from rolegraph.engine.records import NodeId
from rolegraph.engine.records.episodes import read_episodes
from rolegraph.engine.training.advantages.ledger import credit_rows
from rolegraph.engine.training.analysis.metrics import mean_metrics
from rolegraph.engine.training.policies.batches import policy_batches
from rolegraph.pages.report.digest import read_digest
from rolegraph.pages.view.cards import read_traces
from rolegraph.pages.view.finding import EpisodeFilter
from rolegraph.pages.view.pages import Pages
from rolegraph.pages.view.runs import EpisodeLocation, ViewedRun, open_run
from rolegraph.pages.view.serving import ServedLinks
from rolegraph.pages.view.trace import GroupTrace, greatest, tokens
from tests.pages.view.runs import episodes, learnt, workflow, write_run, write_training

EPSILON = 1e-6
BY_TURN = (
    "roles.solver.credit={return: 0.5}",
    "roles.solver.group=turn",
    "roles.verifier.credit=turn",
    "roles.verifier.weight=3",
)


def grpo(rewards: list[float], mine: float) -> tuple[float, float]:
    """Return baseline and advantage: A = (r - mean(r)) / (std(r) + ε), the deviation over all members."""
    return fmean(rewards), (mine - fmean(rewards)) / (pstdev(rewards) + EPSILON)


def reinforce(rewards: list[float], mine: float) -> tuple[float, float]:
    """Return baseline and advantage: A = r, without a baseline."""
    return 0.0, mine


BY_HAND = {"solver": grpo, "judge": reinforce, "verifier": reinforce}


def all_traces(run: ViewedRun) -> list[tuple[EpisodeLocation, NodeId, GroupTrace]]:
    """Return the trace of every trained turn, with its location."""
    rows = [row for part in run.parts() if part.split == "train" for row in run.rows(part)]
    return [(row, node, trace) for row in rows for node, (trace,) in found_in(run, row).items()]


def found_in(run: ViewedRun, row: EpisodeLocation) -> dict[NodeId, list[GroupTrace]]:
    return read_traces(run, row, hidden=True)[1]


def test_ten_turns_at_random_have_the_numbers_of_the_formulas(tmp_path: Path) -> None:
    run = open_run(write_training(tmp_path / "run", steps=2))
    for row, node, trace in random.Random(1).sample(all_traces(run), 10):
        in_step = list(read_episodes(row.part.path))
        of_task = [episode for episode in in_step if episode.task_id == row.entry.task]
        group = [t for episode in of_task for t in episode.trajectories if t.name == node.role]
        prefix = f"{row.entry.task}:{row.entry.rollout}/"
        (mine,) = [t for t in group if t.node[:2] == node[:2] and t.uid.startswith(prefix)]
        rewards = [t.reward for t in group if t.reward is not None]
        assert mine.reward is not None
        baseline, advantage = BY_HAND[node.role](rewards, mine.reward)
        # One policy: its loss is the mean over all trajectories of the step that are in a group.
        compared = sum(len(episode.trajectories) for episode in in_step)
        assert [member.credit.reward for member in trace.members] == rewards
        assert trace.mine.credit.reward == mine.reward
        assert trace.mine.credit.baseline == pytest.approx(baseline)
        assert trace.mine.credit.advantage == pytest.approx(advantage)
        assert trace.mine.credit.loss_weight == pytest.approx(1 / compared)


def test_turns_that_are_compared_have_the_numbers_of_the_formulas(tmp_path: Path) -> None:
    run = open_run(write_training(tmp_path / "run", "solver_verifier_loop", *BY_TURN))
    solvers = [found for found in all_traces(run) if found[1].role == "solver"]
    for row, node, trace in random.Random(2).sample(solvers, 10):
        in_step = list(read_episodes(row.part.path))
        returns: dict[tuple[int, NodeId], float] = {}
        for episode in in_step:
            for trajectory in episode.trajectories if episode.task_id == row.entry.task else ():
                if trajectory.name == "solver":
                    earned = [step.reward for step in trajectory.steps]
                    for place, step in enumerate(trajectory.steps):
                        # G_t = Σ_k γ^k r_{t+k}, γ = 1/2
                        value = sum(0.5**k * reward for k, reward in enumerate(earned[place:]))
                        returns[episode.rollout, NodeId("solver", trajectory.index, step.round)] = value
        rewards = [value for (_, other), value in returns.items() if other.round == node.round]
        mine = returns[row.entry.rollout, node]
        baseline, advantage = grpo(rewards, mine)
        compared = sorted(member.credit.reward or 0.0 for member in trace.members)
        assert compared == pytest.approx(sorted(rewards))
        assert trace.mine.credit.reward == pytest.approx(mine)
        assert trace.mine.credit.baseline == pytest.approx(baseline)
        if len(rewards) > 1:
            assert trace.mine.credit.advantage == pytest.approx(advantage)
        trajectories = [t for episode in in_step for t in episode.trajectories]
        both = [t.name for t in trajectories if not all(step.masked for step in t.steps)]
        whole = both.count("solver") * 1.0 + both.count("verifier") * 3.0
        assert trace.mine.credit.loss_weight == pytest.approx(1.0 / whole)


def test_advantage_times_loss_weight_is_what_the_service_is_sent() -> None:
    """Compare with each token's entry in the batch, over all trained tokens."""
    plan = workflow("solver_judge").plan
    step = learnt(plan, episodes(plan))
    shown: list[float] = []
    for row in credit_rows(step):
        if row.advantage and abs(row.advantage) > 1e-8:
            shown += [row.advantage * row.weight * (row.loss_weight or 0.0)] * row.tokens
    batches = policy_batches(step)
    data = chain.from_iterable(batch.data for batch in batches["main"])
    sent = [value for datum in data for value in datum.loss_fn_inputs["advantages"].data if value]
    assert sorted(sent) == pytest.approx(sorted(shown), rel=1e-5)


def test_a_run_that_trained_nothing_has_groups_without_advantages(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run"))
    (part,) = run.parts()
    row = run.rows(part)[0]
    found = found_in(run, row)
    assert {node.role for node in found} == {"solver", "judge"}
    assert all(not trace.learnt and len(trace.members) in (4, 8) for (trace,) in found.values())


def test_tokens_are_coloured_by_advantage_and_underlined_by_how_unlikely_they_were(tmp_path: Path) -> None:
    step = episodes(workflow("solver_judge").plan, 1, 1)[0].trajectories[0].steps[0]
    values = [1.0, 0.0, -0.1, -1.0]
    step = step._replace(response_ids=[1, 2, 3, 4], logprobs=[0.0, -0.5, -3.0, -9.0], advantage=values)
    found = list(tokens(step, ["a", "b", "c", "d"], greatest([step])))
    assert [token.tint for token in found] == ["a3", "", "a-1", "a-3"]
    assert [token.doubt for token in found] == ["", "p1", "p3", "p4"]
    assert [token.advantage for token in found] == values


def test_the_n_of_a_role_that_compares_turns_is_the_number_of_turns() -> None:
    plan = workflow("solver_verifier_loop", *BY_TURN).plan
    made = episodes(plan, seed=5)
    found = mean_metrics(plan, made, "validation")
    solvers = [one for episode in made for one in episode.trajectories if one.name == "solver"]
    turns = [step.reward for one in solvers for step in one.steps if not step.masked]
    assert len(turns) > len(solvers)
    assert found["validation/n/reward/solver"] == len(turns)
    assert found["validation/reward/solver"] == pytest.approx(fmean(turns))


def test_a_turn_in_several_groups_shows_each_of_them_and_the_sum(tmp_path: Path) -> None:
    both = "roles.solver.group=[{by: task}, {by: self.round, weight: 0.5, credit: turn}]"
    run = open_run(write_training(tmp_path / "run", "solver_verifier_loop", both))
    (part, *_) = (part for part in run.parts() if part.split == "train")
    row = run.rows(part)[0]
    found = found_in(run, row)
    several = [groups for node, groups in found.items() if node.role == "solver"]
    assert several
    for groups in several:
        assert [(trace.of_turns, trace.mine.credit.weight) for trace in groups] == [(False, 1.0), (True, 0.5)]
    pages = Pages([run], ServedLinks("key"))
    cards = pages.shown(0, row, 0).cards
    for card in cards:
        (step,) = (call.asked.step for call in card.calls)
        assert card.advantage == pytest.approx(step.advantage)
    assert "weight 0.5" in pages.episode(0, row, EpisodeFilter())


def test_a_group_over_the_batch_shows_the_members_of_all_its_tasks(tmp_path: Path) -> None:
    group = "roles.solver.group={by: 0, over: batch}"
    run = open_run(write_training(tmp_path / "run", "solver_judge", group))
    part = next(part for part in run.parts() if part.split == "train")
    row = run.rows(part)[0]
    together = [(other, run.read(other)) for other in run.rows(part)]
    solvers = [t for _, episode in together for t in episode["solver"]]
    of_solver = [trace for node, (trace,) in found_in(run, row).items() if node.role == "solver"]
    assert all(len(trace.members) == len(solvers) for trace in of_solver)
    rewards = [t.reward or 0.0 for t in solvers]
    for trace in of_solver:
        baseline, advantage = grpo(rewards, trace.mine.credit.reward or 0.0)
        assert trace.mine.credit.baseline == pytest.approx(baseline)
        assert trace.mine.credit.advantage == pytest.approx(advantage)
    page = Pages([run], ServedLinks("key")).episode(0, row, EpisodeFilter())
    assert "over all tasks of the step" in page
    tasks = {other.entry.task for other, _ in together}
    assert len(tasks) > 1
    assert all(f"task {task}, rollout" in page for task in tasks)
    digest = read_digest(tmp_path / "run", ("solver", "judge"), run.rule)
    assert (digest.roles["solver"].seen, digest.roles["judge"].seen) == (2, 2 * len(tasks)), "2 steps"
