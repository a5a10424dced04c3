"""Random specs that are valid by construction; meaning.py computes their expected outcome."""

from __future__ import annotations

import asyncio
import json
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.records import NodeId
from rolegraph.engine.vocabulary import UNKNOWN, Environment, Transition, Unknown, environments
from tests.edge import decided, write_spec

NAMES = "abcde"
CALLEE = "helper"
"""Name of the role that others call."""
MOST_INSTANCES = 6
"""Largest number of instances of a role over which another role may fan out."""


class Turn(NamedTuple):
    """Turn that ran, with its action."""

    id: NodeId
    action: str
    failed: bool
    calls: int = 0
    """Number of calls of the model that were answered; each has `TOKENS` tokens."""
    has_result: bool = True
    """False for a turn of which others know only that it failed."""


TOKENS = 7
"""Tokens of each answer of the model, as its endpoint counts them."""
PARSER = {"regex": "([xy])", "default": "z"}
"""Parser of a tool's result: the first x or y in its text."""
Seen = Mapping[str, Sequence[Turn]]
Holds = Callable[[Seen, NodeId], bool | Unknown | None]
"""Evaluation of a condition: True, False, UNKNOWN, or None for an error."""


@dataclass
class Workflow:
    """Roles and loops of a spec, in the form of parsed YAML."""

    roles: dict[str, dict[str, Any]]
    loops: dict[str, dict[str, Any]]
    holds: dict[str, Holds] = field(default_factory=dict[str, Holds], repr=False)
    """Evaluation of each condition, by its text."""
    salt: int = 0
    """Seed for answers, failures and latencies."""

    def loops_of(self, role: str) -> list[dict[str, Any]]:
        """Return the loops around a role, the outermost first."""
        found = [(name, loop) for name, loop in self.loops.items() if role in loop["roles"]]
        around = [loop for loop in self.loops.values() if found and found[0][0] in loop["roles"]]
        return [*around, *(loop for _, loop in found)]

    def roles_of(self, loop: dict[str, Any]) -> list[str]:
        """Return the roles of a loop and of the loops in it, in the order of the spec."""
        return [role for role in self.roles or NAMES if loop in self.loops_of(role)]

    def env_of(self, role: str) -> dict[str, Any] | None:
        """Return the loop around a role that has an environment."""
        return next((loop for loop in self.loops_of(role) if "env" in loop), None)

    def places(self, role: str) -> list[tuple[int, ...]]:
        """Return the rounds of a role's turns, in order: in each loop around it, the outermost first."""
        return [*product(*(range(1, loop["times"] + 1) for loop in self.loops_of(role)))]

    def place(self, node: NodeId) -> tuple[int, ...]:
        """Return the round of a turn in each loop around it, the outermost first."""
        return self.places(node.role)[node.round - 1]

    def rounds(self, role: str) -> int:
        return len(self.places(role))

    def drawn(self, node: object, what: str) -> int:
        """Hash a turn or an environment step to a number, different for each purpose `what`."""
        return zlib.crc32(f"{self.salt} {what} {node}".encode())

    def action(self, node: NodeId) -> str | None:
        """Return the action of a turn; None if the turn fails."""
        return None if self.drawn(node, "fails") % 6 == 0 else "xyz"[self.drawn(node, "says") % 3]

    def runs(self, role: str) -> bool:
        """Return True if a role runs a tool instead of calling a model."""
        return "run" in self.roles[role]

    def votes(self, role: str) -> bool:
        """Return True if a role's tool is a vote; otherwise the tool writes a text."""
        return self.roles[role].get("run") == "majority"

    def uses(self, node: NodeId) -> int:
        """Return the number of tool calls before a turn's answer."""
        calls = self.roles[node.role].get("max_calls", 1)
        return 0 if self.action(node) is None else self.drawn(node, "uses") % calls

    def parallel(self, role: str) -> int:
        """Return the most calls of `CALLEE` in one answer of a role; 0 for a role that does not call it."""
        tools = self.roles[role].get("tools", ())
        return next((tool["parallel"] for tool in tools if "role" in tool), 0)

    def sharing(self, role: str) -> list[str]:
        """Return the roles that keep one conversation with a role, itself included."""
        memory = self.roles[role].get("memory")
        shared = isinstance(memory, dict) and "chat" in memory
        return [
            name
            for name, spec in self.roles.items()
            if name == role or (shared and (spec.get("memory") or {}) == memory)
        ]

    def fork(self, role: str) -> str | None:
        """Return the role from whose conversation a role goes on."""
        memory = self.roles[role].get("memory")
        return memory.get("fork") if isinstance(memory, dict) else None

    def reset(self, role: str) -> str | None:
        """Return the condition on which a role's conversation begins anew."""
        memory = self.roles[role].get("memory")
        return memory.get("reset") if isinstance(memory, dict) else None

    def callers(self) -> list[str]:
        return [role for role in self.roles if self.parallel(role)]

    def asks(self, node: NodeId, call: int) -> list[str]:
        """Return the arguments of the calls of `CALLEE` in one answer, of which one may be too many."""
        parallel = self.parallel(node.role)
        most = 1 + self.drawn((node, call), "asks") % (parallel + 1) if parallel else 0
        return [f"{node} asks {call} {number}" for number in range(1, most + 1)]

    def attempts(self, node: NodeId) -> int:
        """Return the number of model calls of a turn, with retries and tool calls."""
        retries = self.roles[node.role].get("on_failure", {}).get("retry", 0)
        return 1 + retries if self.action(node) is None else 1 + self.uses(node)

    def latency(self, node: object) -> float:
        """Return a latency in seconds, a multiple of 1/4, which floats represent exactly."""
        return self.drawn(node, "takes") % 8 / 4

    def transition(self, board: str, number: int, players: int, actions: Mapping[int, Any]) -> Transition:
        """Return the result of an environment's step: the observations of the next movers, or the end."""
        if number and self.drawn((board, number), "over") % 6 == 0:
            return Transition({}, done=True)
        movers = [p for p in range(players) if self.drawn((board, number, p), "moves") % 2] or [players - 1]
        return Transition({p: f"{board} {number} {p} {sorted(actions.items())}" for p in movers})


