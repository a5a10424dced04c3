"""Tests of the package of docs/packages.md: decorated functions as entry points."""

from __future__ import annotations

import asyncio
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, cast

import pytest

from rolegraph.engine import vocabulary
from rolegraph.engine.compile import check_file
from rolegraph.engine.vocabulary.isolation import Isolation
from tests.edge import write_spec


@pytest.fixture
def near_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registries: None) -> Path:
    """Provide a folder with the installed package of docs/packages.md, as pip leaves it."""
    page = (Path(__file__).parents[2] / "docs" / "packages.md").read_text()
    module, toml = (part.partition("\n```")[0] for part in re.split(r"```(?:python|toml)\n", page)[1:3])
    project = tomllib.loads(toml)["project"]
    info = tmp_path / "near_reward-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: near-reward\nVersion: 1.0\n")
    points = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in it.items())
        for group, it in project["entry-points"].items()
    ]
    other = "[rolegraph.parsers]\nlast_word = near_reward.words:last\n"
    (info / "entry_points.txt").write_text("\n".join([*points, other]))
    (tmp_path / "near_reward").mkdir()
    (tmp_path / "near_reward" / "__init__.py").write_text(module)
    (tmp_path / "near_reward" / "words.py").write_text(
        "import rolegraph as rg\n@rg.parser('word')\ndef last(text):\n    return text.split()[-1]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for module_name in ("near_reward", "near_reward.words"):
        monkeypatch.delitem(sys.modules, module_name, raising=False)
    return tmp_path


def test_a_decorated_function_is_an_entry_point(near_reward: Path) -> None:
    assert vocabulary.rewards.summary("near").startswith("Reward a sum")
    assert [option.name for option in vocabulary.rewards.options("near")] == ["within"]
    made = vocabulary.rewards.build(vocabulary.ItemCall.parse({"near": {"within": 2}}))
    task = cast("Any", {"id": "a", "target": 10})
    assert [made.score(task, action, vocabulary.RewardInputs()).reward for action in ("3+5", "3+4")] == [1, 0]


def test_an_isolated_worker_finds_it(
    near_reward: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(near_reward))
    (tmp_path / "tasks.jsonl").write_text('{"target": 7, "nums": [3, 4]}\n')
    text = (
        "rolegraph: 2\nname: x\ndata: {validation: tasks.jsonl}\nmodel: replay:none.jsonl\n"
        'roles:\n  a: {run: {calculator: "3 + 4"}, reward: near}\n'
    )
    plan = check_file(write_spec(tmp_path, text)).valid()
    reward = plan.roles[0].reward
    assert reward is not None and reward.timeout is not None

    async def score() -> Any:
        async with Isolation(plan.imports) as isolation:
            task = cast("Any", {"id": "a", "target": 7})
            return await isolation.run(reward.score, task, "3+4", vocabulary.RewardInputs(), limit=30)

    assert asyncio.run(score()).reward == 1.0


def test_the_entry_points_name_counts_where_the_decorator_has_another(near_reward: Path) -> None:
    parser = vocabulary.parsers.build(vocabulary.ItemCall.parse("last_word"))
    assert parser.parse("so it is 7", {}) == "7"
