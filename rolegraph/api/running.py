"""`rolegraph run`: episodes of a workflow, written to disk as they finish."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rolegraph.api import jobs
from rolegraph.api.recorded import Run
from rolegraph.api.workflow import Workflow, check_ids
from rolegraph.engine.errors import RolegraphError, UsageError
from rolegraph.engine.records import EpisodeDone, Event, Note, Observer, RunFolder, RunInfo, Source, Task
from rolegraph.engine.records.data import UsedRows
from rolegraph.engine.records.episodes import EpisodeFile, EpisodeWriter, drop_episodes, read_episodes
from rolegraph.engine.records.folder import RUN
from rolegraph.engine.records.summary import Summarized, Summary
from rolegraph.engine.records.writer_lock import sole_writer
from rolegraph.engine.vocabulary import Split
from rolegraph.engine.vocabulary.items import checked_rows

if TYPE_CHECKING:
    from rolegraph.engine.records import Episode
    from rolegraph.engine.run import EpisodeMaker


@dataclass(frozen=True, slots=True, repr=False)
class RunJob(Summarized):
    """A run that is ready to start or to continue; `create` or `resume` makes it, `run` does it."""

    flow: Workflow
    folder: RunFolder
    info: RunInfo
    tasks: Sequence[Task]
    finished: Sequence[tuple[str, int]]
    """(task id, rollout from 0) of each episode that the folder already holds."""
    resumed: bool
    retry_failed: bool = False
    """True to drop episodes with a failure and make them again."""

    def summary(self) -> Summary:
        """Return the folder, and the numbers of planned and of finished episodes."""
        rows = [("episodes", self.episodes), ("done", self.done)]
        return Summary(f"RunJob {self.folder.path}", ("", "number"), rows)

    @property
    def data(self) -> UsedRows:
        """Rows that the run uses."""
        return jobs.used_rows(self.flow, self.info.split, self.tasks, given=self.info.own_tasks)

    @classmethod
    def create(
        cls,
        flow: Workflow,
        split: Split | None = None,
        *,
        limit: int | None = None,
        rollouts: int = 1,
        seed: int = 0,
        tasks: Iterable[Task] | None = None,
        out: str | Path | None = None,
    ) -> RunJob:
        """Prepare a new run; nothing is written yet.

        Args:
            flow: The workflow.
            split: Split of the tasks, `train` or `validation`; by default `validation` if the spec has it.
            limit: Largest number of tasks; None takes all of the split.
            rollouts: Episodes of each task, at least 1.
            seed: Seed of all draws; the same seed and model give the same episodes.
            tasks: Tasks in place of those of the split, each a mapping with an `id`.
            out: Folder of the run; by default `runs/NAME-TIME`.

        Returns:
            The job.

        Raises:
            DataError: A given task has no `id`, or a value that no record can hold.
            SpecError: The spec asks for a permission that `allow` does not give.
            UsageError: The folder holds a run, or the spec has no data for the split.
        """
        flow.check_allowed()
        folder = RunFolder(Path(out) if out else jobs.new_folder(flow.name))
        folder.check_new("run")
        info, rows = _info_and_tasks(flow, tasks, split=split, limit=limit, rollouts=rollouts, seed=seed)
        return cls(flow, folder, info, rows, finished=(), resumed=False)

    @classmethod
    def resume(
        cls,
        out: str | Path | None = None,
        source: Source | None = None,
        *,
        split: Split | None = None,
        limit: int | None = None,
        rollouts: int | None = None,
        seed: int | None = None,
        tasks: Iterable[Task] | None = None,
        retry_failed: bool = False,
    ) -> RunJob:
        """Prepare to continue a run that was stopped, with the episodes that are missing.

        Settings that are None keep the values with which the run was started.

        Args:
            out: Folder of the run; by default the newest run in `runs/`, of the spec of `source` if it names
                one.
            source: Spec and options that replace those of the run; the plan must stay the same.
            split: Split of the tasks, `train` or `validation`.
            limit: Largest number of tasks; a larger number than before adds tasks.
            rollouts: Episodes of each task; a larger number than before adds episodes.
            seed: Seed of all draws; only the run's own is accepted.
            tasks: Tasks in place of those of the split; required if the run was started with them.
            retry_failed: True to drop the episodes with a failure when the job runs, and make them again.

        Returns:
            The job.

        Raises:
            SpecError: The spec has faults, or asks for a permission that is not given.
            UsageError: There is no such run, or it was started with another spec or seed.
        """
        folder = jobs.folder_to_resume(out, source, "run")
        old_info = folder.info()
        if old_info.kind != "run":
            raise UsageError(
                f"{folder.path} is a training's folder; continue it with rolegraph train --resume"
            )
        if old_info.own_tasks and tasks is None:
            raise UsageError(f"{folder.path} was started with tasks of its own; give them again to continue")
        if not (rollouts or old_info.rollouts):
            raise UsageError(f"{folder.path} notes no number of tasks and rollouts; give both to continue")
        flow = jobs.flow_to_resume(folder, old_info, source, seed)
        flow.check_allowed()
        split, limit = split or old_info.split, limit or old_info.limit
        settings = {"rollouts": rollouts or old_info.rollouts, "seed": old_info.seed}
        info, rows = _info_and_tasks(flow, tasks, split=split, limit=limit, **settings)
        if old_info.checkpoint not in (None, info.checkpoint):  # the spec does not name the weights
            command = f"rolegraph eval --resume --out {folder.path.parent}"
            raise UsageError(f"{folder.path} is a side of an evaluation; continue it with {command}")
        job = cls(flow, folder, info, rows, (), resumed=True)
        folder.check_same(info, flow.plan.resolved, [job.data])
        with jobs.damage_explained(folder):
            finished_keys = finished_in(folder, retry_failed=retry_failed)
            return replace(job, finished=finished_keys, retry_failed=retry_failed)

    @property
    def episodes(self) -> int:
        """Number of episodes of the whole run."""
        return len(self.tasks) * self.info.rollouts

    @property
    def done(self) -> int:
        """Number of episodes that the folder held when the job was created."""
        planned_counts = Counter(task["id"] for task in self.tasks)
        # Not by `missing`, which visits every job: an untrusted run.json may plan any number.
        return sum(
            min(count, planned_counts[task])
            for (task, rollout), count in Counter(self.finished).items()
            if 0 <= rollout < self.info.rollouts
        )

    async def run(
        self, observe: Observer | None = None, *, concurrency: int = 64, on: str | None = None
    ) -> Run:
        """Run the missing episodes, write them, and return the folder.

        Args:
            observe: Function that is called with each event, such as an episode that is on disk.
            concurrency: Largest number of episodes in flight; on a cluster, for each of its nodes.
            on: Cluster that makes the episodes: `ray`, `ray://HOST:PORT` or the `HOST:PORT` of a Ray cluster;
                None makes them in this process.

        Returns:
            The run's folder.

        Raises:
            UsageError: No such model, or no key for it; or Ray is not installed.
            WorldError: The model's endpoint or the cluster does not answer, or the disk is full.
        """
        with self.open_folder(observe) as (notify, writer):
            if self.done == self.episodes:
                notify(Note(""))
                return Run(self.folder.path)
            if prompt_warning := jobs.foreign_prompts(self.flow.plan):
                notify(Note(prompt_warning, "warning"))
            notify(Note("starting the model …"))
            async with AsyncExitStack() as stack:
                if on is None:
                    maker, most_in_flight = await stack.enter_async_context(self.flow.open()), concurrency
                else:
                    pool = jobs.open_cluster(on)(self.flow.open, on, slots=concurrency, observe=notify)
                    maker = await stack.enter_async_context(pool)
                    most_in_flight = maker.jobs
                notify(Note("", episodes=self.episodes - self.done))
                await self.write_missing(maker, writer, notify, concurrency=most_in_flight)
        return Run(self.folder.path)

    @contextmanager
    def open_folder(self, observe: Observer | None) -> Generator[tuple[Observer, EpisodeWriter]]:
        """Open the run's folder for the time of a `with` block.

        Args:
            observe: Function that is called with each event; None for no function.

        Returns:
            A context manager that yields an observer, which also writes the run's log, and a writer of
            episodes.

        Raises:
            UsageError: Another process writes in the folder, or has done so since the job was made.
            WorldError: The folder cannot be written.
        """
        folder, info = self.folder, self.info
        with sole_writer(folder.path, RUN, folder.written()):
            if not self.resumed:
                folder.check_new("run")
                folder.begin(info, self.flow.plan.resolved, [self.data])
            elif finished_in(folder, retry_failed=self.retry_failed) != self.finished:
                raise jobs.changed(folder)
            else:
                if self.retry_failed:
                    drop_episodes(folder.episodes, _has_failed)
                new_settings = info.model_dump(include={"split", "limit", "rollouts"})
                folder.resume(jobs.command_line(), self.flow.plan.resolved, new_settings, [self.data])
            log = jobs.logged(folder.log, observe or jobs.ignore_event)
            with folder.ending(), log as notify, EpisodeWriter(folder.episodes) as writer:
                yield notify, writer

    async def write_missing(
        self, maker: EpisodeMaker, writer: EpisodeWriter, notify: Observer, *, concurrency: int
    ) -> None:
        """Run the missing episodes, and append each to the folder's file when it finishes.

        Args:
            maker: The job's workflow, open here or on a cluster, or a workflow with the same plan and other
                weights.
            writer: Writer of the folder's episodes, as `open_folder` gives it.
            notify: Function that is called with each event; the end of an episode is sent when it is on disk.
            concurrency: Largest number of episodes in flight.

        Raises:
            WorldError: The disk is full.
        """
        from rolegraph.engine import run

        def observe(event: Event) -> None:
            if not isinstance(event, EpisodeDone):
                notify(event)

        planned_jobs = run.jobs(check_ids(self.flow, self.tasks), self.info.rollouts, self.info.seed)
        missing_jobs = run.missing(planned_jobs, self.finished)
        episodes = run.run_jobs(missing_jobs, lambda job: maker.make(job, observe), concurrency)
        start_time = time.monotonic()
        try:
            async with aclosing(episodes):
                async for episode in episodes:
                    writer.append(episode)
                    notify(EpisodeDone(episode, finished=True))
        finally:
            with suppress(RolegraphError):  # the first error is the one to report
                self.folder.add_call(time.monotonic() - start_time, getattr(maker, "left_out", {}))


async def run_async(
    flow: Workflow,
    split: Split | None = None,
    *,
    limit: int | None = None,
    rollouts: int = 1,
    seed: int = 0,
    tasks: Iterable[Task] | None = None,
    out: str | Path | None = None,
    concurrency: int = 64,
    on: str | None = None,
    observe: Observer | None = None,
    progress: bool = True,
) -> Run:
    """Run a workflow on its tasks, and write each episode to `out/episodes.jsonl` when it finishes.

    A run that is cancelled keeps its finished episodes; `RunJob.resume` continues it.

    Args:
        flow: The workflow.
        split: Split of the tasks, `train` or `validation`; by default `validation` if the spec has it.
        limit: Largest number of tasks; None takes all of the split.
        rollouts: Episodes of each task, at least 1.
        seed: Seed of all draws; the same seed and model give the same episodes.
        tasks: Tasks in place of those of the split, each a mapping with an `id`.
        out: Folder of the run; by default `runs/NAME-TIME`.
        concurrency: Largest number of episodes in flight; on a cluster, for each of its nodes.
        on: Cluster that makes the episodes, as for `RunJob.run`.
        observe: Function that is called with each event: model calls, notes, episodes that are on disk.
        progress: True to show a progress bar in a terminal and in a notebook.

    Returns:
        The run's folder, with its figures and episodes.

    Raises:
        DataError: A given task has no `id`, or a value that no record can hold.
        SpecError: The spec asks for a permission that `allow` does not give.
        UsageError: The folder holds a run, no data for the split, no such model, or no key for it.
        WorldError: The model's endpoint does not answer, or the disk is full.
    """
    job = RunJob.create(flow, split, limit=limit, rollouts=rollouts, seed=seed, tasks=tasks, out=out)
    with jobs.shown_progress(observe, progress) as observer:
        return await job.run(observer, concurrency=concurrency, on=on)


run = jobs.blocking(run_async)


def _info_and_tasks(
    flow: Workflow, tasks: Iterable[Task] | None, *, split: Split | None, limit: int | None, **settings: int
) -> tuple[RunInfo, list[Task]]:
    """Return (RunInfo for `run.json`, tasks of the run); the tasks are those given, else those of the
    split."""
    info = jobs.describe(flow, "run", split=split, limit=limit, own_tasks=tasks is not None, **settings)
    if tasks is None:
        return info, flow.tasks(split, limit)
    return info, [*checked_rows("tasks", lambda _: iter(tasks), None)]


def finished_in(folder: RunFolder, *, retry_failed: bool = False) -> list[tuple[str, int]]:
    """Return (task id, rollout) of each episode in a run's folder; with `retry_failed`, only episodes without
    a failure."""
    if not folder.episodes.exists():
        return []
    if retry_failed:
        return [(it.task_id, it.rollout) for it in read_episodes(folder.episodes) if not _has_failed(it)]
    return [(index_entry.task, index_entry.rollout) for index_entry in EpisodeFile(folder.episodes).entries()]


def _has_failed(episode: Episode) -> bool:
    return bool(episode.failures) or any(t.failure is not None for t in episode.trajectories)
