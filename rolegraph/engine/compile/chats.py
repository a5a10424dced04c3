"""Conversations of `memory`: their roles, the trunk that a fork continues, and the order of turns. Pure.

The conversation of a fork is that of its trunk, then the fork's own turns. So before a turn lie the own turns
of the instance and those of the trunk, in the order of time; the last of them that ran has the whole chat.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import networkx as nx

from rolegraph.engine.compile.lineage import Instances, joined
from rolegraph.engine.compile.structure import cycles, format_cycle, graph_of, role_graph
from rolegraph.engine.spec import Edge, Finding, Role, Spec

_BRANCH = Edge(join="branch")
Turn = tuple[str, int]
"""(name of a role, number of the turn from 1)."""


def chats_of(spec: Spec) -> list[list[str]]:
    """Return one list of role names for each conversation (`memory`), in the order of the spec.

    Roles with the same `memory.chat` are in one list; a role that shares no conversation is a list of its
    own.
    """
    roles = (name for name, role in spec.roles.items() if role.memory is not None)
    return [list(chat) for chat in dict.fromkeys(tuple(_sharing(spec, name)) for name in roles)]


def _sharing(spec: Spec, name: str) -> list[str]:
    """Return the roles that keep one conversation with a role, itself included."""
    memory = spec.roles[name].memory
    if memory is None or memory.chat is None:
        return [name]
    return [n for n, role in spec.roles.items() if role.memory and role.memory.chat == memory.chat]


def _forked(spec: Spec, name: str) -> str | None:
    """Return the role that a role's `memory.fork` names; None for a role without `fork`, and for an unknown
    name."""
    memory = spec.roles[name].memory
    return memory.fork if memory and memory.fork in spec.roles else None


def trunk_of(spec: Spec, name: str) -> list[str]:
    """Return the trunk of a fork: the roles whose conversation it continues; empty for a role without
    `memory.fork`.

    The trunk has the roles that keep the conversation of `memory.fork`, and the trunk of that conversation.
    """
    trunk: list[str] = []
    while (forked_role := _forked(spec, name)) is not None and forked_role not in trunk:
        trunk += _sharing(spec, forked_role)
        name = forked_role
    return trunk


def instance_in(spec: Spec, instances: Instances, name: str, other: str, member: int) -> int:
    """Return the index, from 0, of role `other`'s instance in the conversation of instance `member` of
    role `name`.

    Roles that keep one conversation share it by instance number. The trunk of a fork is the only instance on
    its branch, or the instance with the same number; the result is -1 if there is neither.
    """
    while other not in _sharing(spec, name) and (forked_role := _forked(spec, name)) is not None:
        trunk = joined(_BRANCH, instances[name][member], instances[forked_role])
        if len(trunk) == 1:
            (member,) = trunk
        elif member not in trunk or len(instances[name]) != len(instances[forked_role]):
            return -1
        name = forked_role
    return member


def turns_before(spec: Spec) -> dict[str, dict[int, tuple[Turn, ...]]]:
    """Return the turns that each turn finds in its conversation since the conversation's previous turn,
    oldest first.

    The result is by role, then by turn number. The turns include that previous turn itself; for a fork, turns
    of its trunk follow it. The first turn of a conversation and roles without `memory` have no entry.
    """
    turns_by_round: dict[str, dict[int, tuple[Turn, ...]]] = {}
    chats = chats_of(spec)
    order = [*nx.topological_sort(role_graph(spec))] if chats else []
    for roles in chats:
        line = {*roles, *trunk_of(spec, roles[0])}
        positions = {name: index for index, name in enumerate(filter(line.__contains__, order))}
        timed_turns = sorted((time, (name, n)) for name in line for n, time in _times(spec, positions, name))
        turns_since: list[Turn] = []
        for _, (name, number) in timed_turns:
            if name in roles:
                if turns_since:
                    turns_by_round.setdefault(name, {})[number] = tuple(turns_since)
                turns_since.clear()
            turns_since.append((name, number))
    return turns_by_round


def _times(spec: Spec, places: dict[str, int], name: str) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the round of each turn of a role, and a key that sorts the turns of a conversation by time.

    A loop's roles stand together in the order of `needs`: whoever is outside waits for the whole loop.
    """
    rounds = spec.rounds_of(name)
    for number in range(1, rounds + 1):
        key, turns, rounds_left = list[int](), rounds, number - 1
        for loop in spec.loops_around(name):
            turns //= spec.loops[loop].times
            rounds_passed, rounds_left = divmod(rounds_left, turns)
            key += (min(places[role] for role in spec.roles_in(loop) if role in places), rounds_passed)
        yield number, (*key, places[name])


