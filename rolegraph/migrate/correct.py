"""Rewrite of `episode.correct` as an expression, which is written if more than one role can be right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from rolegraph.engine.compile.names import judged
from rolegraph.engine.errors import UsageError
from rolegraph.engine.vocabulary import BadOptions, ItemCall, Reward, Score, UnknownName, rewards
from rolegraph.engine.vocabulary.call import EXPRESSION, reward_call
from rolegraph.engine.vocabulary.items import judged_by
from rolegraph.migrate.document import Change, Document, Problem, between_keys, pairs, scalar
from rolegraph.migrate.raters import DocumentRoles, quoted


def correct(document: Document) -> Iterator[Change | Problem]:
    """Write an expression for the names of the deciding roles, or for the last role that can be right."""
    graph = DocumentRoles.of(document)
    entries = [
        entry_
        for entry_ in document.entries("episode.correct", "episode.correct.**")
        if (scalar(entry_.value) or "").isidentifier()
    ]
    for entry in entries:
        yield document.replace(entry.value, _verdict(graph, scalar(entry.value) or ""))
    top_pairs = pairs(document.root) if document.root is not None else {}
    has_correct = [*document.entries("episode.correct")]
    if has_correct or not {"rolegraph", "roles"} <= top_pairs.keys():
        return
    try:
        roles: dict[str, Any] | None = yaml.safe_load(document.text)["roles"]
    except yaml.YAMLError:  # a tag that is no value; the loader tells it
        return
    able_roles = roles_that_can_be_right(roles) if isinstance(roles, dict) else []
    if roles is None or len(able_roles) < 2:
        return
    if "extends" in top_pairs:
        named = " and ".join(able_roles)
        message = f"{named} can be right: `correct` says who decides; it was the last such role in the file"
        yield Problem(top_pairs["roles"][0].start_mark.index, message)
    else:
        last_role = [name for name in able_roles if "callable" not in roles[name]] or able_roles
        yield _added(document, top_pairs, f"correct: {_verdict(graph, last_role[-1])}")


def _verdict(graph: DocumentRoles, role: str) -> str:
    return quoted(f"all({role}.right)" if graph.is_many(role) else f"{role}.right")


def roles_that_can_be_right(roles: Mapping[str, Any]) -> list[str]:
    """Return the roles that can be right, in their order; a role with an unknown reward is included."""
    role_mappings: dict[str, Any] = {name: role for name, role in roles.items() if isinstance(role, dict)}
    right_roles = judged({name: _reward(role) for name, role in role_mappings.items()})
    return [name for name in roles if name in right_roles]


def _reward(role: Mapping[str, Any]) -> Reward | None:
    if role.get("reward") is None:
        return None
    try:
        reward = rewards.build(reward_call(role["reward"]))
        if role.get("right") is None:
            return reward
        return judged_by(
            reward, rewards.build(ItemCall(EXPRESSION, str(role["right"]).lower(), has_value=True))
        )
    except (UnknownName, BadOptions, UsageError, ValueError):
        return Reward(lambda task, action, inputs: Score(None, None))


def _added(document: Document, top: Mapping[str, tuple[yaml.Node, yaml.Node]], line: str) -> Change:
    """Return the change that writes `correct` into `episode`, or adds an `episode` after roles and loops."""
    keys = pairs(top["episode"][1]) if "episode" in top else {}
    if keys:
        first_key, _ = next(iter(keys.values()))
        start, separator = first_key.start_mark.index, between_keys(top["episode"][1], first_key)
        return Change(start, start, f"{line}{separator}")
    if "episode" in top:
        return document.replace(top["episode"][1], f"{{{line}}}")
    end = max(document.end(top[key][1]) for key in ("roles", "loops") if key in top)
    end = document.text.find("\n", end)
    end = len(document.text) if end < 0 else end
    return Change(end, end, f"\nepisode: {{{line}}}")