class World:
    """Environment whose transitions and latencies come from a workflow."""

    def __init__(self, workflow: Workflow, board: str) -> None:
        self.workflow, self.board, self.number, self.players = workflow, board, 0, 0

    async def reset(self, seed: int, players: int) -> Transition:
        self.players = players
        return await self._said({})

    async def step(self, actions: Mapping[int, Any]) -> Transition:
        self.number += 1
        return await self._said(actions)

    async def _said(self, actions: Mapping[int, Any]) -> Transition:
        if seconds := self.workflow.latency((self.board, self.number)):
            await asyncio.sleep(seconds)
        return self.workflow.transition(self.board, self.number, self.players, actions)

    async def close(self) -> None: ...


@contextmanager
def _known(workflow: Workflow) -> Iterator[None]:
    """Register a workflow's environment as `drawn` while its spec is compiled."""

    @environments.register("drawn")
    def drawn(board: str, /) -> Environment:
        return Environment(partial(World, workflow, board), 1, 99)

    try:
        yield
    finally:
        for table in ("_factories", "_definitions"):
            getattr(environments, table).pop("drawn", None)


def compiled(workflow: Workflow) -> Plan:
    spec = {
        "rolegraph": 2,
        "name": "drawn",
        "roles": {
            name: _written(role, moves=workflow.env_of(name) is not None)
            for name, role in workflow.roles.items()
        },
        "loops": workflow.loops,
    }
    with tempfile.TemporaryDirectory() as folder, _known(workflow):
        return compile_file(write_spec(Path(folder), json.dumps(decided(spec))))


