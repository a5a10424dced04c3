"""The elements of a drawing: a box for each role, an arrow for each edge, a cluster for each loop.

Texts are those of the spec, cut to a length; nothing is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rolegraph.engine.compile.inputs import RoleEdge, role_edges
from rolegraph.engine.compile.lineage import instances_of
from rolegraph.engine.compile.structure import ancestors, role_graph
from rolegraph.engine.records import MAIN
from rolegraph.engine.spec import CALL_OF_A_ROLE, Role, Spec
from rolegraph.engine.vocabulary import ItemCall

LONGEST = 34
"""Largest number of characters of a line in a box; a longer line is cut."""

FORK = "fork"
"""Label of an arrow to a role that continues the conversation of the arrow's source."""

Kind = Literal["trained", "asked", "tool"]
"""Kind of a role: trained, asking a model without training, or running a tool."""


@dataclass(frozen=True, slots=True)
class Box:
    """Box of a drawing for one role, with its lines of text."""

    name: str
    title: str
    """The role's name and number of instances."""
    lines: Sequence[str]
    """Settings of the role, one in each line."""
    kind: Kind
    policies: Sequence[int]
    """Positions in `Picture.policies` of the role's policies; empty for a role that is not trained."""
    loop: str | None = None


@dataclass(frozen=True, slots=True)
class Arrow:
    """Drawn edge from box `source` to box `target`, whose role reads the source's role or is called by it."""

    source: str
    target: str
    label: str = ""
    earlier: bool = False
    """True for an edge to earlier rounds of the same loop, which orders nothing within a round."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Frame of a drawing around the roles of one loop."""

    name: str
    label: str
    outer: str | None = None
    """Name of the loop around this loop; None without one."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Elements of the drawing of one spec."""

    name: str
    boxes: Sequence[Box]
    arrows: Sequence[Arrow]
    clusters: Sequence[Cluster]
    policies: Sequence[str]
    """Names of the policies; two or more are distinguished by colour."""


def picture_of(spec: Spec) -> Picture:
    """Return the picture of a spec whose graph has no fault."""
    loops = {role: name for name, loop in spec.loops.items() for role in loop.roles}
    instances = instances_of(spec)
    named_policies = [policy for role in spec.roles.values() for policy in policies_of(role)]
    policies = list(dict.fromkeys([*(p for p in (MAIN,) if p in named_policies), *named_policies]))
    numbers = {policy: number for number, policy in enumerate(policies)}
    boxes = [
        _box(name, role, len(instances[name]), numbers, loops.get(name)) for name, role in spec.roles.items()
    ]
    arrows = [_arrow(spec, name, edge) for name in spec.roles for edge in role_edges(spec, name)]
    arrows += _forks(spec)
    arrows += [Arrow(name, other, "calls") for name in spec.roles for other in spec.callees_of(name)]
    clusters: list[Cluster] = []
    for name, loop in spec.loops.items():
        rounds = f"{loop.times} round{'' if loop.times == 1 else 's'}"
        label_parts = [f"{name}: up to {rounds}" if loop.until or loop.env else f"{name}: {rounds}"]
        label_parts += [f"until {cut(loop.until, 48)}"] if loop.until else []
        label_parts += [f"in {shown(loop.env)}"] if loop.env else []
        label_parts += [f"when {cut(loop.when, 48)}"] if loop.when else []
        clusters.append(Cluster(name, ", ".join(label_parts), spec.loop_around(name)))
    return Picture(spec.name, boxes, arrows, clusters, policies)


def policies_of(role: Role) -> Sequence[str]:
    """Return the policy names of a role's instances, each once; empty for a role that is not trained."""
    if role.policy is not None:
        return tuple(dict.fromkeys(role.policy))
    return (MAIN,) if role.is_trained else ()


def _box(name: str, role: Role, count: int, numbers: Mapping[str, int], loop: str | None) -> Box:
    model_name = role.learns_from or (role.model and str(role.model))
    tools = [tool.name for tool in role.tools if tool.name != CALL_OF_A_ROLE]
    lines = (
        f"runs {shown(role.run)}" if role.run else model_name,
        "not trained" if role.run is None and not role.is_trained else "",
        f"calls {', '.join(tools)}" if tools else "",
        f"called, at most {count} times" if role.callable else "",
        f"memory {role.memory}" if role.memory else "",
        f"when {role.when}" if role.when else "",
        f"sees {', '.join(role.sees)}" if role.sees else "",
    )
    kind: Kind = "tool" if role.run is not None else "trained" if role.is_trained else "asked"
    policies = tuple(numbers[policy] for policy in policies_of(role))
    title = f"{name} × {count}" if count > 1 and role.callable is None else name
    return Box(name, cut(title), [cut(line) for line in lines if line], kind, policies, loop)


def _forks(spec: Spec) -> Iterator[Arrow]:
    """Yield an arrow for each fork, from the role whose conversation it continues, unless an edge joins the
    two already."""
    for name, role in spec.roles.items():
        forked_role = role.memory and role.memory.fork
        if forked_role and forked_role not in {edge.role for edge in role_edges(spec, name)}:
            yield Arrow(forked_role, name, FORK, earlier=forked_role not in ancestors(role_graph(spec), name))


def _arrow(spec: Spec, name: str, read: RoleEdge) -> Arrow:
    edge, memory = read.edge, spec.roles[name].memory
    label_words = [] if read.name == read.role else [f"as {read.name}"]
    label_words += [FORK] if memory and memory.fork == read.role else []
    if edge.fans_out:
        label_words.append("each" if edge.chunk_size == 1 else f"chunks of {edge.chunk_size}")
    elif edge.join != "all":
        label_words.append(edge.join)
    if edge.round != "this":
        label_words.append(f"{edge.round} round" if edge.round == "previous" else edge.round)
    return Arrow(read.role, name, ", ".join(label_words), earlier=read.earlier)


def shown(call: ItemCall) -> str:
    """Format a named item of a spec, such as a parser, as `name` or `name: value` on one line."""
    return f"{call.name} {call.value}" if isinstance(call.value, str | int | float) else call.name


def cut(text: str, longest: int = LONGEST) -> str:
    """Put a text on one line and cut it to `longest` characters."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
