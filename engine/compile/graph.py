"""The DAG over a spec's roles, and every check that needs only names and edges.

Nothing here knows parsers, rewards or prompts; `engine.compile.unroll` makes turns of roles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import cast

from engine.prompts.checks import RESERVED
from engine.spec import Finding, Spec
from engine.spec.faults import no_role

MAX_EDGES = 200_000


Needs = Mapping[str, Sequence[str]]
"""The DAG over roles: whom each waits for, each once, in the order of the spec."""


def check_graph(spec: Spec, needs: Needs) -> list[Finding]:
    """Unknown, repeated and reserved names, roles that need themselves, cycles, graphs that are too large.

    `needs` are the spec's `role_needs`.
    """
    return [*_names(spec), *_cycles(spec, needs), *_size(spec)]


def role_needs(spec: Spec) -> Needs:
    """The DAG over roles, if there is no cycle; needs that name no other role are left out."""
    return {
        name: [need for need in dict.fromkeys(role.needs) if need in spec.roles and need != name]
        for name, role in spec.roles.items()
    }


def in_order(needs: Needs) -> list[str]:
    """The roles, each after those that it needs; raises graphlib.CycleError."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name in needs:  # first of all, for their order counts among equals
        sorter.add(name)
    for name, before in needs.items():
        sorter.add(name, *before)
    return [*sorter.static_order()]


def ancestors(needs: Needs, name: str) -> set[str]:
    """Every role that is done before this one starts."""
    found: set[str] = set()
    waiting = [*needs[name]]
    while waiting:
        before = waiting.pop()
        if before not in found:
            found.add(before)
            waiting += needs[before]
    return found


def _names(spec: Spec) -> Iterator[Finding]:
    for name, role in spec.roles.items():
        if name.lower() in RESERVED:
            yield Finding(
                ("roles", name),
                f"a role cannot be called {name!r}: it means something else in prompts",
                at_key=True,
            )
        for position, need in enumerate(role.needs):
            path = ("roles", name, "needs", position)
            if need == name:
                yield Finding(path, f"{name} needs itself", "other roles", word=need)
            elif need not in spec.roles:
                yield from unknown_role(spec, need, path)
            elif need in role.needs[:position]:
                yield Finding(path, f"{name} needs {need} twice", severity="warning")
    if spec.episode.correct is not None:
        yield from unknown_role(spec, spec.episode.correct, ("episode", "correct"))


def unknown_role(spec: Spec, name: str, path: tuple[str | int, ...]) -> Iterator[Finding]:
    """A finding if no role has that name."""
    if name not in spec.roles:
        yield no_role(name, spec.roles, path)


def _cycles(spec: Spec, needs: Needs) -> Iterator[Finding]:
    try:
        in_order(needs)
        return
    except CycleError:
        import networkx as nx  # takes longer to import than a spec to check

    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(needs)
    graph.add_edges_from((before, name) for name in needs for before in needs[name])
    for component in nx.strongly_connected_components(graph):
        if len(component) < 2:
            continue
        start = next(name for name in spec.roles if name in component)
        edges = cast("list[tuple[str, str]]", nx.find_cycle(graph.subgraph(component), start))  # pyright: ignore[reportUnknownMemberType]
        cycle = [before for before, _ in edges]
        path = " -> ".join([*cycle, cycle[0]])
        yield Finding(
            ("roles", start, "needs"),
            f"the roles wait for each other: {path}",
            "edges that lead nowhere in a circle",
            f"remove one of these needs, such as {cycle[-1]} from {cycle[0]}",
            word=cycle[-1],
        )


def _size(spec: Spec) -> Iterator[Finding]:
    for name, role in spec.roles.items():
        edges = sum(spec.roles[need].count * role.count for need in role.needs if need in spec.roles)
        if edges > MAX_EDGES:
            yield Finding(
                ("roles", name, "count"),
                f"{name} would have {edges:,} incoming edges",
                f"at most {MAX_EDGES:,}",
            )
