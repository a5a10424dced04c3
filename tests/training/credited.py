"""Helpers for tests of credit and groups: small specs, their episodes, and the episodes' advantages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rolegraph.engine.compile import Plan, RolePlan, compile_file
from rolegraph.engine.models import Request
from rolegraph.engine.records import Episode
from rolegraph.engine.records.credit import CreditRow, Group
from rolegraph.engine.training.advantages.ledger import Ledger, Membership, add_advantages, credit_rows
from rolegraph.engine.training.analysis.outcomes import outcome_metrics
from tests.edge import COUNTDOWN, RIGHT, WRONG, ScriptedModel, decided, episode, limited, write_spec

Roles = dict[str, dict[str, Any]]
Answer = Callable[[Request], str]


def plan(folder: Path, roles: Roles, loops: dict[str, Any] | None = None, **more: Any) -> Plan:
    return compile_file(write(folder, roles, loops, **more))


def write(folder: Path, roles: Roles, loops: dict[str, Any] | None = None, **more: Any) -> Path:
    learns = {"parser": {"tag": "answer", "keep_tag": True}, "reward": "countdown", "estimator": "grpo"}
    spec = {
        "rolegraph": 2,
        "name": "credited",
        "data": {"train": {"countdown": {"count": 8}}},
        "roles": {
            name: {**learns, **role, "prompt": role.get("prompt", "{{ task.question }}")}
            for name, role in roles.items()
        },
        "loops": loops or {},
        **more,
    }
    return write_spec(folder, yaml.safe_dump(decided(spec), sort_keys=False))


def rollouts(plan: Plan, answer: Answer, *, tasks: int = 2, count: int = 4) -> list[Episode]:
    """Run `count` episodes of each of `tasks` tasks, which differ in ids and questions."""
    models = limited(plan, ScriptedModel(answer))
    rows = [{**COUNTDOWN, "id": f"t{number}", "question": f"Task {number}"} for number in range(tasks)]
    return [asyncio.run(episode(plan, models, row, rollout)) for row in rows for rollout in range(count)]


def drawn(request: Request) -> str:
    """Return a right or a wrong answer, drawn by task, rollout, role and round."""
    task, rollout, (role, index, number), *_ = request.id
    role, _, unrolled = role.partition("_")  # a loop unrolled by hand has the round in the role's name
    place = f"{task} {rollout} {role} {index} {unrolled or number}"
    return random.Random(place).choice([RIGHT, WRONG])


def ledger(plan: Plan, episodes: Sequence[Episode]) -> Ledger:
    """Return the ledger of a step with these episodes, with advantages."""
    return add_advantages(Membership(plan.trained, plan.policy_of).add(episodes).ledger())


def rows(plan: Plan, episodes: Sequence[Episode]) -> list[CreditRow]:
    """Return the rows of the credit of a step with these episodes."""
    return [*credit_rows(ledger(plan, episodes), 1)]


def outcomes(plan: Plan, episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the shares of the groups' outcomes in a step with these episodes."""
    return outcome_metrics(rows(plan, episodes))


def grouped(episodes: Sequence[Episode], roles: Mapping[str, RolePlan] | None = None) -> list[Group]:
    """Return the groups of episodes."""
    return Membership(roles).add(episodes).groups()


def learnt(plan: Plan, episodes: Sequence[Episode]) -> tuple[list[Episode], dict[str, float]]:
    """Return the episodes with advantages, and the metrics of their groups."""
    step = ledger(plan, episodes)
    return [*step.filled_episodes()], {**step.group_metrics, **step.estimates.metrics}


def advantages(episodes: Sequence[Episode], role: str) -> list[list[Any]]:
    return [[s.advantage for s in t.steps] for e in episodes for t in e.trajectories if t.name == role]


LOOP = {"l": {"roles": ["a"], "times": 3}}
ONE: Roles = {"a": {"needs": {"a": "previous"}, "prompt": "{% for x in a %}{{ x.action }}{% endfor %}"}}


def looped(folder: Path, credit: Any, group: Any = "task", **more: Any) -> Plan:
    return plan(folder, {"a": {**ONE["a"], "credit": credit, "group": group, **more}}, LOOP)
