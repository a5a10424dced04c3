"""Instances of roles: how many there are, their lineage, and the instances that an edge joins.

The lineage of an instance has, for each role that it descends from, the numbers of those instances: its own
and those of its parents; without an edge that fans out, of all instances that it joins. Numbers count from 1
and are the same in every round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import networkx as nx

from rolegraph.engine.compile.structure import role_graph
from rolegraph.engine.limits.specs import SPEC_EDGES
from rolegraph.engine.spec import Edge, Finding, Role, Spec
from rolegraph.engine.vocabulary import Pairs, Tool
from rolegraph.engine.vocabulary.tool import NO_PAIRS
from rolegraph.engine.vocabulary.views import on_branch


class Instance(NamedTuple):
    """One of the `count` copies of a role in an episode, with the instances that it descends from."""

    lineage: Mapping[str, frozenset[int]]
    """Numbers of the instances that this instance descends from, by role."""
    path: tuple[int, ...]
    """Numbers of the instance and of its ancestors among their siblings, the oldest ancestor first."""
    parents: range
    """Positions, from 0, of the instance's parents in the parents' role; empty without an edge that fans out.
    """


Instances = Mapping[str, Sequence[Instance]]
"""Instances by role, in the order of their numbers."""


def instances_of(spec: Spec) -> Instances:
    """Return the instances of a spec whose graph has no fault."""
    instances_by_role: dict[str, list[Instance]] = {}
    for name in nx.topological_sort(role_graph(spec)):
        instances = instances_by_role[name] = list[Instance]()
        for group in _groups(spec, name, instances_by_role):
            for number in group.numbers:
                lineage = {**group.lineage, name: frozenset((len(instances) + 1,))}
                instances.append(Instance(lineage, (*group.path, number), group.parents))
    return {name: instances_by_role[name] for name in spec.roles}


class CallSite(NamedTuple):
    """Turn that may call a role as a tool, and the instances of that role which answer its calls."""

    caller: str
    member: int
    """Position of the caller's instance, from 0."""
    round: int
    """Round of the turn, from 1."""
    members: range
    """Positions, from 0, of the called role's instances that answer this turn's calls, in the order of the
    calls."""


def call_sites(spec: Spec, name: str, instances: Instances) -> list[CallSite]:
    """Return every turn that may call role `name` as a tool, by caller, instance and round; empty for a role
    that is not called."""
    sites: list[CallSite] = []
    first_instance = 0
    for caller in spec.callers_of(name):
        limit = spec.callees_of(caller)[name]
        for member in range(len(instances[caller])):
            for number in range(1, spec.rounds_of(caller) + 1):
                sites.append(CallSite(caller, member, number, range(first_instance, first_instance + limit)))
                first_instance += limit
    return sites


def joined(edge: Edge, me: Instance, theirs: Sequence[Instance]) -> Sequence[int]:
    """Return the positions in `theirs`, from 0, of the instances that instance `me` reads by `edge`."""
    if edge.fans_out:
        return me.parents
    if edge.join == "branch":
        return [index for index, instance in enumerate(theirs) if on_branch(me.lineage, instance.lineage)]
    return range(len(theirs))


def history_findings(spec: Spec, instances: Instances) -> Iterator[Finding]:
    """Find the first edge at which the turns that all `history` edges see pass the limit on edges.

    Instances that see the same turns share them, and count once.
    """
    total = 0
    for name, role in spec.roles.items():
        for key, needed, edge in role.edges:
            if edge.round != "history":
                continue
            total_before = total
            for reader in spec.readers_of(name):
                common, numbers = spec.shared_rounds(reader, needed), range(1, spec.rounds_of(reader) + 1)
                members = {tuple(joined(edge, instance, instances[needed])) for instance in instances[reader]}
                turn_count = sum(len(common.read(number, "history")) for number in numbers)
                total += turn_count * sum(map(len, members))
            if total > SPEC_EDGES.most:
                others_text = f", beside {total_before:,} of others before it" if total_before else ""
                amount = f"{total - total_before:,} earlier turns of {needed} in an episode{others_text}"
                hint = "lower `times`, or see the `previous` round"
                path = ("roles", name, "needs", key)
                yield Finding(path, f"{name} would see {amount}", f"at most {SPEC_EDGES}", hint, at_key=True)
                return


def pairs_of(spec: Spec, instances: Instances | None, name: str, tool: Tool) -> Pairs:
    """Return the instances of two roles whose actions a tool compares in pairs (`tool.pairs`).

    Two instances pair if they are on one branch. The result is empty for a tool without `pairs`.
    """
    needs = spec.roles[name].needs
    if instances is None or tool.pairs is None or not all(key in needs for key in tool.pairs):
        return NO_PAIRS
    (first_key, role), (left, right_role) = tool.pairs, (needs[key] for key in tool.pairs)
    first_key, role = left.of or first_key, right_role.of or role
    partners = instances[role]
    numbers = {
        number: frozenset(index for index, i in enumerate(partners, 1) if on_branch(one.lineage, i.lineage))
        for number, one in enumerate(instances[first_key], 1)
    }
    loop = spec.loop_of(first_key)
    return Pairs(numbers, loop is not None and loop == spec.loop_of(role) and left.round == right_role.round)


class _Siblings(NamedTuple):
    """Instances of one role that descend from the same instances of other roles."""

    lineage: Mapping[str, frozenset[int]]
    path: tuple[int, ...]
    """Common beginning of the instances' paths, without the last number."""
    parents: range
    numbers: range
    """Last numbers of the instances' paths."""


def _groups(spec: Spec, name: str, done: Mapping[str, Sequence[Instance]]) -> Iterator[_Siblings]:
    """Yield a role's instances in order, in groups with the same ancestors.

    An instance of a role that is called descends from its caller's instance and from what the role needs, and
    from no instance of another caller.
    """
    role = spec.roles[name]
    if role.callable is not None:
        sites, parents = call_sites(spec, name, done), _needed(role, done)
        caller_lineages = dict.fromkeys((site.caller for site in sites), frozenset[int]())
        for site in sites:
            caller = done[site.caller][site.member]
            first_call = (site.round - 1) * len(site.members) + 1
            numbers = range(first_call, first_call + len(site.members))
            yield _Siblings({**parents, **caller_lineages, **caller.lineage}, caller.path, range(0), numbers)
        return
    numbers = range(1, role.count + 1)
    parent = next(((done[n], edge.chunk_size) for _, n, edge in role.edges if edge.fans_out), None)
    if parent is None:
        yield _Siblings(_needed(role, done), (), range(0), numbers)
        return
    instances, size = parent
    for chunk_start in range(0, len(instances), size):
        group = instances[chunk_start : chunk_start + size]
        path = group[0].path if size == 1 else (chunk_start // size + 1,)
        yield _Siblings(_union(group), path, range(chunk_start, chunk_start + len(group)), numbers)


def _needed(role: Role, done: Mapping[str, Sequence[Instance]]) -> dict[str, frozenset[int]]:
    """Return the instances from which an instance of `role` descends through its `needs` of this round, by
    role."""
    needed_roles = [needed_role for _, needed_role, edge in role.edges if edge.round == "this"]
    return _union([instance for needed_role in needed_roles for instance in done[needed_role]])


def _union(instances: Sequence[Instance]) -> dict[str, frozenset[int]]:
    numbers: dict[str, set[int]] = {}
    for instance in instances:
        for role, indices in instance.lineage.items():
            numbers.setdefault(role, set()).update(indices)
    return {role: frozenset(indices) for role, indices in numbers.items()}
