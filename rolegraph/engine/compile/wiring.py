"""Order of a workflow's turns: the counters of a run, and a DAG in networkx."""

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
    """Index in the table of blocks, joins or nodes; transitions of environments come after the blocks or
    nodes of the turns."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """Counters of the joins that blocks wait for: a run decreases them, and so finds ready blocks."""

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


def counters(waits: Sequence[Wait]) -> Wiring:
    """Return the order of blocks as counters.

    A join is a set of nodes that one or more blocks wait for. A join is done when all its nodes are done, and
    a block is ready when all its joins are done. 256 nodes that wait for 256 others are one join with 512
    edges, not 65,536 edges.
    """
    blocks_of_join: dict[Sequence[int], list[int]] = {}
    joins_awaited: list[int] = []
    for block, (_, node_sets) in enumerate(waits):
        awaited_joins = dict.fromkeys(filter(len, node_sets))
        joins_awaited.append(len(awaited_joins))
        for join in awaited_joins:
            blocks_of_join.setdefault(join, []).append(block)
    joins_of_node: list[list[int]] = [[] for nodes, _ in waits for _ in nodes]
    for number, join in enumerate(blocks_of_join):
        for node in join:
            joins_of_node[node].append(number)
    return Wiring(
        join_sizes=tuple(map(len, blocks_of_join)),
        joins_of_node=tuple(map(tuple, joins_of_node)),
        blocks_of_join=tuple(map(tuple, blocks_of_join.values())),
        joins_awaited=tuple(joins_awaited),
        initial_blocks=tuple(block for block, awaited_joins in enumerate(joins_awaited) if not awaited_joins),
    )


def dag_of(waits: Sequence[Wait]) -> nx.DiGraph[Vertex]:
    """Return the DAG of nodes, the blocks that they become ready in, and the joins that blocks wait for."""
    dag: nx.DiGraph[Vertex] = nx.DiGraph()
    for number, (nodes, _) in enumerate(waits):
        block = Vertex("block", number)
        dag.add_edges_from((block, Vertex("node", node)) for node in nodes)
    wiring = counters(waits)
    for node, joins in enumerate(wiring.joins_of_node):
        dag.add_edges_from((Vertex("node", node), Vertex("join", join)) for join in joins)
    for join, blocks in enumerate(wiring.blocks_of_join):
        dag.add_edges_from((Vertex("join", join), Vertex("block", block)) for block in blocks)
    return dag


def turn_graph(turns: Sequence[T], dag: nx.DiGraph[Vertex]) -> nx.DiGraph[T]:
    """Return the DAG of turns alone: an edge leads to each from every turn that it waits for, directly or
    through a step of the environment.

    Args:
        turns: Names of the turns, by their positions as nodes. Nodes behind them are the environment's.
        dag: The DAG of nodes, blocks and joins.
    """
    graph: nx.DiGraph[T] = nx.DiGraph()
    graph.add_nodes_from(turns)
    awaited_turns: dict[Vertex, set[int]] = {}
    """For each vertex, the turns that its successors wait for."""
    for vertex in nx.topological_sort(dag):
        sources = set[int]().union(*(awaited_turns[parent] for parent in dag.pred[vertex]))
        if vertex.kind == "node" and vertex.number < len(turns):
            graph.add_edges_from((turns[parent], turns[vertex.number]) for parent in sorted(sources))
            sources = {vertex.number}
        awaited_turns[vertex] = sources
    return graph
