"""Setup of a training, and the episodes that it samples from the policies' current weights."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import TypeVar

from rolegraph.engine.compile import Plan
from rolegraph.engine.compile.plan import TeacherKey
from rolegraph.engine.models import LimitedModel, ServedModel
from rolegraph.engine.records import Episode, Observer, RunFolder, Task
from rolegraph.engine.run import EpisodeJob, EpisodeMaker, Isolation, jobs, run_episode, run_jobs
from rolegraph.engine.run.likelihood import check_scorers
from rolegraph.engine.spec import ModelRef
from rolegraph.engine.training.loop.ending import NO_BUDGET, Budget
from rolegraph.engine.training.loop.schedule import ValidationSetup
from rolegraph.engine.training.policies.past import Opponents, PastSelves
from rolegraph.engine.training.policies.policies import Policies

MakeEpisode = Callable[[EpisodeJob], Awaitable[Episode]]
T = TypeVar("T")


class RemoteModels:
    """Workers of a cluster, and the addresses of the models from which they sample.

    Each version of the weights is saved at the service while rollouts may use it.

    Args:
        maker: Workers, which open the models that a job names.
        policies: Policies in training.
        frozen: Addresses of the untrained models.
        staleness: Number of updates by which rollouts may lag behind the policy.
    """

    def __init__(
        self, maker: EpisodeMaker, policies: Policies, frozen: Mapping[ModelRef, ServedModel], staleness: int
    ) -> None:
        self.maker, self.frozen = maker, frozen
        self._policies, self._staleness = policies, staleness
        self._saved: dict[str, dict[int, ServedModel]] = {}
        """Saved weights that rollouts may still use, by policy and version."""

    async def current(self, policy: str) -> ServedModel:
        """Return the address and path of a policy's current weights; saves them first, once for each version.

        Raises:
            WorldError: The service refuses or fails.
        """
        version, saved_models = self._policies[policy].version, self._saved.setdefault(policy, {})
        if version not in saved_models:
            path = await self._policies[policy].save_copy(f"rollouts-{version:06d}")
            saved_models[version] = self._policies[policy].located_copy(path, version)
            await self._delete(policy, below=version - self._staleness)
        return saved_models[version]

    async def close(self) -> None:
        """Delete the saved weights at the service."""
        for policy in self._saved:
            await self._delete(policy, below=None)

    async def _delete(self, policy: str, below: int | None) -> None:
        saved_models = self._saved[policy]
        for version in [version for version in saved_models if below is None or version < below]:
            if (path := saved_models.pop(version).ref.checkpoint) is not None:
                await self._policies[policy].delete_copy(path)


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """Plan, data, open models and folder of a training; the caller opens and closes them."""

    plan: Plan
    seed: int
    steps: int
    """Number of training steps."""
    tasks: Sequence[Task]
    """Training tasks."""
    validations: Sequence[ValidationSetup]
    """Workflows that validate: the plan itself, or others in its place; empty without validation tasks."""
    rates: Mapping[str, float]
    """Learning rate of each policy, before the schedule's factor."""
    policies: Policies
    past: PastSelves
    models: Mapping[ModelRef, LimitedModel]
    """Models of frozen roles, and teachers."""
    isolation: Isolation
    folder: RunFolder
    observe: Observer
    remote: RemoteModels | None = None
    """Workers of a cluster that make the rollouts; None makes them in this process."""
    keep_going: bool = False
    """True to continue a training in which every answer of a role failed in the same way."""
    budget: Budget = NO_BUDGET
    """Limit on what this command may use; the training can be resumed after it."""

    async def teachers(self) -> Mapping[TeacherKey, LimitedModel]:
        """Return an open model for each teacher: frozen models, starts of policies, and current weights."""
        plan = self.plan
        starts = {
            plan.policies[name].model: await self.past.start_of(name) for name in plan.reference_policies
        }
        scorers = {name: await self.policies[name].scorer() for name in plan.teaching_policies}
        return {**self.models, **starts, **scorers}


