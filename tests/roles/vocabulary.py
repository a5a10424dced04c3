"""Items built from their YAML form, for tests."""

from __future__ import annotations

from typing import Any

from rolegraph.engine.vocabulary import (
    Environment,
    ItemCall,
    Parser,
    Reward,
    RewardInputs,
    Score,
    Upstream,
    View,
    Views,
    environments,
    parsers,
    reward_call,
    rewards,
)


def parser(yaml: object) -> Parser:
    return parsers.build(ItemCall.parse(yaml))


def reward(yaml: object) -> Reward:
    return rewards.build(reward_call(yaml))


def environment(yaml: object) -> Environment:
    return environments.build(ItemCall.parse(yaml))


def read(yaml: object, text: str, upstream: Upstream | None = None) -> Any:
    return parser(yaml).parse(text, upstream or {})


def solvers(*actions: Any) -> Upstream:
    return {"solver": Views([View(index, action) for index, action in enumerate(actions, 1)])}


def earned(
    yaml: object,
    action: Any,
    seen: RewardInputs | None = None,
    **task: Any,
) -> Score:
    score = reward(yaml).score({"id": "t", **task}, action, seen or RewardInputs())
    assert score is not None
    return score
