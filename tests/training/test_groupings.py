"""Groups by an expression, over an episode, and several at once, from a spec's keys to the advantages."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.compile import Plan
from rolegraph.engine.compile.compiler import check_file
from rolegraph.engine.errors import AdvantageError
from rolegraph.engine.models import Request
from rolegraph.engine.records import Episode, NodeId
from rolegraph.engine.training.advantages.estimates import check_state_keys, estimate
from rolegraph.engine.training.advantages.ledger import Membership
from rolegraph.engine.training.analysis.outcomes import group_results
from rolegraph.engine.training.policies.batches import step_advantages
from tests.clock import run_virtually
from tests.edge import COUNTDOWN, RIGHT, WRONG, ScriptedModel, episode, limited
from tests.examples import examples
from tests.meaning import compared
from tests.training import credited
from tests.training.credited import (
    LOOP,
    ONE,
    Roles,
    advantages,
    drawn,
    grouped,
    learnt,
    ledger,
    looped,
    outcomes,
    plan,
    rollouts,
    write,
)
from tests.workflows import Workflow, compiled, workflows

CREDITS: list[Any] = ["trajectory", "turn", "margin", {"return": 0.5}]


LAST = "task.id == 't2'"
"""Expression with one value for two tasks, and another for the third."""


def trained(workflow: Workflow, group: Callable[[str], Any], credit: Any, estimator: Any = "grpo") -> Plan:
    """Compile a drawn workflow whose roles learn from answers that hold an x."""
    learns = {"reward": {"matches": "x"}, "estimator": estimator, "credit": credit}
    roles = {
        name: role if "run" in role else {**role, **learns, "group": group(name)}
        for name, role in workflow.roles.items()
    }
    return compiled(replace(workflow, roles=roles))


def episodes(workflow: Workflow, plan: Plan) -> list[Episode]:
    """Run two rollouts of three tasks; the answers follow from task, rollout and turn."""
    made: list[Episode] = []
    for task, rollout in product(range(3), range(2)):
        other = replace(workflow, salt=workflow.salt + 10 * task + rollout)
        model = ScriptedModel(lambda request, other=other: other.action(request.id.node) or "z")
        row = {**COUNTDOWN, "id": f"t{task}"}
        made.append(run_virtually(episode(plan, limited(plan, model), row, rollout))[0])
    return made


def values(plan: Plan, made: list[Episode]) -> list[Any]:
    return [[s.advantage for s in t.steps] for e in learnt(plan, made)[0] for t in e.trajectories]


@examples(60)
@given(workflows(), st.sampled_from(CREDITS))
def test_a_key_of_the_round_is_turn_and_a_constant_is_task(workflow: Workflow, credit: Any) -> None:
    def loops(inside: Any, outside: Any) -> Callable[[str], Any]:
        return lambda name: inside if workflow.loops_of(name) else outside

    def by_round(name: str) -> Any:
        key = {1: "self.round", 2: "self.outer ~ '.' ~ self.round"}
        return {"by": key.get(len(workflow.loops_of(name)), 0)}

    pairs = [
        (loops("turn", "task"), by_round),
        (loops("task", "task"), loops({"by": 0}, {"by": 0})),
    ]
    for short, long in pairs:
        known, keyed = trained(workflow, short, credit), trained(workflow, long, credit)
        made, again = episodes(workflow, known), episodes(workflow, keyed)
        assert values(known, made) == values(keyed, again)
        assert ledger(known, made).loss_weights == ledger(keyed, again).loss_weights


@examples(60)
@given(workflows(), st.sampled_from(CREDITS), st.booleans(), st.sampled_from(["task", "batch"]))
def test_the_groups_are_those_of_the_second_reading_of_the_language(
    workflow: Workflow, credit: Any, by_turn: bool, over: str
) -> None:
    inside = f"(self.index % 2) ~ ({LAST}) ~ (self.round // 2)" if by_turn else "self.index % 2"

    def group(name: str) -> Any:
        return {"by": inside if workflow.loops_of(name) else "self.index % 2", "over": over}

    spec = trained(workflow, group, credit)
    made = episodes(workflow, spec)
    answered: dict[tuple[str, int], dict[NodeId, bool]] = {}
    for one in made:
        steps = [(t, step) for t in one.trajectories if t.name in spec.trained for step in t.steps]
        turns = {NodeId(t.name, t.index, step.round): not step.masked for t, step in steps}
        answered[one.task_id, one.rollout] = turns

    def key(task: str, node: NodeId) -> object:
        in_loop = by_turn and workflow.loops_of(node.role)
        parity = node.index % 2
        return (parity, task == "t2", workflow.place(node)[-1] // 2) if in_loop else parity

    expected = [
        group
        for role in spec.trained
        for group in compared(
            {id: {n: counts for n, counts in its.items() if n.role == role} for id, its in answered.items()},
            key,
            whole=credit == "trajectory",
            by_turn=by_turn and bool(workflow.loops_of(role)),
            over_batch=over == "batch",
        )
    ]
    members = [
        sorted(
            (it.task, it.rollout, NodeId(it.role, it.index, it.round or it.steps[0].round))
            for it in group.members
        )
        for group in grouped(made, spec.trained)
    ]
    assert sorted(members) == sorted(expected)


@examples(60)
@given(
    workflows(),
    st.sampled_from(CREDITS),
    st.sampled_from(["grpo", "rloo", "reinforce_plus_plus_baseline", {"ema": {"by": "task.id"}}]),
)
def test_a_batch_with_a_key_for_each_task_is_the_task(
    workflow: Workflow, credit: Any, estimator: Any
) -> None:
    single, batch = (
        trained(workflow, lambda _, group=group: group, credit, estimator)
        for group in ({"by": "task.id"}, {"by": "task.id", "over": "batch"})
    )
    made, again = episodes(workflow, single), episodes(workflow, batch)
    assert values(single, made) == values(batch, again)
    assert learnt(single, made)[1] == learnt(batch, again)[1]
    assert outcomes(single, made) == outcomes(batch, again)


# over the batch


def test_a_batch_is_compared_over_its_tasks_and_recorded(tmp_path: Path) -> None:
    own = {"group": {"by": "task.question", "over": "batch"}}
    spec = plan(tmp_path, {"a": own}, train={"rollouts": 1, "batch_size": 4})
    models = limited(spec, ScriptedModel(drawn))
    rows = [{**COUNTDOWN, "id": f"t{n}", "question": f"Hops: {n % 2}"} for n in range(8)]
    made = [run_virtually(episode(spec, models, row, 0))[0] for row in rows]
    done, metrics = learnt(spec, made)
    assert metrics["groups/num_groups"] == 2
    assert metrics["groups/avg_group_size"] == 4
    for one in done:
        rewards = [
            e.trajectories[0].reward or 0.0 for e in made if e.task["question"] == one.task["question"]
        ]
        expected = grpo(rewards, one.trajectories[0].reward or 0.0)
        assert one.trajectories[0].steps[0].advantage == pytest.approx(expected)

    found = credited.rows(spec, made)
    assert all(row.over == "batch" for row in found) and len({row.group for row in found}) == 2
    assert [it.task for it in group_results(found)] == ["", ""]
    rewards_of: dict[object, set[float | None]] = {}
    for one in made:
        rewards_of.setdefault(one.task["question"], set()).add(one.trajectories[0].reward)
    teaching = [one.task_id for one in made if len(rewards_of[one.task["question"]]) > 1]
    assert Membership(spec.trained, spec.policy_of).add(made).informative() == teaching


def test_a_constant_over_the_batch_is_the_whole_batch_and_an_episode_pools_its_roles(tmp_path: Path) -> None:
    whole = {"by": "0", "over": "batch"}
    roles: Roles = {"a": {"group": whole}, "b": {"group": {"by": "episode", "over": "batch"}}}
    spec = plan(tmp_path, {**roles, "c": roles["b"], "d": {"group": "episode"}})
    groups = Membership(spec.trained, spec.policy_of).add(rollouts(spec, drawn)).groups()
    sizes = sorted((group.role, group.key.role, len(group.members)) for group in groups)
    assert sizes == [("a", "a", 8), ("b", "", 16), ("c", "", 16), ("d", "", 4), ("d", "", 4)]


# several groupings


def grpo(rewards: list[float], mine: float) -> float:
    """Return (r - mean(r)) / (std(r) + 1e-6), and 0 alone."""
    return float((mine - np.mean(rewards)) / (np.std(rewards) + 1e-6)) if len(rewards) > 1 else 0.0


GIGPO: list[Any] = [
    {"by": "task"},
    {"by": "self.round", "weight": 0.5, "credit": {"return": 0.5}},
]


def test_a_list_adds_the_advantages_of_its_groupings_each_with_its_credit(tmp_path: Path) -> None:
    spec = plan(tmp_path, {"a": {**ONE["a"], "group": GIGPO}}, LOOP)
    made = rollouts(spec, drawn)
    done, metrics = learnt(spec, made)
    by_hand: list[list[float]] = []
    for one in made:
        (mine,) = one.trajectories
        task = [e.trajectories[0] for e in made if e.task_id == one.task_id]
        whole = grpo([t.reward or 0.0 for t in task], mine.reward or 0.0)

        def returned(rewards: list[float]) -> float:
            return sum(0.5**n * reward for n, reward in enumerate(rewards))

        rows = [[step.reward for step in t.steps] for t in task]
        own = [step.reward for step in mine.steps]
        by_hand.append(
            [whole + 0.5 * grpo([returned(row[n:]) for row in rows], returned(own[n:])) for n in range(3)]
        )
    assert advantages(done, "a") == [pytest.approx(row) for row in by_hand]
    assert metrics["advantage/a/mean"] == pytest.approx(np.mean(by_hand))
    assert metrics["groups/num_groups"] == 2 * (1 + 3)

    found = credited.rows(spec, made)
    assert len(found) == 8 * (1 + 3)
    for one, row in zip(made, by_hand, strict=True):
        own = [it for it in found if (it.task, it.rollout) == (one.task_id, one.rollout)]
        whole, *turns = sorted(own, key=lambda it: (it.grouping, it.round))
        assert (whole.grouping, [(it.grouping, it.round) for it in turns]) == (0, [(1, 1), (1, 2), (1, 3)])
        added = [(whole.advantage or 0.0) + 0.5 * (turn.advantage or 0.0) for turn in turns]
        assert added == pytest.approx(row)
    assert len(group_results(found)) == 8


def test_a_part_of_a_list_that_skips_leave_too_small_adds_nothing(tmp_path: Path) -> None:
    group = [{"by": "task"}, {"by": "task.target + self.round"}]
    loops = {"l": {"roles": ["a"], "times": 3, "until": f"a.action == '{RIGHT}'"}}
    spec = plan(tmp_path, {"a": {**ONE["a"], "group": group}}, loops, train={"rollouts": 2})
    made = rollouts(spec, lambda r: WRONG if r.id.rollout else RIGHT, tasks=1, count=2)
    done, metrics = learnt(spec, made)
    both, alone = advantages(done, "a")
    assert both == [pytest.approx(2.0, abs=1e-4)], "1 in both groups"
    assert alone == pytest.approx([-2.0, -1.0, -1.0], abs=1e-4)
    assert metrics["groups/too_small/a"] == 2


# keys


def test_a_key_of_a_hidden_field_groups_and_leaves_no_value_on_record(tmp_path: Path) -> None:
    own = {"count": 2, "group": {"by": "task.secrets[self.index - 1]"}}
    rows = tmp_path / "rows.jsonl"
    secrets = [["north-77", "south-88"], ["north-77", "north-77"]]
    tasks = [{**COUNTDOWN, "id": f"t{n}", "secrets": its} for n, its in enumerate(secrets)]
    rows.write_text("".join(json.dumps(row) + "\n" for row in tasks))
    data = {"train": "rows.jsonl", "hidden": ["secrets"]}
    path = write(tmp_path, {"a": own}, data=data)
    spec = check_file(path).valid()
    assert "secrets" in spec.hidden
    models = limited(spec, ScriptedModel(drawn))
    made = [run_virtually(episode(spec, models, row, rollout))[0] for row in tasks for rollout in range(3)]
    groups = grouped(made, spec.trained)
    assert [len(group.members) for group in groups] == [3, 3, 6]
    done, _ = learnt(spec, made)
    for one in done:
        assert {"north-77", "south-88"} & {*one.task["secrets"]}
        recorded = json.dumps(one._replace(task={"id": "t"}).to_dict())
        assert "north" not in recorded
        assert "south" not in recorded


def test_what_has_no_key_is_in_no_group_and_counted(tmp_path: Path) -> None:
    spec = looped(tmp_path, "turn", {"by": "task.nums[self.round]"})
    row = {**COUNTDOWN, "nums": [1, 1, 1]}
    models = limited(spec, ScriptedModel(drawn))
    made = [
        run_virtually(episode(spec, models, {**row, "id": f"t{n}"}, r))[0] for n in (0, 1) for r in (0, 1)
    ]
    done, metrics = learnt(spec, made)
    assert metrics["groups/no_key/a"] == 4, "the third round has none"
    assert all([value is None for value in row] == [False, False, True] for row in advantages(done, "a"))
    assert [len(group.members) for group in grouped(made, spec.trained)] == [4, 4]
    assert len([it for it in credited.rows(spec, made) if it.group is not None]) == 8
    for one in done:
        steps = [*step_advantages(one, one.trajectories[0], spec.trained["a"])]
        assert not any(steps[-1].values)


@pytest.mark.parametrize(
    ("role", "loops", "message"),
    [
        ({"group": {"by": "self.index"}, "count": 2}, {}, "a group of a by self.index has 1"),
        ({"group": [{"by": "task"}, {"by": "self.round"}]}, LOOP, "a's group has 1"),
        ({"group": {"by": "task.target"}}, {}, "a group of a by task.target has 1"),
        ({"group": {"by": "task.target ~ self.round"}}, LOOP, ""),
        ({"group": {"by": "self.index // 2"}, "count": 4, "estimator": "reinforce"}, {}, ""),
        ({"group": ["episode", "episode"], "count": 2}, {}, "compares the episode twice"),
        ({"group": {"by": "self.history"}, "count": 2}, LOOP, "self has no 'history' here; there is index"),
        ({"group": {"by": "self.round"}, "count": 2}, {}, "only in a loop"),
        ({"group": {"by": "b.action"}, "count": 2}, {}, "the key mentions 'b'"),
        ({"group": "same", "count": 2}, {}, "group cannot be 'same'"),
        ({"group": {"by": "task.target", "over": "batch"}}, {}, ""),
        ({"group": {"by": "task", "over": "batch"}, "count": 2}, {}, "0 for the whole batch"),
        ({"group": {"by": 0, "over": "step"}, "count": 2}, {}, "over cannot be 'step'"),
        ({"group": {"by": "self.index", "over": "batch"}, "count": 2}, {}, ""),
    ],
)
def test_a_group_that_cannot_be_is_refused_with_its_place(
    role: dict[str, Any], loops: dict[str, Any], message: str, tmp_path: Path
) -> None:
    roles: Roles = {
        "a": {**ONE["a"], **role} if loops else role,
        "b": {"estimator": None},
    }
    train = {"rollouts": 1, "batch_size": 8}
    found = check_file(write(tmp_path, roles, loops, train=train)).diagnostics
    errors = [str(fault) for fault in found if fault.severity == "error"]
    assert any(message in error for error in errors) if message else not errors, errors


# over the roles of an episode


def test_the_episode_is_compared_over_all_roles_that_say_so(tmp_path: Path) -> None:
    own = {"group": "episode", "count": 2}
    roles: Roles = {
        "a": own,
        "b": {**own, "estimator": "rloo"},
        "c": {},
        "d": {"group": "episode", "policy": "d"},
    }
    spec = plan(tmp_path, roles, policies={"d": {}})
    made = rollouts(spec, drawn)
    step = ledger(spec, made)
    groups, metrics = step.groups, step.group_metrics
    sizes = {(group.role, group.key.policy): len(group.members) for group in groups}
    assert sizes == {("a", "main"): 16, ("b", "main"): 16, ("c", "main"): 4, ("d", "d"): 4}
    assert metrics["groups/num_groups"] == 2 * 3
    done, _ = learnt(spec, made)
    for task in ("t0", "t1"):
        of_task = [e for e in done if e.task_id == task]
        rewards = [t.reward or 0.0 for e in of_task for name in "ab" for t in e[name]]
        for one in of_task:
            for t in one["a"]:
                assert t.steps[0].advantage == pytest.approx(grpo(rewards, t.reward or 0.0))
            for t in one["b"]:
                others = (sum(rewards) - (t.reward or 0.0)) / (len(rewards) - 1)
                assert t.steps[0].advantage == pytest.approx((t.reward or 0.0) - others)
    assert {it.role for it in group_results(credited.rows(spec, made))} == {"a", "b", "c", "d"}


# estimators with a state


def test_a_running_mean_scores_each_reward_before_it_knows_it(tmp_path: Path) -> None:
    ema = {"ema": {"decay": 0.9, "by": "task.question"}}
    spec = plan(tmp_path, {"a": {**ONE["a"], "credit": "turn", "estimator": ema}}, LOOP)
    made = rollouts(spec, drawn)
    groups = grouped(made, spec.trained)
    assert spec.roles[0].estimator is not None
    estimators = {"a": spec.roles[0].estimator}
    states: Any = {}
    means: dict[str, float] = {}
    for _ in range(2):
        estimated = estimate(groups, estimators, states=states)
        states = json.loads(json.dumps(estimated.states))
        for group, group_estimate in zip(groups, estimated.groups, strict=True):
            question = f"Task {group.key.task[1:]}"
            for member, advantage in zip(group.members, group_estimate.advantages, strict=True):
                mean = means.get(question, 0.0)
                assert member.reward is not None
                assert advantage == member.reward - mean
                means[question] = 0.9 * mean + (1 - 0.9) * member.reward
        assert states == {"a": {"0": means}}
        assert {name: value for name, value in estimated.metrics.items() if "estimator" in name} == {
            f"estimator/a/{question}": value for question, value in means.items()
        }


def test_a_running_mean_does_not_depend_on_the_groups_of_its_members(tmp_path: Path) -> None:
    found: list[list[list[Any]]] = []
    for group in ("task", "turn", {"by": "self.round % 2"}):
        spec = plan(
            tmp_path,
            {"a": {**ONE["a"], "credit": "turn", "group": group, "estimator": "ema", "count": 2}},
            LOOP,
        )
        found.append(advantages(learnt(spec, rollouts(spec, drawn))[0], "a"))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("task.solution", "task.solution would leak the label"),
        ("task.nope", "the task has no field 'nope'"),
        ("self.index", "'self' does not exist here"),
    ],
)
def test_the_key_of_a_state_reads_visible_fields_alone(by: str, message: str, tmp_path: Path) -> None:
    found = check_file(write(tmp_path, {"a": {"estimator": {"ema": {"by": by}}}})).diagnostics
    assert any(message in fault.message for fault in found if fault.severity == "error")


def test_a_state_of_too_many_keys_is_refused_before_the_first_rollout(tmp_path: Path) -> None:
    spec = plan(tmp_path, {"a": {"estimator": {"ema": {"by": "task.id"}}}})
    check_state_keys(spec.roles, [{"id": str(n)} for n in range(1000)])
    with pytest.raises(AdvantageError, match=r"roles\.a\.estimator.* more than 1,000 keys"):
        check_state_keys(spec.roles, [{"id": str(n)} for n in range(1001)])
    with pytest.raises(AdvantageError, match="more than 100 characters"):
        check_state_keys(spec.roles, [{"id": "x" * 101}])


def test_a_prompt_is_the_same_only_where_the_observation_that_it_shows_is(tmp_path: Path) -> None:
    loops = {"l": {"roles": ["a"], "env": {"grid": {"size": 3}}, "times": 2}}
    shown = {"prompt": "{{ self.observation }}", "group": "prompt", "reward": "env"}
    state = {**shown, "group": {"by": "self.observation"}}
    sizes: list[list[int]] = []
    for role in (shown, state):
        spec = plan(tmp_path, {"a": role}, loops)
        made = rollouts(spec, lambda r: f"<answer>{'left' if r.id.rollout % 2 else 'right'}</answer>")
        sizes.append(sorted(len(g.members) for g in grouped(made, spec.trained)))
    assert sizes[0] == sizes[1]
    assert len(sizes[0]) > 2, "the second observations differ"


@pytest.mark.parametrize("failed", [1, 2, 3])
def test_the_best_turn_is_none_that_failed(tmp_path: Path, failed: int) -> None:
    spec = looped(
        tmp_path, "turn", "turn", estimator="best", reward={"matches": "x"}, on_failure={"reward": 2.0}
    )

    def answer(request: Request) -> str:
        rollout, number = request.id.rollout, request.id.node.round
        return "no tags" if (rollout, number) == (0, failed) else WRONG

    done, _ = learnt(spec, rollouts(spec, answer, tasks=1, count=3))
    assert advantages(done, "a") == [[0.0, 0.0, 0.0]] * 3
    figures = outcomes(spec, done)
    assert figures["outcome/a/failed"] == 0
    assert figures["outcome/a/neither"] + figures["outcome/a/too_hard"] == 1
