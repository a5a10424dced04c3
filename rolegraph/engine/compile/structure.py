"""Order of the roles of a graph: who ends before whom, and cycles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

Needs = Mapping[str, Sequence[str]]
"""DAG over roles: for each role the roles that it waits for, each once."""


def in_order(needs: Needs) -> list[str]:
    """Sort the roles, each after those that it needs; raises graphlib.CycleError."""
    sorter = TopologicalSorter(dict.fromkeys(needs, ()))  # first, because equals keep the order of insertion
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


def cycles(needs: Needs) -> Iterator[list[str]]:
    """Yield cycles that share no role, each from the first of its roles in `needs`."""
    try:
        in_order(needs)
    except CycleError as error:
        cycle: list[str] = error.args[1][:-1]  # its first role stands at both ends
        first = cycle.index(next(name for name in needs if name in cycle))
        yield cycle[first:] + cycle[:first]
        rest = {name: others for name, others in needs.items() if name not in cycle}
        yield from cycles({name: [*filter(rest.__contains__, others)] for name, others in rest.items()})


def format_cycle(cycle: Sequence[str]) -> str:
    """Format a cycle as `a -> b -> a`."""
    return " -> ".join([*cycle, cycle[0]])
