"""Many tasks stream through with bounded memory, and nothing is left when the stream is closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from engine.records import Task
from engine.run.stream import stream
from tests.edge import COUNTDOWN, RIGHT, ScriptedModel, by_role, solver_judge, workflow

ANSWERS = by_role({"solver": RIGHT, "judge": "<answer>1</answer>"})


def tasks(count: int) -> list[Task]:
    return [{**COUNTDOWN, "id": f"t{i}"} for i in range(count)]


def test_every_task_and_rollout_gives_one_episode() -> None:
    async def ids() -> list[str]:
        shared = workflow(solver_judge(), ScriptedModel(ANSWERS))
        return [episode.id async for episode in stream(shared, tasks(5), rollouts=3, concurrency=4)]

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
        episodes = stream(workflow(solver_judge(), ScriptedModel(ANSWERS)), endless(), concurrency=8)
        async with contextlib.aclosing(episodes):
            async for _ in episodes:
                taken += 1
                if taken == 10:
                    break

    asyncio.run(take_ten())
    assert drawn <= 10 + 2 * 8 + 8


def test_closing_the_stream_cancels_what_is_in_flight() -> None:
    model = ScriptedModel(ANSWERS, lambda request: 30.0 if request.task_id != "t0" else 0.0)

    async def first_only() -> int:
        episodes = stream(workflow(solver_judge(), model), tasks(50), concurrency=10)
        async with contextlib.aclosing(episodes):
            async for _ in episodes:
                break
        return len(asyncio.all_tasks()) - 1

    assert asyncio.run(first_only()) == 0
    assert model.under_way == 0
