"""Graphs over the roles of a spec, in networkx."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import networkx as nx

from rolegraph.engine.spec import Spec

T = TypeVar("T", bound=Hashable)
RoleGraph: TypeAlias = "nx.DiGraph[str]"
"""Directed graph whose nodes are names of roles."""
untyped: Any = nx
"""networkx without its stubs, which leave the types of some functions open."""


def graph_of(before: Mapping[T, Iterable[T]]) -> nx.DiGraph[T]:
    """Return the graph with an edge to each key from each of the key's values."""
    graph: nx.DiGraph[T] = nx.DiGraph()
    graph.add_nodes_from(before)  # first, because equals keep the order of insertion
    graph.add_edges_from((role_before, name) for name, parents in before.items() for role_before in parents)
    return graph


def role_graph(spec: Spec) -> RoleGraph:
    """Return the graph with an edge to each role from every role that it waits for; it may have cycles.

    A node has the `loops` around the role, the outermost first. An edge has `joins`: the entries of `needs`
    between the two roles, by name; empty where a call, or the end of a loop, makes the edge.
    """
    graph = graph_of(spec.role_needs())
    for name, role in spec.roles.items():
        graph.add_node(name, loops=spec.loops_around(name))
        for parent in graph.pred[name]:
            joins = {key: edge for key, needed_role, edge in role.edges if needed_role == parent}
            graph.add_edge(parent, name, joins=joins)
    return graph


def ancestors(graph: nx.DiGraph[T], node: T) -> set[T]:
    """Return the other nodes from which a path leads to a node."""
    return untyped.ancestors(graph, node)


def frozen(graph: nx.DiGraph[T]) -> nx.DiGraph[T]:
    """Freeze a graph, so that changes raise an error, and return it."""
    return untyped.freeze(graph)


def reachable(graph: nx.DiGraph[T], sources: Iterable[T]) -> set[T]:
    """Return the sources, and all nodes that a path leads to from one of them."""
    nodes = {*sources}
    return nodes.union(*(untyped.descendants(graph, source) for source in nodes))


def cycles(graph: nx.DiGraph[T]) -> Iterator[list[T]]:
    """Yield cycles of two or more nodes that share no node; each begins with its first node in the graph."""
    remaining = graph.copy()
    remaining.remove_edges_from([(node, node) for node in remaining])
    # From a node of a cycle, `find_cycle` searches once; from any node, it may search once for each node.
    while c := next((c for c in nx.strongly_connected_components(remaining) if len(c) > 1), None):
        source = next(node for node in remaining if node in c)
        cycle: list[T] = [node for node, _ in untyped.find_cycle(remaining, source)]
        start = cycle.index(next(node for node in remaining if node in cycle))
        yield cycle[start:] + cycle[:start]
        remaining.remove_nodes_from(cycle)


def format_cycle(cycle: Sequence[str]) -> str:
    """Format a cycle as `a -> b -> a`."""
    return " -> ".join([*cycle, cycle[0]])
