"""Episodes on a Ray cluster: a worker on each node opens the models once, and makes episodes of jobs.

The command hands a job to the worker that has the fewest, and takes the episode back; the command alone
writes. A worker holds a few jobs more than it has slots, so that a free slot need not wait for the command. A
job whose worker dies is handed to another one. A call is never repeated by Ray, and one answer is taken for
each job, so that no episode comes twice. Only this module imports Ray, when a run asks for it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rolegraph.engine.errors import UsageError, WorldError, first_line
from rolegraph.engine.models.keys import provider_variables
from rolegraph.engine.records import Episode, Event, Note, Observer
from rolegraph.engine.run.streaming import EpisodeMaker
from rolegraph.engine.run.turn import EpisodeJob
from rolegraph.engine.vocabulary.imports import require_library

OpenMaker = Callable[[], AbstractAsyncContextManager[EpisodeMaker]]
"""Function that opens a workflow's models for the time of a block; pickled, and called in each worker."""

ATTEMPTS = 4
"""Workers that may die over one episode, and on one node before their models are open, until the run ends."""
SLOW_START = 30.0
"""Seconds without a ready worker after which a note says where to look."""
CONNECT_SECONDS = 10.0
"""Seconds that a cluster may take to accept a connection."""


class WorkerSetup(NamedTuple):
    """State of the command that a worker takes over."""

    opener: bytes
    """Pickled OpenMaker; unpickled last, because that may import files of the user."""
    variables: Mapping[str, str]
    """Keys and URLs of providers. They come as an argument of a call, from process to process: Ray writes the
    variables of a runtime environment into its logs (2.60, runtime_env_agent.log)."""
    folder: str
    """Folder that relative paths of models start from, where the node has it."""
    slots: int
    """Episodes in flight at most on a node."""

    @property
    def jobs(self) -> int:
        """Largest number of jobs that a worker holds: those it runs, and an eighth that wait for a slot."""
        return self.slots + max(1, self.slots // 8)


class EpisodeWorker:
    """Ray actor that holds open models, and makes several episodes at a time."""

    def __init__(self) -> None:
        self._maker: EpisodeMaker | None = None
        self._slots = asyncio.Semaphore(0)
        self._settled = asyncio.Event()
        """Set when the models are open, or could not be opened."""

    async def hold(self, setup: WorkerSetup) -> None:
        """Open the models in the worker and keep them open; returns only with an error, else ends with the
        worker."""
        os.environ.update(setup.variables)
        with suppress(OSError):
            os.chdir(setup.folder)
        try:
            open_maker: OpenMaker = pickle.loads(setup.opener)
            async with open_maker() as self._maker:
                self._slots = asyncio.Semaphore(setup.slots)
                self._settled.set()
                await asyncio.Event().wait()
        finally:
            self._settled.set()

    async def ready(self) -> bool:
        """Wait until the models are open, and return True; return False if opening them failed."""
        await self._settled.wait()
        return self._maker is not None

    async def make(self, job: EpisodeJob) -> tuple[Episode, list[Event]]:
        """Run the episode of a job when a slot is free; return it with its events."""
        assert self._maker is not None
        events: list[Event] = []
        async with self._slots:
            return await self._maker.make(job, events.append), events


@dataclass(slots=True, eq=False)
class _PlacedWorker:
    """A worker as the driver tracks it: its Ray actor and its number of open jobs."""

    actor: Any
    jobs: int = 0
    """Jobs that the worker has and has not answered."""
    opened: bool = False


class WorkerPool:
    """Ray workers on the nodes of a cluster, among which jobs are distributed."""

    def __init__(self, ray: Any, setup: WorkerSetup, nodes: int, observe: Observer) -> None:
        self.jobs = setup.jobs * nodes
        """Jobs handed out at most, to all workers together."""
        self.opened = asyncio.Event()
        """Set when the first worker is ready."""
        self._ray, self._setup, self._observe = ray, setup, observe
        self._ready = set[_PlacedWorker]()
        self._room = asyncio.Condition()
        """Notified when a worker may take a job."""
        self._actors: list[Any] = []

    async def make(self, job: EpisodeJob, observe: Observer | None = None) -> Episode:
        """Run the episode of a job on the worker with the fewest jobs, or on another one if that worker dies.

        Raises:
            WorldError: `ATTEMPTS` workers died over the episode.
        """
        for _ in range(ATTEMPTS):
            async with self._room:
                await self._room.wait_for(self._has_room)
                worker = min(self._ready, key=lambda each: each.jobs)
                worker.jobs += 1
            try:
                episode, events = await self._answer(worker.actor.make.remote(job))
            except self._ray.exceptions.RayError:
                self._ready.discard(worker)  # before `keep_worker` learns it from the end of `hold`
                continue
            finally:
                worker.jobs -= 1
                async with self._room:
                    self._room.notify()
            if observe is not None:
                for event in events:
                    observe(event)
            return episode
        raise WorldError(
            f"{ATTEMPTS} workers died over the episode of task {job.task['id']}, rollout {job.rollout} (too "
            "little memory?); finished work is kept, and --resume does the rest"
        )

    def _has_room(self) -> bool:
        return any(worker.jobs < self._setup.jobs for worker in self._ready)

    async def keep_worker(self, node: Mapping[str, Any]) -> None:
        """Keep a worker on a node until cancelled, or on any other node once that one is lost.

        Raises the error of a worker that cannot open the models, WorldError after `ATTEMPTS` failed starts.
        """
        where, failed = f"the Ray worker on {node['NodeManagerAddress']}", 0
        while True:
            worker = _PlacedWorker(self._start(node["NodeID"]))
            held = worker.actor.hold.remote(self._setup)
            try:
                worker.opened = await self._answer(worker.actor.ready.remote())
                if worker.opened:
                    self.opened.set()
                    async with self._room:
                        self._ready.add(worker)
                        self._room.notify_all()
                await self._answer(held)
            except self._ray.exceptions.RayError as error:
                self._ready.discard(worker)
                self._ray.kill(worker.actor)  # a worker that cannot be reached may run on
                failed = 0 if worker.opened else failed + 1
                reason = str(error).strip().rpartition("\n")[2].strip()  # the last line has the cause
                if failed == ATTEMPTS:
                    raise WorldError(f"{where} cannot start: {reason}") from error
                self._observe(Note(f"{where} has died, and its work is done again: {reason}", "warning"))

    async def _answer(self, answer: Any) -> Any:
        """Await a Ray call's result; raises the error that the call itself raised, or Ray's RayError."""
        try:
            future = asyncio.wrap_future(answer.future())
            # Else Ray Client (2.60) prints a traceback of a cancelled future, asyncio one of an unread error.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            return await asyncio.shield(future)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ConnectionError as error:  # of ray://
            raise WorldError(f"the connection to the Ray cluster is lost: {first_line(error)}") from error

    def _start(self, node: str) -> Any:
        strategies = import_module("ray.util.scheduling_strategies")
        worker = self._ray.remote(EpisodeWorker).options(
            num_cpus=1,
            max_concurrency=self._setup.jobs + 2,  # `hold` and `ready` besides
            scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=True),
        )
        self._actors.append(worker.remote())
        return self._actors[-1]

    def kill_workers(self) -> None:
        """Kill all Ray workers of the pool."""
        with suppress(ConnectionError):  # a cluster that is gone has no workers
            for actor in self._actors:
                self._ray.kill(actor)


