"""The model, its training runs, its checkpoints and sampling, behind one compute thread.

Everything that uses torch runs on that thread, so none of it needs a lock: `compute` runs what creates,
trains, saves, loads and forgets. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TypeVar

from torch import Tensor

from rolegraph.local import limits
from rolegraph.local.service.batcher import Batcher, SampleJob
from rolegraph.local.service.bodies import AdamSettings
from rolegraph.local.service.checkpoints import CheckpointEntry, CheckpointStore, SaveOptions
from rolegraph.local.service.errors import NotFoundError, RequestError
from rolegraph.local.service.local_model import LocalModel
from rolegraph.local.service.lora import LoraAdapter, LoraShape
from rolegraph.local.service.trainer import Datum, TrainingRun

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
        self._loaded: OrderedDict[tuple[str, datetime], LoraAdapter] = OrderedDict()
        """Adapters of checkpoints loaded for sampling, by path and time of creation, the last used last."""
        self._snapshots: OrderedDict[str, str] = OrderedDict()
        """Training run of each unnamed sampling checkpoint, by path; the last used one is last."""
        self._batcher = Batcher(model, self._load_adapter)
        self._stepping = False
        """True while a step of the batcher is queued."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._operation = asyncio.Lock()

    async def compute(self, operation: Callable[[], T]) -> T:
        """Run an operation on the compute thread and return its result.

        Cancelled before it begins, the operation is not run. The lock serves waiters first come, first
        served. At most one operation is queued, so that operations alternate with steps of sampling.
        """
        async with self._operation:
            return await asyncio.get_running_loop().run_in_executor(self._thread, operation)

    def close(self) -> None:
        """Stop the compute thread after the operation that it is running."""
        self._thread.shutdown(cancel_futures=True)

    def forget_all(self) -> None:
        """End all training runs, and delete their unnamed checkpoints."""
        self.forget([*self._runs])

    def check_name(self, name: str) -> None:
        """Raise NotFoundError unless `name` is a name of the served model."""
        if name not in self._names:
            raise NotFoundError(f"this service has no model {name!r}; it serves {self.name!r}")

    # training

    def run(self, name: str) -> TrainingRun:
        """Return a training run by its model id, and note the time of its use; raises NotFoundError."""
        if name not in self._runs:
            raise NotFoundError(f"there is no model {name!r}; it was never created, or was unloaded")
        self._runs[name].used = datetime.now(UTC)
        return self._runs[name]

    def runs(self) -> Mapping[str, TrainingRun]:
        """Return the live training runs by model id."""
        return dict(self._runs)

    def create(self, name: str, shape: LoraShape) -> None:
        """Create a training run with a new adapter."""
        self._runs[name] = TrainingRun(self.model, shape)

    def forget(self, names: Collection[str]) -> None:
        """End the training runs of these names, if they exist, and delete their unnamed checkpoints."""
        for name in names:
            self._runs.pop(name, None)
        for path in [path for path, run in self._snapshots.items() if run in names]:
            del self._snapshots[path]
            self.checkpoints.remove(path)
        self._forget_loaded()

    def forward_backward(
        self, name: str, data: Sequence[Datum], loss: str, config: Mapping[str, float], *, backward: bool
    ) -> tuple[float, list[Tensor]]:
        """Compute a loss and gradients on a training run by its name; see `TrainingRun.forward_backward`."""
        return self.run(name).forward_backward(data, loss, config, backward=backward)

    def step(self, name: str, settings: AdamSettings) -> dict[str, float]:
        """Take an optimizer step of a training run by its name; see `TrainingRun.step`."""
        return self.run(name).step(settings)

    def save(self, name: str, path: str, options: SaveOptions) -> None:
        """Write a checkpoint of a training run; the kind `weights` includes the optimizer's state.

        Unlisted checkpoints are deleted once `limits.SNAPSHOTS` others of each run have been used since.

        Args:
            name: The run's model id.
            path: The checkpoint's path.
            options: Expiry, metadata, whether the checkpoint is listed, and whether it may overwrite another.

        Raises:
            NotFoundError: The run does not exist.
            RequestError: A checkpoint with this path exists and may not be overwritten, or the disk refuses
                the files.
        """
        run = self.run(name)
        self.checkpoints.save(path, run.shape, run.adapter.weights(), run.optimizer_state(), options)
        if not options.listed:
            self._snapshots[path] = name
            while len(self._snapshots) > limits.SNAPSHOTS.most * len(self._runs):
                self.checkpoints.remove(self._snapshots.popitem(last=False)[0])

    def load(self, name: str, path: str, *, optimizer: bool) -> None:
        """Load a checkpoint into a training run, which is created in the checkpoint's shape if it is missing.

        Raises:
            RequestError: The checkpoint is missing or unreadable, or its tensors do not fit.
        """
        contents = self.checkpoints.load(path, optimizer=optimizer)
        run = self._runs.get(name) or TrainingRun(self.model, contents.shape)
        if run.shape.without_seed != contents.shape.without_seed:
            raise RequestError(f"{path} has the shape {contents.shape}, the model {name} has {run.shape}")
        run.restore(contents.weights, contents.optimizer)
        self._runs[name] = run

    # checkpoints

    async def entries(self) -> list[CheckpointEntry]:
        """Return the listed checkpoints, the newest first."""
        return await asyncio.to_thread(self.checkpoints.entries)

    async def loadable(self, path: str) -> CheckpointEntry:
        """Return the description of a checkpoint that can be loaded; see `CheckpointStore.loadable`."""
        return await self.compute(lambda: self.checkpoints.loadable(path))

    # sampling

    async def sample(self, job: SampleJob) -> SampleJob:
        """Sample the sequences of a job; return the job when it is done. Raises RequestError for invalid
        weights."""
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

    def _load_adapter(self, path: str) -> LoraAdapter:
        """Return an adapter with a checkpoint's weights, loading them first if necessary."""
        key = path, self.checkpoints.loadable(path).created
        if path in self._snapshots:
            self._snapshots.move_to_end(path)
        if key not in self._loaded:
            contents = self.checkpoints.load(path, optimizer=False)
            adapter = self.model.add_adapter(contents.shape)
            adapter.set_weights(contents.weights)
            self.model.freeze(adapter)
            self._loaded[key] = adapter
        self._loaded.move_to_end(key)
        self._forget_loaded()
        return self._loaded[key]

    def _forget_loaded(self) -> None:
        """Drop the least recently used adapters from the cache beyond its limit; running jobs keep their
        adapters."""
        while len(self._loaded) > limits.LOADED.most + len(self._runs):
            self._loaded.popitem(last=False)
