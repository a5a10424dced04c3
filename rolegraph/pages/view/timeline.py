"""Time line of an episode: a lane for each role instance, a bar for each turn, and joins between them.

A bar lies between the recorded start and end of its turn. Earlier versions recorded durations without starts:
then a turn begins when all turns that it waits for in the DAG are over, and waits for a free slot of a model
are not shown. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import NamedTuple, TypeAlias

import networkx as nx

from rolegraph.engine.compile.inputs import RoleInputs, role_inputs
from rolegraph.engine.compile.lineage import instances_of
from rolegraph.engine.compile.structure import graph_of
from rolegraph.engine.compile.unroll import UnrolledGraph
from rolegraph.engine.compile.wiring import dag_of, turn_graph
from rolegraph.engine.prompts.checks import ALL_OF_SELF, TemplateScope
from rolegraph.engine.prompts.templates import mentions_of
from rolegraph.engine.records import NodeId
from rolegraph.engine.records.numbers import number
from rolegraph.engine.spec import Spec
from rolegraph.pages.report.charts import nice_ticks
from rolegraph.pages.view.turns import TurnRecord

MOST_LANES = 120
MOST_JOINS = 1_500
"""Largest number of joins that are drawn."""
LANE, MARGIN, WIDTH = 26, 4, 992
"""Height of a lane, margin of the picture, and its width without both margins, in units of its view box."""
_COLOURS = 8
"""Number of colours of roles."""


_PARTS = ("prompt", "system", "tool")
"""Templates of a role that its turns render, as `RunInfo.templates` names them."""

Dag: TypeAlias = "nx.DiGraph[NodeId]"
"""DAG of turns in the order of the roles; an edge leads to each turn from each turn that it waits for."""


class Bar(NamedTuple):
    """Turn on the time line, in seconds from the start of the episode."""

    node: NodeId
    start: float
    end: float
    state: str
    """`done`, `failed`, `masked`, or `skipped` for a turn that was not taken."""


class Lane(NamedTuple):
    """Row of a timeline with the turns of one role instance."""

    instance: tuple[str, int]
    """Name of the role and number of the instance."""
    name: str
    bars: Sequence[Bar]


class Join(NamedTuple):
    """Line on a time line from the end of one turn's bar to the start of a turn that waited for it."""

    start: float
    lane: int
    end: float
    to: int
    on_path: bool
    """True if the join is on the critical path of the episode."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Time line of an episode. Without recorded times, `timed` is False and every turn has the length 1.

    `measured` is True if the starts of the turns are recorded as well.
    """

    lanes: Sequence[Lane]
    joins: Sequence[Join]
    length: float
    timed: bool
    measured: bool
    left_out: int
    """Number of lanes that are not shown."""
    order: Sequence[NodeId]
    """Turns in the order of their starts."""

    @property
    def colours(self) -> dict[str, str]:
        """CSS class of each role's colour."""
        roles = dict.fromkeys(lane.instance[0] for lane in self.lanes)
        return {role: f"c{index % _COLOURS}" for index, role in enumerate(roles)}


def role_inputs_from_text(spec: Spec, texts: Mapping[str, list[str]]) -> dict[str, RoleInputs]:
    """Parse the templates of each role and return the roles, fields and histories that they mention.

    A text that is not a valid template or condition reads nothing.

    Args:
        spec: The parsed spec.
        texts: By role, the sources of its prompt, system and tool value. Conditions are in the spec.
    """
    inputs_by_role: dict[str, Set[str]] = {}
    for name, role in spec.roles.items():
        scope = TemplateScope(dict.fromkeys(role.needs, 1), self_fields=ALL_OF_SELF)
        mentions = [mentions_of(text, scope) for text in texts.get(name, ())]
        conditions = (role.when, role.memory and role.memory.reset)
        mentions += [mentions_of(text or "", replace(scope, is_condition=True)) for text in conditions]
        inputs_by_role[name] = {*chain.from_iterable(mentions)}
    inputs_by_loop: dict[str, Set[str]] = {}
    for name, loop in spec.loops.items():
        scope = TemplateScope(dict.fromkeys(spec.roles_in(name), 1), is_condition=True)
        inputs_by_loop[name] = mentions_of(loop.until or "", scope)
    return role_inputs(spec, inputs_by_role, inputs_by_loop)


def read_dag(spec: Spec | None, templates: Mapping[str, str]) -> Dag | None:
    """Return the DAG of a run's turns, or None without a spec; no vocabulary item is resolved or imported.

    Args:
        spec: The run's spec.
        templates: `RunInfo.templates`: the texts of the run's templates.
    """
    if spec is None:
        return None
    texts = {
        name: [templates[text_name] for part in _PARTS if (text_name := f"the {part} of {name}") in templates]
        for name in spec.roles
    }
    unrolled_graph = UnrolledGraph(spec, instances_of(spec), role_inputs_from_text(spec, texts))
    return turn_graph([node.id for node in unrolled_graph.nodes], dag_of(unrolled_graph.waits))


