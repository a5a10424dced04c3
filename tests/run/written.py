"""Workflows written by tests, their answers, and the prompts of each instance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.models import Request
from rolegraph.engine.records import Episode
from tests.edge import decided, write_spec

Roles = dict[str, dict[str, Any]]


def plan(folder: Path, roles: Roles, loops: dict[str, Any] | None = None, **more: Any) -> Plan:
    learns = {"parser": {"tag": "answer"}, "reward": "countdown", "estimator": "reinforce"}
    spec = {
        "rolegraph": 2,
        "name": "looped",
        "data": {"train": "countdown"},
        "roles": {
            name: {**learns, **role, "prompt": role.get("prompt", "{{ task.question }}")}
            for name, role in roles.items()
        },
        "loops": loops or {},
        **more,
    }
    return compile_file(write_spec(folder, yaml.safe_dump(decided(spec), sort_keys=False)))


def said(text: str) -> str:
    return f"<answer>{text}</answer>"


def whose(request: Request) -> str:
    """Answer with the role, instance and round of the request."""
    node = request.id.node
    return said(f"{node.role}{node.index}.{node.round}")


def asked(episode: Episode, role: str) -> list[list[str]]:
    """Return the prompts of each instance of a role, turn by turn."""
    return [[step.chat_completions[0]["content"] for step in t.steps] for t in episode[role]]


SHOW = "{% for x in NAME %}{{ x.action }} {% endfor %}"


def show(name: str) -> str:
    return SHOW.replace("NAME", name)
