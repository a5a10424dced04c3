"""Scripted rollout engine for rLLM, and rLLM's own workflow engine around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from rllm.engine.rollout.rollout_engine import ModelOutput, RolloutEngine
from rllm.engine.unified_workflow_engine import UnifiedWorkflowEngine
from rllm.types import Episode

from tests.edge import RIGHT

Answer = Callable[[str], str]
"""Function from a prompt to an answer; an exception fails the call."""


class RecordedEngine(RolloutEngine):
    """Rollout engine that answers from a function, with the call's number among the tokens."""

    def __init__(self, answer: Answer, latency: Callable[[str], float] = lambda _: 0.0) -> None:
        super().__init__()
        self.answer, self.latency = answer, latency
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.weight_version = 3

    async def _get_model_response(self, messages: list[dict[str, str]], **kwargs: Any) -> ModelOutput:
        prompt = messages[-1]["content"]
        self.calls.append((prompt, kwargs))
        number = len(self.calls)
        if seconds := self.latency(prompt):
            await asyncio.sleep(seconds)
        text = self.answer(prompt)
        return ModelOutput(
            text=text,
            content=text,
            reasoning="",
            prompt_ids=[1, 2, number],
            completion_ids=[number, 7],
            logprobs=[-0.5, -0.25],
            finish_reason="stop",
        )


def is_judge(prompt: str) -> bool:
    return "Proposed solutions" in prompt


def agreeable(prompt: str) -> str:
    return "<answer>1</answer>" if is_judge(prompt) else RIGHT


def tasks(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"id": f"t{n}", "question": f"Make 7 from 3 and 4 ({n})", "nums": [3, 4], "target": 7}
        for n in range(first, first + count)
    ]


def run_all(
    workflow: type,
    engine: RolloutEngine,
    rows: Sequence[dict[str, Any]],
    *,
    rollouts: int = 1,
    parallel: int = 256,
    workflow_args: dict[str, Any] | None = None,
    retry_limit: int = 1,
) -> list[Episode]:
    """Run each rollout of each row through rLLM's own engine, and return the episodes in order."""
    own = [row for row in rows for _ in range(rollouts)]
    runner = UnifiedWorkflowEngine(
        workflow, workflow_args or {}, engine, n_parallel_tasks=parallel, retry_limit=retry_limit
    )
    try:
        return asyncio.run(runner.execute_tasks(own, [row["id"] for row in own]))
    finally:
        runner.shutdown()
