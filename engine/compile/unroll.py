"""The DAG of roles, unrolled: nodes, the blocks that they become ready in, and the counters between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from engine.compile.graph import Needs
from engine.compile.plan import Block, Node, See, Wiring
from engine.records import NodeId, salt_of


class Unrolled(NamedTuple):
    """The tables of a plan that all its episodes share."""

    nodes: tuple[Node, ...]
    blocks: tuple[Block, ...]
    wiring: Wiring


def unroll(
    needs: Needs, counts: Mapping[str, int], endpoints: Mapping[str, int], order: Sequence[str]
) -> Unrolled:
    """Unroll a DAG of roles, each with its number of instances. `order` is that of the tables.

    Each role is one block: its instances wait for all instances of all roles that it needs, and see the same.
    """
    nodes: list[Node] = []
    ranges: dict[str, range] = {}
    for position, name in enumerate(order):
        start = len(nodes)
        ids = (NodeId(name, index) for index in range(1, counts[name] + 1))
        nodes += (
            Node(id=id, role=position, block=position, endpoint=endpoints[name], salt=salt_of(id))
            for id in ids
        )
        ranges[name] = range(start, len(nodes))
    blocks = tuple(
        Block(position, ranges[name], tuple(See(need, ranges[need]) for need in needs[name]))
        for position, name in enumerate(order)
    )
    return Unrolled(tuple(nodes), blocks, _wire(needs, ranges, order))


def _wire(needs: Needs, ranges: Mapping[str, range], order: Sequence[str]) -> Wiring:
    """A join for each role that another waits for, which counts its instances."""
    waiting: dict[str, list[int]] = {}
    for position, name in enumerate(order):
        for before in needs[name]:
            waiting.setdefault(before, []).append(position)
    needed = [name for name in order if name in waiting]
    joins = {name: number for number, name in enumerate(needed)}
    return Wiring(
        joins=tuple(len(ranges[name]) for name in needed),
        feeds=tuple((joins[name],) if name in joins else () for name in order for _ in ranges[name]),
        releases=tuple(tuple(waiting[name]) for name in needed),
        waits=tuple(len(needs[name]) for name in order),
    )
