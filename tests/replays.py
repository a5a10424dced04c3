"""Run folders made from recorded answers, without a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import rolegraph as rg
from rolegraph import api

Says = Callable[[int, int, str, int], str]
"""Function from task number, rollout, role and instance to the text of an answer."""


@cache
def rows(tasks: int) -> list[api.Task]:
    """Load the first tasks of `solver_judge`."""
    return rg.load("solver_judge").tasks(limit=tasks)


def answers(path: Path, says: Says, *, tasks: int, rollouts: int = 1) -> Path:
    """Write episodes of `solver_judge` on its first tasks as a run does, but without prompts."""
    lines: list[str] = []
    for number, task in enumerate(rows(tasks)):
        for rollout in range(rollouts):
            trajectories = [
                {
                    "name": role,
                    "reward": 0.0,
                    "info": {"index": index},
                    "steps": [_step(says(number, rollout, role, index))],
                }
                for role, index in (("solver", 1), ("solver", 2), ("judge", 1))
            ]
            episode = {"id": f"{task['id']}:{rollout}", "task": dict(task), "is_correct": False}
            lines.append(json.dumps({**episode, "trajectories": trajectories}) + "\n")
    path.write_text("".join(lines))
    return path


def solved(*numbers: int) -> Says:
    """Return answers in which solver 1 solves only the tasks `numbers` and the judge picks solver 1."""

    def says(number: int, rollout: int, role: str, index: int) -> str:
        if role == "judge":
            return "<answer>1</answer>"
        right = index == 1 and number in numbers
        return f"<answer>{rows(number + 1)[number]['solution'] if right else '1'}</answer>"

    return says


def run(
    folder: Path, says: Says, *overrides: str, tasks: int = 4, rollouts: int = 1, spec: str = "solver_judge"
) -> Path:
    """Run a spec on recorded answers and return the run folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    recorded = answers(folder.with_suffix(".recorded.jsonl"), says, tasks=tasks, rollouts=rollouts)
    flow = rg.load(spec, *overrides, model=f"replay:{recorded}")
    return rg.run(flow, limit=tasks, rollouts=rollouts, out=folder).folder


def _step(text: str) -> dict[str, object]:
    ids = list(range(len(text)))
    return {
        "prompt_ids": [1, 2, 3],
        "response_ids": ids,
        "logprobs": [-0.1] * len(ids),
        "chat_completions": [],
        "model_response": text,
    }
