"""The DAG of roles, unrolled: nodes, the blocks that they become ready in, and the counters between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from rolegraph.engine.compile.graph import env_loop, loop_of
from rolegraph.engine.compile.lineage import Instance, Instances, joined
from rolegraph.engine.compile.plan import Block, InputEdge, Node, Tail, Wiring
from rolegraph.engine.records import NodeId, salt_of
from rolegraph.engine.spec import Edge, Spec

NOTHING: Mapping[str, Sequence[str]] = {}


class UnrolledGraph(NamedTuple):
    """The tables of a plan that all its episodes share."""

    nodes: tuple[Node, ...]
    blocks: tuple[Block, ...]
    wiring: Wiring
    reads: Mapping[int, tuple[InputEdge, ...]]
    """See `Plan`."""
    tails: Mapping[str, tuple[Tail, ...]]
    """By loop; see `LoopPlan`."""
    branches: Mapping[str, int]
    """By loop; see `LoopPlan`."""
    turns: tuple[tuple[int, ...], ...]
    """See `EnvPlan`; none without one."""


def unroll(
    spec: Spec,
    instances: Instances,
    endpoints: Mapping[str, Sequence[int]],
    *,
    until: Mapping[str, Iterable[str]],
    own: Set[str] = frozenset(),
    rewards: Mapping[str, Sequence[str]] = NOTHING,
    players: Sequence[str] = (),
    by_turn: Set[str] = frozenset(),
) -> UnrolledGraph:
    """Unroll the roles of a spec, the rounds of its loops one after the other. `endpoints` has one for each
    instance of a role.

    Instances that join the same are a block: they become ready together and see the same. `until` has for
    each loop with an end the roles that its condition reads; `own` are the roles that read their own earlier
    turns; `rewards` has for a role those that its reward reads; `by_turn` are the roles whose turns are
    compared, each with the same turn of others; `players` are the roles that move in the environment of the
    loop that has one.
    """
    return _Unrolling(spec, instances, endpoints, until, own, rewards, by_turn, players).unrolled()


Seen = tuple[InputEdge, ...]


@dataclass(slots=True)
class _Unrolling:
    spec: Spec
    instances: Instances
    endpoints: Mapping[str, Sequence[int]]
    until: Mapping[str, Iterable[str]]
    own: Set[str]
    rewards: Mapping[str, Sequence[str]]
    by_turn: Set[str]
    players: Sequence[str]
    env: str | None = field(init=False)
    loops: dict[str, str | None] = field(init=False)
    rounds: dict[str, int] = field(init=False)
    starts: dict[str, int] = field(init=False)
    positions: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.env = env_loop(self.spec)
        self.loops = {name: loop_of(self.spec, name) for name in self.spec.roles}
        self.rounds = {name: self.spec.loops[loop].times if loop else 1 for name, loop in self.loops.items()}
        self.positions = {name: position for position, name in enumerate(self.spec.roles)}
        self.starts, total = {}, 0
        for name in self.spec.roles:
            self.starts[name] = total
            total += len(self.instances[name]) * self.rounds[name]

    def unrolled(self) -> UnrolledGraph:
        nodes: list[Node] = []
        blocks: list[Block] = []
        waits: list[list[Sequence[int]]] = []
        total = sum(len(self.instances[name]) * rounds for name, rounds in self.rounds.items())
        for position, name in enumerate(self.spec.roles):
            for number in range(1, self.rounds[name] + 1):
                for members, sees, ends, before in self.blocks(name, number):
                    places = range(self.at(name, members[0], number), self.at(name, members[-1], number) + 1)
                    contiguous = len(places) == len(members)
                    own = places if contiguous else tuple(self.at(name, m, number) for m in members)
                    moves = self.loops[name] is not None and self.loops[name] == self.env
                    conditional = bool(ends or self.spec.roles[name].when or any(see.parents for see in sees))
                    blocks.append(Block(position, number, own, sees, ends, conditional or moves))
                    seen = (total + number - 1,) if moves else ()
                    waits.append([*(see.nodes for see in (*sees, *ends)), before, seen])
        block_of = {node: number for number, block in enumerate(blocks) for node in block.nodes}
        for position, name in enumerate(self.spec.roles):
            for number in range(1, self.rounds[name] + 1):
                for index, instance in enumerate(self.instances[name], 1):
                    id, place = NodeId(name, index, number), len(nodes)
                    endpoint = self.endpoints[name][index - 1] if self.endpoints[name] else None
                    nodes.append(Node(id, position, block_of[place], endpoint, salt_of(id), instance.path))
        turns = self.turns_of_players()
        transitions: list[list[Sequence[int]]] = [[()], *([turn] for turn in turns)] if turns else []
        wiring = _wire(len(nodes) + len(transitions), [*waits, *transitions])
        names = list(self.spec.roles)
        branches: dict[str, set[Seen]] = {name: set() for name in self.spec.loops}
        for block in blocks:
            if block.round == 2 and (loop := self.loops[names[block.role]]):
                branches[loop].add(block.ends)
        # Found once for all loops: of 200 of them, each would look through the joins of all the others.
        released = [
            {self.loops[names[blocks[b].role]] for b in to if b < len(blocks)} for to in wiring.releases
        ]
        tails = {
            loop: self.tails(loop, nodes, released, wiring) if len(ends) == 1 else ()
            for loop, ends in branches.items()
        }
        counted = {loop: max(1, len(ends)) for loop, ends in branches.items()}
        return UnrolledGraph(tuple(nodes), tuple(blocks), wiring, self.reads(nodes), tails, counted, turns)

    def turns_of_players(self) -> tuple[tuple[int, ...], ...]:
        """By round, the nodes of those who move in the environment."""
        if self.env is None:
            return ()
        members = [(name, place) for name in self.players for place in range(len(self.instances[name]))]
        times = self.spec.loops[self.env].times
        return tuple(
            tuple(self.at(name, place, number) for name, place in members) for number in range(1, times + 1)
        )

    def reads(self, nodes: Sequence[Node]) -> Mapping[int, tuple[InputEdge, ...]]:
        """What each turn's reward reads: of the instances on its own branch the last turn that ran; where
        turns are compared, of those in its loop that of its own round."""
        names = list(self.spec.roles)
        shared: dict[tuple[str, tuple[int, ...], range], InputEdge] = {}
        read: dict[int, tuple[InputEdge, ...]] = {}
        for place, node in enumerate(nodes):
            name = names[node.role]
            if others := self.rewards.get(name):
                me, number = self.instances[name][node.id.index - 1], node.id.round
                read[place] = tuple(self.earned(name, number, other, me, shared) for other in others)
        return read

    def earned(
        self,
        name: str,
        number: int,
        other: str,
        me: Instance,
        shared: dict[tuple[str, tuple[int, ...], range], InputEdge],
    ) -> InputEdge:
        """What the reward of one turn reads of another role."""
        members = tuple(joined(Edge(join="branch"), me, self.instances[other]))
        inside = self.loops[other] is not None and self.loops[other] == self.loops[name]
        own = inside and name in self.by_turn
        rounds = range(number, number + 1) if own else range(1, self.rounds[other] + 1)
        key = other, members, rounds
        if key not in shared:
            turns = tuple(self.at(other, member, r) for member in members for r in rounds)
            shared[key] = InputEdge(other, self.positions[other], turns, len(rounds))
        return shared[key]

    def tails(
        self, loop: str, nodes: Sequence[Node], released: Sequence[Set[str | None]], wiring: Wiring
    ) -> tuple[Tail, ...]:
        """What the rest of a loop that ends as a whole holds up outside, by the round that it begins with.

        `released` has for each join the loops whose blocks it releases, None for those in no loop.
        """
        times = self.spec.loops[loop].times
        counts = [Counter[int]() for _ in range(times + 2)]
        for name in (name for name, its in self.loops.items() if its == loop):
            start = self.starts[name]
            for place in range(start, start + len(self.instances[name]) * times):
                outside = (join for join in wiring.feeds[place] if released[join] - {loop})
                counts[nodes[place].id.round].update(outside)
        for number in range(times, 0, -1):
            counts[number] += counts[number + 1]
        return tuple(tuple(counts[number].items()) for number in range(1, times + 1))

    def at(self, name: str, member: int, number: int) -> int:
        """The position of a node: its instance's place, from 0, and its round, from 1."""
        return self.starts[name] + (number - 1) * len(self.instances[name]) + member

    def blocks(self, name: str, number: int) -> list[tuple[list[int], Seen, Seen, Sequence[int]]]:
        """The blocks of a role in a round: members, what they see, what may have ended their loop, and the
        turn of their own that they wait for."""
        found: dict[tuple[Seen, Seen, Sequence[int]], list[int]] = {}
        shared: dict[str, InputEdge] = {}
        for place, me in enumerate(self.instances[name]):
            sees = tuple(
                self.see(name, number, key, edge, me, shared)
                for key, edge in self.spec.roles[name].needs.items()
            )
            ends = self.ends(name, number, me, shared)
            before = (self.at(name, place, number - 1),) if name in self.own and number > 1 else ()
            found.setdefault((sees, ends, before), []).append(place)
        return [(members, *key) for key, members in found.items()]

    def see(
        self, name: str, number: int, key: str, edge: Edge, me: Instance, shared: dict[str, InputEdge]
    ) -> InputEdge:
        """What an instance sees under a name in a round."""
        if edge.join == "all" and key in shared:
            return shared[key]
        other = edge.of or key
        members = joined(edge, me, self.instances[other])
        nodes, each = self.turns(name, number, other, edge, members)
        single = members[0] + 1 if len(members) == 1 and edge.round != "history" else 0
        see = InputEdge(key, self.positions[other], nodes, each, single, edge.fans_out)
        if edge.join == "all":
            shared[key] = see
        return see

    def turns(
        self, name: str, number: int, other: str, edge: Edge, members: Sequence[int]
    ) -> tuple[Sequence[int], int]:
        """The nodes of the turns that are joined, and how many in a row are one instance's, of which the last
        that ran is seen."""
        inside = self.loops[other] is not None and self.loops[other] == self.loops[name]
        if inside and edge.round == "this":
            rounds = range(number, number + 1)
        elif inside and edge.round == "last":
            rounds = range(max(1, number - 1), number)
        elif inside:
            rounds = range(1, number)
        else:
            rounds = range(1, self.rounds[other] + 1)
        each = 1 if edge.round == "history" or not len(rounds) else len(rounds)
        if len(rounds) == 1 and members == range(len(self.instances[other])):
            start = self.at(other, 0, rounds[0])
            return range(start, start + len(members)), 1
        return tuple(self.at(other, member, r) for member in members for r in rounds), each

    def ends(self, name: str, number: int, me: Instance, shared: dict[str, InputEdge]) -> Seen:
        """What the condition of a role's loop reads, of the round before, on the instance's own branch."""
        loop = self.loops[name]
        if loop is None or number == 1:
            return ()
        back = Edge(join="branch", round="last")
        return tuple(
            self.see(name, number, other, back, me, shared) for other in sorted(self.until.get(loop, ()))
        )


def _wire(nodes: int, waits: Sequence[Sequence[Sequence[int]]]) -> Wiring:
    """A join for each set of nodes that a block waits for, which counts them; `waits` has a row a block."""
    numbers: dict[Sequence[int], int] = {}
    releases: list[list[int]] = []
    counted: list[int] = []
    for block, sets in enumerate(waits):
        joins = dict.fromkeys(wanted for wanted in sets if len(wanted))
        for wanted in joins:
            if wanted not in numbers:
                numbers[wanted] = len(releases)
                releases.append([])
            releases[numbers[wanted]].append(block)
        counted.append(len(joins))
    feeds: list[list[int]] = [[] for _ in range(nodes)]
    for wanted, join in numbers.items():
        for node in wanted:
            feeds[node].append(join)
    return Wiring(
        joins=tuple(map(len, numbers)),
        feeds=tuple(map(tuple, feeds)),
        releases=tuple(map(tuple, releases)),
        waits=tuple(counted),
        starts=tuple(block for block, waits in enumerate(counted) if not waits),
    )
