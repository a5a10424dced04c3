"""Bounds of an episode's size, counted from a plan's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from rolegraph.engine.compile.plan import Plan, RolePlan


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
    return EpisodeBounds(sum(calls[role] * count for role, count in turns.items()), _longest(plan, calls))


def calls_of(role: RolePlan) -> int:
    """Return the model calls of one turn of a role at most."""
    return role.spec.calls if role.run is None else 0


def _longest(plan: Plan, calls: list[int]) -> int:
    """Return the largest number of model calls that follow one another on a path through the plan's DAG.

    `calls` holds the model calls of one turn, by the position of its role.
    """
    wiring = plan.wiring
    left, waits = list(wiring.join_sizes), list(wiring.joins_awaited)
    before = [0] * len(waits)
    joined = [0] * len(left)
    ready = [block for block, count in enumerate(waits) if not count]
    longest = 0
    while ready:
        number = ready.pop()
        transition = plan.transition_at(number)
        own = calls[plan.blocks[number].role] if transition is None else 0
        end = before[number] + own
        longest = max(longest, end)
        for node in plan.blocks[number].nodes if transition is None else (transition,):
            for join in wiring.joins_of_node[node]:
                joined[join] = max(joined[join], end)
                left[join] -= 1
                if left[join]:
                    continue
                for after in wiring.blocks_of_join[join]:
                    before[after] = max(before[after], joined[join])
                    waits[after] -= 1
                    if not waits[after]:
                        ready.append(after)
    return longest
