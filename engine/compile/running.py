"""Roles that run a tool in place of asking a model, and what a plan may not do without a person's leave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rolegraph.engine.compile.graph import loop_of
from rolegraph.engine.compile.lineage import Instances, on_branch
from rolegraph.engine.compile.plan import Permission
from rolegraph.engine.spec import TOOL_ROLE_KEYS, Finding, Role, Spec
from rolegraph.engine.spec.diagnostics import Severity
from rolegraph.engine.spec.yaml_source import value_at
from rolegraph.engine.vocabulary import Pairs, Tool, is_allowed
from rolegraph.engine.vocabulary.tool import NO_PAIRS


def run_findings(spec: Spec, data: Mapping[str, Any]) -> Iterator[Finding]:
    """Roles with neither a prompt nor a tool, or both, and keys that say something of a model.

    `data` is the spec as it was read.
    """
    for name, role in spec.roles.items():
        at = ("roles", name)
        if role.run is not None:
            yield from _of_tool(name, role)
        elif role.prompt is None and not any(value_at(data, (*at, key)) for key in ("prompt", "run")):
            expected = "what it is asked, or `run` with a tool that it runs"
            yield Finding((*at, "prompt"), f"roles.{name} has no 'prompt'", expected, at_key=True)


def _of_tool(name: str, role: Role) -> Iterator[Finding]:
    keys = [key for key in TOOL_ROLE_KEYS if key in Role.model_fields]
    for key in Role.model_fields:
        if key in keys or key not in role.model_fields_set or getattr(role, key) is None:
            continue
        message = f"{name} runs a tool, so it has no `{key}`"
        hint = f"remove it; where the spec that this one extends has it, say `{key}: null`"
        yield Finding(("roles", name, key), message, ", ".join(keys), hint, at_key=True)


def pairs_of(spec: Spec, instances: Instances | None, name: str, tool: Tool) -> Pairs:
    """The pairs that the tool of a role wants to know, by lineage."""
    needs = spec.roles[name].needs
    if instances is None or tool.pairs is None or not all(key in needs for key in tool.pairs):
        return NO_PAIRS
    (one, other), (first, second) = tool.pairs, (needs[key] for key in tool.pairs)
    one, other = first.of or one, second.of or other
    theirs = instances[other]
    numbers = {
        number: frozenset(place for place, it in enumerate(theirs, 1) if on_branch(me, it))
        for number, me in enumerate(instances[one], 1)
    }
    loop = loop_of(spec, one)
    return Pairs(numbers, loop is not None and loop == loop_of(spec, other) and first.round == second.round)


def withheld(permissions: Iterable[Permission], allowed: Iterable[str]) -> tuple[Permission, ...]:
    """Those that are not among what a person has allowed."""
    names = tuple(allowed)
    return tuple(permission for permission in permissions if not is_allowed(permission.name, names))


def permission_findings(permissions: Iterable[Permission], severity: Severity) -> Iterator[Finding]:
    """What a person has not allowed, each at its place."""
    for name, path in permissions:
        message = f"{'.'.join(map(str, path))} asks for what has to be allowed: {name}"
        yield Finding(path, message, "", f"--allow {name}", severity, word=name)
