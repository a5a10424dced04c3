"""Checks of the DAG over a spec's roles that need only names, keys and edges.

This file does not know parsers, rewards or templates; `rolegraph.engine.compile.unroll` makes turns of roles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import networkx as nx

from rolegraph.engine.compile.structure import RoleGraph, ancestors, cycles, format_cycle, role_graph
from rolegraph.engine.errors import did_you_mean
from rolegraph.engine.limits.specs import SPEC_EDGES, SPEC_LINEAGES, SPEC_TURNS
from rolegraph.engine.prompts.checks import RESERVED
from rolegraph.engine.spec import CALL_OF_A_ROLE, TOOL_ROLE_KEYS, Finding, Path, Role, Spec
from rolegraph.engine.spec.validation import name_not_found
from rolegraph.engine.spec.yaml_source import value_at
from rolegraph.engine.vocabulary import OF_A_TURN, ItemCall


def check_graph(spec: Spec) -> list[Finding]:
    """Find unknown, repeated and reserved names, impossible edges, cycles, and graphs that are too large."""
    needs = role_graph(spec)
    findings = [*_names(spec), *_loops(spec), *_players(spec, needs), *_edges(spec), *_calls(spec)]
    return findings + ([*_cycles(spec, needs)] or [*_size(spec, needs)])


def _names(spec: Spec) -> Iterator[Finding]:
    for name, role in spec.roles.items():
        if name.lower() in RESERVED:
            message = f"a role cannot be named {name!r}, which is reserved in prompts"
            yield Finding(("roles", name), message, at_key=True)
        elif name in OF_A_TURN:
            message = f"a role cannot be named {name!r}, which is a value of the turn in expressions"
            yield Finding(("roles", name), message, "another name", at_key=True)
        for key, needed, edge in role.edges:
            path = ("roles", name, "needs", key)
            if needed == name and edge.round == "this":
                hint = "its own earlier turns are self.history" if spec.loop_of(name) else ""
                yield Finding(path, f"{name} needs itself", "other roles", hint, at_key=True, word=needed)
            else:
                unknown_finding = unknown_role(spec, needed, path)
                yield from (replace(finding, at_key=edge.of is None) for finding in unknown_finding)
            if needed != key and (key.lower() in RESERVED or key in spec.roles or not key.isidentifier()):
                conflict = "is a role" if key in spec.roles else "is reserved in prompts"
                message = f"{key!r} cannot be the name of {needed}: it {conflict}"
                yield Finding(path, message, "another name", at_key=True)
        trunk = role.memory and role.memory.fork
        for finding in unknown_role(spec, trunk, ("roles", name, "memory", "fork")) if trunk else ():
            owners = [needed for needed, r in spec.roles.items() if r.memory and r.memory.chat == trunk]
            hint = f"name a role that keeps the conversation {trunk}: {', '.join(owners)}"
            yield replace(finding, hint=hint) if owners else finding


def run_findings(spec: Spec, data: Mapping[str, Any]) -> Iterator[Finding]:
    """Find roles with neither a prompt nor a tool, and tool roles with keys for models.

    Args:
        spec: The parsed spec.
        data: The spec as it was read, with invalid prompts, which `spec` lacks.
    """
    for name, role in spec.roles.items():
        path = ("roles", name)
        is_empty = role.run is None and not (role.prompt or "").strip()
        values = [value_at(data, (*path, key)) for key in ("prompt", "run")]
        if is_empty and not any(str(value or "").strip() for value in values):
            message = (
                f"roles.{name} has no 'prompt'" if values[0] is None else f"the prompt of {name} is empty"
            )
            expected = "a prompt, or `run` with a tool"
            yield Finding((*path, "prompt"), message, expected, at_key=values[0] is None)
        for key in Role.model_fields if role.run is not None else ():
            if key not in TOOL_ROLE_KEYS and key in role.model_fields_set and getattr(role, key) is not None:
                message = f"{name} runs a tool, so it has no `{key}`"
                hint = f"remove it; where the spec that this one extends has it, say `{key}: null`"
                yield Finding((*path, key), message, ", ".join(TOOL_ROLE_KEYS), hint, at_key=True)


def _loops(spec: Spec) -> Iterator[Finding]:
    for name, loop in spec.loops.items():
        path = ("loops", name, "roles")
        for role in loop.roles:
            if role in spec.loops and role not in spec.roles:
                yield from _inner_loop(spec, name, role)
            else:
                yield from unknown_role(spec, role, path)
            if loop.roles.count(role) > 1:
                yield Finding(path, f"{role} is in the loop {name} twice", "each role once", word=role)
            if (first_loop := spec.loop_of(role)) != name:
                message = f"{role} is in the loop {first_loop} already"
                yield Finding(path, message, "a loop for each role", word=role)


def _inner_loop(spec: Spec, outer: str, name: str) -> Iterator[Finding]:
    """Find faults of the loop `name` inside the loop `outer`: a loop within itself, a third level, or an
    environment of the inner loop."""
    path: Path = ("loops", outer, "roles")
    outermost = spec.loop_around(outer)
    if name == outer:
        yield Finding(path, f"the loop {name} is in itself", "roles, and other loops", word=name)
    elif outermost is not None:
        message = f"{name} is in the loop {outer}, which is in {outermost}: loops nest at most two deep"
        yield Finding(path, message, "names of roles", f"put its roles into {outer}", word=name)
    if spec.loops[name].env is not None:
        message = f"{name} is in the loop {outer}, and only outermost loops have an environment"
        hint = f"give `env` to {outer}"
        yield Finding(("loops", name, "env"), message, "", hint, at_key=True)


def _players(spec: Spec, needs: RoleGraph) -> Iterator[Finding]:
    """Find faults in the `players` of loops: no environment, unknown, repeated, or seeing each other's
    moves."""
    for name, loop in spec.loops.items():
        path = ("loops", name, "players")
        if loop.players and loop.env is None:
            message = f"{name} has players, but nothing that they move in"
            yield Finding(path, message, "an environment beside them", "add `env`, such as env: grid")
        for index, role in enumerate(loop.players):
            if role not in loop.roles:
                message = f"{role} is a player of {name}, but none of its roles"
                expected = f"one or more of {', '.join(loop.roles)}"
                yield Finding(path, message, expected, did_you_mean(role, loop.roles), word=role)
            elif role in loop.players[:index]:
                yield Finding(path, f"{role} is named twice", "each player once", word=role)
        players = spec.players_of(name) if loop.env is not None else []
        for role in players:
            earlier_players = ancestors(needs, role).intersection(players)
            if earlier_players:
                rival = min(earlier_players, key=players.index)
                message = f"{role} would see what {rival} moves in the same round, and both are players"
                expected = "players who see no move of their own round"
                hint = f"let {role} see the round before: needs: {{{rival}: previous}}, or name the `players`"
                yield Finding(("roles", role, "needs"), message, expected, hint, word=rival)


def _edges(spec: Spec) -> Iterator[Finding]:
    """Find entries of `needs` whose join or `round` is impossible between the two roles."""
    for name, role in spec.roles.items():
        reader, fan_outs = spec.readers_of(name)[0], list[str]()
        for key, needed_role, edge in role.edges:
            path = ("roles", name, "needs", key)
            if needed_role not in spec.roles:
                continue
            if edge.fans_out:
                fan_outs.append(key)
                if edge.round != "this":
                    message = f"{name} fans out over {key}, so this edge must read the current round"
                    yield Finding(path, message, "round: this", "or join: branch", at_key=True)
            loop, expected, hint = spec.loop_of(needed_role), "round: this", ""
            shared_loops = spec.shared_loops(reader, needed_role)
            if needed_role == name and spec.loop_of(reader) is None and edge.round != "this":
                message, expected = f"{name} is in no loop, so it has no earlier turns", f"{name} in `loops`"
            elif edge.round == "previous" and not shared_loops:
                message = f"{name} and {needed_role} are in no loop together, so there is no round before"
                hint = "or put both into `loops`"
            elif edge.round == "history" and loop is None:
                message = f"{needed_role} is in no loop, so it has one turn and no history"
                hint = "or put it into `loops`"
            else:
                continue
            yield Finding(path, message, expected, hint, at_key=True, word=edge.round)
        if len(fan_outs) > 1:
            message = f"{name} fans out over both {fan_outs[0]} and {fan_outs[1]}; only one edge may fan out"
            path = ("roles", name, "needs", fan_outs[1])
            yield Finding(path, message, "one such edge", "say `branch` for the other", at_key=True)


_PLAIN = ("count", "when", "memory")
"""Keys that a called role may not have, because each call is one turn of the role."""


def _calls(spec: Spec) -> Iterator[Finding]:
    """Find faults where a role's `tools` call another role, and in the settings of called roles."""
    unknown_roles: list[Finding] = []
    for name, role in spec.roles.items():
        for index, call in enumerate(role.tools):
            if call.name == CALL_OF_A_ROLE and isinstance(called_role := call.value, str):
                path: Path = ("roles", name, "tools", index)
                unknown_roles += [*unknown_role(spec, called_role, path)]
                if called_role in spec.roles:
                    yield from _call(spec, name, called_role, path, role.tools[:index])
    yield from unknown_roles
    for name, role in spec.roles.items():
        if role.callable is not None and not (unknown_roles and not spec.callers_of(name)):
            yield from _callee(spec, name, role)