def _written(role: dict[str, Any], *, moves: bool) -> dict[str, Any]:
    if "callable" in role:
        shown = "{{ self.arguments.about }};" + "".join(map(_shows, role["needs"]))
        return {**role, "prompt": shown}
    if role.get("run") == "text":
        return {**role, "run": {"text": "".join(map(_shows, role["needs"]))}}
    if "run" in role:
        return role
    board = "{{ self.observation }};" if moves else ""
    shown = board + "".join(map(_shows, role["needs"]))
    return {**role, "prompt": shown or "{{ '' }}"}


def _shows(name: str) -> str:
    shown = "NAME:{% for v in NAME %} {{ v.index }}.{{ v.outer }}.{{ v.round }}={{ v.action }}{% endfor %};"
    return shown.replace("NAME", name)


def prompt(workflow: Workflow, seen: Seen) -> str:
    """Return the expected rendering of the template that `_shows` builds."""

    def shown(turn: Turn) -> str:
        outer, number = (1, 1, *workflow.place(turn.id))[-2:]
        return f" {turn.id.index}.{outer}.{number}={turn.action if turn.has_result else ''}"

    return "".join(f"{name}:{''.join(map(shown, turns))};" for name, turns in seen.items())


# hypothesis strategies


@st.composite
def workflows(draw: st.DrawFn, *, chats: bool = False, forks: bool = False) -> Workflow:
    """Draw up to five roles that prompt a model, call tools or vote, with all kinds of edges and loops.

    With `chats`, most have as many instances, ask the model only, and keep one conversation; with `forks`
    they keep conversations that go on from each other's.
    """
    chats = chats or forks
    names = list(NAMES[: draw(st.integers(3 if chats else 1, len(NAMES)))])
    alike = draw(st.integers(1, 2))
    made = Workflow({}, draw(_loops(names)), salt=draw(st.integers(0, 1000)))
    instances: dict[str, int] = {}
    for place, name in enumerate(names):
        loops = made.loops_of(name)
        needs: dict[str, Any] = {}
        parents = 1
        for other in draw(_some(names[:place])):
            fanned = any(edge_of(edge)["fans"] for edge in needs.values())
            joins: list[Any] = ["all", "branch", {"of": other}]
            if not fanned and instances[other] <= MOST_INSTANCES:
                joins += [{"chunks": n} for n in (2, 3) if instances[other] % n == 0] + ["each", "each"]
            if made.loops_of(other) not in ([], loops):
                joins.append("history")
            edge = draw(st.sampled_from(joins))
            needs[f"the_{other}" if edge == {"of": other} else other] = edge
            if edge_of(edge)["fans"]:
                parents = instances[other] // edge_of(edge)["size"]
        for other in draw(
            _some([one for one in names if loops[:1] == made.loops_of(one)[:1]] if loops else [])
        ):
            inner = [one for loop in made.loops_of(other) if loop not in loops for one in loop["roles"]]
            edge = draw(
                st.sampled_from(["previous", "history"] if all(one < name for one in inner) else ["previous"])
            )
            branch = draw(st.booleans())
            needs[f"old_{other}"] = {"of": other, "round": edge, "join": "branch" if branch else "all"}
        count = draw(st.integers(1, max(1, min(3, MOST_INSTANCES // parents))))
        count = alike if chats and parents == 1 else count
        instances[name] = count * parents
        made.roles[name] = {"count": count, "needs": needs}
        if draw(st.booleans()):
            retry = {"retry": draw(st.integers(0, 2)), "then": draw(st.sampled_from(["zero", "mask"]))}
            made.roles[name]["on_failure"] = retry
        kind = draw(st.integers(0, 5)) if not chats else 2
        if kind == 0:
            made.roles[name]["run"] = draw(st.sampled_from(["majority", "text"])) if needs else "text"
            if draw(st.booleans()):
                made.roles[name]["parser"] = PARSER
        elif kind == 1:
            made.roles[name] |= {"tools": ["calculator"], "max_calls": draw(st.integers(2, 3))}
        if draw(st.integers(0, 2)) == 0:
            text, holds = draw(_when(list(needs), loops=bool(loops)))
            made.roles[name]["when"], made.holds[text] = text, holds
    draw(_memories(made, instances, st.just(True) if chats else st.booleans(), shares=not forks))
    for board, loop in made.loops.items():
        can = _players(made, loop)
        if board != "inner" and can and draw(st.integers(0, 2)) == 0:
            some = st.lists(st.sampled_from(can), unique=True, min_size=1)
            loop |= {"env": {"drawn": board}, "players": draw(some)}
        elif draw(st.booleans()):
            text, holds = draw(_until(made.roles_of(loop)))
            loop["until"], made.holds[text] = text, holds
        if draw(st.integers(0, 4)) == 0:
            text, is_true = draw(st.sampled_from(ABOUT_THE_TASK))
            loop["when"], made.holds[text] = text, partial(_constant, is_true)
    if draw(st.booleans()):
        draw(_calls_of_a_role(made))
    return made


@st.composite
def _calls_of_a_role(draw: st.DrawFn, made: Workflow) -> None:
    """Add a role that others call, and perhaps one that reads its answers."""
    names = list(made.roles)
    forked = {made.fork(name) for name in names}
    can = [
        name
        for name in names
        if not made.runs(name) and "memory" not in made.roles[name] and name not in forked
    ]
    callers = draw(st.lists(st.sampled_from(can), unique=True, min_size=1, max_size=2)) if can else []
    if not callers:
        return
    for name in callers:
        role = made.roles[name]
        parallel, calls = draw(st.integers(1, 2)), draw(st.integers(2, 3))
        tools = [*role.get("tools", ()), {"role": CALLEE, "parallel": parallel}]
        role |= {"tools": tools, "max_calls": max(calls, role.get("max_calls", 1))}
    # A player that waits for what its callee needs may wait for no other player.
    played = [made.roles_of(loop) for loop in made.loops.values() if {*callers} & {*loop.get("players", ())}]
    before = [n for n in names[: min(map(names.index, callers))] if not any(n in of for of in played)]
    needs = {other: draw(st.sampled_from(["all", "branch"])) for other in draw(_some(before))}
    signature = {"describe": "Helps.", "arguments": {"about": "string"}}
    made.roles[CALLEE] = {"callable": signature, "needs": needs}
    if draw(st.booleans()):
        made.roles[CALLEE]["on_failure"] = {"retry": 1}
    if draw(st.booleans()):
        join = draw(st.sampled_from(["all", "each", "branch"]))
        made.roles["reader"] = {"count": 1, "needs": {CALLEE: join, callers[0]: "all"}}


def _constant(value: bool | None, seen: Seen, me: NodeId) -> bool | None:
    return value


ABOUT_THE_TASK = [("task.id != ''", True), ("task.id == ''", False), ("task.id > 7", None)]
"""Conditions of loops, with their values for the task of the tests."""


@st.composite
def _memories(
    draw: st.DrawFn,
    made: Workflow,
    instances: Mapping[str, int],
    wanted: st.SearchStrategy[bool],
    *,
    shares: bool,
) -> None:
    """Give some roles memory: a conversation of their own in a loop, or one with roles that wait for them."""
    waits: dict[str, set[str]] = {}
    shared: list[str] = []
    for name, role in made.roles.items():
        waits[name] = set().union(*(_waited(made, name, *edge) for edge in role["needs"].items()))
        waits[name] |= {further for other in waits[name] for further in waits[other]}
        if made.runs(name) or not draw(wanted if shares else st.booleans()):
            continue
        first = shared[0] if shared else name
        alike = instances[name] == instances[first] and role.get("tools") == made.roles[first].get("tools")
        alike = alike and (shares or draw(st.booleans()))
        if alike and not waits[name] >= {*shared} and draw(wanted):
            role["needs"]["before"] = {"of": shared[-1]}
            waits[name] |= {*shared, *_waited(made, name, "before", {"of": shared[-1]})}
        if alike and waits[name] >= {*shared}:
            shared.append(name)
        elif made.loops_of(name):
            role["memory"] = "chat"
    for name in shared:
        if len(shared) > 1 or made.loops_of(name):
            made.roles[name]["memory"] = {"chat": "shared"}
    for name, role in made.roles.items():
        if role.get("memory") in (None, "chat") and not made.runs(name) and draw(wanted):
            draw(_fork(made, waits, instances, name))
        memory = role.get("memory")
        if (memory == "chat" or "fork" in (memory or {})) and draw(st.booleans()):
            text, holds = draw(_when(list(role["needs"]), loops=bool(made.loops_of(name))))
            kept = {} if memory == "chat" else memory
            role["memory"], made.holds[text] = {**kept, "reset": text}, holds


@st.composite
def _fork(
    draw: st.DrawFn,
    made: Workflow,
    waits: dict[str, set[str]],
    instances: Mapping[str, int],
    name: str,
) -> None:
    """Let a role go on from the conversation of another that it waits for, or now waits for."""
    role = made.roles[name]
    for other in draw(st.permutations([other for other in made.roles if other < name])):
        waited = waits[name] | {other} | waits[other] | _waited(made, name, "trunk", {"of": other})
        if _can_fork(made, waited, instances, name, other):
            if other not in waits[name]:
                role["needs"]["trunk"] = {"of": other}
            waits[name], role["memory"] = waited, {"fork": other}
            return


def _can_fork(made: Workflow, waits: set[str], instances: Mapping[str, int], name: str, other: str) -> bool:
    """Return whether a role that waits for others may go on from the conversation of one of them."""
    mine, theirs = made.roles[name], made.roles[other]
    fans = [key for key, edge in mine["needs"].items() if edge_of(edge)["fans"]]
    each = instances[other] == 1 or (other in fans and edge_of(mine["needs"][other])["size"] == 1)
    line, last = [*made.sharing(other)], other
    while (last := made.fork(last)) is not None:
        line += made.sharing(last)
    return (
        (each or (instances[name] == instances[other] and not fans))
        and not made.runs(other)
        and mine.get("tools") == theirs.get("tools")
        and waits >= {*line}
    )


def _waited(made: Workflow, name: str, key: str, written: Any) -> set[str]:
    """Return the roles that a role waits for by one edge: another, or all of a loop that it is not in."""
    edge = edge_of(written)
    other = edge["of"] or key
    mine, theirs = made.loops_of(name), made.loops_of(other)
    beyond = [loop for loop in theirs if loop not in mine]
    if beyond and (edge["round"] != "previous" or len(beyond) == len(theirs)):
        return {*made.roles_of(beyond[0])}
    return {other} if edge["round"] == "this" and other != name and not beyond else set()


def _players(made: Workflow, loop: dict[str, Any]) -> list[str]:
    """Return roles that can be players: each calls a model, and none waits for another in the same round."""
    waits: dict[str, set[str]] = {}
    for role in made.roles_of(loop):
        edges = [(key, edge_of(edge)) for key, edge in made.roles[role]["needs"].items()]
        # The history of a role of an inner loop has its turns of this round of the outer loop.
        direct = {edge["of"] or key for key, edge in edges if edge["round"] in ("this", "history")}
        direct &= waits.keys()
        waits[role] = direct.union(*(waits[other] for other in direct))
    players: list[str] = []
    for role in [role for role in loop["roles"] if role in made.roles]:
        if not made.runs(role) and not waits[role] & {*players}:
            players.append(role)
    return players


@st.composite
def _loops(draw: st.DrawFn, names: list[str]) -> dict[str, dict[str, Any]]:
    """Draw loops over neighbouring roles, so that the graph stays acyclic."""
    loops: dict[str, dict[str, Any]] = {}
    rest = names
    for name in ("first", "second"):
        size = draw(st.integers(0, len(rest)))
        skipped = draw(st.integers(0, len(rest) - size))
        if size:
            times = draw(st.integers(1, 4))
            loops[name] = {"roles": rest[skipped : skipped + size], "times": times}
        rest = rest[skipped + size :]
    if (outer := loops.get("first")) and draw(st.booleans()):
        roles = outer["roles"]
        start = draw(st.integers(0, len(roles) - 1))
        end = draw(st.integers(start + 1, len(roles)))
        outer["roles"] = [*roles[:start], "inner", *roles[end:]]
        loops["inner"] = {"roles": roles[start:end], "times": draw(st.integers(1, 3))}
    return loops


def _some(names: Sequence[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), unique=True, max_size=2) if names else st.just([])


@st.composite
def _when(draw: st.DrawFn, needs: list[str], *, loops: bool) -> tuple[str, Holds]:
    odd: tuple[str, Holds] = ("self.index % 2 == 1", lambda seen, me: me.index % 2 == 1)
    choices: list[tuple[str, Holds]] = [odd, ("self.index == 1", lambda seen, me: me.index == 1)]
    if loops:
        choices.append(("self.history | length < 2", lambda seen, me: len(seen["self"]) < 2))
    if needs:
        choices += _of(draw(st.sampled_from(needs)))
    return draw(st.sampled_from(choices))


@st.composite
def _until(draw: st.DrawFn, inside: list[str]) -> tuple[str, Holds]:
    first, other = draw(st.sampled_from(inside)), draw(st.sampled_from(inside))
    both: tuple[str, Holds] = (
        f"{first} | length + {other} | length == 2",
        lambda seen, me: len(seen[first]) + len(seen[other]) == 2,
    )
    return draw(st.sampled_from([*_of(first), both]))


def _of(name: str) -> list[tuple[str, Holds]]:
    said = f"{name} | map(attribute='action') | join"
    return [
        (f"{name} | length > 0", lambda seen, me: len(seen[name]) > 0),
        (f"{name} | length == 0", lambda seen, me: not seen[name]),
        (f"'x' in {said}", lambda seen, me: any("x" in it for it in _actions(seen[name]))),
        (f"'y' not in {said}", lambda seen, me: all("y" not in it for it in _actions(seen[name]))),
        (f"{said} > 3", lambda seen, me: None),
        (
            f"{name} | sum(attribute='calls') > 1",
            lambda seen, me: _calls(seen[name], lambda calls: calls > 1),
        ),
        (
            f"{name} | sum(attribute='tokens') == {TOKENS}",
            lambda seen, me: _calls(seen[name], lambda calls: calls == 1),
        ),
    ]


def _actions(turns: Sequence[Turn]) -> list[str]:
    return [turn.action for turn in turns if turn.has_result]


def _calls(turns: Sequence[Turn], holds: Callable[[int], bool]) -> bool | Unknown:
    is_known = all(turn.has_result for turn in turns)
    return holds(sum(turn.calls for turn in turns)) if is_known else UNKNOWN


def edge_of(written: Any) -> dict[str, Any]:
    """Expand the short forms of an edge to a dict of `of`, `fans`, `size`, `branch` and `round`."""
    if isinstance(written, str):
        key = "round" if written in ("previous", "history") else "join"
        written = {key: written}
    size = written.get("chunks", 1)
    fans = "chunks" in written or written.get("join") == "each"
    branch = written.get("join") == "branch"
    return {"of": written.get("of"), "fans": fans, "size": size, "branch": branch} | {
        "round": written.get("round", "this")
    }
