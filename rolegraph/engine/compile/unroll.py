"""The DAG of roles unrolled to turns: nodes, the blocks that become ready together, counters between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from itertools import accumulate
from typing import NamedTuple

from rolegraph.engine.compile.chats import Turn, instance_in, turns_before
from rolegraph.engine.compile.inputs import RoleEdge, RoleInputs, compares_turns
from rolegraph.engine.compile.lineage import Instance, Instances, call_sites, joined
from rolegraph.engine.compile.plan import Block, InputEdge, Node
from rolegraph.engine.compile.wiring import Wait
from rolegraph.engine.records import NodeId, salt_of
from rolegraph.engine.spec import Edge, Spec

_NO_READS: Mapping[str, Sequence[str]] = {}
_BRANCH = Edge(join="branch", round="previous")
"""Edge by which a loop's `until` reads the loop's roles."""


_Edges = tuple[InputEdge, ...]


_BlockInputs = tuple[_Edges, _Edges, tuple[Sequence[int], ...]]
"""Inputs that the instances of one block share: its edges, the edges of a loop's `until`, and further nodes
that the block waits for: the previous turn of the instance or of its conversation, and the turns that its
callees need."""


class _Until(NamedTuple):
    """Condition that may end a loop before a turn."""

    loop: int
    """Position of the loop; -1 where no condition is evaluated."""
    back: int
    """Number of turns of the role from one evaluation of the condition to the next."""
    edges: Sequence[RoleEdge]
    """Roles that the condition reads."""
    depth: int
    """Number of loops from the outermost to the loop of the condition."""


def _ranges(sizes: Mapping[str, int], start: int = 0) -> dict[str, range]:
    """Assign to each name consecutive positions, as many as its size; the first name begins at `start`."""
    end_positions = list(accumulate(sizes.values(), initial=start))
    return dict(zip(sizes, map(range, end_positions, end_positions[1:]), strict=True))


class UnrolledGraph:
    """Turns of a plan: each role's instances and each loop's rounds, written out one after the other.

    Args:
        spec: The parsed spec, without faults.
        instances: The instances of each role.
        inputs: The inputs of each role.
        rewards: By role, the turns that its reward reads, as named there: `judge`, or `judge.history`.
        signals: By role, the turns that its signal reads.
        by_turn: Roles whose reward reads other roles turn by turn.
        of_episode: Turns that expressions over the episode read.
    """

    def __init__(
        self,
        spec: Spec,
        instances: Instances,
        inputs: Mapping[str, RoleInputs],
        rewards: Mapping[str, Sequence[str]] = _NO_READS,
        signals: Mapping[str, Sequence[str]] = _NO_READS,
        by_turn: Set[str] = frozenset(),
        of_episode: Sequence[str] = (),
    ) -> None:
        self.spec, self.instances, self.inputs = spec, instances, inputs
        self.lineages = {name: [instance.lineage for instance in group] for name, group in instances.items()}
        self.loops = {name: spec.loops_around(name) for name in spec.roles}
        self.times = {name: spec.loops[loops[-1]].times if loops else 1 for name, loops in self.loops.items()}
        self.shared_rounds = cache(spec.shared_rounds)
        self.rounds = {name: spec.rounds_of(name) for name in spec.roles}
        self.positions = {name: index for index, name in enumerate(spec.roles)}
        self.turns_before = turns_before(spec)
        self.turn_nodes: dict[tuple[str, tuple[int, ...], range, bool], Sequence[int]] = {}
        """Results of `turns`: instances that read the same turns share one sequence."""
        self.nodes_of = _ranges({name: len(group) * self.rounds[name] for name, group in instances.items()})
        total = sum(map(len, self.nodes_of.values()))
        self.transitions = _ranges({name: spec.loops[name].times + 1 for name in spec.env_loops()}, total)
        self.calls = {name: spec.callees_of(name) for name in spec.roles}
        self.sites = {name: call_sites(spec, name, instances) for name in spec.roles}
        self.callees: dict[int, dict[str, Sequence[int]]] = {}
        self.callers: dict[int, int] = {}
        """Node that calls, for each node that answers a call."""
        for name, sites in self.sites.items():
            for call in sites:
                caller = self._node_at(call.caller, call.member, call.round)
                nodes = self._turns(name, call.members, range(1, 2))
                self.callees.setdefault(caller, {})[name] = nodes
                self.callers |= dict.fromkeys(nodes, caller)
        blocks = [*self._blocks()]
        self.blocks = tuple(block for block, _ in blocks)
        self.nodes = self._node_table(self.blocks)
        self.player_nodes = {name: self._nodes_of_players(name) for name in self.transitions}
        """Positions of the players' nodes in each round, by loop with an environment."""
        player_turns = [turn for turns in self.player_nodes.values() for turn in ((), *turns)]
        transition_waits = (Wait((node,), (turn,)) for node, turn in enumerate(player_turns, len(self.nodes)))
        self.waits = (*(Wait(block.nodes, nodes_before) for block, nodes_before in blocks), *transition_waits)
        self.reward_inputs = self._read_by_rewards(self.nodes, rewards, by_turn)
        self.signal_inputs = self._read_by_rewards(self.nodes, signals, signals.keys())
        self.episode_inputs = tuple(self._named_edge(name) for name in of_episode)
        loop_ends: dict[int, set[_Edges]] = {}
        for block in self.blocks:
            if block.round == block.back + 1:
                loop_ends.setdefault(block.until_loop, set()).add(block.until_inputs)
        self.branches = {loop: len(loop_ends.get(n, [()])) for n, loop in enumerate(spec.loops)}
        """Number of parallel branches of each loop; each branch ends by itself."""

    def _blocks(self) -> Iterator[tuple[Block, tuple[Sequence[int], ...]]]:
        """Yield each block of turns, with the sets of nodes (positions) that must end before the block
        starts."""
        for index, name in enumerate(self.spec.roles):
            for call in self.sites[name]:
                instance = self.instances[call.caller][call.member]
                edges = self.inputs[name].edges
                inputs = tuple(self._input_edge(call.caller, call.round, edge, instance) for edge in edges)
                nodes = self._turns(name, call.members, range(1, 2))
                caller = self._node_at(call.caller, call.member, call.round)
                yield Block(index, 1, nodes, inputs, may_skip=True), ((caller,),)
            if self.sites[name]:
                continue
            loops, env = self.loops[name], self.spec.env_loop_of(name)
            conditional = env is not None or bool(self.spec.roles[name].when)
            conditional = conditional or any(self.spec.loops[loop].when is not None for loop in loops)
            turns = self.times[name] if len(loops) > 1 else 1
            for number in range(1, self.rounds[name] + 1):
                asked_before = self._asked_before(name, number)
                for (inputs, ends_read, other_nodes), members in self._grouped(
                    name, number, asked_before
                ).items():
                    nodes = self._turns(name, members, range(number, number + 1))
                    may_skip = conditional or bool(ends_read) or any(edge.is_parent for edge in inputs)
                    turns_before = self.turns_before.get(name, {}).get(number, ())
                    chat = self._nodes_before(name, members[0], turns_before)
                    loop_ends = asked_before.loop, asked_before.back
                    step = () if env is None else (self.transitions[env][(number - 1) // turns],)
                    waits = (*(edge.nodes for edge in (*inputs, *ends_read)), *other_nodes, step)
                    yield Block(index, number, nodes, inputs, ends_read, *loop_ends, may_skip, chat), waits

    def _asked_before(self, name: str, number: int) -> _Until:
        """Return the loop condition (`until`) that is evaluated before a turn.

        In all but the first round of the role's loop it is that loop's `until`; in the first round, or if
        that loop has no `until`, it is that of the outer loop, by the same rule.
        """
        loops, untils = self.loops[name], self.inputs[name].untils
        for depth in range(len(loops), 0, -1):
            turns = self.times[name] if depth < len(loops) else 1
            is_first = (number - 1) // turns % self.spec.loops[loops[depth - 1]].times == 0
            if untils[depth - 1] and not is_first:
                edges = [RoleEdge(n, n, _BRANCH, earlier=True) for n in untils[depth - 1]]
                return _Until([*self.spec.loops].index(loops[depth - 1]), turns, edges, depth)
        return _Until(-1, 1, (), 0)

    def _grouped(self, name: str, number: int, asked: _Until) -> dict[_BlockInputs, list[int]]:
        """Group a role's instances (positions from 0) by the turns that they read in one round; each group
        becomes a block.

        Args:
            name: The role.
            number: Number of the turn, from 1.
            asked: The condition that is evaluated before the turn.
        """
        groups: dict[_BlockInputs, list[int]] = {}
        role_reads = self.inputs[name]
        callee_edges = [edge for called_role in self.calls[name] for edge in self.inputs[called_role].edges]
        chat_before: Sequence[Turn] = [(name, number - 1)] if role_reads.own_turns and number > 1 else ()
        if name in self.turns_before:  # the conversation's order includes the instance's own
            chat_before = self.turns_before[name].get(number, ())
        for index, instance in enumerate(self.instances[name]):
            edges = tuple(self._input_edge(name, number, edge, instance) for edge in role_reads.edges)
            ends = tuple(self._input_edge(name, number, edge, instance, asked.depth) for edge in asked.edges)
            further_nodes = [self._input_edge(name, number, edge, instance).nodes for edge in callee_edges]
            if chat_before:
                further_nodes.append(self._nodes_before(name, index, chat_before))
            groups.setdefault((edges, ends, tuple(further_nodes)), []).append(index)
        return groups

    def _nodes_before(self, name: str, member: int, turns: Sequence[Turn]) -> tuple[int, ...]:
        """Return the nodes of the turns that an instance (from 0) of a role finds in its conversation."""
        members = {n: instance_in(self.spec, self.instances, name, n, member) for n, _ in turns}
        return tuple(self._node_at(n, members[n], number) for n, number in turns)

    def _node_table(self, blocks: Sequence[Block]) -> tuple[Node, ...]:
        block_of = {node: number for number, block in enumerate(blocks) for node in block.nodes}
        nodes: list[Node] = []
        for role_index, name in enumerate(self.spec.roles):
            for number in range(1, self.rounds[name] + 1):
                outer, rounds_before = divmod(number - 1, self.times[name])
                for index, instance in enumerate(self.instances[name], 1):
                    turn, n = NodeId(name, index, number), len(nodes)
                    rounds = rounds_before + 1, outer + 1
                    nodes.append(Node(turn, role_index, block_of[n], salt_of(turn), instance.path, *rounds))
        return tuple(nodes)

    def _node_at(self, name: str, member: int, number: int) -> int:
        """Return the position in the node table of turn `number` (from 1) of instance `member` (from 0) of
        role `name`."""
        return self.nodes_of[name].start + (number - 1) * len(self.instances[name]) + member

    def _nodes_of_players(self, loop: str) -> tuple[tuple[int, ...], ...]:
        """Return for each round of a loop with an environment the nodes of its players."""
        players = self.spec.players_of(loop)
        members = [(name, index) for name in players for index in range(len(self.instances[name]))]
        rounds = range(1, self.spec.loops[loop].times + 1)
        return tuple(tuple(self._node_at(*member, number) for member in members) for number in rounds)

    def _input_edge(self, name: str, number: int, reads: RoleEdge, me: Instance, depth: int = 2) -> InputEdge:
        """Return the InputEdge with the nodes that instance `me` of role `name` reads in one round by an
        entry of `needs`."""
        members = joined(reads.edge, me, self.instances[reads.role])
        rounds = self.shared_rounds(name, reads.role, depth).read(number, reads.edge.round)
        is_history = reads.edge.round == "history"
        return InputEdge(
            name=reads.name,
            role=self.positions[reads.role],
            nodes=self._turns(reads.role, members, rounds, by_round=is_history),
            turns_per_instance=1 if is_history or not rounds else len(rounds),
            is_parent=reads.edge.fans_out,
        )

    def _turns(
        self, role: str, members: Sequence[int], rounds: range, *, by_round: bool = False
    ) -> Sequence[int]:
        """Return the node positions of some instances (from 0) of a role in some rounds.

        They are ordered by instance, then by round; the reverse if `by_round`.
        """
        if len(members) == len(self.instances[role]) and (by_round or len(rounds) == 1):
            # The order of the node table.
            return range(self._node_at(role, 0, rounds.start), self._node_at(role, 0, rounds.stop))
        key = role, tuple(members), rounds, by_round
        if key not in self.turn_nodes:
            member_rounds = [(member, number) for member in members for number in rounds]
            if by_round:
                member_rounds = [(member, number) for number in rounds for member in members]
            self.turn_nodes[key] = tuple(self._node_at(role, *pair) for pair in member_rounds)
        return self.turn_nodes[key]

    def _read_by_rewards(
        self, nodes: Sequence[Node], rewards: Mapping[str, Sequence[str]], by_turn: Set[str]
    ) -> Mapping[int, tuple[InputEdge, ...]]:
        """Return by node the turns that the node's reward, or signal, reads, as one InputEdge for each role.

        Of each instance on the turn's branch, a reward reads the last turn that ran. Where turns are
        compared, and for the roles in `by_turn`, it reads the last turn in the same round of roles in the
        same loop, and of a role that it calls, the turns that it called. A called turn reads the calling turn
        of its caller. All instances of the own role are read. `judge.previous` and `judge.history` mean the
        same as in `needs`; `judge.final` is the last turn that ran.
        """
        edges_by_node: dict[int, tuple[InputEdge, ...]] = {}
        for node_index, node in enumerate(nodes if rewards else ()):
            name, index, number = node.id
            if name not in rewards:
                continue
            edges: list[InputEdge] = []
            is_per_turn = name in by_turn or compares_turns(self.spec.roles[name])
            for read_name in rewards[name]:
                read_role, _, link = read_name.partition(".")
                if (turns := self._of_a_call(node_index, name, read_role, per_turn=is_per_turn)) is not None:
                    edges.append(InputEdge(read_role, self.positions[read_role], turns))
                    continue
                members: Sequence[int] = range(len(self.instances[read_role]))
                if read_role != name:
                    members = joined(_BRANCH, self.instances[name][index - 1], self.instances[read_role])
                rounds = None
                if link in ("previous", "history") or (is_per_turn and not link):
                    rounds = self.shared_rounds(name, read_role).read(number, link or "this")
                edges.append(self._named_edge(read_name, members, rounds))
            if edges:
                edges_by_node[node_index] = tuple(edges)
        return edges_by_node

    def _named_edge(
        self, name: str, members: Sequence[int] | None = None, rounds: range | None = None
    ) -> InputEdge:
        """Return the edge to the turns named in an expression that is evaluated after the episode, such as
        `judge.history`.
        By default, the turns are those of all instances (`members`) and all `rounds`.
        """
        role, _, link = name.partition(".")
        members = range(len(self.instances[role])) if members is None else members
        rounds = range(1, self.rounds[role] + 1) if rounds is None else rounds
        is_history = link == "history"
        turns = self._turns(role, members, rounds, by_round=is_history)
        return InputEdge(name, self.positions[role], turns, 1 if is_history or not rounds else len(rounds))

    def _of_a_call(self, place: int, name: str, other: str, *, per_turn: bool) -> Sequence[int] | None:
        """Return the nodes of role `other` that called the node at `place`, or that the node called.

        None means that calls do not decide which turns of `other` the node's reward reads.
        """
        if name in self.calls[other]:
            caller = self.callers[place]
            return (caller,) if caller in self.nodes_of[other] else ()
        return self.callees.get(place, {}).get(other) if per_turn else None