def _call(spec: Spec, name: str, callee: str, path: Path, before: Sequence[ItemCall]) -> Iterator[Finding]:
    role = spec.roles[name]
    if spec.roles[callee].callable is None:
        message, hint = (
            f"{callee} cannot be called: it has no `callable`",
            "give it one: callable: {describe: …}",
        )
    elif role.callable is not None:
        message = f"{name} is called itself, so it calls no role"
        hint = "let the role that calls it call both"
    elif role.max_calls == 1:
        message = f"{name} may call its model once, so it never sees what {callee} answers"
        hint = "raise `max_calls`: max_calls: 4"
    elif any(call.name == CALL_OF_A_ROLE and call.value == callee for call in before):
        message, hint = f"{name} names {callee} twice", "`parallel` is the most calls of it in one answer"
    else:
        return
    yield Finding(path, message, "", hint, word=callee)


def _callee(spec: Spec, name: str, role: Role) -> Iterator[Finding]:
    callers, prefix = spec.callers_of(name), ("roles", name)
    if not callers:
        hint = f"let a role call it: tools: [{{role: {name}}}], with `max_calls`"
        yield Finding(
            (*prefix, "callable"), f"{name} can be called, but no role calls it", "", hint, at_key=True
        )
    clause = f"{name} runs once for each call"
    for key in _PLAIN:
        if getattr(role, key) != Role.model_fields[key].default:
            yield Finding((*prefix, key), f"{clause}, so it has no `{key}`", "", "remove it", at_key=True)
    if (loop := spec.loop_of(name)) is not None:
        message = f"{clause}, so it cannot be in a loop; {' and '.join(callers) or 'its caller'} can"
        yield Finding(("loops", loop, "roles"), message, "", "remove it", word=name)
    for key, needed_role, edge in role.edges:
        path = (*prefix, "needs", key)
        if edge.fans_out:
            yield Finding(path, f"{clause}, and not for each {needed_role}", "all or branch", at_key=True)
        elif needed_role in callers and edge.round == "this":
            message = f"{name} needs {needed_role}, which calls it and has not answered yet"
            yield Finding(path, message, "", "pass what it should know as an argument", at_key=True)
    loops = {spec.loops_around(caller) for caller in callers}
    if len(loops) > 1 and any(edge.round != "this" for edge in role.needs.values()):
        message = f"{' and '.join(callers)} are in different loops, so their rounds before differ"
        yield Finding((*prefix, "needs"), message, "edges of this round", at_key=True)


