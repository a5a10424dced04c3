"""Tests of the cost of large episodes, as ratios of function calls, which do not depend on the machine.

`python benchmarks/turns.py` has the same ratios in seconds and bytes.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from rolegraph.engine.compile import compile_file
from tests.counting import calls
from tests.edge import ScriptedModel, decided, episode, limited, write_spec

OWN = "{{ task.question }} {{ self.index }}"


def cost(folder: Path, taken: int, loops: dict[str, Any] | None = None, **roles: dict[str, Any]) -> int:
    """Return the number of function calls of one episode, after a check that it has `taken` turns."""
    made = {name: {**role, "prompt": role.get("prompt", OWN)} for name, role in roles.items()}
    spec = {"rolegraph": 2, "name": "large", "roles": made, "loops": loops or {}}
    plan = compile_file(write_spec(folder, json.dumps(decided(spec))))
    model = ScriptedModel(lambda _: "yes")
    models = limited(plan, model)
    asyncio.run(episode(plan, models))
    assert len(model.requests) == taken
    return calls(lambda: asyncio.run(episode(plan, models)))


def test_a_turn_of_a_tree_or_a_loop_costs_at_most_twice_one_of_a_flat_role(tmp_path: Path) -> None:
    flat = cost(tmp_path, 1000, a={"count": 1000}) / 1000
    tree = cost(
        tmp_path,
        1110,
        a={"count": 10},
        b={"count": 10, "needs": {"a": "each"}, "prompt": "{{ a.action }} {{ self.index }}"},
        c={"count": 10, "needs": {"b": "each"}, "prompt": "{{ b.action }} {{ self.index }}"},
    )
    last = {"needs": {"a": "previous"}, "prompt": "{{ task.question }} {{ a.action }}"}
    loop = cost(tmp_path, 300, {"l": {"roles": ["a"], "times": 300}}, a=last)
    assert tree / 1110 <= 2 * flat
    assert loop / 300 <= 2 * flat


def test_turns_that_are_skipped_cost_next_to_nothing(tmp_path: Path) -> None:
    ten = cost(tmp_path, 10, a={"count": 10})
    rest = {"count": 990, "needs": ["a"], "when": 'a[0].action == "no"'}
    assert cost(tmp_path, 10, a={"count": 10}, b=rest) <= 3 * ten
    last = {"needs": {"a": "previous"}, "prompt": "{{ task.question }} {{ a.action }}"}
    ended = {"l": {"roles": ["a"], "times": 1000, "until": "a.round == 10"}}
    assert cost(tmp_path, 10, ended, a=last) <= 6 * ten
