"""Inputs of roles: the turns that a role reads by its edges, its templates, conditions and its loop's end.

Pure and without a registry: the viewer and the drawings compute the inputs of a run from anywhere, whose
vocabulary must be neither imported nor run.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

from rolegraph.engine.prompts.checks import ALL_OF_SELF, TemplateScope
from rolegraph.engine.prompts.templates import mentions_of
from rolegraph.engine.spec import Edge, Grouping, Role, Spec

OWN_TURNS = "self.history"
"""Name under which an instance's prompts and conditions read the instance's earlier turns."""


class RoleEdge(NamedTuple):
    """One entry of a role's `needs`, with the role that it names."""

    name: str
    """Name by which the role's prompts read the other role."""
    role: str
    """Name of the other role, whose turns the edge reads."""
    edge: Edge
    earlier: bool
    """True where both roles are in one loop and the edge reads only earlier rounds."""


class RoleInputs(NamedTuple):
    """Inputs of one role's turns: other roles, earlier turns of the role, and the roles that the conditions
    `until` of its loops read."""

    edges: tuple[RoleEdge, ...]
    own_turns: bool
    """True where a turn reads, and so waits for, the earlier turns of the same instance."""
    untils: tuple[tuple[str, ...], ...]
    """For each loop around the role, the outermost first, the roles that the loop's `until` reads."""


Mentions = Mapping[str, Set[str]]
"""The names that texts read, by the role or the loop that the texts belong to; see `Template.mentions`."""


def role_inputs(spec: Spec, of_roles: Mentions, of_loops: Mentions) -> dict[str, RoleInputs]:
    """Return the inputs of each role of a spec whose graph has no fault.

    Args:
        spec: The parsed spec.
        of_roles: By role, the names that its prompt, system, tool value and conditions read.
        of_loops: By loop, the names that its `until` reads.
    """
    ends = {loop: tuple(sorted(of_loops.get(loop, set()) & spec.roles.keys())) for loop in spec.loops}
    inputs: dict[str, RoleInputs] = {}
    for name in spec.roles:
        own_turns, loops = OWN_TURNS in of_roles.get(name, ()), spec.loops_around(name)
        inputs[name] = RoleInputs(role_edges(spec, name), own_turns, tuple(ends[loop] for loop in loops))
    return inputs


def role_edges(spec: Spec, name: str) -> tuple[RoleEdge, ...]:
    """Return a role's `needs` with the role that each entry joins."""
    reader, edges = spec.readers_of(name)[0], list[RoleEdge]()
    for key, needed_role, edge in spec.roles[name].edges:
        is_earlier = edge.round != "this" and spec.shared_loops(reader, needed_role) > 0
        inner_rounds = edge.round == "history" and spec.shared_rounds(reader, needed_role).inside
        edges.append(RoleEdge(key, needed_role, edge, is_earlier and not inner_rounds))
    return tuple(edges)


_SELF = TemplateScope({}, self_fields=ALL_OF_SELF, is_condition=True, has_value=True)
_OF_A_TURN = frozenset({"self.round", "self.outer", "self.observation"})
"""Names that differ between the turns of one trajectory."""


def compares_turns(role: Role, *groupings: Grouping) -> bool:
    """Return True where any grouping of a role, or any of `groupings`, compares turns."""
    for grouping in groupings or role.group:
        if (grouping.credit or role.credit).kind != "trajectory" or grouping.by in ("turn", "prompt"):
            return True
        if grouping.is_expression and not _OF_A_TURN.isdisjoint(mentions_of(grouping.by, _SELF)):
            return True
    return False
