"""What a spec costs under rLLM: its compiled Workflow beside rLLM's own hand-written one, no model between.

    python benchmarks/rllm_overhead.py --cookbook RLLM_CHECKOUT/cookbooks/workflow/solver_judge

Both run the same tasks through rLLM's UnifiedWorkflowEngine with a rollout engine that answers at once, in
one process, in turns; the median of the process's CPU time counts, which a busy machine changes little. Both
ask two solvers and a judge, read their answers and reward them; each renders its own prompts. Needs the extra
`rllm`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import statistics
import sys
from pathlib import Path
from time import process_time
from typing import Any

import click
import tqdm
from rich.console import Console
from rich.table import Table
from stub import ANSWERS, task

from rolegraph.integrations.rllm import compile_workflow

SYSTEMS = ("rLLM's own", "compiled")
JUDGES = ("Solutions to evaluate", "Proposed solutions")
"""What is in the judge's prompt of each, and in no solver's."""


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option(
    "--cookbook",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="The folder of rLLM's solver_judge_flow.py.",
)
@click.option("--episodes", type=click.IntRange(min=1), default=2048, show_default=True)
@click.option("--parallel", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--repetitions", type=click.IntRange(min=1), default=15, show_default=True)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write every figure here.")
def main(cookbook: Path, episodes: int, parallel: int, repetitions: int, file: Path | None) -> None:
    logging.disable(logging.WARNING)
    sys.path.insert(0, str(cookbook))
    seconds = asyncio.run(compare(episodes, parallel, repetitions))
    medians = {system: statistics.median(times) for system, times in seconds.items()}
    hand_written = medians[SYSTEMS[0]]
    table = Table("workflow", "episodes/s", "µs an episode", "least to most", "time, relative")
    for system, median in medians.items():
        low, high = min(seconds[system]), max(seconds[system])
        table.add_row(
            system,
            f"{episodes / median:,.0f}",
            f"{median / episodes * 1e6:,.0f}",
            f"{low / episodes * 1e6:,.0f} to {high / episodes * 1e6:,.0f}",
            f"{median / hand_written:.2f}",
        )
    Console().print(table)
    if file is not None:
        figures = {"episodes": episodes, "parallel": parallel, "seconds": seconds, "medians": medians}
        file.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


async def compare(episodes: int, parallel: int, repetitions: int) -> dict[str, list[float]]:
    """CPU seconds of each repetition, by system: one of each, then again in the other order."""
    engines = build(parallel)
    rows = [with_ground_truth(task(number)) for number in range(episodes)]
    seconds: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    for turn in range(repetitions + 1):
        for system in SYSTEMS if turn % 2 else reversed(SYSTEMS):
            took = await once(engines[system], rows)
            if turn:  # the first warms up
                seconds[system].append(took)
    for engine in engines.values():
        engine.shutdown()
    return seconds


async def once(engine: Any, rows: list[dict[str, Any]]) -> float:
    gc.collect()
    start = process_time()
    episodes = await engine.execute_tasks(rows, [row["id"] for row in rows])
    took = process_time() - start
    wrong = [e.id for e in episodes if not e.is_correct or len(e.trajectories) != 3]
    if wrong:
        raise SystemExit(f"{len(wrong)} episodes are not right, {wrong[0]} for one")
    return took


def with_ground_truth(row: dict[str, Any]) -> dict[str, Any]:
    """The task as rLLM's reward wants it too."""
    return {**row, "ground_truth": {"target": row["target"], "numbers": row["nums"]}}


def build(parallel: int) -> dict[str, Any]:
    """rLLM's engine around each workflow, in the order of SYSTEMS."""
    from rllm.engine import unified_workflow_engine as rllm_engine
    from rllm.engine.rollout.rollout_engine import ModelOutput, RolloutEngine
    from rllm.rewards.countdown_reward import countdown_reward_fn
    from solver_judge_flow import (  # pyright: ignore[reportMissingImports]  # in the cookbook's folder
        SolverJudgeWorkflow,
    )

    class AnswersAtOnce(RolloutEngine):
        async def _get_model_response(self, messages: list[dict[str, str]], **_: Any) -> ModelOutput:
            judges = any(phrase in messages[-1]["content"] for phrase in JUDGES)
            text = ANSWERS["judge" if judges else "solver"]
            return ModelOutput(
                text=text,
                content=text,
                reasoning="",
                prompt_ids=list(range(64)),
                completion_ids=list(range(64)),
                logprobs=[-0.5] * 64,
                prompt_length=64,
                completion_length=64,
                finish_reason="stop",
            )

    rllm_engine.tqdm = lambda *args, **kwargs: tqdm.tqdm(*args, **{**kwargs, "disable": True})
    workflows: dict[str, tuple[Any, dict[str, Any]]] = {
        SYSTEMS[0]: (SolverJudgeWorkflow, {"n_solutions": 2, "reward_function": countdown_reward_fn}),
        SYSTEMS[1]: (compile_workflow("solver_judge"), {}),
    }
    return {
        system: rllm_engine.UnifiedWorkflowEngine(
            workflow, arguments, AnswersAtOnce(), n_parallel_tasks=parallel
        )
        for system, (workflow, arguments) in workflows.items()
    }


if __name__ == "__main__":
    main()
