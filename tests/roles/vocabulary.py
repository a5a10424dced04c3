"""What tests say in a spec's words: an item built from its YAML form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import roles
from engine.registry import Call
from roles.vocabulary import Metric, Parser, Reward, RoleView, Score, Upstream


def parser(yaml: object) -> Parser:
    return roles.parsers.build(Call.parse(yaml))


def reward(yaml: object) -> Reward:
    return roles.rewards.build(Call.parse(yaml))


def metric(yaml: object) -> Metric:
    return roles.metrics.build(Call.parse(yaml))


def read(yaml: object, text: str, upstream: Upstream | None = None) -> Any:
    return parser(yaml).parse(text, upstream or {})


def solvers(*actions: Any) -> Upstream:
    return {"solver": [RoleView(index, action) for index, action in enumerate(actions, 1)]}


def earned(
    yaml: object, action: Any, verdicts: dict[str, Sequence[Score]] | None = None, **task: Any
) -> Score:
    return reward(yaml).score({"id": "t", **task}, action, verdicts or {})
