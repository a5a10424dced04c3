"""Digests of compiled specs: turns, edges, prompts, seeds, sampling and rewards on scripted answers.

A spec that is written in another way and means the same keeps its digest. `python -m tests.plans` writes the
digests anew; look at what changed before you commit them.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

from rolegraph.engine.compile import Plan
from rolegraph.engine.compile.compiler import check_file
from rolegraph.engine.models import Request
from rolegraph.engine.shipped import SPECS
from tests.compile.test_recipes import DATA, HEAD, RECIPES, ROW, write_files
from tests.edge import COUNTDOWN, ScriptedModel, run_one, write_spec

ROOT = Path(__file__).parents[1]
DIGESTS = ROOT / "tests" / "data" / "plans.json"
FOLDERS = (SPECS, ROOT / "benchmarks" / "results" / "specs", ROOT / "tests" / "data" / "skill_tasks")
TASK = {**COUNTDOWN, **ROW, "id": "t1", "seed": 3, "examples": []}
ANSWERS = (
    "<answer>3 + 4</answer>",
    "I choose 1.\n<answer>1</answer>",
    "yes <verdict>correct</verdict> <answer>42</answer> \\boxed{42}",
    "```python\nprint(42)\n```\n7",
)


def specs() -> Iterator[tuple[str, Path]]:
    """Yield the specs of the repository by name."""
    for folder in FOLDERS:
        for file in sorted(folder.glob("*.yaml")):
            yield str(file.relative_to(ROOT)), file


def recipes(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the recipes of the documentation by title, as files in a folder."""
    write_files(folder)
    for number, (title, text) in enumerate(RECIPES.items()):
        own = "" if any(line.startswith(("data:", "extends:")) for line in text.splitlines()) else DATA
        yield title, write_spec(folder, HEAD + own + text, f"recipe-{number}.yaml")


def digest(file: Path, *, episodes: bool = True) -> str | None:
    """Return the digest of a spec's turns and, where it needs no permission, of episodes.

    None for a spec that needs another package or file.
    """
    plan = check_file(file).plan
    if plan is None:
        return None
    turns = [plan.nodes, plan.blocks, plan.waits, sorted(plan.reward_inputs.items())]
    return hashlib.sha256(
        "\n".join([*map(repr, turns), *(_episodes(plan) if episodes and not plan.withheld else ())]).encode()
    ).hexdigest()[:16]


def _episodes(plan: Plan) -> Iterator[str]:
    for salt in range(3):

        def answer(request: Request, salt: int = salt) -> str:
            return ANSWERS[crc32(f"{salt} {request.id}".encode()) % len(ANSWERS)]

        model = ScriptedModel(answer)
        made = run_one(plan, model, TASK, seed=salt)
        requests = [[str(it.id), it.messages, it.seed, it.sampling.model_dump()] for it in model.requests]
        yield json.dumps(sorted(requests, key=lambda it: str(it[0])), sort_keys=True, default=str)
        yield json.dumps([_outcome(it) for it in made.trajectories], sort_keys=True, default=str)
        yield json.dumps([made.is_correct, sorted(made.metrics.items())], default=str)


def _outcome(trajectory: Any) -> list[Any]:
    steps = [[step.action, step.reward] for step in trajectory.steps]
    return [trajectory.name, trajectory.reward, steps]


def digests() -> dict[str, str | None]:
    """Return the digest of each spec and recipe."""
    with tempfile.TemporaryDirectory() as folder:
        turns = {name: digest(file, episodes=False) for name, file in recipes(Path(folder))}
        return {**{name: digest(file) for name, file in specs()}, **turns}


if __name__ == "__main__":
    DIGESTS.write_text(json.dumps(digests(), indent=1) + "\n", encoding="utf-8")
