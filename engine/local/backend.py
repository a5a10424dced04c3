"""The service's compute: one thread, one policy; operations on training runs, and sampling in batches.

Everything that touches torch goes through `Backend`'s single thread. Sampling requests gather while the
thread is busy; when it is free, all that want the same weights are drawn together. Knows no HTTP.
"""

# torch, peft and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from engine.local.checkpoints import Checkpoints
from engine.local.policy import LoraShape, Policy
from engine.local.sampling import Draw, draw_all
from engine.local.trainer import AdamSettings, Datum, Refused, TrainingRun

T = TypeVar("T")

MAX_BATCH = 256
"""Sequences drawn together."""
MAX_SAMPLERS = 4
"""Sampler weights that are kept loaded; others are read again when they are asked for."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """Weights to sample from. None: the base model."""

    shape: LoraShape | None = None
    weights: Mapping[str, Tensor] | None = None


@dataclass(slots=True)
class Job:
    """One request to sample: `draws` sequences of one prompt, and the prompt's own log-probabilities."""

    sampler: str
    draws: Sequence[Draw]
    want_prompt_logprobs: bool
    done: asyncio.Future[None]
    prompt_logprobs: list[float] = field(default_factory=list[float])
    """Temperature 1; NaN for the first token, which nothing precedes."""


