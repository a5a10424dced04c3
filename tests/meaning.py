"""Reference implementation of the language, to compare with the engine on random workflows.

`expected` follows docs/language/ turn by turn, by recursion, without tables, counters or an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from rolegraph.engine.records import NodeId
from rolegraph.engine.vocabulary import UNKNOWN, Transition
from tests.workflows import CALLEE, Seen, Turn, Workflow, edge_of, prompt


@dataclass
class Expected:
    """Expected outcome of one episode of a workflow."""

    turns: dict[NodeId, Turn | None]
    """Turns by node; None for a skipped node."""
    prompts: dict[NodeId, list[str]]
    """Messages of each turn's first call."""
    seconds: float
    """End of the episode, in virtual seconds."""
    uncomputed: int
    awaited: dict[NodeId, frozenset[NodeId]]
    """For each turn, all turns that end before it starts, whatever is skipped."""
    afterwards: dict[NodeId, dict[str, list[Turn]]]
    """For each turn that was taken, the turns of each role that a text reads which is rendered after the
    episode for this turn: a teacher's prompt, or a gate."""
    rewarding: dict[NodeId, dict[str, list[Turn]]]
    """For each turn that a role outside of loops took, the turns of each role that a likelihood reads."""
    beside: dict[NodeId, dict[str, list[Turn]]]
    """For each turn that was taken, the turns of each other role that an expression of its reward reads."""
    branch: Callable[[NodeId, str], list[int]]
    """Instances of a role, from 1, on the branch of a turn."""


