"""How many instances of each role there are, which each comes from, and which of another role an edge joins.

A role's lineage says for each role which of its numbers an instance comes from: its own, and those of its
parents; without an edge that fans out, of all that it joined. Numbers count from 1 and are the same in every
round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rolegraph.engine.compile.graph import in_order, role_needs
from rolegraph.engine.spec import Edge, Role, Spec


class Instance(NamedTuple):
    """One instance of a role."""

    lineage: Mapping[str, frozenset[int]]
    """By role, the numbers that it comes from."""
    path: tuple[int, ...]
    """Its number under each parent on the way down to it; the last is its own."""
    parents: range
    """Its parents' places among their role's instances, from 0; none without an edge that fans out."""


Instances = Mapping[str, Sequence[Instance]]
"""By role, in order of their numbers."""


def instances_of(spec: Spec) -> Instances:
    """All of a spec whose graph has no fault."""
    done: dict[str, list[Instance]] = {}
    for name in in_order(role_needs(spec)):
        done[name] = _instances(spec.roles[name], name, done)
    return {name: done[name] for name in spec.roles}


def joined(edge: Edge, me: Instance, theirs: Sequence[Instance]) -> Sequence[int]:
    """The places, from 0, of the instances that an edge joins for one of mine."""
    if edge.fans_out:
        return me.parents
    if edge.join == "branch":
        return [place for place, it in enumerate(theirs) if on_branch(me, it)]
    return range(len(theirs))


def on_branch(me: Instance, it: Instance) -> bool:
    """Whether two instances share a number in every role that both lineages name."""
    return all(
        not numbers.isdisjoint(it.lineage[role]) for role, numbers in me.lineage.items() if role in it.lineage
    )


def _instances(role: Role, name: str, done: Mapping[str, Sequence[Instance]]) -> list[Instance]:
    for key, edge in role.needs.items():
        if edge.fans_out:
            return _fanned(role.count, name, done[edge.of or key], edge)
    others = [edge.of or key for key, edge in role.needs.items() if edge.round == "this"]
    before = _union([instance for other in others for instance in done[other]])
    return [
        Instance({**before, name: frozenset((number,))}, (number,), range(0))
        for number in range(1, role.count + 1)
    ]


def _fanned(count: int, name: str, parents: Sequence[Instance], edge: Edge) -> list[Instance]:
    size = edge.chunk_size
    made: list[Instance] = []
    for start in range(0, len(parents), size):
        group = parents[start : start + size]
        before = _union(group)
        path = group[0].path if size == 1 else (start // size + 1,)
        for number in range(1, count + 1):
            lineage = {**before, name: frozenset((len(made) + 1,))}
            made.append(Instance(lineage, (*path, number), range(start, start + len(group))))
    return made


def _union(instances: Sequence[Instance]) -> dict[str, frozenset[int]]:
    numbers: dict[str, set[int]] = {}
    for instance in instances:
        for role, own in instance.lineage.items():
            numbers.setdefault(role, set()).update(own)
    return {role: frozenset(found) for role, found in numbers.items()}
