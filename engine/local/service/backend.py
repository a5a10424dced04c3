"""The model, its training runs, its checkpoints and sampling, behind one compute thread.

Everything that uses torch runs on that thread, so none of it needs a lock. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from torch import Tensor

from rolegraph.engine.limits import service as limits
from rolegraph.engine.local.service.batcher import Batcher, SampleJob
from rolegraph.engine.local.service.bodies import AdamSettings
from rolegraph.engine.local.service.checkpoints import (
    PLAIN,
    CheckpointEntry,
    CheckpointStore,
    Kind,
    SaveOptions,
    checkpoint_path,
)
from rolegraph.engine.local.service.errors import NotFoundError, RequestError
from rolegraph.engine.local.service.local_model import LocalModel, LoraShape
from rolegraph.engine.local.service.trainer import Datum, TrainingRun

T = TypeVar("T")


class Backend:
    """A model with its training runs and checkpoints.

    `name` is the model's name, `aliases` are other names under which clients may ask for it.
    """

    def __init__(
        self, model: LocalModel, checkpoints: CheckpointStore, name: str, aliases: Collection[str] = ()
    ) -> None:
        self.model, self.checkpoints, self.name = model, checkpoints, name
        self._names = {name, *aliases}
        self._runs: dict[str, TrainingRun] = {}
        self._loaded: OrderedDict[tuple[str, datetime], str] = OrderedDict()
        """Adapters of checkpoints loaded for sampling, by path and time of creation, the last used last."""
        self._numbers = itertools.count(1)
        self._snapshots: OrderedDict[str, str] = OrderedDict()
        """Training run of each unnamed sampling checkpoint, by path; the last used one is last."""
        self._batcher = Batcher(model, self._load_adapter)
        self._stepping = False
        """True while a step of the batcher is queued."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._operation = asyncio.Lock()
        self._owners: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def _compute(self, owner: str, operation: Callable[[], T]) -> T:
        """Run an operation on the compute thread; cancelled before it begins, the operation is not run.

        Both locks serve waiters first come, first served: an owner's operations keep their order, owners take
        turns, and at most one operation is queued, so that operations alternate with steps of sampling.
        """
        async with self._owners.setdefault(owner, asyncio.Lock()), self._operation:
            return await asyncio.get_running_loop().run_in_executor(self._thread, operation)

    def close(self) -> None:
        """Stop the compute thread after the operation that it is running."""
        self._thread.shutdown(cancel_futures=True)

    def check_name(self, name: str) -> None:
        """Raise NotFoundError unless `name` is a name of the served model."""
        if name not in self._names:
            raise NotFoundError(f"this service has no model {name!r}; it serves {self.name!r}")

    # training

    def run(self, name: str) -> TrainingRun:
        """Return a training run by its model id and update its time of last use. Raises NotFoundError."""
        if name not in self._runs:
            raise NotFoundError(f"there is no model {name!r}; it was never created, or was unloaded")
        self._runs[name].used = datetime.now(UTC)
        return self._runs[name]

    def runs(self) -> Mapping[str, TrainingRun]:
        """Return the live training runs by model id."""
        return dict(self._runs)

    async def create(self, name: str, shape: LoraShape) -> None:
        """Create a training run with a new adapter."""

        def create() -> None:
            self._runs[name] = TrainingRun(self.model, name, shape)

        await self._compute(name, create)

    async def unload(self, name: str) -> None:
        """End a training run after the operations that were requested before."""
        self.run(name)
        await self._compute(name, lambda: self._end(name))

    async def forget(self, names: Collection[str]) -> None:
        """End the training runs of these names, if they exist, and delete their unnamed checkpoints."""
        for name in names:
            await self._compute(name, lambda name=name: self._end(name))

    def _end(self, name: str) -> None:
        if (run := self._runs.pop(name, None)) is not None:
            run.end()
        unnamed = [path for path, run_name in self._snapshots.items() if run_name == name]
        for path in unnamed:
            del self._snapshots[path]
            self.checkpoints.remove(path)
        for key in self._idle():
            if key[0] in unnamed:
                self._drop(key)
        self._make_room(0)

    async def forward_backward(
        self, name: str, data: Sequence[Datum], loss: str, config: Mapping[str, float], *, backward: bool
    ) -> tuple[float, list[Tensor]]:
        """Run `TrainingRun.forward_backward` of a run."""
        run = self.run(name)
        return await self._compute(name, lambda: run.forward_backward(data, loss, config, backward=backward))

    async def step(self, name: str, settings: AdamSettings) -> dict[str, float]:
        """Run `TrainingRun.step` of a run."""
        return await self._compute(name, lambda: self.run(name).step(settings))

    async def save(
        self,
        name: str,
        kind: Kind,
        checkpoint: str,
        options: SaveOptions = PLAIN,
    ) -> str:
        """Write a checkpoint of a training run and return its path.

        Unlisted checkpoints may be deleted when `limits.SNAPSHOTS` newer ones have been used since.

        Args:
            name: the run's model id.
            kind: `weights` includes the optimizer's state, the other kinds hold weights only.
            checkpoint: the last part of the path.
            options: expiry, metadata, whether the checkpoint is listed and whether it may replace one.

        Raises:
            NotFoundError: no such run.
            RequestError: the checkpoint exists and may not be replaced, or it cannot be written.
        """
        run = self.run(name)

        def save() -> str:
            path = checkpoint_path(name, kind, checkpoint)
            state = run.optimizer_state() if kind == "weights" else None
            self.checkpoints.save(path, run.shape, self.model.weights(name), state, options)
            if not options.listed:
                self._snapshots[path] = name
                while len(self._snapshots) > limits.SNAPSHOTS.most * len(self._runs):
                    self.checkpoints.remove(self._snapshots.popitem(last=False)[0])
            return path

        return await self._compute(name, save)

    async def load(self, name: str, path: str, *, optimizer: bool) -> None:
        """Load a checkpoint into a training run, which is created in the checkpoint's shape if it is missing.

        Raises:
            RequestError: the checkpoint is missing, unreadable or of another shape.
        """

        def load() -> None:
            saved = self.checkpoints.load(path, optimizer=optimizer)
            run = self._runs.get(name)
            if run is None:
                run = self._runs[name] = TrainingRun(self.model, name, saved.shape)
            elif run.shape.without_seed != saved.shape.without_seed:
                raise RequestError(f"{path} has the shape {saved.shape}, the model {name} has {run.shape}")
            run.restore(saved.weights, saved.optimizer)

        await self._compute(name, load)

    # checkpoints

    async def keep_checkpoints_in(self, folder: Path) -> None:
        """Save checkpoints to a folder, and load them from it, from now on."""
        await self._compute("", lambda: self.checkpoints.move_to(folder))

    async def entries(self) -> list[CheckpointEntry]:
        """Return the listed checkpoints, the newest first."""
        return await asyncio.to_thread(self.checkpoints.entries)

    async def set_ttl(self, path: str, ttl_seconds: int | None) -> None:
        """Run `CheckpointStore.set_ttl`."""
        await self._compute(path, lambda: self.checkpoints.set_ttl(path, ttl_seconds))

    async def delete(self, path: str) -> None:
        """Delete a checkpoint. Training runs that loaded it go on; sampling from it ends."""
        await self._compute(path, lambda: self.checkpoints.delete(path))

    async def shape(self, path: str) -> LoraShape:
        """Return the adapter shape (rank, layers) of a saved checkpoint.

        Raises:
            RequestError: The checkpoint cannot be loaded.
        """
        return (await self._compute(path, lambda: self.checkpoints.loadable(path))).shape

    # sampling

    async def sample(self, job: SampleJob) -> SampleJob:
        """Sample the sequences of a job and return it. Raises RequestError for bad weights."""
        self._thread.submit(self._add, job)
        await asyncio.wrap_future(job.done)
        return job

    def _add(self, job: SampleJob) -> None:
        self._batcher.add(job)
        if not self._stepping:
            self._stepping = True
            self._thread.submit(self._step)

    def _step(self) -> None:
        self._batcher.step()
        self._stepping = self._batcher.busy
        if self._stepping:
            self._thread.submit(self._step)

    def _load_adapter(self, path: str) -> str:
        """Return the name of an adapter with a checkpoint's weights, loading them first if necessary."""
        key = path, self.checkpoints.loadable(path).created
        if path in self._snapshots:
            self._snapshots.move_to_end(path)
        if key not in self._loaded:
            saved = self.checkpoints.load(path, optimizer=False)
            self._make_room(1)
            adapter = f"sampler-{next(self._numbers)}"
            self.model.add_adapter(adapter, saved.shape)
            self.model.set_weights(adapter, saved.weights)
            self.model.freeze(adapter)
            self._loaded[key] = adapter
        self._loaded.move_to_end(key)
        return self._loaded[key]

    def _make_room(self, wanted: int) -> None:
        """Drop idle adapters of checkpoints until there is room for `wanted` more."""
        excess = len(self._loaded) + wanted - limits.LOADED.most - len(self._runs)
        for key in self._idle()[: max(0, excess)]:
            self._drop(key)

    def _idle(self) -> list[tuple[str, datetime]]:
        in_use = self._batcher.adapters_in_use()
        return [key for key, adapter in self._loaded.items() if adapter not in in_use]

    def _drop(self, key: tuple[str, datetime]) -> None:
        self.model.drop_adapter(self._loaded.pop(key))