def turns_read(spec: Spec) -> dict[str, list[str]]:
    """Return, for each role with a shared or forked conversation, the other roles whose turns the
    conversation may contain.

    The result is empty for a spec whose roles wait for each other in a cycle, which other checks report.
    """
    lines = {name: [*roles, *trunk_of(spec, name)] for roles in chats_of(spec) for name in roles}
    shared_lines = {name: line for name, line in lines.items() if len(line) > 1}
    read_roles: dict[str, list[str]] = {}
    if not shared_lines or not nx.is_directed_acyclic_graph(needs := role_graph(spec)):
        return read_roles
    order = [*nx.topological_sort(needs)]
    for name, line in shared_lines.items():
        ordered_roles = [*filter(line.__contains__, order)]
        index = ordered_roles.index(name)
        later_roles = [n for n in ordered_roles[index + 1 :] if spec.shared_loops(name, n)]
        read_roles[name] = [*ordered_roles[:index], *later_roles]
    return read_roles


def chat_findings(spec: Spec, instances: Instances) -> Iterator[Finding]:
    """Find faults of conversations and forks.

    A conversation is at fault with a single turn, with roles of different settings, and with roles whose
    turns have no order; a fork is at fault if it continues itself or if its trunk has no turn before it.

    Args:
        spec: The parsed spec, whose graph has no fault.
        instances: The instances of each role.
    """
    yield from _unjoined(spec)
    if fork_cycles := [*_circles(spec)]:
        yield from fork_cycles
        return
    yield from _alone(spec)
    for roles in chats_of(spec):
        for other_role in roles[1:]:
            yield from _differences(spec, roles[0], other_role, instances)
        if unordered_finding := _unordered(spec, roles):
            yield unordered_finding
        else:
            yield from _fork(spec, roles, instances)


def _alone(spec: Spec) -> Iterator[Finding]:
    """Find conversations of a single turn that no fork continues and no other role shares."""
    origins = {_forked(spec, name) for name in spec.roles}
    for (leader, *others), memory in ((roles, spec.roles[roles[0]].memory) for roles in chats_of(spec)):
        if others or memory is None or memory.fork or leader in origins or spec.loop_of(leader) is not None:
            continue
        message = f"{leader} is in no loop, so it has one turn and nothing to remember"
        hint = "remove it, or put the role into `loops`"
        if memory.chat:
            hint = f"give another role `memory: {{chat: {memory.chat}}}`, or put {leader} into `loops`"
        if _keeps_its_own(spec, memory.chat) is None:
            yield Finding(("roles", leader, "memory"), message, "a role of a loop", hint, at_key=True)


def _unordered(spec: Spec, roles: Sequence[str]) -> Finding | None:
    """Return a finding for the first two roles of a conversation and its trunk whose turns have no order;
    None where all have one."""
    needs, trunk = role_graph(spec), trunk_of(spec, roles[0])
    line = [name for name in nx.topological_sort(needs) if name in {*roles, *trunk}]
    for earlier_role, later_role in pairwise(line):
        if {earlier_role, later_role}.isdisjoint(roles) or nx.has_path(needs, earlier_role, later_role):
            continue
        own_role, outside = (later_role, earlier_role) if later_role in roles else (earlier_role, later_role)
        statement = f"{earlier_role} and {later_role} keep one conversation"
        if outside in trunk:
            statement = f"{own_role} goes on from the conversation of {outside}"
        message = f"{statement}, and neither waits for the other"
        hint = f"let one need the other, such as {earlier_role} in the `needs` of {later_role}"
        expected = "roles that take turns one after the other"
        return Finding(("roles", own_role, "memory"), message, expected, hint, at_key=True)
    return None


def _circles(spec: Spec) -> Iterator[Finding]:
    """Find forks that continue each other, or themselves."""
    forks = {name: [forked_role] for name in spec.roles if (forked_role := _forked(spec, name))}
    for name in (name for name, (forked_role,) in forks.items() if forked_role in _sharing(spec, name)):
        message = f"{name} goes on from its own conversation"
        path = ("roles", name, "memory", "fork")
        yield Finding(path, message, "another role", "`memory: chat` keeps a conversation of its own")
    sharing = {name: [*_sharing(spec, name), *forks[name]] for name in forks}
    for cycle in cycles(graph_of(sharing)):
        if any(name in forks and forks[name][0] in cycle for name in cycle):
            message = f"the conversations go on from each other: {format_cycle(cycle)}"
            yield Finding(("roles", cycle[0], "memory", "fork"), message, "a conversation that begins anew")


