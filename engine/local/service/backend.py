"""What the service computes with: one policy, the training runs on it, its checkpoints, and sampling.

Each call is handed to the compute thread and awaited here. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from rolegraph.engine.limits import service as limits
from rolegraph.engine.local.service.batcher import Batcher, SampleJob
from rolegraph.engine.local.service.checkpoints import (
    PLAIN,
    CheckpointEntry,
    CheckpointStore,
    Kind,
    SaveOptions,
    checkpoint_path,
)
from rolegraph.engine.local.service.memory import give_back
from rolegraph.engine.local.service.policy import LocalModel, LoraShape
from rolegraph.engine.local.service.sampling import SampleRequest
from rolegraph.engine.local.service.trainer import Datum, NotFoundError, RequestError, TrainingRun
from rolegraph.engine.local.service.worker import Worker

if TYPE_CHECKING:
    from tinker import AdamParams

T = TypeVar("T")


class Backend:
    """A policy and what clients have made of it."""

    def __init__(self, policy: LocalModel, checkpoints: CheckpointStore) -> None:
        self.policy = policy
        self.checkpoints = checkpoints
        self._runs: dict[str, TrainingRun] = {}
        self._loaded: OrderedDict[str, str] = OrderedDict()
        """Adapters that hold a checkpoint for sampling, by its path; the one used last is last."""
        self._stale: set[str] = set()
        """Loaded checkpoints that have been written anew, or deleted, since."""
        self._numbers = itertools.count(1)
        self._snapshots: OrderedDict[str, str] = OrderedDict()
        """Unnamed sampling weights and the run that they are of; those used last are last."""
        self._batcher = Batcher(policy, self._load)
        self._worker = Worker(self._batcher)

    async def _compute(self, owner: str, work: Callable[[], T]) -> T:
        """Do the work on the compute thread; cancelled, what has not begun is left undone."""
        return await asyncio.wrap_future(self._worker.submit(owner, work))

    def close(self) -> None:
        """Stop the compute thread; what it is doing is finished first."""
        self._worker.close()

    # training

    def run(self, name: str) -> TrainingRun:
        """A training run by its model id, which is used now; raises Refused."""
        if name not in self._runs:
            raise NotFoundError(f"there is no model {name!r}; it was never created, or was unloaded")
        self._runs[name].used = datetime.now(UTC)
        return self._runs[name]

    async def create(self, name: str, shape: LoraShape) -> None:
        """Start a training run."""

        def create() -> None:
            self._runs[name] = TrainingRun(self.policy, name, shape)

        await self._compute(name, create)

    async def unload(self, name: str) -> None:
        """End a training run; what was asked of it before is done first."""
        self.run(name)
        await self._compute(name, lambda: self._end(name))

    async def forget(self, names: Collection[str]) -> None:
        """End the training runs of these names, also those being made, with their unnamed weights."""
        for name in names:
            await self._compute(name, lambda name=name: self._end(name))
        if names:
            await asyncio.to_thread(give_back)

    def _end(self, name: str) -> None:
        if (run := self._runs.pop(name, None)) is not None:
            run.end()
        unnamed = [path for path, maker in self._snapshots.items() if maker == name]
        for path in unnamed:
            del self._snapshots[path]
            self.checkpoints.remove(path)
        for path in self._idle():
            if path in unnamed:
                self._drop(path)
        self._make_room(0)

    async def forward_backward(
        self, name: str, data: Sequence[Datum], loss: str, config: Mapping[str, float], *, backward: bool
    ) -> tuple[float, list[Tensor]]:
        """As `TrainingRun.forward_backward`."""
        run = self.run(name)
        return await self._compute(name, lambda: run.forward_backward(data, loss, config, backward=backward))

    async def step(self, name: str, settings: AdamParams) -> dict[str, float]:
        """As `TrainingRun.step`."""
        run = self.run(name)
        return await self._compute(name, lambda: run.step(settings))

    async def save_state(
        self, name: str, checkpoint: str, terms: SaveOptions = PLAIN, *, overwrite: bool = True
    ) -> str:
        """Write weights and optimizer; returns the path. Raises Refused where it is not to be overwritten."""
        return await self._save(name, "weights", checkpoint, terms, overwrite=overwrite)

    async def save_external(self, name: str, checkpoint: str, terms: SaveOptions = PLAIN) -> str:
        """Write weights for others to read; returns the path."""
        return await self._save(name, "external_weights", checkpoint, terms)

    async def _save(
        self, name: str, kind: Kind, checkpoint: str, terms: SaveOptions, *, overwrite: bool = True
    ) -> str:
        run = self.run(name)

        def save() -> str:
            self._expire()
            state = run.optimizer_state() if kind == "weights" else None
            path = checkpoint_path(name, kind, checkpoint)
            if not overwrite and self.checkpoints.holds(path):
                raise RequestError(
                    f"there is a checkpoint {path}; overwrite it (overwrite=True), or delete it"
                )
            return self.checkpoints.save(path, run.shape, self.policy.weights(name), state, terms)

        return await self._compute(name, save)

    async def load_state(self, name: str, path: str, *, optimizer: bool) -> None:
        """Take over a checkpoint; a run that is not there yet is created in the checkpoint's shape."""

        def load() -> None:
            self._expire()
            saved = self.checkpoints.load(path, optimizer=optimizer)
            run = self._runs.get(name)
            if run is None:
                run = self._runs[name] = TrainingRun(self.policy, name, saved.shape)
            elif (run.shape.rank, *_layers(run.shape)) != (saved.shape.rank, *_layers(saved.shape)):
                raise RequestError(f"{path} has the shape {saved.shape}, the model {name} has {run.shape}")
            run.restore(saved.weights, saved.optimizer)

        await self._compute(name, load)

    # what is kept

    def live(self) -> Mapping[str, TrainingRun]:
        """The training runs that go on, by model id."""
        return dict(self._runs)

    async def entries(self) -> list[CheckpointEntry]:
        """The checkpoints that there are, the newest first."""
        return await asyncio.to_thread(self.checkpoints.entries)

    async def keep_for(self, path: str, ttl_seconds: int | None) -> None:
        """As `CheckpointStore.keep_for`."""
        await self._compute(path, lambda: self.checkpoints.keep_for(path, ttl_seconds))

    async def delete(self, path: str) -> None:
        """Delete a checkpoint. A training that began with it goes on; nothing more is drawn from it."""

        def delete() -> None:
            self.checkpoints.delete(path)
            self._outdate(path)

        await self._compute(path, delete)

    def _expire(self) -> None:
        for path in self.checkpoints.expired():
            self.checkpoints.remove(path)
            self._outdate(path)

    def _outdate(self, path: str) -> None:
        """What is loaded of a checkpoint is no longer what is on disk."""
        if path in self._loaded:
            self._stale.add(path)

    # sampling

    async def save_sampler(self, name: str, checkpoint: str, terms: SaveOptions = PLAIN) -> str:
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
                self._snapshots[path] = name
                while len(self._snapshots) > limits.SNAPSHOTS.most * len(self._runs):
                    self.checkpoints.remove(self._snapshots.popitem(last=False)[0])
            return path

        return await self._compute(name, save)

    async def shape(self, path: str) -> LoraShape:
        """The shape of a checkpoint; raises Refused where it cannot be used."""

        def shape() -> LoraShape:
            self._expire()
            return self.checkpoints.load(path, optimizer=False).shape

        return await self._compute(path, shape)

    async def sample(
        self,
        path: str | None,
        requests: Sequence[SampleRequest],
        *,
        owner: str,
        prompt_logprobs: bool = False,
        prompt_top: int = 0,
        progress: Callable[[], None] | None = None,
    ) -> SampleJob:
        """Draw sequences from a checkpoint's weights (None: the base model's); raises Refused.

        Owners take turns. `progress` is called on the compute thread when there are new tokens.
        """
        job = SampleJob(path, requests, prompt_logprobs, prompt_top, owner, progress)
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
            self._make_room(1)
            adapter = f"sampler-{next(self._numbers)}"
            self.policy.add_adapter(adapter, saved.shape)
            self.policy.set_weights(adapter, saved.weights)
            self.policy.freeze(adapter)
            self._loaded[path] = adapter
        self._loaded.move_to_end(path)
        return self._loaded[path]

    def _make_room(self, wanted: int) -> None:
        """Drop loaded checkpoints that nobody draws from, until there is room for so many."""
        over = len(self._loaded) + wanted - limits.LOADED.most - len(self._runs)
        for path in self._idle()[: max(0, over)]:
            self._drop(path)

    def _idle(self) -> list[str]:
        in_use = self._batcher.in_use()
        return [path for path, adapter in self._loaded.items() if adapter not in in_use]

    def _drop(self, path: str) -> None:
        self.policy.drop_adapter(self._loaded.pop(path))
        self._stale.discard(path)


def _layers(shape: LoraShape) -> tuple[bool, bool, bool]:
    return shape.train_attn, shape.train_mlp, shape.train_unembed
