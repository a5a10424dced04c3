"""The DAG over a spec's roles: who waits for whom, who calls whom, and who is in which loop.

Each function reads a parsed spec alone. `rolegraph.engine.compile.graph` checks the DAG.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import takewhile
from math import prod
from typing import Literal, NamedTuple, Self

from rolegraph.engine.spec import Edge, Spec

Needs = Mapping[str, Sequence[str]]
"""DAG over roles: for each role the roles that it waits for, each once."""


def role_needs(spec: Spec) -> Needs:
    """Return the graph over roles, which may have cycles; edges to unknown roles are left out.

    An edge to an earlier round orders nothing. A role outside a loop that needs a role inside waits for all
    roles of the loop. A role that is called ends when its callers have, and what it needs is there before
    they start.
    """
    return {name: list(dict.fromkeys(_waits(spec, name))) for name in spec.roles}


def _waits(spec: Spec, name: str) -> Iterator[str]:
    callers = {caller: Edge() for caller in callers_of(spec, name)}
    called = [spec.roles[callee].needs for callee in callees_of(spec, name)]
    for edges in (spec.roles[name].needs, callers, *called):
        for key, edge in edges.items():
            other = edge.of or key
            if other == name or other not in spec.roles:
                continue
            loops, shared = loops_around(spec, other), shared_loops(spec, name, other)
            if len(loops) > shared:
                if edge.round != "last" or not shared:
                    yield from roles_in(spec, loops[shared])
            elif edge.round == "this":
                yield other


def callees_of(spec: Spec, role: str) -> Mapping[str, int]:
    """Return the roles that the model of a role may call, each with the most calls of it in one turn."""
    calls = spec.roles[role].callees.items()
    return {name: most for name, most in calls if name in spec.roles and spec.roles[name].tool is not None}


def callers_of(spec: Spec, role: str) -> list[str]:
    """Return the roles whose models may call a role, in the order of the spec."""
    return (
        [] if spec.roles[role].tool is None else [it for it in spec.roles if role in spec.roles[it].callees]
    )


def readers_of(spec: Spec, role: str) -> list[str]:
    """Return the roles from whose place in the graph a role's edges are read: its callers, else itself."""
    return callers_of(spec, role) or [role]


def loop_of(spec: Spec, role: str) -> str | None:
    """Return the name of the loop that names a role; None for no loop."""
    return next((name for name, loop in spec.loops.items() if role in loop.roles), None)


def loop_around(spec: Spec, loop: str) -> str | None:
    """Return the name of the loop that a loop is in; None for an outermost loop."""
    return None if loop in spec.roles else loop_of(spec, loop)


def loops_around(spec: Spec, role: str) -> tuple[str, ...]:
    """Return the names of the loops that a role is in, the outermost first."""
    loop = loop_of(spec, role)
    outer = None if loop is None else loop_around(spec, loop)
    return tuple(name for name in (outer, loop) if name is not None)


def roles_in(spec: Spec, loop: str) -> list[str]:
    """Return the roles of a loop and of the loops in it."""
    found: list[str] = []
    for name in spec.loops[loop].roles:
        inner = spec.loops[name].roles if name in spec.loops and name not in spec.roles else [name]
        found += [role for role in inner if role in spec.roles]
    return found


def rounds_of(spec: Spec, role: str) -> int:
    """Return the most turns that an instance of a role takes: the product of `times` of its loops, or 1."""
    return prod(spec.loops[loop].times for loop in loops_around(spec, role))


def shared_loops(spec: Spec, one: str, other: str) -> int:
    """Return the number of loops, from the outermost, that two roles are both in."""
    pairs = zip(loops_around(spec, one), loops_around(spec, other), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


class SharedRounds(NamedTuple):
    """Rounds of the innermost loop that two roles are both in; one round, where they share no loop."""

    mine: int
    """Turns of an instance of the reader in one such round."""
    theirs: int
    """Turns of an instance of the role that is read in one such round."""
    times: int
    """Rounds after which the shared loop begins anew, where it is in another."""
    inside: bool
    """True where the role that is read is in a further loop."""

    @classmethod
    def of(cls, spec: Spec, name: str, other: str, most: int = 2) -> Self:
        """Return the rounds that a reader shares with a role, in at most `most` loops."""
        loops, depth = loops_around(spec, other), min(most, shared_loops(spec, name, other))
        before = prod(spec.loops[loop].times for loop in loops[:depth])
        times = spec.loops[loops[depth - 1]].times if depth else 1
        mine, theirs = rounds_of(spec, name) // before, rounds_of(spec, other) // before
        return cls(mine, theirs, times, len(loops) > depth)

    def read(self, number: int, which: Literal["this", "last", "history"]) -> range:
        """Return the numbers of the turns that a reader's turn with a number reads; both count through."""
        passed = (number - 1) // self.mine
        start, end = passed * self.theirs + 1, (passed + 1) * self.theirs + 1
        match which:
            case "this":
                return range(start, end)
            case "last":
                return range(start - self.theirs, start) if passed % self.times else range(0)
            case "history":
                return range(1, end if self.inside else start)


def env_loops(spec: Spec) -> list[str]:
    """Return the names of the loops with an environment."""
    return [name for name, loop in spec.loops.items() if loop.env is not None]


def env_loop_of(spec: Spec, role: str) -> str | None:
    """Return the name of the loop around a role that has an environment; None for no such loop."""
    return next((name for name in loops_around(spec, role) if spec.loops[name].env is not None), None)


def players_of(spec: Spec, loop: str) -> list[str]:
    """Return the roles that move in a loop's environment, in the order of the players' numbers."""
    found = spec.loops[loop]
    named = [role for role in dict.fromkeys(found.players) if role in found.roles]
    by_default = [role for role in found.roles if role in spec.roles and spec.roles[role].run is None]
    return [role for role in named if role in spec.roles] if named else by_default


def trains_on_seeds(spec: Spec) -> bool:
    """Return whether the tasks are seeds of an environment, because the spec has no data."""
    return spec.data.train is None and spec.data.validation is None and bool(env_loops(spec))


def in_order(needs: Needs) -> list[str]:
    """Sort the roles, each after those that it needs; raises graphlib.CycleError."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name in needs:  # first, because equals keep the order of insertion
        sorter.add(name)
    for name, before in needs.items():
        sorter.add(name, *before)
    return [*sorter.static_order()]


def ancestors(needs: Needs, name: str) -> set[str]:
    """Return all roles that end before a role starts."""
    found: set[str] = set()
    waiting = [*needs[name]]
    while waiting:
        before = waiting.pop()
        if before not in found:
            found.add(before)
            waiting += needs[before]
    return found
