"""Episodes on a Ray cluster: a worker on each node opens the models once, and runs the episodes of jobs.

The command sends each job to the worker with the fewest jobs, and receives the episode; only the command
writes files. A worker holds a few more jobs than it has slots, so that a free slot need not wait for the
command. If a worker dies, its jobs go to other workers. Ray never repeats a call, and one answer is accepted
for each job, so that no episode is recorded twice. Only this module imports Ray, when a run asks for it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from stat import S_ISREG
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
"""Function that opens a workflow's models during a block; pickled, and called in each worker."""

ATTEMPTS = 4
"""Number of dead workers, over one episode or on one node before its models are open, that ends the run."""
SLOW_START = 30.0
"""Seconds without a ready worker after which a note says where to look."""
CONNECT_SECONDS = 10.0
"""Seconds within which a cluster must accept a connection."""
_ADDRESS_BYTES = 1_000
_NAME_IT = "name the cluster with --on HOST:PORT, or in RAY_ADDRESS"
_TOKEN = secrets.token_hex(32)
"""Token for the clusters that this process starts."""


class WorkerSetup(NamedTuple):
    """Data that the command sends to each worker: how to open models, variables, folder, slots."""

    opener: bytes
    """Pickled OpenMaker; unpickled last, because that may import files of the user."""
    variables: Mapping[str, str]
    """Keys and URLs of providers.

    The values are passed as an argument of a call, from process to process: Ray writes the variables of a
    runtime environment into its logs (2.60, runtime_env_agent.log).
    """
    folder: str
    """Folder from which relative paths of models start, if the node has it."""
    slots: int
    """Largest number of episodes in flight on a node."""

    @property
    def jobs(self) -> int:
        """Largest number of jobs that a worker holds: one for each slot, and an eighth more that wait."""
        return self.slots + max(1, self.slots // 8)


class EpisodeWorker:
    """Ray actor that holds open models, and runs several episodes at a time."""

    def __init__(self) -> None:
        self._maker: EpisodeMaker | None = None
        self._slots = asyncio.Semaphore(0)
        self._settled = asyncio.Event()
        """Set when opening the models has succeeded or failed."""

    async def hold(self, setup: WorkerSetup) -> None:
        """Open the models in the worker and keep them open until the worker ends; return only by raising an
        error."""
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
        """Wait until the models are open; return False if opening them failed, else True."""
        await self._settled.wait()
        return self._maker is not None

    async def make(self, job: EpisodeJob) -> tuple[Episode, list[Event]]:
        """Run the episode of a job when a slot is free, and return (episode, its events)."""
        assert self._maker is not None
        events: list[Event] = []
        async with self._slots:
            return await self._maker.make(job, events.append), events


@dataclass(slots=True, eq=False)
class _PlacedWorker:
    """Worker as the driver sees it: its Ray actor and its number of unanswered jobs."""

    actor: Any
    jobs: int = 0
    """Number of jobs that the worker has not answered."""
    opened: bool = False


class WorkerPool:
    """Ray workers on the nodes of a cluster, among which jobs are distributed."""

    def __init__(self, ray: Any, setup: WorkerSetup, nodes: int, observe: Observer) -> None:
        self.jobs = setup.jobs * nodes
        """Largest number of open jobs of all workers together."""
        self.opened = asyncio.Event()
        """Set when the first worker is ready."""
        self._ray, self._setup, self._observe = ray, setup, observe
        self._ready = set[_PlacedWorker]()
        self._room = asyncio.Condition()
        """Notified when a worker may take a job."""
        self._actors: list[Any] = []

    async def make(self, job: EpisodeJob, observe: Observer | None = None) -> Episode:
        """Run the episode of a job on the worker with the fewest jobs; if that worker dies, run it on
        another.

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
        """Keep a worker on a node until cancelled; if the node is lost, on any other node.

        Raises:
            Exception: The error of a worker that cannot open the models.
            WorldError: `ATTEMPTS` starts failed.
        """
        subject, failed_starts = f"the Ray worker on {node['NodeManagerAddress']}", 0
        while True:
            worker = _PlacedWorker(self._start(node["NodeID"]))
            hold_call = worker.actor.hold.remote(self._setup)
            try:
                worker.opened = await self._answer(worker.actor.ready.remote())
                if worker.opened:
                    self.opened.set()
                    async with self._room:
                        self._ready.add(worker)
                        self._room.notify_all()
                await self._answer(hold_call)
            except self._ray.exceptions.RayError as error:
                self._ready.discard(worker)
                self._ray.kill(worker.actor)  # a worker that cannot be reached may run on
                failed_starts = 0 if worker.opened else failed_starts + 1
                reason = str(error).strip().rpartition("\n")[2].strip()  # the last line has the cause
                if failed_starts == ATTEMPTS:
                    raise WorldError(f"{subject} cannot start: {reason}") from error
                self._observe(Note(f"{subject} has died, and its work is done again: {reason}", "warning"))

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
    """Open a workflow's models in a worker on each node of a Ray cluster, during a block.

    The block starts when the first worker is ready. If the process is already connected to a cluster, that
    cluster is used.

    Args:
        open_maker: Function that opens the models, called in each worker.
        address: `ray` (the cluster of RAY_ADDRESS, of this machine, or a new one), `ray://HOST:PORT` or
            `HOST:PORT`.
        slots: Largest number of episodes in flight on each node.
        observe: Function that is called with notes, such as the death of a worker.

    Raises:
        UsageError: Ray is not installed, or the address is invalid.WorldError: The cluster does not answer,
            or has no node with a CPU.
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
        link = f" (dashboard: {dashboard})" if dashboard else ""
        pool = WorkerPool(ray, setup, len(nodes), observe)
        observe(Note(f"Ray: {slots * len(nodes)} episodes in flight, {slots} on each node{link}", "notice"))
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
        warning = f"no Ray worker is ready after {SLOW_START:g} s; `ray status` tells whether a CPU is free"
        observe(Note(warning, "warning"))
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
        async with asyncio.timeout(None) as block_timeout:
            tasks = [asyncio.create_task(watched(work, block_timeout)) for work in works]
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
    """Connect to a cluster during a block, and give the dashboard's URL, or an empty text."""
    if ray.is_initialized():
        yield ""
        return
    cluster_address = address if address != "ray" else os.environ.get("RAY_ADDRESS") or _running_here()
    await _check_answers(cluster_address or "")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with TemporaryDirectory(prefix="rolegraph-ray-") as empty_folder, ExitStack() as stack:
        options = {} if cluster_address else stack.enter_context(_private_cluster())
        try:
            context = await asyncio.to_thread(  # Ctrl-C ends the wait, not the thread
                ray.init,
                cluster_address or "local",  # None would make Ray look for a cluster itself
                # Without a working folder, Ray puts the command's on the module path of the workers.
                runtime_env={"working_dir": empty_folder},
                log_to_driver=False,
                logging_level="ERROR",
                **options,
            )
        except Exception as error:  # of many kinds: no answer, another version, a bad address
            raise WorldError(f"cannot connect to the Ray cluster {address}: {first_line(error)}") from error
        try:
            yield f"http://{context.dashboard_url}" if context.dashboard_url else ""
        finally:
            await asyncio.to_thread(ray.shutdown)


def _running_here() -> str | None:
    """Return the address of the cluster that `ray start` started on this machine; None without a cluster.

    The file's owner is checked because every user can write in Ray's folder, and the cluster gets this user's
    keys.

    Raises:
        UsageError: The file with the address belongs neither to this user nor to root, or is no regular file.
    """
    temporary = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    file = Path(temporary, "ray", "ray_current_cluster")
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read {file} ({error.strerror}); {_NAME_IT}") from error
    with os.fdopen(descriptor, "rb") as address_file:
        status = os.fstat(descriptor)
        if hasattr(os, "getuid") and status.st_uid not in (os.getuid(), 0):
            raise UsageError(f"{file} names a Ray cluster and belongs to another user; {_NAME_IT}")
        if not S_ISREG(status.st_mode):
            raise UsageError(f"{file} is no regular file; {_NAME_IT}")
        return address_file.read(_ADDRESS_BYTES).decode(errors="replace").strip() or None


@contextmanager
def _private_cluster() -> Generator[dict[str, Any]]:
    """Give the options of `ray.init` for a new cluster that serves this command alone.

    By default Ray (2.60) makes its folder writable for all users, and keeps the token of its clusters in a
    file that all users can read. Its ports listen on every interface of the machine, and only the token
    protects them; Ray has no option to close the ports.
    """
    is_new = not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & {*os.environ}
    if is_new:  # Ray turns tokens on by itself, and reads the first one for the life of the process
        os.environ["RAY_AUTH_TOKEN"] = _TOKEN
    # In /tmp: the path of a socket has at most 107 bytes. Ray opens the inner folder to all users.
    with TemporaryDirectory(prefix="rg-ray-", dir="/tmp" if os.name == "posix" else None) as folder:
        try:
            yield {"_temp_dir": str(Path(folder, "ray"))}
        finally:
            if is_new:
                os.environ.pop("RAY_AUTH_TOKEN", None)


async def _check_answers(address: str) -> None:
    """Raise WorldError if nothing listens at an address with a port; Ray itself retries for minutes."""
    url_parts = urlsplit(address if "://" in address else f"//{address}")
    if url_parts.port is None:
        return
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(url_parts.hostname, url_parts.port)
            writer.close()
    except OSError as error:  # TimeoutError is one, too
        raise WorldError(f"no Ray cluster answers at {address}: {first_line(error)}") from error
