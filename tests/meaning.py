"""Reference implementation of the language, to compare with the engine on random workflows.

`expected` follows docs/language.md turn by turn, by recursion, without tables, counters or an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from rolegraph.engine.records import NodeId
from rolegraph.engine.vocabulary import Transition
from tests.workflows import CALLEE, Seen, Turn, Workflow, edge_of, prompt


@dataclass
class Expected:
    """Expected outcome of one episode of a workflow."""

    turns: dict[NodeId, Turn | None]
    """Turns by node; None for a skipped node."""
    prompts: dict[NodeId, str]
    seconds: float
    """End of the episode, in virtual seconds."""
    uncomputed: int


def expected(workflow: Workflow) -> Expected:
    """Compute the outcome of a workflow, by recursion from each turn to the turns it waits for."""
    prompts: dict[NodeId, str] = {}
    settled: dict[NodeId, float] = {}
    uncomputed = 0

    @cache
    def instances(role: str) -> list[tuple[dict[str, set[int]], list[int]]]:
        """Return the lineage and the parents of each instance of a role."""
        spec, made = workflow.roles[role], list[tuple[dict[str, set[int]], list[int]]]()
        for number, (caller, _, _) in enumerate(slots() if role == CALLEE else (), 1):
            own = {name: set[int]() for name in workflow.callers()}
            own |= instances(caller.role)[caller.index - 1][0]
            needed = dict[str, set[int]]()
            for lineage, _ in [its for other in spec["needs"] for its in instances(other)]:
                for name, numbers in lineage.items():
                    needed.setdefault(name, set()).update(numbers)
            made.append((needed | own | {CALLEE: {number}}, []))
        if made:
            return made
        edges = [(edge["of"] or key, edge) for key, edge in edges_of(role)]
        fan = next(((other, edge["size"]) for other, edge in edges if edge["fans"]), None)
        numbers = range(1, len(instances(fan[0])) + 1) if fan else ()
        starts = range(0, len(numbers), fan[1]) if fan else ()
        groups: list[list[int]] = [list(numbers[at : at + fan[1]]) for at in starts] if fan else [[]]
        for parents in groups:
            before = dict[str, set[int]]()
            joined = [(other, n) for other, edge in edges if edge["round"] == "this" for n in all_of(other)]
            for other, number in [(fan[0], n) for n in parents] if fan else joined:
                for name, own in instances(other)[number - 1][0].items():
                    before.setdefault(name, set()).update(own)
            for _ in range(spec["count"]):
                made.append(({**before, role: {len(made) + 1}}, parents))
        return made

    @cache
    def slots() -> list[tuple[NodeId, int, int]]:
        """Return for each instance of the role that is called its caller's turn, the number of the caller's
        answer, and the place of the call in the answer, from 0."""
        return [
            (NodeId(role, index, round), call, place)
            for role in workflow.callers()
            for index in all_of(role)
            for round in range(1, workflow.rounds(role) + 1)
            for call in range(1, workflow.roles[role]["calls"])
            for place in range(workflow.parallel(role))
        ]

    def called(me: NodeId, answer: int) -> list[NodeId]:
        """Return the turns that one answer of a caller's turn calls, without those that are too many."""
        asked = len(workflow.asks(me, answer))
        numbers = [n for n, slot in enumerate(slots(), 1) if slot[:2] == (me, answer) and slot[2] < asked]
        return [NodeId(CALLEE, number) for number in numbers]

    def all_of(role: str) -> range:
        return range(1, len(instances(role)) + 1)

    def edges_of(role: str) -> list[tuple[str, dict[str, Any]]]:
        return [
            (key, {**edge_of(edge), "of": edge_of(edge)["of"] or key})
            for key, edge in workflow.roles[role]["needs"].items()
        ]

    def branch(me: NodeId, other: str) -> list[int]:
        mine = instances(me.role)[me.index - 1][0]

        def shares(theirs: dict[str, set[int]]) -> bool:
            return all(mine[role] & theirs[role] for role in mine.keys() & theirs.keys())

        return [number for number in all_of(other) if shares(instances(other)[number - 1][0])]

    def joined(me: NodeId, edge: dict[str, Any]) -> tuple[list[list[NodeId]], bool]:
        """Return the nodes that an edge joins, by instance, and True if only the last turn is visible."""
        other, loop = edge["of"], workflow.loop_of(edge["of"])
        members = list(all_of(other))
        if edge["fans"]:
            members = instances(me.role)[me.index - 1][1]
        elif edge["branch"]:
            members = branch(me, other)
        rounds = range(1, workflow.rounds(other) + 1)
        if loop is not None and loop is workflow.loop_of(me.role):
            round = me.round
            inside = {"this": [round], "last": [round - 1][: round - 1], "history": range(1, round)}
            rounds = inside[edge["round"]]
        return [[NodeId(other, m, r) for r in rounds] for m in members], edge["round"] != "history"

    def seen(me: NodeId, edge: dict[str, Any]) -> list[Turn]:
        by_instance, only_last = joined(me, edge)
        found: list[Turn] = []
        for nodes in by_instance:
            ran = [turn for node in nodes if (turn := happens(node)) is not None]
            found += ran[-1:] if only_last else ran
        return found

    def holds(text: str, views: Seen, me: NodeId) -> bool:
        nonlocal uncomputed
        said = workflow.holds[text](views, me)
        uncomputed += said is None
        return bool(said)

    def ends(me: NodeId) -> list[NodeId]:
        """Return the nodes of the previous round that the `until` condition of a turn's loop reads."""
        loop = workflow.loop_of(me.role)
        if loop is None or "until" not in loop or me.round == 1:
            return []
        read = [role for role in loop["roles"] if f"{role} | " in loop["until"]]
        return [NodeId(role, number, me.round - 1) for role in read for number in branch(me, role)]

    @cache
    def board(round: int) -> tuple[int, Transition, float]:
        """Return the environment's step count, transition and time at the start of a round."""
        loop = next(loop for loop in workflow.loops.values() if "env" in loop)
        players = [(role, number) for role in loop["players"] for number in all_of(role)]
        if round == 1:
            return 0, workflow.transition(0, len(players), {}), workflow.latency(0)
        number, before, since = board(round - 1)
        turns = [happens(NodeId(*player, round - 1)) for player in players]
        since = max([since, *(settled[NodeId(*player, round - 1)] for player in players)])
        actions = {player: turn.action for player, turn in enumerate(turns) if turn is not None}
        if before.done or not actions:
            return number, before, since
        after = workflow.transition(number + 1, len(players), actions)
        return number + 1, after, since + workflow.latency(number + 1)

    def observed(me: NodeId) -> str | None:
        """Return the observation in a turn's prompt; None if the environment does not let the player move."""
        loop = workflow.loop_of(me.role)
        if loop is None or "env" not in loop:
            return ""
        seen = board(me.round)[1]
        if me.role not in loop["players"]:
            return "\n\n".join(seen.observations.values()) + ";"
        players = [(role, number) for role in loop["players"] for number in all_of(role)]
        shown = seen.observations.get(players.index((me.role, me.index)))
        return None if shown is None else shown + ";"

    @cache
    def over(me: NodeId) -> bool:
        before, loop = ends(me), workflow.loop_of(me.role)
        if loop is not None and "env" in loop:
            return board(me.round)[1].done
        if not before or loop is None:
            return False
        if over(me._replace(round=me.round - 1)) or all(over(node) for node in before):
            return True
        turns = [turn for node in before if (turn := happens(node)) is not None]
        if any(turn.failed for turn in turns):
            return False
        views = {role: [turn for turn in turns if turn.id.role == role] for role in loop["roles"]}
        return holds(loop["until"], views, me)

    def runs(me: NodeId, views: Seen) -> bool:
        when = workflow.roles[me.role].get("when")
        if any(edge["fans"] and not views[key] for key, edge in edges_of(me.role)):
            return False
        if when is None:
            return True
        history = [turn for node in own_turns(me) if (turn := happens(node)) is not None]
        return holds(when, {**views, "self": history}, me)

    def own_turns(me: NodeId) -> list[NodeId]:
        """Return the earlier nodes of an instance if its `when` condition reads `self.history`."""
        reads = "self.history" in workflow.roles[me.role].get("when", "")
        return [me._replace(round=number) for number in range(1, me.round)] if reads else []

    def vote(me: NodeId, views: Seen) -> Turn:
        voters = [turn for turns in views.values() for turn in turns]
        votes = [turn.action for turn in voters if not turn.failed] or [turn.action for turn in voters]
        if not votes:
            return Turn(me, f"nothing to choose from: of {', '.join(views)} nobody ran", failed=True)
        return Turn(me, max(votes, key=lambda action: (votes.count(action), -votes.index(action))), False)

    def parsed(turn: Turn) -> Turn:
        """Return a tool's turn with the action that its role's parser reads in its result, if it has one."""
        parser = workflow.roles[turn.id.role].get("parser")
        found = [letter for letter in turn.action if letter in "xy"]
        if parser is None or (found and not turn.failed):
            return turn if parser is None else turn._replace(action=found[0])
        return Turn(turn.id, parser["default"], failed=True)

    def waits(me: NodeId) -> list[NodeId]:
        if me.role == CALLEE:
            return [slots()[me.index - 1][0]]
        edges = edges_of(me.role)
        if workflow.parallel(me.role):
            edges = edges + edges_of(CALLEE)
        return (
            [node for _, edge in edges for nodes in joined(me, edge)[0] for node in nodes]
            + ends(me)
            + own_turns(me)
        )

    @cache
    def opens(me: NodeId) -> float:
        """Return the time at which the last dependency of a turn is settled."""
        loop, waited = workflow.loop_of(me.role), waits(me)
        for node in waited:
            happens(node)
        since = board(me.round)[2] if loop is not None and "env" in loop else 0.0
        return max([since, *(settled[node] for node in waited)])

    @cache
    def let_go(me: NodeId) -> float:
        """Return the time at which a turn is skipped because its loop has ended.

        If all branches share one `until`, the first turn of a round to evaluate it skips the whole round.
        """
        loop = workflow.loop_of(me.role)
        assert loop is not None
        before = me._replace(round=me.round - 1)
        if len({tuple(ends(node)) for node in round_of(loop, 2)}) > 1:
            return opens(me)
        if over(before):
            return let_go(before)
        inside = {*round_of(loop, me.round)}
        return min(opens(node) for node in inside if not inside & {*waits(node)})

    def round_of(loop: dict[str, Any], round: int) -> list[NodeId]:
        return [NodeId(role, number, round) for role in loop["roles"] for number in all_of(role)]

    def answers(me: NodeId, shown: str, views: Seen) -> Turn:
        """Take the turn of a role with a model, and of those that it calls."""
        prompts[me] = shown + prompt(views)
        for number in range(1, workflow.uses(me) + 1):
            settled[me] += workflow.latency(me)
            helpers = called(me, number)
            settled[me] += max((workflow.attempts(it) * workflow.latency(it) for it in helpers), default=0)
        settled[me] += (workflow.attempts(me) - workflow.uses(me)) * workflow.latency(me)
        action = workflow.action(me)
        return Turn(me, action or "", action is None, 0 if action is None else workflow.attempts(me))

    def helps(me: NodeId) -> Turn | None:
        """Take the turn of a role that is called, if it is; it sees what its caller would."""
        caller, number, place = slots()[me.index - 1]
        if happens(caller) is None or number > workflow.uses(caller) or me not in called(caller, number):
            return None
        views = {key: seen(caller, edge) for key, edge in edges_of(CALLEE)}
        prompts[me] = f"{workflow.asks(caller, number)[place]};{prompt(views)}"
        action = workflow.action(me)
        return Turn(me, action or "", action is None, 0 if action is None else 1)

    @cache
    def happens(me: NodeId) -> Turn | None:
        settled[me] = opens(me)
        if me.role == CALLEE:
            return helps(me)
        if over(me):
            settled[me] = let_go(me)
            return None
        shown = observed(me)
        if shown is None:
            return None
        views = {key: seen(me, edge) for key, edge in edges_of(me.role)}
        if not runs(me, views):
            return None
        if workflow.runs(me.role):
            written = Turn(me, prompt(views), failed=False)
            return parsed(vote(me, views) if workflow.votes(me.role) else written)
        return answers(me, shown, views)

    turns = {
        node: happens(node)
        for role in workflow.roles
        for round in range(1, workflow.rounds(role) + 1)
        for index in all_of(role)
        for node in [NodeId(role, index, round)]
    }
    played = [board(loop["times"] + 1)[2] for loop in workflow.loops.values() if "env" in loop]
    return Expected(turns, prompts, max([*settled.values(), *played]), uncomputed)


def compared(
    answered: Mapping[NodeId, bool], key: Callable[[NodeId], object], *, whole: bool, by_turn: bool
) -> list[list[NodeId]]:
    """Return the groups of one episode, each member by its first turn.

    Args:
        answered: The answered turns of trained roles; True for those that are not masked.
        key: Value of the expression in `group: {by: …}`.
        whole: True under `credit: trajectory`, where a turn earns what its trajectory does.
        by_turn: True where the expression reads something that differs between turns.
    """
    groups: dict[tuple[str, object], list[NodeId]] = {}
    for node, counts in answered.items():
        own = sorted(other for other in answered if other[:2] == node[:2])
        if whole and not answered[own[-1]]:
            continue
        if counts if by_turn or not whole else node == own[0]:
            groups.setdefault((node.role, key(node)), []).append(node)
    return sorted(sorted(group) for group in groups.values())
