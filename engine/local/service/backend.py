"""What the service computes with: one policy, the training runs on it, its checkpoints, and sampling.

Each call is handed to the compute thread and awaited here. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from engine.local.service.batcher import Batcher, Job
from engine.local.service.checkpoints import PLAIN, Checkpoints, Entry, Kind, Terms, checkpoint_path
from engine.local.service.policy import LoraShape, Policy
from engine.local.service.sampling import SampleRequest
from engine.local.service.trainer import Datum, Missing, Refused, TrainingRun
from engine.local.service.worker import Worker

if TYPE_CHECKING:
    from tinker import AdamParams

T = TypeVar("T")

MAX_LOADED = 4
"""Checkpoints that are kept loaded for sampling beside the newest of each training run; others are read
again when they are asked for."""
MAX_SNAPSHOTS = 12
"""Unnamed sampling weights that are kept on disk for each training run; beyond it, those not used for longest
are dropped."""


class Backend:
    """A policy and what clients have made of it."""

    def __init__(self, policy: Policy, checkpoints: Checkpoints) -> None:
        self.policy = policy
        self.checkpoints = checkpoints
        self._runs: dict[str, TrainingRun] = {}
        self._loaded: OrderedDict[str, str] = OrderedDict()
        """Adapters that hold a checkpoint for sampling, by its path; the one used last is last."""
        self._stale: set[str] = set()
        """Loaded checkpoints that have been written anew, or deleted, since."""
        self._numbers = itertools.count(1)
        self._snapshots: OrderedDict[str, None] = OrderedDict()
        self._batcher = Batcher(policy, self._load)
        self._worker = Worker(self._batcher)

    async def _compute(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._worker.submit(work))

    def close(self) -> None:
        """Stop the compute thread; what it is doing is finished first."""
        self._worker.close()

    # training

    def run(self, name: str) -> TrainingRun:
        """A training run by its model id, which is used now; raises Refused."""
        if name not in self._runs:
            raise Missing(f"there is no model {name!r}; it was never created, or was unloaded")
        self._runs[name].used = datetime.now(UTC)
        return self._runs[name]

    async def create(self, name: str, shape: LoraShape) -> None:
        """Start a training run."""
        self._runs[name] = await self._compute(lambda: TrainingRun(self.policy, name, shape))

    async def unload(self, name: str) -> None:
        """End a training run."""
        run = self.run(name)
        del self._runs[name]
        await self._compute(run.end)

    async def unload_all(self, prefix: str) -> None:
        """End the training runs whose model ids begin so."""
        for name in [name for name in self._runs if name.startswith(prefix)]:
            await self.unload(name)

    async def forward_backward(
        self, name: str, data: Sequence[Datum], loss: str, config: Mapping[str, float], *, backward: bool
    ) -> tuple[float, list[Tensor]]:
        """As `TrainingRun.forward_backward`."""
        run = self.run(name)
        return await self._compute(lambda: run.forward_backward(data, loss, config, backward=backward))

    async def step(self, name: str, settings: AdamParams) -> dict[str, float]:
        """As `TrainingRun.step`."""
        run = self.run(name)
        return await self._compute(lambda: run.step(settings))

    async def save_state(self, name: str, checkpoint: str, terms: Terms = PLAIN) -> str:
        """Write weights and optimizer; returns the path."""
        return await self._save(name, "weights", checkpoint, terms)

    async def save_external(self, name: str, checkpoint: str, terms: Terms = PLAIN) -> str:
        """Write weights for others to read; returns the path."""
        return await self._save(name, "external_weights", checkpoint, terms)

    async def _save(self, name: str, kind: Kind, checkpoint: str, terms: Terms) -> str:
        run = self.run(name)

        def save() -> str:
            self._expire()
            state = run.optimizer_state() if kind == "weights" else None
            path = checkpoint_path(name, kind, checkpoint)
            return self.checkpoints.save(path, run.shape, self.policy.weights(name), state, terms)

        return await self._compute(save)

    async def load_state(self, name: str, path: str, *, optimizer: bool) -> None:
        """Take over a checkpoint; a run that is not there yet is created in the checkpoint's shape."""

        def load() -> None:
            self._expire()
            saved = self.checkpoints.load(path, optimizer=optimizer)
            run = self._runs.get(name)
            if run is None:
                run = self._runs[name] = TrainingRun(self.policy, name, saved.shape)
            elif (run.shape.rank, *_layers(run.shape)) != (saved.shape.rank, *_layers(saved.shape)):
                raise Refused(f"{path} has the shape {saved.shape}, the model {name} has {run.shape}")
            run.restore(saved.weights, saved.optimizer)

        await self._compute(load)

    # what is kept

    def live(self) -> Mapping[str, TrainingRun]:
        """The training runs that go on, by model id."""
        return dict(self._runs)

    async def entries(self) -> list[Entry]:
        """The checkpoints that there are, the newest first."""
        return await asyncio.to_thread(self.checkpoints.entries)

    async def keep_for(self, path: str, ttl_seconds: int | None) -> None:
        """As `Checkpoints.keep_for`."""
        await self._compute(lambda: self.checkpoints.keep_for(path, ttl_seconds))

    async def delete(self, path: str) -> None:
        """Delete a checkpoint. A training that began with it goes on; nothing more is drawn from it."""

        def delete() -> None:
            self.checkpoints.delete(path)
            self._outdate(path)

        await self._compute(delete)

    def _expire(self) -> None:
        for path in self.checkpoints.expired():
            self.checkpoints.remove(path)
            self._outdate(path)

    def _outdate(self, path: str) -> None:
        """What is loaded of a checkpoint is no longer what is on disk."""
        if path in self._loaded:
            self._stale.add(path)

    # sampling

    async def save_sampler(self, name: str, checkpoint: str, terms: Terms = PLAIN) -> str:
        """Write a training run's weights to sample from; returns the path.

        Those that are not listed may be dropped when many newer ones have been used since.
        """
        run = self.run(name)

        def save() -> str:
            path = checkpoint_path(name, "sampler_weights", checkpoint)
            self._expire()
            self.checkpoints.save(path, run.shape, self.policy.weights(name), terms=terms)
            self._outdate(path)
            if not terms.listed:
                self._snapshots[path] = None
                while len(self._snapshots) > MAX_SNAPSHOTS * len(self._runs):
                    self.checkpoints.remove(self._snapshots.popitem(last=False)[0])
            return path

        return await self._compute(save)

    async def shape(self, path: str) -> LoraShape:
        """The shape of a checkpoint; raises Refused where it cannot be used."""

        def shape() -> LoraShape:
            self._expire()
            return self.checkpoints.load(path, optimizer=False).shape

        return await self._compute(shape)

    async def sample(
        self, path: str | None, requests: Sequence[SampleRequest], *, prompt_logprobs: bool
    ) -> Job:
        """Draw sequences from a checkpoint's weights (None: the base model's); raises Refused."""
        job = Job(path, requests, prompt_logprobs)
        self._worker.sample(job)
        await asyncio.wrap_future(job.done)
        return job

    def _load(self, path: str) -> str:
        """The adapter that holds a checkpoint's weights. Nothing is being drawn from it now."""
        self._expire()
        if path in self._snapshots:
            self._snapshots.move_to_end(path)
        if path in self._stale:
            self._drop(path)
        if path not in self._loaded:
            saved = self.checkpoints.load(path, optimizer=False)
            idle = [other for other, name in self._loaded.items() if name not in self._batcher.in_use()]
            for other in idle[: max(0, len(self._loaded) + 1 - MAX_LOADED - len(self._runs))]:
                self._drop(other)
            adapter = f"sampler-{next(self._numbers)}"
            self.policy.add_adapter(adapter, saved.shape)
            self.policy.set_weights(adapter, saved.weights)
            self.policy.freeze(adapter)
            self._loaded[path] = adapter
        self._loaded.move_to_end(path)
        return self._loaded[path]

    def _drop(self, path: str) -> None:
        self.policy.drop_adapter(self._loaded.pop(path))
        self._stale.discard(path)


def _layers(shape: LoraShape) -> tuple[bool, bool, bool]:
    return shape.train_attn, shape.train_mlp, shape.train_unembed