def unknown_role(spec: Spec, name: str, path: tuple[str | int, ...]) -> Iterator[Finding]:
    """Yield a finding at `path` if the spec has no role named `name`."""
    if name not in spec.roles:
        yield name_not_found("role", name, spec.roles, path, ("roles",))


def _cycles(spec: Spec, needs: RoleGraph) -> Iterator[Finding]:
    for cycle in cycles(needs):
        message = f"the roles wait for each other: {format_cycle(cycle)}"
        hint = _cycle_hint(spec, needs, cycle)
        edges: list[Path] = [
            ("roles", name, "needs", key)
            for name in cycle
            for key, needed_role, _ in spec.roles[name].edges
            if needed_role in cycle
        ]
        path: Path = ("roles", cycle[0], "needs")
        yield Finding(path, message, "an acyclic graph", hint, word=cycle[-1], covers=tuple(edges))


def _cycle_hint(spec: Spec, needs: RoleGraph, cycle: Sequence[str]) -> str:
    last_role, first_role = cycle[-1], cycle[0]
    loop = spec.loop_of(first_role)
    if loop is not None and loop == spec.loop_of(last_role):
        return f"in a loop, let {first_role} see the round before: needs: {{{last_role}: previous}}"
    for parent, name in zip(cycle, [*cycle[1:], first_role], strict=True):
        if parent in spec.callers_of(name):
            explanation = f"{name} ends when {parent}, which calls it, has ended"
            return f"{explanation}: {parent} reads its answers as results"
        if parent in spec.callees_of(name):
            continue
        if not needs.edges[parent, name]["joins"]:
            outer = spec.loop_of(parent)
            return f"{name} waits for the whole loop {outer}, which {parent} is in: put {name} into it, too"
    return f"remove one of these needs, such as {last_role} from {first_role}"


