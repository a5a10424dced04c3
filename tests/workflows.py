"""Random specs that are valid by construction, and a second, simple reading of what they mean.

`expected` follows docs/language.md turn by turn, by recursion: no tables, no counters, no event loop. What
the engine does is held against it.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from engine.compile import Plan, compile_file
from engine.records import NodeId
from tests.edge import write_spec

NAMES = "abcde"
MOST_INSTANCES = 6
"""Of a role."""


class Turn(NamedTuple):
    """A turn that was taken."""

    id: NodeId
    action: str
    failed: bool


Seen = Mapping[str, Sequence[Turn]]
Holds = Callable[[Seen, NodeId], bool | None]
"""Whether a condition is true; None where it cannot be computed."""


@dataclass
class Workflow:
    """A spec's roles and loops as YAML has them."""

    roles: dict[str, dict[str, Any]]
    loops: dict[str, dict[str, Any]]
    holds: dict[str, Holds] = field(default_factory=dict[str, Holds], repr=False)
    """What the text of each condition means."""
    salt: int = 0
    """Sets answers, failures and latencies apart."""

    def loop_of(self, role: str) -> dict[str, Any] | None:
        return next((loop for loop in self.loops.values() if role in loop["roles"]), None)

    def rounds(self, role: str) -> int:
        loop = self.loop_of(role)
        return loop["times"] if loop else 1

    def drawn(self, node: NodeId, what: str) -> int:
        """A number that is the same for the same turn."""
        return zlib.crc32(f"{self.salt} {what} {node}".encode())

    def action(self, node: NodeId) -> str | None:
        """What a turn comes to; None where it fails."""
        return None if self.drawn(node, "fails") % 6 == 0 else "xyz"[self.drawn(node, "says") % 3]

    def runs(self, role: str) -> bool:
        """Whether it votes in place of asking a model."""
        return "run" in self.roles[role]

    def uses(self, node: NodeId) -> int:
        """How often a turn calls a tool before it answers."""
        calls = self.roles[node.role].get("calls", 1)
        return 0 if self.action(node) is None else self.drawn(node, "uses") % calls

    def attempts(self, node: NodeId) -> int:
        """How often a turn asks."""
        retries = self.roles[node.role].get("on_failure", {}).get("retry", 0)
        return 1 + retries if self.action(node) is None else 1 + self.uses(node)

    def latency(self, node: NodeId) -> float:
        """In steps that floats hold exactly."""
        return self.drawn(node, "takes") % 8 / 4


def compiled(workflow: Workflow) -> Plan:
    spec = {
        "rolegraph": 1,
        "name": "drawn",
        "roles": {name: _written(role) for name, role in workflow.roles.items()},
        "loops": workflow.loops,
    }
    with tempfile.TemporaryDirectory() as folder:
        return compile_file(write_spec(Path(folder), json.dumps(spec)))


def _written(role: dict[str, Any]) -> dict[str, Any]:
    if "run" in role:
        return role
    return {**role, "prompt": {"inline": "".join(map(_shows, role["needs"]))}, "trainable": False}


def _shows(name: str) -> str:
    shown = "NAME:{% for v in NAME %} {{ v.index }}.{{ v.round }}={{ v.action }}{% endfor %};"
    return shown.replace("NAME", name)


def prompt(seen: Seen) -> str:
    """What `_shows` renders to."""
    return "".join(
        f"{name}:{''.join(f' {t.id.index}.{t.id.round}={t.action}' for t in turns)};"
        for name, turns in seen.items()
    )


# what may be drawn