class Rollouts(AbstractAsyncContextManager["Rollouts"]):
    """Runner of batches of episodes for training; a context manager that cancels unfinished ones when it
    exits."""

    def __init__(self, setup: TrainingSetup) -> None:
        self._setup = setup
        self._running: set[asyncio.Task[list[Episode]]] = set()
        self.tokens, self.dollars = 0, 0.0
        """Tokens, prompts included, and dollars of all calls of the batches that have ended."""

    async def cancel(self) -> None:
        """Cancel the batches whose episodes are running."""
        for batch in self._running:
            batch.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def __aexit__(self, *_: object) -> None:
        await self.cancel()
        if self._setup.remote is not None:
            await self._setup.remote.close()

    async def start(
        self,
        tasks: Sequence[Task],
        rollouts: int,
        seed: int,
        opponents: Sequence[Opponents] = (),
        step: int | None = None,
        *,
        plan: Plan | None = None,
        greedy: bool = False,
    ) -> asyncio.Task[list[Episode]]:
        """Start K episodes of each of P tasks with the policies' current weights.

        Args:
            tasks: The P tasks.
            rollouts: K.
            seed: Seed of the batch; each episode derives its own.
            opponents: Past selves that each task plays against; where a past policy has no entry, its start
                plays.
            step: Training step, from 1, for numbers that follow the step; None for a validation.
            plan: Workflow that validates in place of the training's.
            greedy: True for answers of the trained roles at temperature 0. These episodes, and those of
                another plan, are made in this process, as the workers of a cluster have the spec's alone.

        Returns:
            An asyncio task whose result is the P·K episodes, ordered by task, then by rollout.
        """
        no_opponents: Opponents = {}
        ids = [task["id"] for task in tasks]
        opponents_by_task = dict(zip(ids, opponents or [no_opponents] * len(tasks), strict=True))
        distinct_opponents = {tuple(copies.items()): copies for copies in opponents_by_task.values()}
        training_plan = self._setup.plan if plan is None else plan
        asked_plan = _greedy(training_plan) if greedy else training_plan
        maker_of = {key: await self._maker(copies, asked_plan) for key, copies in distinct_opponents.items()}

        async def make(job: EpisodeJob) -> Episode:
            copies = opponents_by_task[job.task["id"]]
            episode = await maker_of[tuple(copies.items())](job)
            metadata = {"past": {name: copy.version for name, copy in copies.items()}} if copies else {}
            return episode._replace(metadata={**episode.metadata, **metadata})

        async def collect() -> list[Episode]:
            episodes_made = run_jobs(jobs(tasks, rollouts, seed, step), make, max(1, len(tasks) * rollouts))
            order = {task: index for index, task in enumerate(ids)}
            episodes = sorted([e async for e in episodes_made], key=lambda e: (order[e.task_id], e.rollout))
            self.tokens += sum(_tokens(episode) for episode in episodes)
            self.dollars += sum(training_plan.cost(t) or 0.0 for e in episodes for t in e.trajectories)
            return episodes

        episodes_task = asyncio.create_task(collect())
        self._running.add(episodes_task)
        episodes_task.add_done_callback(self._running.discard)
        return episodes_task

    async def _maker(self, against: Opponents, plan: Plan) -> MakeEpisode:
        """Return a function that runs a job's episode with the policies' current weights, here or on a
        cluster."""
        setup, remote = self._setup, self._setup.remote
        if remote is None or plan is not setup.plan:
            models = await self._open_table(plan, against)
            isolation, observe = setup.isolation, setup.observe
            return lambda job: run_episode(plan, job, models, isolation=isolation, observe=observe)

        async def copied(name: str, path: str, version: int) -> ServedModel:
            return setup.policies[setup.plan.past[name].of].located_copy(path, version)

        served_models = await self._table(plan, against, remote.current, copied, remote.frozen)
        return lambda job: remote.maker.make(job._replace(models=served_models), setup.observe)

    async def _open_table(self, plan: Plan, against: Opponents) -> list[LimitedModel]:
        """Return a model that is open in this process for each of the plan's endpoints."""
        setup = self._setup

        async def current(policy: str) -> LimitedModel:
            return await setup.policies[policy].sampler()

        return await self._table(plan, against, current, setup.past.model, setup.models)

    async def check_scorers(self) -> None:
        """Check the models whose log-probabilities a reward reads.

        Raises:
            UsageError: A model returns no such log-probabilities.
            WorldError: A model does not answer.
        """
        trained_plan = self._setup.plan
        other_plans = (entry.plan for entry in self._setup.validations if entry.plan is not trained_plan)
        for plan in (trained_plan, *other_plans):
            if any(role.likelihoods for role in plan.roles):
                await check_scorers(plan, await self._open_table(plan, {}))

    async def _table(
        self,
        plan: Plan,
        against: Opponents,
        current: Callable[[str], Awaitable[T]],
        past: Callable[[str, str, int], Awaitable[T]],
        frozen: Mapping[ModelRef, T],
    ) -> list[T]:
        """Return the model for each of a plan's endpoints: current weights, past selves or frozen models.

        Args:
            plan: The plan.
            against: Past selves that the episodes are played against.
            current: Function that returns a policy's current weights by the policy's name.
            past: Function that returns a copy of a past policy by name, path and version.
            frozen: The models that are not trained.
        """
        models: list[T] = []
        for endpoint in plan.endpoints:
            copy = against.get(endpoint.past) if endpoint.past else None
            if endpoint.policy is not None:
                models.append(await current(endpoint.policy))
            elif copy is not None and endpoint.past is not None and copy.sampler is not None:
                models.append(await past(endpoint.past, copy.sampler, copy.version))
            else:
                models.append(frozen[endpoint.model])
        return models


def _tokens(episode: Episode) -> int:
    steps = (step for trajectory in episode.trajectories for step in trajectory.steps)
    return sum(step.prompt_tokens + step.response_tokens for step in steps)


def _greedy(plan: Plan) -> Plan:
    """Return a plan whose trained roles answer at temperature 0."""
    roles = (
        replace(role, samplings=tuple(s.model_copy(update={"temperature": 0.0}) for s in role.samplings))
        if role.name in plan.trained
        else role
        for role in plan.roles
    )
    return replace(plan, roles=tuple(roles))