def _size(spec: Spec, needs: RoleGraph) -> Iterator[Finding]:
    """Find inputs that cannot be divided into chunks, and specs that are too large.

    The second finding is at the first role at which the turns, edges or lineages of an episode pass a limit.
    """
    counts: dict[str, int] = {}
    total = dict.fromkeys((SPEC_TURNS, SPEC_EDGES, SPEC_LINEAGES), 0)
    for name in nx.topological_sort(needs):
        role, path = spec.roles[name], ("roles", name, "count")
        count = role.count
        for key, needed, edge in role.edges:
            other_count = counts.get(needed, 1)
            if edge.fans_out:
                if other_count % edge.chunk_size:
                    message = f"{other_count} of {needed} cannot be put into chunks of {edge.chunk_size}"
                    yield Finding(("roles", name, "needs", key), message, f"a divisor of {other_count}")
                count *= max(1, other_count // edge.chunk_size)
        callers = spec.callers_of(name)
        if callers:
            turn_counts = {caller: counts.get(caller, 1) * spec.rounds_of(caller) for caller in callers}
            count = sum(turn_counts[caller] * spec.callees_of(caller)[name] for caller in callers)
        counts[name] = count
        turns = count * spec.rounds_of(name)
        all_joined = (needed for _, needed, edge in role.edges if edge.join == "all" and needed in spec.roles)
        edges = count * sum(counts.get(needed, 1) for needed in all_joined)
        for limit, number, noun in (
            (SPEC_TURNS, turns, f"{name} would take {turns:,} turns an episode"),
            (SPEC_EDGES, edges, f"{name} would have {edges:,} incoming edges"),
            (SPEC_LINEAGES, count * len(ancestors(needs, name)), f"{name} comes from too many roles"),
        ):
            total_before = total[limit]
            total[limit] += number
            if total[limit] > limit.most:
                others_text = f", beside {total_before:,} of roles before it" if total_before else ""
                yield Finding(path, f"{noun}{others_text}", f"at most {limit}")
                return