def timeline(
    dag: Dag | None, turns: Mapping[NodeId, TurnRecord], called: Collection[str] = frozenset()
) -> Timeline:
    """Return the time line of an episode; without a DAG, all turns of a round are drawn at the same time.

    Args:
        dag: The DAG of turns.
        turns: The turns that were taken.
        called: Roles that other roles call. Their turns lie within the turns of their callers, so no joins
            are drawn for them, and calls that were not made have no lane.
    """
    if dag is None or not turns.keys() <= dag.nodes:
        dag = _by_round(turns)
    has_times = any(turn.seconds for turn in turns.values())
    spans = {node: turn.span for node, turn in turns.items() if turn.calls}
    is_measured = bool(spans) and None not in spans.values()
    starts: dict[NodeId, float] = {}
    ends: dict[NodeId, float] = {}
    cause: dict[NodeId, NodeId] = {}
    for node in nx.topological_sort(dag):
        starts[node] = max((ends[other] for other in dag.pred[node]), default=0.0)
        if dag.pred[node]:
            cause[node] = max(dag.pred[node], key=lambda other: ends[other])
        turn_ = turns.get(node)
        ends[node] = starts[node] + (0.0 if turn_ is None else turn_.seconds if has_times else 1.0)
        if is_measured and (span := spans.get(node)):
            starts[node], ends[node] = span
    path = _path(ends, cause)
    lanes: dict[tuple[str, int], list[Bar]] = {}
    for node in dag:
        if node in turns or node.role not in called:
            state = turns[node].state if node in turns else "skipped"
            lanes.setdefault(node[:2], []).append(Bar(node, starts[node], ends[node], state))
    repeated_roles = {role for role, index in lanes if index > 1}
    shown_lanes = [
        Lane((role, index), f"{role} {index}" if role in repeated_roles else role, bars)
        for (role, index), bars in islice(lanes.items(), MOST_LANES)
    ]
    lane_index = {lane.instance: position for position, lane in enumerate(shown_lanes)}
    pairs = [
        (one, other)
        for other in dag
        for one in dag.pred[other]
        if {one, other} <= turns.keys() and {one[:2], other[:2]} <= lane_index.keys()
        if other.role not in called
    ]
    joins = [
        Join(ends[one], lane_index[one[:2]], starts[other], lane_index[other[:2]], (one, other) in path)
        for one, other in pairs
        if len(pairs) <= MOST_JOINS or (one, other) in path
    ]
    order = sorted(turns, key=lambda node: starts.get(node, 0.0))
    length = max(ends.values(), default=0.0)
    return Timeline(shown_lanes, joins, length, has_times, is_measured, len(lanes) - len(shown_lanes), order)


def _by_round(turns: Mapping[NodeId, TurnRecord]) -> Dag:
    """Return a DAG of turns for a run without a spec: each turn waits for all turns of the previous round."""
    rounds: dict[int, list[NodeId]] = {}
    for node in turns:
        rounds.setdefault(node.round, []).append(node)
    earlier_round = dict(pairwise([0, *sorted(rounds)]))
    nodes_before = {round_: rounds.get(number, []) for number, round_ in earlier_round.items()}
    return graph_of({node: nodes_before[node.round] for node in turns})


def _path(ends: Mapping[NodeId, float], cause: Mapping[NodeId, NodeId]) -> set[tuple[NodeId, NodeId]]:
    """Return the edges of the critical path: the chain of turns that ends with the last turn to end.

    Args:
        ends: Time at which each turn ended.
        cause: For each turn, the turn whose end it waited for last.
    """
    edges: set[tuple[NodeId, NodeId]] = set()
    node = max(ends, key=lambda other: ends[other], default=None)
    while node is not None and node in cause:
        edges.add((cause[node], node))
        node = cause[node]
    return edges


def ticks(length: float) -> list[float]:
    """Return round numbers of seconds within a length, for an axis."""
    return [tick for tick in nice_ticks(0.0, length, 4) if tick <= length]


def join_path(join: Join, scale: float) -> str:
    """Return the SVG path of a join; `scale` is the number of the picture's units per second."""
    start, end = MARGIN + join.start * scale, MARGIN + join.end * scale
    top, bottom = (lane * LANE + LANE // 2 for lane in (join.lane, join.to))
    bend = max(8, (end - start) / 2)
    return f"M{start:.1f} {top}C{start + bend:.1f} {top} {end - bend:.1f} {bottom} {end:.1f} {bottom}"


def apart(bars: Sequence[Bar]) -> Iterator[Bar]:
    """Yield the bars of a lane; of skipped rounds that would be drawn in the same place, only the first."""
    last_end: float | None = None
    for bar in bars:
        if bar.state != "skipped":
            yield bar
        elif bar.start != last_end:
            last_end = bar.start
            yield bar


def note(line: Timeline) -> str:
    """Return the caption of a time line: the origin of its times, and the meaning of the bars' edges."""
    states = Counter(bar.state for lane in line.lanes for bar in lane.bars)
    if line.measured:
        measured_text = f"{number(line.length)} s from the start of the episode to the last answer."
    elif line.timed:
        measured_text = (
            f"{number(line.length)} s along the critical path. Start times were not recorded, "
            "so each turn is drawn from the end of its last input."
        )
    else:
        measured_text = "No times were recorded: all turns are drawn with equal length."
    parts = [
        measured_text,
        "Failed turns have a red edge." if states["failed"] else "",
        "Masked turns are pale." if states["masked"] else "",
        f"{states['skipped']} turns were skipped (hollow)." if states["skipped"] else "",
        f"{line.left_out} instances are left out." if line.left_out else "",
    ]
    return " ".join(part for part in parts if part)