def expected(workflow: Workflow) -> Expected:
    """Compute the outcome of a workflow, by recursion from each turn to the turns it waits for."""
    prompts: dict[NodeId, list[str]] = {}
    settled: dict[NodeId, float] = {}
    restarted: set[NodeId] = set()
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
            for call in range(1, workflow.roles[role]["max_calls"])
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
        other = edge["of"]
        members = list(all_of(other))
        if edge["fans"]:
            members = instances(me.role)[me.index - 1][1]
        elif edge["branch"]:
            members = branch(me, other)
        mine, shared = workflow.loops_of(me.role), 0
        for one, another in zip(mine, workflow.loops_of(other), strict=False):
            shared += one is another
        here = workflow.place(me)[:shared]

        def reads(place: tuple[int, ...]) -> bool:
            match edge["round"]:
                case "this":
                    return place[:shared] == here
                case "previous":
                    return place[:shared] == (*here[:-1], here[-1] - 1)
                case _:
                    inside = len(place) > shared
                    return place[:shared] < here or (inside and place[:shared] == here)

        rounds = [number for number, place in enumerate(workflow.places(other), 1) if reads(place)]
        return [[NodeId(other, m, r) for r in rounds] for m in members], edge["round"] != "history"

    def seen(me: NodeId, edge: dict[str, Any]) -> list[Turn]:
        by_instance, only_last = joined(me, edge)
        found: list[Turn] = []
        for nodes in by_instance:
            ran = [turn for node in nodes if (turn := happens(node)) is not None]
            found += ran[-1:] if only_last else ran
        return found if only_last else sorted(found, key=lambda turn: (turn.id.round, turn.id.index))

    def holds(text: str, views: Seen, me: NodeId) -> bool:
        nonlocal uncomputed
        said = workflow.holds[text](views, me)
        uncomputed += said is None or said is UNKNOWN
        return bool(said)

    def ends(me: NodeId, depth: int) -> list[list[NodeId]]:
        """Return the nodes, by instance, that the `until` of one of a turn's loops reads before the turn's
        round in that loop; none in its first round."""
        loop, here = workflow.loops_of(me.role)[depth], workflow.place(me)
        if "until" not in loop or here[depth] == 1:
            return []
        before = (*here[:depth], here[depth] - 1)
        return [
            [
                NodeId(role, number, round)
                for round, place in enumerate(workflow.places(role), 1)
                if place[: depth + 1] == before
            ]
            for role in workflow.roles_of(loop)
            if f"{role} | " in loop["until"]
            for number in branch(me, role)
        ]

    def asked(me: NodeId) -> list[NodeId]:
        """Return all nodes that the conditions of a turn's loops read before it."""
        depths = range(len(workflow.loops_of(me.role)))
        return [node for depth in depths for nodes in ends(me, depth) for node in nodes]

    refused = {
        name
        for name, loop in workflow.loops.items()
        if "when" in loop and not holds(loop["when"], {}, NodeId("", 0, 0))
    }

    def skipped(name: str) -> bool:
        """Return whether the condition of a loop, or of the loop around it, is false."""
        around = (outer for outer, loop in workflow.loops.items() if name in loop["roles"])
        return name in refused or any(map(skipped, around))

    def left_out(me: NodeId) -> bool:
        return any(skipped(name) for name, loop in workflow.loops.items() if me.role in loop["roles"])

    @cache
    def board(name: str, round: int) -> tuple[int, Transition, float]:
        """Return an environment's step count, transition and time at the start of a round."""
        loop = workflow.loops[name]
        players = [(role, number) for role in loop["players"] for number in all_of(role)]
        if round == 1:
            opening = workflow.transition(name, 0, len(players), {})
            return 0, opening, 0.0 if skipped(name) else workflow.latency((name, 0))
        number, before, since = board(name, round - 1)
        turns = [happens(NodeId(*player, round - 1)) for player in players]
        since = max([since, *(settled[NodeId(*player, round - 1)] for player in players)])
        actions = {player: turn.action for player, turn in enumerate(turns) if turn is not None}
        if before.done or not actions:
            return number, before, since
        after = workflow.transition(name, number + 1, len(players), actions)
        return number + 1, after, since + workflow.latency((name, number + 1))

    def board_of(me: NodeId) -> tuple[int, Transition, float]:
        """Return the environment of a turn's loop at the start of the turn's round."""
        loop = workflow.env_of(me.role)
        assert loop is not None
        return board(loop["env"]["drawn"], workflow.place(me)[0])

    def observed(me: NodeId) -> str | None:
        """Return the observation in a turn's prompt; None if the environment does not let the player move."""
        loop = workflow.env_of(me.role)
        if loop is None:
            return ""
        seen = board_of(me)[1]
        if me.role not in loop["players"]:
            return "\n\n".join(seen.observations.values()) + ";"
        players = [(role, number) for role in loop["players"] for number in all_of(role)]
        shown = seen.observations.get(players.index((me.role, me.index)))
        return None if shown is None else shown + ";"

    def over(me: NodeId) -> bool:
        if workflow.env_of(me.role) is not None and board_of(me)[1].done:
            return True
        return any(over_in(me, depth) for depth in range(len(workflow.loops_of(me.role))))

    @cache
    def over_in(me: NodeId, depth: int) -> bool:
        """Return whether one of a turn's loops ended by its condition before the turn's round in it."""
        before, loop, here = ends(me, depth), workflow.loops_of(me.role)[depth], workflow.place(me)
        if not before:
            return False
        earlier = workflow.places(me.role).index((*here[:depth], here[depth] - 1, *here[depth + 1 :]))
        read = [node for nodes in before for node in nodes]
        if over_in(me._replace(round=earlier + 1), depth) or all(over(node) for node in read):
            return True
        ran = [[turn for node in nodes if (turn := happens(node)) is not None] for nodes in before]
        turns = [turn for each in ran for turn in each[-1:]]
        roles = workflow.roles_of(loop)
        views = {role: [turn for turn in turns if turn.id.role == role] for role in roles}
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

    def said_before(me: NodeId) -> list[NodeId]:
        """Return the earlier turns of a turn's conversation and of those that it goes on from, latest
        first."""
        if workflow.roles[me.role].get("memory") is None:
            return []
        role: str | None = me.role
        index, turns = me.index, list[NodeId]()
        while role is not None:
            turns += [
                NodeId(other, index, round)
                for other in workflow.sharing(role)
                for round in range(1, workflow.rounds(other) + 1)
            ]
            if (trunk := workflow.fork(role)) is not None:
                theirs = branch(NodeId(role, index), trunk)
                index = theirs[0] if len(theirs) == 1 else index
            role = trunk
        earlier = [turn for turn in turns if precedes(turn, me)]
        return sorted(earlier, key=lambda turn: -sum(precedes(other, turn) for other in earlier))

    def precedes(one: NodeId, other: NodeId) -> bool:
        """Return whether one turn of a conversation is before another: in an earlier round of the loops that
        both roles are in, or in the same round of a role that the other waits for."""
        pairs = zip(workflow.loops_of(one.role), workflow.loops_of(other.role), strict=False)
        shared = sum(mine is theirs for mine, theirs in pairs)
        before, after = workflow.place(one)[:shared], workflow.place(other)[:shared]
        return before < after or (before == after and one.role < other.role)

    def conversation(me: NodeId) -> list[str]:
        """Return the messages that a turn finds in its conversation."""
        for node in said_before(me):
            turn = happens(node)
            if turn is not None and not turn.failed:
                return [*prompts[node], *["", "7"] * workflow.uses(node), turn.action]
            if node in restarted:
                return []
        return []

    def begins_anew(me: NodeId, views: Seen) -> bool | None:
        """Return whether a turn begins its conversation anew; None where that cannot be computed."""
        reset = workflow.reset(me.role)
        if reset is None or not conversation(me):
            return False
        history = [me._replace(round=number) for number in range(1, me.round)]
        own = [turn for node in history if (turn := happens(node)) is not None]
        holds = workflow.holds[reset]({**views, "self": own}, me)
        if holds:
            restarted.add(me)
        return None if holds is None else bool(holds)

    def vote(me: NodeId, views: Seen) -> Turn:
        voters = [turn for turns in views.values() for turn in turns]
        votes = [turn.action for turn in voters if not turn.failed]
        if voters and not votes:
            return Turn(
                me, f"nothing to choose from: all of {', '.join(views)} failed", failed=True, has_result=False
            )
        if not votes:
            return Turn(
                me, f"nothing to choose from: none of {', '.join(views)} ran", failed=True, has_result=False
            )
        return Turn(me, max(votes, key=lambda action: (votes.count(action), -votes.index(action))), False)

    def parsed(turn: Turn) -> Turn:
        """Return a tool's turn with the action that its role's parser reads in its result, if it has one."""
        parser = workflow.roles[turn.id.role].get("parser")
        found = [letter for letter in turn.action if letter in "xy"]
        if parser is None or (found and not turn.failed):
            return turn if parser is None else turn._replace(action=found[-1])
        return Turn(turn.id, parser["default"], failed=True, has_result=turn.has_result)

    def waits(me: NodeId) -> list[NodeId]:
        if me.role == CALLEE:
            return [slots()[me.index - 1][0]]
        edges = edges_of(me.role)
        if workflow.parallel(me.role):
            edges = edges + edges_of(CALLEE)
        return (
            [node for _, edge in edges for nodes in joined(me, edge)[0] for node in nodes]
            + asked(me)
            + own_turns(me)
            + said_before(me)
        )

    @cache
    def awaited(me: NodeId) -> frozenset[NodeId]:
        """Return all turns that a turn waits for, directly or through others and steps of the environment."""
        direct = waits(me)
        if (loop := workflow.env_of(me.role)) is not None:
            players = [(role, number) for role in loop["players"] for number in all_of(role)]
            rounds = range(1, workflow.rounds(loop["players"][0]) + 1)
            direct += [NodeId(*player, n) for player in players for n in rounds if n < workflow.place(me)[0]]
        return frozenset(direct).union(*map(awaited, direct))

    @cache
    def opens(me: NodeId) -> float:
        """Return the time at which the last dependency of a turn is settled."""
        waited = waits(me)
        for node in waited:
            happens(node)
        since = board_of(me)[2] if workflow.env_of(me.role) is not None else 0.0
        return max([since, *(settled[node] for node in waited)])

    def answers(me: NodeId, shown: str, views: Seen) -> Turn:
        """Take the turn of a role with a model, and of those that it calls."""
        anew = begins_anew(me, views)
        if anew is None:
            return Turn(me, "", failed=True, has_result=False)
        prompts[me] = [*([] if anew else conversation(me)), shown + prompt(workflow, views)]
        for number in range(1, workflow.uses(me) + 1):
            settled[me] += workflow.latency(me)
            helpers = called(me, number)
            settled[me] += max((workflow.attempts(it) * workflow.latency(it) for it in helpers), default=0)
        settled[me] += (workflow.attempts(me) - workflow.uses(me)) * workflow.latency(me)
        action = workflow.action(me)
        calls = 0 if action is None else workflow.attempts(me)
        return Turn(me, action or "", action is None, calls, action is not None)

    def helps(me: NodeId) -> Turn | None:
        """Take the turn of a role that is called, if it is; it sees what its caller would."""
        caller, number, place = slots()[me.index - 1]
        if happens(caller) is None or number > workflow.uses(caller) or me not in called(caller, number):
            return None
        views = {key: seen(caller, edge) for key, edge in edges_of(CALLEE)}
        prompts[me] = [f"{workflow.asks(caller, number)[place]};{prompt(workflow, views)}"]
        action = workflow.action(me)
        return Turn(me, action or "", action is None, 0 if action is None else 1, action is not None)

    @cache
    def happens(me: NodeId) -> Turn | None:
        settled[me] = opens(me)
        if me.role == CALLEE:
            return helps(me)
        if left_out(me) or over(me):
            return None
        shown = observed(me)
        if shown is None:
            return None
        views = {key: seen(me, edge) for key, edge in edges_of(me.role)}
        if not runs(me, views):
            return None
        if workflow.runs(me.role):
            written = Turn(me, prompt(workflow, views), failed=False)
            return parsed(vote(me, views) if workflow.votes(me.role) else written)
        return answers(me, shown, views)

    turns = {
        node: happens(node)
        for role in workflow.roles
        for round in range(1, workflow.rounds(role) + 1)
        for index in all_of(role)
        for node in [NodeId(role, index, round)]
    }

    def afterwards(me: NodeId) -> dict[str, list[Turn]]:
        """Return what a teacher's prompt of a turn reads: the names in `needs` as in the role's prompt, other
        roles on the turn's branch and in its round, and all instances of the role itself."""
        needed = {key: seen(me, edge) for key, edge in edges_of(me.role)}
        return {**beside(me), **needed}

    def beside(me: NodeId) -> dict[str, list[Turn]]:
        """Return the turns of each role on a turn's branch and in its round; of its own role all of them."""
        return {
            other: seen(me, {"of": other, "fans": False, "branch": other != me.role, "round": "this"})
            for other in workflow.roles
            if CALLEE not in (other, me.role)
        }

    def rewarding(me: NodeId) -> dict[str, list[Turn]]:
        """Return what a reward of a turn reads of each role: the last turn that ran of each instance on the
        turn's branch."""
        found: dict[str, list[Turn]] = {}
        for other in workflow.roles:
            rounds = range(1, workflow.rounds(other) + 1)
            of_each = [
                [turn for n in rounds if (turn := happens(NodeId(other, number, n))) is not None]
                for number in branch(me, other)
            ]
            found[other] = [turns[-1] for turns in of_each if turns]
        return found

    played = [board(name, loop["times"] + 1)[2] for name, loop in workflow.loops.items() if "env" in loop]
    seconds = max([*settled.values(), *played])
    read = {node: afterwards(node) for node, turn in turns.items() if turn is not None}
    near = {node: beside(node) for node in read}
    paid = {node: rewarding(node) for node in read if not workflow.loops_of(node.role)}
    return Expected(
        turns, prompts, seconds, uncomputed, {node: awaited(node) for node in turns}, read, paid, near, branch
    )


