"""Bounds of an episode's size, counted from a plan's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from graphlib import TopologicalSorter
from typing import NamedTuple

from rolegraph.engine.compile.plan import Plan
from rolegraph.engine.compile.role_plan import RolePlan


class EpisodeBounds(NamedTuple):
    """Bounds of one episode in which no turn is skipped and no call is retried."""

    calls: int
    """Model calls."""
    chain: int
    """Model calls on the longest path through the DAG of turns, which is an episode's time at best."""

    def __str__(self) -> str:
        s = "" if self.calls == 1 else "s"
        return f"at most {self.calls:,} model call{s} an episode, longest chain {self.chain:,}"


def size_of(plan: Plan) -> EpisodeBounds:
    """Return the bounds of a plan's episodes."""
    calls = [calls_of(role) for role in plan.roles]
    turns: Mapping[int, int] = Counter(node.role for node in plan.nodes)
    in_turn = [
        # One after the other, each call of the model but the last waits for the longest role that it calls.
        own + (role.spec.calls - 1) * max((calls[callee.role] for callee in role.callees), default=0)
        for own, role in zip(calls, plan.roles, strict=True)
    ]
    for callee in (callee.role for role in plan.roles for callee in role.callees):
        in_turn[callee] = 0  # within the turn that calls
    return EpisodeBounds(sum(calls[role] * count for role, count in turns.items()), _longest(plan, in_turn))


def calls_of(role: RolePlan) -> int:
    """Return the model calls of one turn of a role at most."""
    return role.spec.calls if role.run is None else 0


def _longest(plan: Plan, calls: list[int]) -> int:
    """Return the largest number of model calls that follow one another on a path through the plan's DAG.

    `calls` holds the model calls of one turn, by the position of its role.
    """
    wiring = plan.wiring
    block_of = [node.block for node in plan.nodes]
    block_of += range(len(plan.blocks), len(wiring.joins_awaited))  # transitions of the environment
    # Blocks by their numbers, joins by the complements of theirs.
    before: dict[int, set[int]] = {block: set() for block in wiring.initial_blocks}
    for join, blocks in enumerate(wiring.blocks_of_join):
        for block in blocks:
            before.setdefault(block, set()).add(~join)
    for node, joins in enumerate(wiring.joins_of_node):
        for join in joins:
            before.setdefault(~join, set()).add(block_of[node])
    ends: dict[int, int] = {}
    for place in TopologicalSorter(before).static_order():
        own = calls[plan.blocks[place].role] if 0 <= place < len(plan.blocks) else 0
        ends[place] = own + max((ends[earlier] for earlier in before[place]), default=0)
    return max(ends.values())
