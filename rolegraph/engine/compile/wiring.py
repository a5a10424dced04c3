"""DAG of a workflow's turns in networkx, and the counters of a run, which are derived from the DAG."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import networkx as nx

T = TypeVar("T", bound=Hashable)


class Wait(NamedTuple):
    """Nodes that become ready together, with the sets of nodes that must end before."""

    nodes: Sequence[int]
    before: Sequence[Sequence[int]]
    """Sets of nodes that must end before the nodes start."""


class Vertex(NamedTuple):
    """Node of the DAG of turns: a turn or an environment's transition, a block of turns, or a join of
    nodes."""

    kind: Literal["block", "join", "node"]
    number: int
    """Position in the plan's table of blocks, joins or nodes, behind which the environments' are."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """Counters of the DAG of turns: a run decreases them, and so finds ready blocks without walking the
    graph."""

    join_sizes: tuple[int, ...]
    """For each join, the number of its nodes."""
    joins_of_node: tuple[tuple[int, ...], ...]
    """For each node, the joins that it belongs to."""
    blocks_of_join: tuple[tuple[int, ...], ...]
    """For each join, the blocks that wait for it."""
    joins_awaited: tuple[int, ...]
    """For each block, the number of joins that it waits for."""
    initial_blocks: tuple[int, ...]
    """Blocks that wait for no join."""


def dag_of(waits: Sequence[Wait]) -> nx.DiGraph[Vertex]:
    """Return the DAG of nodes, the blocks that they become ready in, and the joins that blocks wait for.

    A join is a set of nodes that one or more blocks wait for. 256 nodes that wait for 256 others are one join
    with 512 edges, not 65,536 edges.
    """
    dag: nx.DiGraph[Vertex] = nx.DiGraph()
    joins: dict[Sequence[int], Vertex] = {}
    for number, (nodes, before) in enumerate(waits):
        block = Vertex("block", number)
        dag.add_edges_from((block, Vertex("node", node)) for node in nodes)
        for awaited in filter(len, before):
            if awaited not in joins:
                join = joins[awaited] = Vertex("join", len(joins))
                dag.add_edges_from((Vertex("node", node), join) for node in awaited)
            dag.add_edge(joins[awaited], block)
    return dag


def counters(dag: nx.DiGraph[Vertex]) -> Wiring:
    """Return the counters of a DAG: a join is done when all its nodes are, and a block is ready when all its
    joins are."""
    nodes, blocks, joins = (
        sorted(vertex for vertex in dag if vertex.kind == kind) for kind in ("node", "block", "join")
    )
    joins_awaited = tuple(len(dag.pred[block]) for block in blocks)
    return Wiring(
        join_sizes=tuple(len(dag.pred[join]) for join in joins),
        joins_of_node=tuple(tuple(join.number for join in dag.succ[node]) for node in nodes),
        blocks_of_join=tuple(tuple(block.number for block in dag.succ[join]) for join in joins),
        joins_awaited=joins_awaited,
        initial_blocks=tuple(block for block, awaited in enumerate(joins_awaited) if not awaited),
    )


def turn_graph(turns: Sequence[T], waits: Sequence[Wait]) -> nx.DiGraph[T]:
    """Return the DAG of turns alone: an edge leads to each from every turn that it waits for, directly or
    through a step of the environment.

    Args:
        turns: Names of the turns, by their positions as nodes. Nodes behind them are the environment's.
        waits: For each block, its nodes and what they wait for.
    """
    dag = dag_of(waits)
    graph: nx.DiGraph[T] = nx.DiGraph()
    graph.add_nodes_from(turns)
    awaited: dict[Vertex, set[int]] = {}
    """For each vertex, the turns that the vertices after it wait for."""
    for vertex in nx.topological_sort(dag):
        sources = set[int]().union(*(awaited[before] for before in dag.pred[vertex]))
        if vertex.kind == "node" and vertex.number < len(turns):
            graph.add_edges_from((turns[before], turns[vertex.number]) for before in sorted(sources))
            sources = {vertex.number}
        awaited[vertex] = sources
    return graph