@asynccontextmanager
async def open_on_ray(
    open_maker: OpenMaker, address: str, *, slots: int, observe: Observer
) -> AsyncGenerator[WorkerPool]:
    """Open a workflow's models in a worker on each node of a Ray cluster, for the time of a block.

    The block starts when the first worker is ready. A process that is connected to a cluster uses that one.

    Args:
        open_maker: Function that opens the models, called in each worker.
        address: `ray` (of RAY_ADDRESS, of this machine, or a new one), `ray://HOST:PORT` or `HOST:PORT`.
        slots: Episodes in flight at most on each node.
        observe: Function that is called with notes, such as one of a worker that has died.

    Raises:
        UsageError: Ray is not installed, or the address is invalid; or an error of `open_maker`.
        WorldError: The cluster does not answer, or has no node with a CPU.
    """
    require_library("ray", "ray", "runs on a cluster")
    if not re.fullmatch(r"ray|(ray://)?[\w.\[\]:-]+:\d+", address):
        raise UsageError(f"{address!r} is no cluster; expected ray, ray://HOST:PORT or HOST:PORT")
    setup = WorkerSetup(pickle.dumps(open_maker), provider_variables(), str(Path.cwd()), slots)
    ray: Any = await asyncio.to_thread(import_module, "ray")
    async with _connected(ray, address) as dashboard:
        nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        if not nodes:
            raise WorldError("the Ray cluster has no node with a CPU; `ray status` lists its nodes")
        shown = f" (dashboard: {dashboard})" if dashboard else ""
        pool = WorkerPool(ray, setup, len(nodes), observe)
        observe(Note(f"Ray: {slots * len(nodes)} episodes in flight, {slots} on each node{shown}", "notice"))
        try:
            async with _ended_by([pool.keep_worker(node) for node in nodes]):
                await _first_worker(pool, observe)
                yield pool
        finally:
            pool.kill_workers()


