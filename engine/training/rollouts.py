"""Setup of a training, and the episodes that it samples from the policies' current weights."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeVar

from rolegraph.engine.compile import Plan
from rolegraph.engine.models import LimitedModel, ServedModel
from rolegraph.engine.records import Episode, Observer, PastCopy, RunFolder, Task
from rolegraph.engine.run import EpisodeJob, Isolation, jobs, run_episode, run_jobs
from rolegraph.engine.spec import ModelRef
from rolegraph.engine.training.past import Opponents, PastSelves
from rolegraph.engine.training.policies import Policies
from rolegraph.engine.training.remote import RemoteModels

MakeEpisode = Callable[[EpisodeJob], Awaitable[Episode]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """Plan, data, open models and folder of a training; the caller opens and closes them."""

    plan: Plan
    seed: int
    steps: int
    """Number of training steps."""
    tasks: Sequence[Task]
    """Training tasks."""
    validation_tasks: Sequence[Task]
    """Validation tasks; empty if the spec has none."""
    policies: Policies
    past: PastSelves
    models: Mapping[ModelRef, LimitedModel]
    """Models of frozen roles, and teachers."""
    isolation: Isolation
    folder: RunFolder
    observe: Observer
    remote: RemoteModels | None = None
    """Workers of a cluster that make the rollouts; None makes them in this process."""


class Rollouts(AbstractAsyncContextManager["Rollouts"]):
    """Context manager that starts batches of episodes, and cancels unfinished ones when it exits."""

    def __init__(self, setup: TrainingSetup) -> None:
        self._setup = setup
        self._running: set[asyncio.Task[list[Episode]]] = set()

    async def __aexit__(self, *_: object) -> None:
        for batch in self._running:
            batch.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._setup.remote is not None:
            await self._setup.remote.close()

    async def start(
        self, tasks: Sequence[Task], rollouts: int, seed: int, opponents: Sequence[Opponents] = ()
    ) -> asyncio.Task[list[Episode]]:
        """Start K episodes of each of P tasks with the policies' current weights.

        Args:
            tasks: the P tasks.
            rollouts: K.
            seed: seed of the batch; each episode derives its own.
            opponents: past selves that each task plays against; none are the policies' starts.

        Returns:
            An asyncio task whose result is the P·K episodes, ordered by task, then by rollout.
        """
        alike: dict[tuple[tuple[str, PastCopy], ...], list[Task]] = {}
        nobody: Opponents = {}
        for task, against in zip(tasks, opponents or [nobody] * len(tasks), strict=True):
            alike.setdefault(tuple(against.items()), []).append(task)
        makers = {against: await self._maker(dict(against)) for against in alike}
        parts = [
            self._track(self._collect(own, rollouts, seed, makers[against], dict(against)))
            for against, own in alike.items()
        ]
        return self._track(self._joined(parts, [task["id"] for task in tasks]))

    def _track(self, work: Coroutine[None, None, list[Episode]]) -> asyncio.Task[list[Episode]]:
        """Start work that is cancelled when this context manager exits."""
        started = asyncio.create_task(work)
        self._running.add(started)
        started.add_done_callback(self._running.discard)
        return started

    async def _maker(self, against: Opponents) -> MakeEpisode:
        """Return the function that makes episodes with the weights as they are now."""
        setup, remote = self._setup, self._setup.remote
        if remote is None:
            sampler, past = setup.policies.sampler, setup.past.model
            models = await self._table(against, sampler, past, setup.models)
            plan, isolation, observe = setup.plan, setup.isolation, setup.observe
            return lambda job: run_episode(plan, job, models, isolation=isolation, observe=observe)

        async def copied(name: str, path: str, version: int) -> ServedModel:
            return setup.policies.located_copy(setup.plan.past[name].of, path, version)

        served = await self._table(against, remote.current, copied, remote.frozen)
        return lambda job: remote.maker.make(job._replace(models=served), setup.observe)

    async def _table(
        self,
        against: Opponents,
        current: Callable[[str], Awaitable[T]],
        past: Callable[[str, str, int], Awaitable[T]],
        frozen: Mapping[ModelRef, T],
    ) -> list[T]:
        """Return the models of the plan's endpoints.

        Args:
            against: past selves that the episodes are played against.
            current: gives a policy's current weights.
            past: gives a past policy's copy by its path and version.
            frozen: the models that are not trained.
        """
        models: list[T] = []
        for endpoint in self._setup.plan.endpoints:
            copy = against.get(endpoint.past) if endpoint.past else None
            if endpoint.policy is not None:
                models.append(await current(endpoint.policy))
            elif copy is not None and endpoint.past is not None and copy.sampler is not None:
                models.append(await past(endpoint.past, copy.sampler, copy.version))
            else:
                models.append(frozen[endpoint.model])
        return models

    async def _joined(
        self, parts: Sequence[asyncio.Task[list[Episode]]], order: Sequence[str]
    ) -> list[Episode]:
        place = {task: number for number, task in enumerate(order)}
        episodes = [episode for part in parts for episode in await part]
        return sorted(episodes, key=lambda e: (place[e.task_id], e.rollout))

    async def _collect(
        self,
        tasks: Sequence[Task],
        rollouts: int,
        seed: int,
        make: MakeEpisode,
        against: Opponents,
    ) -> list[Episode]:
        """Make the episodes of tasks with the same models; note the past selves in their metadata."""
        episodes = run_jobs(jobs(tasks, rollouts, seed), make, max(1, len(tasks) * rollouts))
        noted = {"past": {name: copy.version for name, copy in against.items()}} if against else {}
        return [e._replace(metadata={**e.metadata, **noted}) async for e in episodes]