class Backend:
    """A policy and what clients have made of it."""

    def __init__(self, policy: Policy, checkpoints: Checkpoints) -> None:
        self.policy = policy
        self.checkpoints = checkpoints
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")
        self._runs: dict[str, TrainingRun] = {}
        self._samplers: dict[str, Sampler] = {}
        self._loaded: OrderedDict[str, None] = OrderedDict()
        self._waiting: list[Job] = []
        self._drawing: asyncio.Task[None] | None = None

    async def _compute(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Stop the compute thread; what it is doing is finished first."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    # training

    def run(self, name: str) -> TrainingRun:
        """A training run by its model id; raises Refused."""
        if name not in self._runs:
            raise Refused(f"there is no model {name!r}; it was never created, or was unloaded")
        return self._runs[name]

    async def create(self, name: str, shape: LoraShape) -> None:
        """Start a training run."""
        self._runs[name] = await self._compute(lambda: TrainingRun(self.policy, name, shape))

    async def unload(self, name: str) -> None:
        """End a training run."""
        run = self.run(name)
        del self._runs[name]
        await self._compute(run.end)

    async def forward_backward(
        self, name: str, data: Sequence[Datum], loss: str, config: Mapping[str, float], *, backward: bool
    ) -> tuple[float, list[Tensor]]:
        """As `TrainingRun.forward_backward`."""
        run = self.run(name)
        return await self._compute(lambda: run.forward_backward(data, loss, config, backward=backward))

    async def step(self, name: str, settings: AdamSettings) -> dict[str, float]:
        """As `TrainingRun.step`."""
        run = self.run(name)
        return await self._compute(lambda: run.step(settings))

    async def save_state(self, name: str, checkpoint: str) -> str:
        """Write weights and optimizer; returns the path."""
        run = self.run(name)

        def save() -> str:
            weights = self.policy.weights(name)
            return self.checkpoints.save(
                name, "weights", checkpoint, run.shape, weights, run.optimizer_state()
            )

        return await self._compute(save)

    async def load_state(self, name: str, path: str, *, optimizer: bool) -> None:
        """Take over a checkpoint; a run that is not there yet is created in the checkpoint's shape."""

        def load() -> None:
            found = self.checkpoints.load(path, optimizer=optimizer)
            run = self._runs.get(name)
            if run is None:
                run = self._runs[name] = TrainingRun(self.policy, name, found.shape)
            elif (run.shape.rank, *_layers(run.shape)) != (found.shape.rank, *_layers(found.shape)):
                raise Refused(f"{path} has the shape {found.shape}, the model {name} has {run.shape}")
            run.restore(found.weights, found.optimizer)

        await self._compute(load)

    # sampling

    def add_sampler(self, name: str, sampler: Sampler) -> None:
        """Make weights known under a sampling session's name."""
        self._samplers[name] = sampler

    async def snapshot(self, name: str) -> Sampler:
        """A training run's weights as they are now."""
        run = self.run(name)
        return Sampler(run.shape, await self._compute(lambda: self.policy.weights(name)))

    async def save_sampler(self, name: str, checkpoint: str, sampler: Sampler) -> str:
        """Write weights to sample from; returns the path."""
        if sampler.shape is None or sampler.weights is None:
            raise Refused("the base model needs no checkpoint")
        shape, weights = sampler.shape, sampler.weights
        return await self._compute(
            lambda: self.checkpoints.save(name, "sampler_weights", checkpoint, shape, weights)
        )

    async def read_sampler(self, path: str) -> Sampler:
        """The weights of a checkpoint."""
        found = await self._compute(lambda: self.checkpoints.load(path, optimizer=False))
        return Sampler(found.shape, found.weights)

    async def sample(self, sampler: str, draws: Sequence[Draw], *, prompt_logprobs: bool) -> Job:
        """Draw sequences together with whatever else wants the same weights; raises Refused."""
        if sampler not in self._samplers:
            raise Refused(f"there is no sampling session {sampler!r}")
        job = Job(sampler, draws, prompt_logprobs, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        if self._drawing is None or self._drawing.done():
            self._drawing = asyncio.create_task(self._draw_waiting())
        await job.done
        return job

    async def _draw_waiting(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # let requests that have just arrived join the batch
            first = self._waiting[0].sampler
            batch: list[Job] = []
            for job in self._waiting:
                if job.sampler == first and (not batch or _size(batch) + len(job.draws) <= MAX_BATCH):
                    batch.append(job)
            taken = set(map(id, batch))
            self._waiting = [job for job in self._waiting if id(job) not in taken]
            error: Exception | None = None
            try:
                await self._compute(lambda batch=batch: self._draw(batch))
            except Exception as caught:  # it belongs to the requests of this batch, which report it
                error = caught
            for job in batch:
                if not job.done.done():
                    if error is None:
                        job.done.set_result(None)
                    else:
                        job.done.set_exception(error)

    def _draw(self, batch: Sequence[Job]) -> None:
        adapter = self._load(batch[0].sampler)
        scored = [job for job in batch if job.want_prompt_logprobs]
        for job in scored:
            job.prompt_logprobs = self._prompt_logprobs(adapter, job.draws[0].prompt)
        draws = [draw for job in batch for draw in job.draws]
        for start in range(0, len(draws), MAX_BATCH):
            draw_all(self.policy, adapter, draws[start : start + MAX_BATCH])

    def _prompt_logprobs(self, adapter: str | None, prompt: Sequence[int]) -> list[float]:
        if len(prompt) == 1:
            return [float("nan")]
        with torch.inference_mode():
            found = self.policy.logprobs(adapter, [prompt[:-1]], [prompt[1:]])[0]
        return [float("nan"), *found.tolist()]

    def _load(self, name: str) -> str | None:
        """The adapter that holds a sampler's weights; None for the base model."""
        sampler = self._samplers[name]
        if sampler.shape is None or sampler.weights is None:
            return None
        adapter = f"sampler:{name}"
        if adapter not in self._loaded:
            while len(self._loaded) >= MAX_SAMPLERS:
                self.policy.drop_adapter(self._loaded.popitem(last=False)[0])
            self.policy.add_adapter(adapter, sampler.shape)
            self.policy.set_weights(adapter, sampler.weights)
        self._loaded[adapter] = None
        self._loaded.move_to_end(adapter)
        return adapter


def _size(batch: Sequence[Job]) -> int:
    return sum(len(job.draws) for job in batch)


def _layers(shape: LoraShape) -> tuple[bool, bool, bool]:
    return shape.train_attn, shape.train_mlp, shape.train_unembed
