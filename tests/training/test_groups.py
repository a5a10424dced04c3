"""Groups of turns, from a spec's keys to the episodes on disk."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolegraph.engine.compile import Plan
from rolegraph.engine.compile.compiler import check_file
from rolegraph.engine.errors import ModelError
from rolegraph.engine.models import Request
from rolegraph.engine.records import Step
from rolegraph.engine.records.credit import Group
from rolegraph.engine.records.episodes import write_episodes
from rolegraph.engine.training.advantages.estimates import estimate
from rolegraph.engine.training.analysis.outcomes import GroupOutcome, group_results
from tests.edge import RIGHT, WRONG
from tests.training.credited import (
    LOOP,
    ONE,
    Roles,
    advantages,
    drawn,
    grouped,
    learnt,
    looped,
    outcomes,
    plan,
    rollouts,
    rows,
    write,
)

UNREADABLE = "The answer is 12."


def test_a_loop_is_the_same_workflow_unrolled_by_hand_and_its_pooled_groups_the_union_of_theirs(
    tmp_path: Path,
) -> None:
    def show(name: str) -> str:
        return f"{{% for x in {name} %}}{{{{ x.action }}}}{{% endfor %}}"

    turn = {"credit": "turn", "count": 2}
    loops = {"refine": {"roles": ["solver", "critic"], "times": 3}}
    roles: Roles = {
        "solver": {**turn, "needs": {"critic": "previous"}, "prompt": show("critic")},
        "critic": {**turn, "needs": ["solver"], "prompt": show("solver")},
    }
    by_hand: Roles = {}
    for number in (1, 2, 3):
        needs = {"critic": {"of": f"critic_{number - 1}"}} if number > 1 else {}
        prompt = show("critic") if number > 1 else "{{ '' }}"
        by_hand[f"solver_{number}"] = {"count": 2, "needs": needs, "prompt": prompt}
        before = {"solver": {"of": f"solver_{number}"}}
        by_hand[f"critic_{number}"] = {"count": 2, "needs": before, "prompt": show("solver")}
    pooled = plan(tmp_path, roles, loops)
    apart = plan(tmp_path, {name: {**role, "group": "turn"} for name, role in roles.items()}, loops)
    hand = plan(tmp_path, by_hand)
    ours, theirs = rollouts(pooled, drawn), rollouts(hand, drawn)
    for one, other in zip(ours, theirs, strict=True):
        for role in ("solver", "critic"):
            for trajectory in one[role]:
                unrolled = [other[f"{role}_{n}"][trajectory.index - 1] for n in (1, 2, 3)]
                assert [messages_of(step) for step in trajectory.steps] == [
                    messages_of(t.steps[0]) for t in unrolled
                ]
                assert [step.reward for step in trajectory.steps] == [t.reward for t in unrolled]

    def rewards(groups: Sequence[Group]) -> dict[tuple[str, str], list[Any]]:
        found: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
        for group in groups:
            found[group.key.task, group.key.role.partition("_")[0]] += [t.reward for t in group.members]
        return {key: sorted(values) for key, values in found.items()}

    groups = grouped(ours, pooled.trained)
    assert len(groups) == 4
    assert rewards(groups) == rewards(grouped(theirs, hand.trained))
    mine, yours = learnt(apart, rollouts(apart, drawn))[0], learnt(hand, theirs)[0]
    for role in ("solver", "critic"):
        columns = [[value for (value,) in advantages(yours, f"{role}_{n}")] for n in (1, 2, 3)]
        assert advantages(mine, role) == [list(row) for row in zip(*columns, strict=True)]


def messages_of(step: Step) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in step.chat_completions]


def at_grpo(folder: Path) -> Plan:
    """Return a plan whose coders are grouped by prompt and whose reasoner is grouped by turn."""
    return plan(
        folder,
        {
            "coder": {
                "count": 3,
                "needs": {"reasoner": "previous"},
                "prompt": "{{ task.question }} {% for r in reasoner %}{{ r.action }}{% endfor %}",
                "credit": "turn",
                "group": "prompt",
            },
            "reasoner": {
                "needs": ["coder"],
                "prompt": "{% for c in coder %}{{ c.action }}{% endfor %}",
                "credit": {"return": 0.5},
                "group": "turn",
            },
        },
        {
            "solve": {
                "roles": ["coder", "reasoner"],
                "times": 3,
                "until": 'reasoner.action == "' + RIGHT + '"',
            }
        },
    )


def test_the_groups_of_at_grpo_are_those_that_the_episodes_on_disk_say(tmp_path: Path) -> None:
    spec = at_grpo(tmp_path)
    made = rollouts(spec, drawn, tasks=12)
    done, metrics = learnt(spec, made)
    credits = {(it.task, it.rollout, it.role, it.index, it.round): it.reward for it in rows(spec, made)}
    write_episodes(tmp_path / "episodes.jsonl", done)
    # Expected values, computed without the engine.
    groups: defaultdict[Any, list[tuple[float, float]]] = defaultdict(list)
    for line in (tmp_path / "episodes.jsonl").read_text().splitlines():
        row = json.loads(line)
        for trajectory in row["trajectories"]:
            steps, task = trajectory["steps"], row["task"]["id"]
            rewards = [step["reward"] for step in steps]
            for place, step in enumerate(steps):
                if trajectory["name"] == "coder":
                    key, credit = json.dumps(step["chat_completions"][:-1]), rewards[place]
                else:
                    key = step["info"]["round"]
                    credit = sum(0.5**n * reward for n, reward in enumerate(rewards[place:]))
                node = trajectory["name"], trajectory["info"]["index"], step["info"]["round"]
                assert credits[task, row["info"]["rollout"], *node] == pytest.approx(credit)
                groups[task, trajectory["name"], key].append((credit, step["advantage"]))
    for members in groups.values():
        earned = np.array([credit for credit, _ in members])
        expected = (earned - earned.mean()) / (earned.std() + 1e-6) * (len(members) > 1)
        assert [advantage for _, advantage in members] == pytest.approx(list(expected))
    assert metrics["groups/num_groups"] == len(groups)
    small = sum(len(members) < 2 for members in groups.values())
    assert metrics["groups/too_small/reasoner"] == small > 0


def test_first_turns_of_all_rollouts_share_a_prompt_and_later_ones_only_siblings(tmp_path: Path) -> None:
    spec = at_grpo(tmp_path)
    groups = grouped(rollouts(spec, lambda _: WRONG, tasks=1), spec.trained)
    coders = [g for g in groups if g.key.role == "coder"]
    assert sorted(len(g.members) for g in coders) == [12, 24], "second and third turns see the same, too"
    spoken = rollouts(spec, lambda request: f"<answer>{request.id}</answer>", tasks=1)
    groups = grouped(spoken, spec.trained)
    assert sorted(len(g.members) for g in groups if g.key.role == "coder") == [3] * 8 + [12]


# groups that are too small


def test_what_skips_and_failures_leave_alone_teaches_nothing_and_is_counted(tmp_path: Path) -> None:
    roles: Roles = {"a": {}, "b": {"when": "self.index == 1", "count": 2, "estimator": "rloo"}}
    spec = plan(tmp_path, roles, train={"rollouts": 2})

    def answer(request: Request) -> str:
        if request.id.rollout == 1 and request.id.task == "t0":
            raise ModelError("down")
        return RIGHT

    done, metrics = learnt(spec, rollouts(spec, answer, count=2))
    assert advantages(done, "a")[0] == [0.0]
    assert {name: n for name, n in metrics.items() if "too_small" in name} == {
        "groups/too_small/a": 1.0,
        "groups/too_small/b": 1.0,
    }
    assert outcomes(spec, done)["outcome/a/too_small"] == 0.5
    results = [it.outcome for it in group_results(rows(spec, done))]
    assert sorted(results) == [GroupOutcome.EASY] * 2 + [GroupOutcome.SMALL] * 2


@pytest.mark.parametrize(
    ("role", "outcome"),
    [
        ({}, GroupOutcome.FAILED),
        ({"estimator": "reinforce"}, GroupOutcome.FAILED),
        ({"on_failure": {"then": "mask"}}, GroupOutcome.FAILED),
        ({"on_failure": {"then": "fail"}}, GroupOutcome.FAILED),
        ({"on_failure": {"reward": -0.5}}, GroupOutcome.FAILED),
        ({"on_failure": {"reward": -0.5}, "estimator": "reinforce"}, GroupOutcome.EQUAL),
    ],
)
@pytest.mark.parametrize("answer", [UNREADABLE, None])
def test_a_group_whose_answers_all_failed_says_so_unless_it_has_a_gradient(
    role: dict[str, Any], outcome: GroupOutcome, answer: str | None, tmp_path: Path
) -> None:
    def said(request: Request) -> str:
        if answer is None and request.id.task == "t0":
            raise ModelError("down")
        return answer or UNREADABLE

    spec = plan(tmp_path, {"a": role})
    done, _ = learnt(spec, rollouts(spec, said, tasks=1))
    if answer is None:
        outcome = GroupOutcome.FAILED  # nothing was sampled, so there is no gradient
    assert outcomes(spec, done)[outcome.metric("a")] == 1


def test_failures_beside_wrong_answers_are_hard_and_beside_right_ones_teach(tmp_path: Path) -> None:
    spec = plan(tmp_path, {"a": {}})
    for other, outcome in ((WRONG, GroupOutcome.HARD), (RIGHT, GroupOutcome.TAUGHT)):
        answers = rollouts(spec, lambda r, other=other: other if r.id.rollout else UNREADABLE, tasks=1)
        assert outcomes(spec, answers)[outcome.metric("a")] == 1


def test_turns_that_are_compared_fail_each_by_itself(tmp_path: Path) -> None:
    spec = looped(tmp_path, "turn", "turn")
    answers = rollouts(spec, lambda r: UNREADABLE if r.id.node.round == 1 else WRONG, tasks=1)
    found = outcomes(spec, answers)
    assert (found["outcome/a/failed"], found["outcome/a/too_hard"]) == pytest.approx((1 / 3, 2 / 3))


def test_without_a_spec_a_group_of_one_is_what_rllm_makes_of_it(tmp_path: Path) -> None:
    spec = plan(tmp_path, {"a": {}})
    (group,) = grouped(rollouts(spec, lambda _: RIGHT, tasks=1, count=1))
    done = estimate([group], {"a": spec.roles[0].estimator})  # pyright: ignore[reportArgumentType]
    assert done.groups[0].advantages[0] == pytest.approx(1.0)


MALT: Roles = {
    "generator": {"count": 3},
    "verifier": {
        "needs": {"generator": "each"},
        "count": 3,
        "prompt": "{{ generator.action }}",
        "group": "prompt",
    },
    "refiner": {
        "needs": {"verifier": "each", "generator": "branch"},
        "count": 3,
        "prompt": "{{ verifier.action }} {{ generator.action }}",
        "group": "prompt",
    },
}


def test_the_siblings_of_a_tree_are_compared_with_each_other(tmp_path: Path) -> None:
    spec = plan(tmp_path, MALT)
    episodes = rollouts(spec, lambda request: f"<answer>{request.id}</answer>", count=2)
    groups = grouped(episodes, spec.trained)
    sizes = {role: {len(g.members) for g in groups if g.key.role == role} for role in MALT}
    assert sizes == {"generator": {6}, "verifier": {3}, "refiner": {3}}


@pytest.mark.parametrize(
    ("role", "loops", "refused"),
    [
        ({"group": "prompt"}, {}, ""),
        ({"group": "prompt", "prompt": "{{ self.index }}"}, {}, ""),
        ({"group": "prompt", "prompt": "{{ self.round }}"}, LOOP, ""),
        (
            {"group": "prompt", "prompt": "{% for x in self.history %}{{ x.action }}{% endfor %}"},
            LOOP,
            "1 of a",
        ),
        ({"group": "prompt", "needs": ["b"], "prompt": "{{ b.action }}"}, {}, "1 of a share a prompt"),
        ({"group": "prompt", "needs": ["b"], "prompt": "{{ b.action }}", "count": 2}, {}, ""),
        ({"group": "prompt", "needs": {"b": "each"}, "prompt": "{{ b.action }}", "count": 2}, {}, ""),
        (
            {"group": "prompt", "needs": {"a": "previous"}, "prompt": "{{ a.action }}"},
            LOOP,
            "1 of a share a prompt",
        ),
        ({"group": "prompt", "estimator": "reinforce", "needs": ["b"], "prompt": "{{ b.action }}"}, {}, ""),
        ({"group": "turn"}, LOOP, ""),
    ],
)
def test_a_group_that_is_too_small_from_the_first_is_refused(
    role: dict[str, Any], loops: dict[str, Any], refused: str, tmp_path: Path
) -> None:
    found = check_file(write(tmp_path, {"a": role, "b": {}}, loops)).diagnostics
    errors = [fault.message for fault in found if fault.severity == "error"]
    assert [refused in message for message in errors] == ([True] if refused else []), errors


def test_more_rounds_make_a_pooled_group_larger(tmp_path: Path) -> None:
    alone = {"rollouts": 1, "batch_size": 8}
    plan(tmp_path, {"a": {**ONE["a"], "credit": "turn"}}, LOOP, train=alone)
    found = check_file(write(tmp_path, ONE, LOOP, train=alone)).diagnostics
    assert ["a's group has 1" in fault.message for fault in found if fault.severity == "error"] == [True]


def test_a_role_whose_advantages_are_set_is_told_that_nothing_is_compared(tmp_path: Path) -> None:
    own = {
        "estimator": None,
        "signal": {"imitation": {"demonstration": "x"}},
        "credit": "turn",
        "prompt": "Answer in <answer></answer>.",
    }
    (fault,) = check_file(write(tmp_path, {"a": own})).diagnostics
    assert (fault.severity, fault.place.text.strip()) == ("warning", "credit: turn")