def taught(
    student: list[float], teacher: list[float], coefficient: float, gate: float, clip: float | None
) -> list[float]:
    """Return the advantages that a teacher gives the tokens of a turn, by the definition of `reverse_kl`.

    Args:
        student: Log-probabilities of the sampled tokens, by the weights that sampled them.
        teacher: Those of the same tokens after the teacher's prompt.
        coefficient: Factor of each difference.
        gate: Factor of the turn.
        clip: Bound of each difference; None for no bound.
    """
    advantages: list[float] = []
    for here, there in zip(student, teacher, strict=True):
        gap = there - here
        if clip is not None and abs(gap) > clip:
            gap = clip if gap > 0 else -clip
        advantages.append(coefficient * gate * gap)
    return advantages


def compared(
    answered: Mapping[tuple[str, int], Mapping[NodeId, bool]],
    key: Callable[[str, NodeId], object],
    *,
    whole: bool,
    by_turn: bool,
    over_batch: bool = False,
) -> list[list[tuple[str, int, NodeId]]]:
    """Return the groups of a step's episodes, each member by task, rollout and its first turn.

    Args:
        answered: By task and rollout, the answered turns of trained roles; True for those that are not
            masked.
        key: Value of the expression in `group: {by: …}`, for a task and a turn.
        whole: True under `credit: trajectory`, where a turn earns what its trajectory does.
        by_turn: True where the expression reads something that differs between turns.
        over_batch: True under `over: batch`, where the members of all tasks with one value are compared.
    """
    groups: dict[object, list[tuple[str, int, NodeId]]] = {}
    for (task, rollout), turns in answered.items():
        for node, counts in turns.items():
            own = sorted(other for other in turns if other[:2] == node[:2])
            if whole and not turns[own[-1]]:
                continue
            if counts if by_turn or not whole else node == own[0]:
                shared = "all tasks" if over_batch else task
                groups.setdefault((shared, node.role, key(task, node)), []).append((task, rollout, node))
    return sorted(sorted(group) for group in groups.values())


def scheduled(first: float, last: float, steps: int, after: int, step: int) -> float:
    """Return the value of `ramp(first, last, steps, after)`, update by update.

    Args:
        first: Value of the first step.
        last: Value at the end.
        steps: Number of updates that move it.
        after: Number of updates before it moves.
        step: Step of the training, from 1.
    """
    value = first
    for update in range(1, step):
        value += (last - first) / steps if after < update <= after + steps else 0.0
    return value


def stage_of(lengths: list[int], step: int) -> int | None:
    """Return the number of the stage that a step of a training is in, counting the steps one by one.

    Args:
        lengths: `steps` of each stage.
        step: Step of the training, from 1.

    Returns:
        The number, from 1; None for a step of RL.
    """
    steps = [number for number, length in enumerate(lengths, 1) for _ in range(length)]
    return steps[step - 1] if step <= len(steps) else None
