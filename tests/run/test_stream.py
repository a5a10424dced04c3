"""Tests that many tasks stream with bounded memory, and that closing the stream leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Iterator

from rolegraph.engine.records import Episode, Task
from rolegraph.engine.run import Isolation, jobs, run_episode, run_jobs
from tests.edge import COUNTDOWN, RIGHT, ScriptedModel, by_role, limited, solver_judge

ANSWERS = by_role({"solver": RIGHT, "judge": "<answer>1</answer>"})


def tasks(count: int) -> list[Task]:
    return [{**COUNTDOWN, "id": f"t{i}"} for i in range(count)]


def streamed(
    model: ScriptedModel, tasks: Iterable[Task], concurrency: int, rollouts: int = 1
) -> AsyncGenerator[Episode, None]:
    plan, isolation = solver_judge(), Isolation()
    models = limited(plan, model)
    todo = jobs(tasks, rollouts)
    return run_jobs(todo, lambda job: run_episode(plan, job, models, isolation=isolation), concurrency)


def test_every_task_and_rollout_gives_one_episode() -> None:
    async def ids() -> list[str]:
        return [episode.id async for episode in streamed(ScriptedModel(ANSWERS), tasks(5), 4, rollouts=3)]

    assert sorted(asyncio.run(ids())) == sorted(f"t{i}:{rollout}" for i in range(5) for rollout in range(3))


def test_tasks_are_drawn_only_when_there_is_room() -> None:
    drawn = 0

    def endless() -> Iterator[Task]:
        nonlocal drawn
        while True:
            drawn += 1
            yield {**COUNTDOWN, "id": f"t{drawn}"}

    async def take_ten() -> None:
        taken = 0
        episodes = streamed(ScriptedModel(ANSWERS), endless(), 8)
        async with contextlib.aclosing(episodes):
            async for _ in episodes:
                taken += 1
                if taken == 10:
                    break

    asyncio.run(take_ten())
    assert drawn <= 10 + 2 * 8 + 8


def test_closing_the_stream_cancels_what_is_in_flight() -> None:
    model = ScriptedModel(ANSWERS, lambda request: 30.0 if request.id.task != "t0" else 0.0)

    async def first_only() -> int:
        episodes = streamed(model, tasks(50), 10)
        async with contextlib.aclosing(episodes):
            async for _ in episodes:
                break
        return len(asyncio.all_tasks()) - 1

    assert asyncio.run(first_only()) == 0
    assert model.under_way == 0