@st.composite
def workflows(draw: st.DrawFn) -> Workflow:
    """Up to five roles that ask, call tools or vote, joined in every way; loops, conditions and ends."""
    names = list(NAMES[: draw(st.integers(1, len(NAMES)))])
    made = Workflow({}, draw(_loops(names)), salt=draw(st.integers(0, 1000)))
    instances: dict[str, int] = {}
    for place, name in enumerate(names):
        loop = made.loop_of(name)
        needs: dict[str, Any] = {}
        parents = 1
        for other in draw(_some(names[:place])):
            fanned = any(_edge(edge)["fans"] for edge in needs.values())
            joins: list[Any] = ["all", "branch", {"of": other}]
            if not fanned and instances[other] <= MOST_INSTANCES:
                joins += [{"chunks": n} for n in (2, 3) if instances[other] % n == 0] + ["each", "each"]
            if made.loop_of(other) not in (None, loop):
                joins.append("history")
            edge = draw(st.sampled_from(joins))
            needs[f"the_{other}" if edge == {"of": other} else other] = edge
            if _edge(edge)["fans"]:
                parents = instances[other] // _edge(edge)["size"]
        for other in draw(_some(loop["roles"])) if loop else ():
            edge = draw(st.sampled_from(["last", "history"]))
            branch = draw(st.booleans())
            needs[f"old_{other}"] = {"of": other, "round": edge, "join": "branch" if branch else "all"}
        count = draw(st.integers(1, max(1, min(3, MOST_INSTANCES // parents))))
        instances[name] = count * parents
        made.roles[name] = {"count": count, "needs": needs}
        if draw(st.booleans()):
            retry = {"retry": draw(st.integers(0, 2)), "then": draw(st.sampled_from(["zero", "mask"]))}
            made.roles[name]["on_failure"] = retry
        kind = draw(st.integers(0, 5))
        if kind == 0 and needs:
            made.roles[name]["run"] = "majority"
        elif kind == 1:
            made.roles[name] |= {"tools": ["calculator"], "calls": draw(st.integers(2, 3))}
        if draw(st.integers(0, 2)) == 0:
            text, holds = draw(_when(list(needs)))
            made.roles[name]["when"], made.holds[text] = text, holds
    for loop in made.loops.values():
        if draw(st.booleans()):
            text, holds = draw(_until(loop["roles"]))
            loop["until"], made.holds[text] = text, holds
    return made


@st.composite
def _loops(draw: st.DrawFn, names: list[str]) -> dict[str, dict[str, Any]]:
    """Loops over neighbours, so that no circle comes about."""
    loops: dict[str, dict[str, Any]] = {}
    rest = names
    for name in ("first", "second"):
        size = draw(st.integers(0, len(rest)))
        skipped = draw(st.integers(0, len(rest) - size))
        if size:
            times = draw(st.integers(1, 4))
            loops[name] = {"roles": rest[skipped : skipped + size], "times": times}
        rest = rest[skipped + size :]
    return loops


def _some(names: Sequence[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), unique=True, max_size=2) if names else st.just([])


@st.composite
def _when(draw: st.DrawFn, needs: list[str]) -> tuple[str, Holds]:
    odd: tuple[str, Holds] = ("self.index % 2 == 1", lambda seen, me: me.index % 2 == 1)
    choices = [odd, ("self.index == 1", lambda seen, me: me.index == 1)]
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
        (f"'x' in {said}", lambda seen, me: any(turn.action == "x" for turn in seen[name])),
        (f"'y' not in {said}", lambda seen, me: all(turn.action != "y" for turn in seen[name])),
        (f"{said} > 3", lambda seen, me: None),
    ]


# what it means


def _edge(written: Any) -> dict[str, Any]:
    """An edge in full, and in words of its own."""
    if isinstance(written, str):
        key = "round" if written in ("last", "history") else "join"
        written = {key: written}
    size = written.get("chunks", 1)
    fans = "chunks" in written or written.get("join") == "each"
    branch = written.get("join") == "branch"
    return {"of": written.get("of"), "fans": fans, "size": size, "branch": branch} | {
        "round": written.get("round", "this")
    }


@dataclass
class Expected:
    """What happens in an episode of a workflow."""

    turns: dict[NodeId, Turn | None]
    """None for one that is skipped."""
    prompts: dict[NodeId, str]
    settled: dict[NodeId, float]
    """When each is over, in seconds."""
    uncomputed: int


def expected(workflow: Workflow) -> Expected:
    """By recursion from each turn to those that it waits for."""
    prompts: dict[NodeId, str] = {}
    settled: dict[NodeId, float] = {}
    uncomputed = 0

    @cache
    def instances(role: str) -> list[tuple[dict[str, set[int]], list[int]]]:
        """Each instance's lineage and its parents."""
        spec, made = workflow.roles[role], list[tuple[dict[str, set[int]], list[int]]]()
        edges = [(edge["of"] or key, edge) for key, edge in edges_of(role)]
        fan = next(((other, edge["size"]) for other, edge in edges if edge["fans"]), None)
        numbers = range(1, len(instances(fan[0])) + 1) if fan else ()
        groups = [list(numbers[at : at + fan[1]]) for at in range(0, len(numbers), fan[1])] if fan else [[]]
        for parents in groups:
            before = dict[str, set[int]]()
            joined = [(other, n) for other, edge in edges if edge["round"] == "this" for n in all_of(other)]
            for other, number in [(fan[0], n) for n in parents] if fan else joined:
                for name, own in instances(other)[number - 1][0].items():
                    before.setdefault(name, set()).update(own)
            for _ in range(spec["count"]):
                made.append(({**before, role: {len(made) + 1}}, parents))
        return made

    def all_of(role: str) -> range:
        return range(1, len(instances(role)) + 1)

    def edges_of(role: str) -> list[tuple[str, dict[str, Any]]]:
        return [
            (key, {**_edge(edge), "of": _edge(edge)["of"] or key})
            for key, edge in workflow.roles[role]["needs"].items()
        ]

    def branch(me: NodeId, other: str) -> list[int]:
        mine = instances(me.role)[me.index - 1][0]

        def shares(theirs: dict[str, set[int]]) -> bool:
            return all(mine[role] & theirs[role] for role in mine.keys() & theirs.keys())

        return [number for number in all_of(other) if shares(instances(other)[number - 1][0])]

    def joined(me: NodeId, edge: dict[str, Any]) -> tuple[list[list[NodeId]], bool]:
        """By instance the turns that an edge joins, and whether only the last that ran is seen."""
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
        """The turns that the end of a turn's loop is read from."""
        loop = workflow.loop_of(me.role)
        if loop is None or "until" not in loop or me.round == 1:
            return []
        read = [role for role in loop["roles"] if f"{role} | " in loop["until"]]
        return [NodeId(role, number, me.round - 1) for role in read for number in branch(me, role)]

    @cache
    def over(me: NodeId) -> bool:
        before, loop = ends(me), workflow.loop_of(me.role)
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
        return when is None or holds(when, views, me)

    def vote(me: NodeId, views: Seen) -> Turn:
        voters = [turn for turns in views.values() for turn in turns]
        votes = [turn.action for turn in voters if not turn.failed] or [turn.action for turn in voters]
        if not votes:
            return Turn(me, f"nothing to choose from: of {', '.join(views)} nobody ran", failed=True)
        return Turn(me, max(votes, key=lambda action: (votes.count(action), -votes.index(action))), False)

    @cache
    def happens(me: NodeId) -> Turn | None:
        edges = edges_of(me.role)
        waited = [node for _, edge in edges for nodes in joined(me, edge)[0] for node in nodes] + ends(me)
        for node in waited:
            happens(node)
        start = max((settled[node] for node in waited), default=0.0)
        settled[me] = start
        if over(me):
            return None
        views = {key: seen(me, edge) for key, edge in edges}
        if not runs(me, views):
            return None
        if workflow.runs(me.role):
            return vote(me, views)
        prompts[me] = prompt(views)
        action = workflow.action(me)
        settled[me] = start + workflow.attempts(me) * workflow.latency(me)
        return Turn(me, action or "", action is None)

    turns = {
        node: happens(node)
        for role in workflow.roles
        for round in range(1, workflow.rounds(role) + 1)
        for index in all_of(role)
        for node in [NodeId(role, index, round)]
    }
    return Expected(turns, prompts, settled, uncomputed)