async def _first_worker(pool: WorkerPool, observe: Observer) -> None:
    """Wait until a worker is ready; send a warning if that takes longer than `SLOW_START` seconds."""
    try:
        await asyncio.wait_for(pool.opened.wait(), SLOW_START)
    except TimeoutError:
        text = f"no Ray worker is ready after {SLOW_START:g} s; `ray status` tells whether a CPU is free"
        observe(Note(text, "warning"))
        await pool.opened.wait()


@asynccontextmanager
async def _ended_by(works: Sequence[Coroutine[Any, Any, None]]) -> AsyncGenerator[None]:
    """Run coroutines in the background of a block; an error of one cancels the block and is raised from
    it."""
    errors: list[Exception] = []

    async def watched(work: Coroutine[Any, Any, None], block: asyncio.Timeout) -> None:
        try:
            await work
        except Exception as error:
            errors.append(error)
            block.reschedule(asyncio.get_running_loop().time())

    try:
        async with asyncio.timeout(None) as block:
            tasks = [asyncio.create_task(watched(work, block)) for work in works]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                # Before `ray.shutdown`: a call after that would connect again.
                await asyncio.gather(*tasks, return_exceptions=True)
    except TimeoutError:
        if not errors:
            raise
        raise errors[0] from None


@asynccontextmanager
async def _connected(ray: Any, address: str) -> AsyncGenerator[str]:
    """Connect to a cluster for the time of a block, and give the dashboard's URL, or an empty text."""
    if ray.is_initialized():
        yield ""
        return
    wanted = os.environ.get("RAY_ADDRESS") if address == "ray" else address
    await _check_answers(wanted or "")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with TemporaryDirectory(prefix="rolegraph-ray-") as empty:
        try:
            context = await asyncio.to_thread(  # Ctrl-C ends the wait, not the thread
                ray.init,
                wanted,
                # Without a working folder, Ray puts the command's on the module path of the workers.
                runtime_env={"working_dir": empty},
                log_to_driver=False,
                logging_level="ERROR",
            )
        except Exception as error:  # of many kinds: no answer, another version, a bad address
            raise WorldError(f"cannot connect to the Ray cluster {address}: {first_line(error)}") from error
    try:
        yield f"http://{context.dashboard_url}" if context.dashboard_url else ""
    finally:
        await asyncio.to_thread(ray.shutdown)


async def _check_answers(address: str) -> None:
    """Raise WorldError where nothing listens at an address with a port; Ray itself tries for minutes."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    if parts.port is None:
        return
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.close()
    except OSError as error:  # TimeoutError is one, too
        raise WorldError(f"no Ray cluster answers at {address}: {first_line(error)}") from error