def _fork(spec: Spec, roles: Sequence[str], instances: Instances) -> Iterator[Finding]:
    """Find faults of a fork against its trunk.

    They are: a trunk without a conversation or without an earlier turn, another number of instances, hidden
    fields that only the trunk sees, other tools, and a `system` of the fork's own.
    """
    name, *_ = roles
    trunk = _forked(spec, name)
    if trunk is None:
        return
    own_spec, trunk_spec = spec.roles[name], spec.roles[trunk]
    path, statement = ("roles", name, "memory", "fork"), f"{name} goes on from the conversation of {trunk}"
    if trunk_spec.run is not None:
        message = f"{name} goes on from {trunk}, which runs a tool and has no conversation"
        yield Finding(path, message, "a role with a prompt", word=trunk)
        return
    turns = turns_before(spec)
    line = trunk_of(spec, name)
    if not any(n in line for role in roles for t in turns.get(role, {}).values() for n, _ in t):
        message = f"{statement}, which has no turn before"
        hint = f"let {name} need {trunk}, or share one conversation: memory: {{chat: NAME}} in both"
        yield Finding(path, message, "a role that takes its turn earlier", hint, word=trunk)
    members = range(len(instances[name]))
    if any(instance_in(spec, instances, name, trunk, member) < 0 for member in members):
        message = f"{statement}, and has {len(members)} instances for {len(instances[trunk])}"
        hint = f"as many of both, or some for each: needs: {{{trunk}: each}}"
        yield Finding(path, message, f"one instance of {trunk} for each of {name}", hint, word=trunk)
    if missing_fields := [field for field in trunk_spec.sees if field not in own_spec.sees]:
        message = f"{statement}, which may show task.{', task.'.join(missing_fields)}"
        hint = f"let {name} see it, too: sees: [{', '.join(trunk_spec.sees)}]"
        yield Finding(path, message, f"`sees` with {', '.join(missing_fields)}", hint, word=trunk)
    if own_spec.tools != trunk_spec.tools:
        message = f"{statement}, and they do not have the same `tools`"
        yield Finding(path, message, f"the tools of {trunk}", "give both the same `tools`", word=trunk)
    resets = any(memory.reset for role in roles if (memory := spec.roles[role].memory))
    if own_spec.system not in (None, trunk_spec.system) and not resets:
        message = f"{statement}, which has its own `system`"
        hint = f"put the text into the prompt of {name}"
        yield Finding(("roles", name, "system"), message, f"the system of {trunk}", hint, at_key=True)


def _unjoined(spec: Spec) -> Iterator[Finding]:
    """Find conversations named like a role that keeps a conversation of its own (`memory: chat`)."""
    for name, role in spec.roles.items():
        if (owner := _keeps_its_own(spec, role.memory and role.memory.chat)) is not None:
            message = f"{name} keeps the conversation {owner}, and the role {owner} keeps one of its own"
            share_hint = f"to share one, write `memory: {{chat: {owner}}}` in {owner}, too"
            hint = f"to go on from that of {owner} and add nothing to it, write `memory: {{fork: {owner}}}`"
            expected = "the name of no role, or of a role in the conversation"
            yield Finding(("roles", name, "memory"), message, expected, f"{share_hint}; {hint}", at_key=True)


def _keeps_its_own(spec: Spec, chat: str | None) -> str | None:
    """Return `chat` if it is the name of a role that keeps a conversation of its own (`memory: chat`), else
    None."""
    memory = spec.roles[chat].memory if chat and chat in spec.roles else None
    return chat if memory is not None and memory.chat is None else None


def _differences(spec: Spec, one: str, other: str, instances: Instances) -> Iterator[Finding]:
    """Yield a finding for each setting, such as `policy`, in which two roles of one conversation differ.

    All turns of a conversation need one chat template, one set of functions and the same view of the task.
    """
    left, right = spec.roles[one], spec.roles[other]
    counts = len(instances[one]), len(instances[other])
    for key, one_value, other_value in (
        ("count", *counts),
        ("fork", *(r.memory and r.memory.fork for r in (left, right))),
        ("sees", sorted(left.sees), sorted(right.sees)),
        ("policy", *(_policies(role, count) for role, count in zip((left, right), counts, strict=True))),
        ("model", *(role.model if role.policy is None else None for role in (left, right))),
        ("system", left.system, right.system),
        ("examples", left.examples, right.examples),
        ("tools", left.tools, right.tools),
    ):
        if one_value != other_value:
            is_written = key in right.model_fields_set
            path = ("roles", other, key) if is_written else ("roles", other, "memory")
            message = f"{one} and {other} keep one conversation, and do not have the same `{key}`"
            hint = f"give both the same `{key}`, or a conversation each"
            yield Finding(path, message, f"the {key} of {one}", hint, at_key=True)


def _policies(role: Role, count: int) -> Sequence[str]:
    """Return the policies of a role's instances, in order; a single name where all instances have the same
    policy."""
    policies = role.policy_names(count)
    return [*dict.fromkeys(policies)] if len({*policies}) == 1 else [*policies]
