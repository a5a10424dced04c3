"""Instances of roles: how many there are, their lineage, and the instances that an edge joins.

The lineage of an instance has, for each role that it descends from, the numbers of those instances: its own
and those of its parents; without an edge that fans out, of all instances that it joins. Numbers count from 1
and are the same in every round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rolegraph.engine.compile.structure import (
    SharedRounds,
    callees_of,
    callers_of,
    in_order,
    loop_of,
    readers_of,
    role_needs,
    rounds_of,
)
from rolegraph.engine.limits.specs import SPEC_EDGES
from rolegraph.engine.spec import Edge, Finding, Role, Spec
from rolegraph.engine.vocabulary import Pairs, Tool
from rolegraph.engine.vocabulary.tool import NO_PAIRS


class Instance(NamedTuple):
    """One instance of a role."""

    lineage: Mapping[str, frozenset[int]]
    """By role, the numbers of the instances that this one descends from."""
    path: tuple[int, ...]
    """Number under each parent on the way down; the last is its own."""
    parents: range
    """Positions of its parents among their role's instances, from 0; empty without an edge that fans out."""


Instances = Mapping[str, Sequence[Instance]]
"""Instances by role, in the order of their numbers."""


def instances_of(spec: Spec) -> Instances:
    """Return the instances of a spec whose graph has no fault."""
    done: dict[str, list[Instance]] = {}
    for name in in_order(role_needs(spec)):
        role, sites = spec.roles[name], call_sites(spec, name, done)
        done[name] = _instances(role, name, done) if role.tool is None else _called(role, name, sites, done)
    return {name: done[name] for name in spec.roles}


class CallSite(NamedTuple):
    """One turn that may call a role, and the role's instances for its calls."""

    caller: str
    member: int
    """Position of the caller's instance, from 0."""
    round: int
    """Round of the turn, from 1."""
    members: range
    """Positions, from 0, of the instances for the calls of this turn, in the order of the calls."""


def call_sites(spec: Spec, name: str, instances: Instances) -> list[CallSite]:
    """Return the turns that may call a role, by caller and turn; none for a role without `tool`."""
    sites: list[CallSite] = []
    start = 0
    for caller in callers_of(spec, name):
        most = callees_of(spec, caller)[name]
        for member in range(len(instances[caller])):
            for number in range(1, rounds_of(spec, caller) + 1):
                sites.append(CallSite(caller, member, number, range(start, start + most)))
                start += most
    return sites


def joined(edge: Edge, me: Instance, theirs: Sequence[Instance]) -> Sequence[int]:
    """Return positions in `theirs`, from 0, of the role instances that instance `me` reads by an edge."""
    if edge.fans_out:
        return me.parents
    if edge.join == "branch":
        return [place for place, it in enumerate(theirs) if on_branch(me, it)]
    return range(len(theirs))


def on_branch(me: Instance, it: Instance) -> bool:
    """Return whether two instances share a number in every role that both lineages name."""
    return all(
        not numbers.isdisjoint(it.lineage[role]) for role, numbers in me.lineage.items() if role in it.lineage
    )


def history_findings(spec: Spec, instances: Instances) -> Iterator[Finding]:
    """Find the first edge at which the turns that all `history` edges see pass the limit on edges.

    Instances that see the same turns share them, and count once.
    """
    total = 0
    for name, role in spec.roles.items():
        for key, edge in role.needs.items():
            if edge.round != "history":
                continue
            other, before = edge.of or key, total
            for reader in readers_of(spec, name):
                shared, numbers = SharedRounds.of(spec, reader, other), range(1, rounds_of(spec, reader) + 1)
                members = {tuple(joined(edge, me, instances[other])) for me in instances[reader]}
                turns = sum(len(shared.read(number, "history")) for number in numbers)
                total += turns * sum(map(len, members))
            if total > SPEC_EDGES.most:
                beside = f", beside {before:,} of others before it" if before else ""
                message = (
                    f"{name} would see {total - before:,} earlier turns of {other} in an episode{beside}"
                )
                hint = "lower `times`, or see the `last` round"
                path = ("roles", name, "needs", key)
                yield Finding(path, message, f"at most {SPEC_EDGES}", hint, at_key=True)
                return


def pairs_of(spec: Spec, instances: Instances | None, name: str, tool: Tool) -> Pairs:
    """Return which instances of two roles belong together, for a tool that pairs their actions.

    Two instances belong together if they are on one branch. The result is empty for a tool without `pairs`.
    """
    needs = spec.roles[name].needs
    if instances is None or tool.pairs is None or not all(key in needs for key in tool.pairs):
        return NO_PAIRS
    (one, other), (first, second) = tool.pairs, (needs[key] for key in tool.pairs)
    one, other = first.of or one, second.of or other
    theirs = instances[other]
    numbers = {
        number: frozenset(place for place, it in enumerate(theirs, 1) if on_branch(me, it))
        for number, me in enumerate(instances[one], 1)
    }
    loop = loop_of(spec, one)
    return Pairs(numbers, loop is not None and loop == loop_of(spec, other) and first.round == second.round)


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


def _called(
    role: Role, name: str, sites: Sequence[CallSite], done: Mapping[str, Sequence[Instance]]
) -> list[Instance]:
    """Return the instances of a role that is called: each descends from its caller's instance and from what
    it needs, and from no instance of another caller."""
    others = [edge.of or key for key, edge in role.needs.items() if edge.round == "this"]
    before = _union([instance for other in others for instance in done[other]])
    elsewhere = dict.fromkeys((site.caller for site in sites), frozenset[int]())
    made: list[Instance] = []
    for site in sites:
        caller = done[site.caller][site.member]
        lineage = {**before, **elsewhere, **caller.lineage}
        for number, member in enumerate(site.members, (site.round - 1) * len(site.members) + 1):
            own = {**lineage, name: frozenset((member + 1,))}
            made.append(Instance(own, (*caller.path, number), range(0)))
    return made


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
