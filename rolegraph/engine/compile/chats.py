"""Conversations of `memory`: the roles that keep one, and the order of their turns. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import networkx as nx

from rolegraph.engine.compile.structure import role_graph
from rolegraph.engine.spec import Finding, Role, Spec

Turn = tuple[str, int]
"""Name of a role, and a round."""


def chats_of(spec: Spec) -> list[list[str]]:
    """Return one list of role names for each conversation (`memory`), in the order of the spec.

    Roles with the same `memory.chat` are in one list; a role that shares no conversation is a list of its
    own.
    """
    chats: dict[tuple[str, str], list[str]] = {}
    for name, role in spec.roles.items():
        if role.memory is not None:
            key = ("chat", role.memory.chat) if role.memory.chat else ("role", name)
            chats.setdefault(key, []).append(name)
    return [*chats.values()]


def turns_before(spec: Spec) -> dict[str, dict[int, Turn]]:
    """Return by role and turn number the turn of the same instance that precedes it in its conversation.

    The first turn of a conversation and roles without `memory` have no entry.
    """
    before: dict[str, dict[int, Turn]] = {}
    chats = chats_of(spec)
    order = [*nx.topological_sort(role_graph(spec))] if chats else []
    for roles in chats:
        places = {name: place for place, name in enumerate(filter({*roles}.__contains__, order))}
        timed = sorted((time, (name, n)) for name in roles for n, time in _times(spec, places, name))
        for (_, one), (_, (name, number)) in pairwise(timed):
            before.setdefault(name, {})[number] = one
    return before


def _times(spec: Spec, places: Mapping[str, int], name: str) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the round of each turn of a role, and a key that sorts the turns of a conversation by time.

    A loop's roles stand together in the order of `needs`: whoever is outside waits for the whole loop.
    """
    rounds = spec.rounds_of(name)
    for number in range(1, rounds + 1):
        key, turns, rest = list[int](), rounds, number - 1
        for loop in spec.loops_around(name):
            turns //= spec.loops[loop].times
            passed, rest = divmod(rest, turns)
            key += (min(places[role] for role in spec.roles_in(loop) if role in places), passed)
        yield number, (*key, places[name])


def turns_read(spec: Spec) -> dict[str, list[str]]:
    """Return for each role in a shared conversation the other roles whose turns it may find there.

    The result is empty for a spec whose roles wait for each other in a cycle, which other checks report.
    """
    shared = [roles for roles in chats_of(spec) if len(roles) > 1]
    read: dict[str, list[str]] = {}
    if not shared or not nx.is_directed_acyclic_graph(needs := role_graph(spec)):
        return read
    for roles in shared:
        in_time = [name for name in nx.topological_sort(needs) if name in roles]
        for place, name in enumerate(in_time):
            later = [other for other in in_time[place + 1 :] if spec.shared_loops(name, other)]
            read[name] = [*in_time[:place], *later]
    return read


def chat_findings(spec: Spec, counts: Mapping[str, int]) -> Iterator[Finding]:
    """Find conversations with a single turn, of roles that differ, or of roles without an order.

    Args:
        spec: The parsed spec, whose graph has no fault.
        counts: The number of instances of each role.
    """
    needs = role_graph(spec)
    order = [*nx.topological_sort(needs)]
    yield from _unjoined(spec)
    for roles in chats_of(spec):
        first, *others = roles
        path = ("roles", first, "memory")
        if not others and spec.loop_of(first) is None:
            memory = spec.roles[first].memory
            message = f"{first} is in no loop, so it has one turn and nothing to remember"
            hint = "remove it, or put the role into `loops`"
            if memory is not None and memory.chat:
                hint = f"give another role `memory: {{chat: {memory.chat}}}`, or put {first} into `loops`"
            yield Finding(path, message, "a role of a loop", hint, at_key=True)
        for other in others:
            yield from _differences(spec, first, other, counts)
        for one, two in pairwise(name for name in order if name in roles):
            if not nx.has_path(needs, one, two):
                message = f"{one} and {two} keep one conversation, and neither waits for the other"
                hint = f"let one need the other, such as {one} in the `needs` of {two}"
                expected = "roles that take turns one after the other"
                yield Finding(("roles", two, "memory"), message, expected, hint, at_key=True)


def _unjoined(spec: Spec) -> Iterator[Finding]:
    """Warn of a role whose own conversation (`memory: chat`) has the name that other roles gave to a shared
    one."""
    for name, role in spec.roles.items():
        named = [other for other, it in spec.roles.items() if it.memory and it.memory.chat == name]
        if named and role.memory is not None and role.memory.chat is None:
            message = f"{name} keeps a conversation of its own, apart from that of {' and '.join(named)}"
            hint = f"to share it, write `memory: {{chat: {name}}}` here, too; or rename the other"
            yield Finding(("roles", name, "memory"), message, "", hint, "warning", at_key=True)


def _differences(spec: Spec, one: str, other: str, counts: Mapping[str, int]) -> Iterator[Finding]:
    """Yield a finding for each setting, such as `policy`, in which two roles of one conversation differ.

    All turns of a conversation need one chat template, one set of functions and the same view of the task.
    """
    first, second = spec.roles[one], spec.roles[other]
    for key, mine, theirs in (
        ("count", counts[one], counts[other]),
        ("shows", sorted(first.shows), sorted(second.shows)),
        ("policy", *(_policies(spec.roles[name], counts[name]) for name in (one, other))),
        ("model", *(role.model if role.policy is None else None for role in (first, second))),
        ("system", first.system, second.system),
        ("examples", first.examples, second.examples),
        ("tools", first.tools, second.tools),
    ):
        if mine != theirs:
            written = key in second.model_fields_set
            path = ("roles", other, key) if written else ("roles", other, "memory")
            message = f"{one} and {other} keep one conversation, and do not have the same `{key}`"
            hint = f"give both the same `{key}`, or a conversation each"
            yield Finding(path, message, f"the {key} of {one}", hint, at_key=True)


def _policies(role: Role, count: int) -> Sequence[str]:
    """Return the policies of a role's instances, each once where all have the same."""
    policies = role.policy_names(count)
    return [*dict.fromkeys(policies)] if len({*policies}) == 1 else [*policies]
