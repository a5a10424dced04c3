"""`rolegraph run`: episodes of a workflow, on disk as they finish."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import (
    Episode,
    EpisodeDone,
    Event,
    Note,
    Observer,
    RunFolder,
    RunInfo,
    Task,
    read_episodes,
)
from rolegraph.engine.records.folder import newest
from rolegraph.engine.records.info import Kind, RoleInfo
from rolegraph.engine.spec import ModelRef, load_spec
from rolegraph.engine.vocabulary import Split
from rolegraph.run_log import logged
from rolegraph.workflow import OpenWorkflow, Workflow, load

if TYPE_CHECKING:
    from rolegraph.engine.records.episodes import EpisodeWriter

P = ParamSpec("P")
T = TypeVar("T")
RUNS = Path("runs")
"""Where runs are kept unless a folder is named."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run has left in its folder."""

    folder: Path

    @property
    def figures(self) -> Mapping[str, float]:
        """`episodes`, the share `correct`, the spec's metrics, and `failures/{role}/{name}`."""
        return RunFolder(self.folder).info().figures

    def episodes(self) -> Iterator[Episode]:
        """The episodes, read from disk, in the order in which they finished."""
        return read_episodes(RunFolder(self.folder).episodes)


def blocking(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """The twin of `NAME_async` for a script, where no event loop runs; raises UsageError where one does."""

    @wraps(work)
    def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(work(*args, **kwargs))
        raise UsageError(
            f"an event loop is running here already, as in a notebook: await rg.{work.__name__}(…)"
        )

    twin.__name__ = twin.__qualname__ = work.__name__.removesuffix("_async")
    return twin


@dataclass(frozen=True, slots=True)
class RunJob:
    """A run that is about to begin, or to go on; see `begin_run`."""

    flow: Workflow
    folder: RunFolder
    info: RunInfo
    tasks: Sequence[Task]
    finished: Sequence[tuple[str, int]]
    """The episodes that are there already: their task's id and their rollout."""
    resumed: bool

    @property
    def episodes(self) -> int:
        """How many there are when it is done."""
        return len(self.tasks) * self.info.rollouts

    @property
    def done(self) -> int:
        """How many of them are there."""
        from rolegraph.engine.run import jobs, missing

        return self.episodes - sum(1 for _ in missing(jobs(self.tasks, self.info.rollouts), self.finished))

    async def run(self, observe: Observer | None = None, *, concurrency: int = 64) -> RunResult:
        """Run what is missing; raises as `run` does."""
        with self.begun(observe) as (told, writer):
            if self.done == self.episodes:
                told(Note(""))
                return RunResult(self.folder.path)
            told(Note("starting the model …"))
            async with self.flow.open() as opened:
                told(Note("", episodes=self.episodes - self.done))
                await self.fill(opened, writer, told, observe, concurrency=concurrency)
        return RunResult(self.folder.path)

    @contextmanager
    def begun(self, observe: Observer | None) -> Generator[tuple[Observer, EpisodeWriter]]:
        """The folder, open for the time of a block; the observer's notes go into its log, too."""
        from rolegraph.engine.records.episodes import EpisodeWriter

        folder, info = self.folder, self.info
        if self.resumed:
            folder.resume(command_line(), info.model_dump(include={"split", "limit", "rollouts"}))
        else:
            folder.begin(info, self.flow.plan.resolved)
        with (
            folder.ending(),
            logged(folder.log, command_line(), observe or nobody) as told,
            EpisodeWriter(folder.episodes) as writer,
        ):
            yield told, writer

    async def fill(
        self,
        opened: OpenWorkflow,
        writer: EpisodeWriter,
        told: Observer,
        observe: Observer | None,
        *,
        concurrency: int,
    ) -> None:
        """Make what is missing; `told` hears of an episode when it is on disk."""
        episodes = opened.stream(
            tasks=self.tasks,
            rollouts=self.info.rollouts,
            seed=self.info.seed,
            finished=self.finished,
            concurrency=concurrency,
            observe=partial(but_episodes, observe) if observe else None,
        )
        async with aclosing(episodes):
            async for episode in episodes:
                writer.append(episode)
                told(EpisodeDone(episode, finished=True))


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
    observe: Observer | None = None,
) -> RunResult:
    """Run a workflow on its tasks, and write each episode as it finishes to `out/episodes.jsonl`.

    `limit` is how many tasks of the `split`, `tasks` are given in their place; `rollouts` is how many
    episodes of each. The default folder is `runs/NAME-TIME`. `observe` hears of each model call and each
    episode. Raises SpecError, UsageError (a folder that holds a run, no key) and WorldError. Cancelled, it
    leaves what was finished on disk, and `resume_run` goes on from it.
    """
    begun = begin_run(flow, split, limit=limit, rollouts=rollouts, seed=seed, tasks=tasks, out=out)
    return await begun.run(observe, concurrency=concurrency)


run = blocking(run_async)


def begin_run(
    flow: Workflow,
    split: Split | None = None,
    *,
    limit: int | None = None,
    rollouts: int = 1,
    seed: int = 0,
    tasks: Iterable[Task] | None = None,
    out: str | Path | None = None,
) -> RunJob:
    """What `run` is about to do, before any of it is done: arguments and errors as there."""
    flow.check_allowed()
    folder = RunFolder(Path(out) if out else new_folder(flow.name))
    folder.check_new("run")
    rows = flow.tasks(split, limit) if tasks is None else list(tasks)
    info = info_of_run(flow, split, limit, rollouts, seed, own_tasks=tasks is not None)
    return RunJob(flow, folder, info, rows, finished=(), resumed=False)


def resume_run(
    out: str | Path | None = None,
    spec: str | Path | None = None,
    *overrides: str,
    model: str | None = None,
    base_url: str | None = None,
    imports: Iterable[str | Path] = (),
    allow: Iterable[str] = (),
    split: Split | None = None,
    limit: int | None = None,
    rollouts: int | None = None,
    seed: int | None = None,
    tasks: Iterable[Task] | None = None,
    retry_failed: bool = False,
) -> RunJob:
    """A run that goes on with the episodes that are missing; `run` it.

    The newest one in `runs/` (of `spec`) unless its folder `out` is named. What is not given is as it began;
    `tasks` that were given in Python are given again. With `retry_failed`, episodes with a failure are
    dropped here, and made again. Raises UsageError where it would be of another spec or seed.
    """
    folder = RunFolder(Path(out)) if out else newest(RUNS, load_spec(spec).spec.name if spec else None, "run")
    begun = folder.info()
    if begun.kind != "run":
        raise UsageError(f"{folder.path} is the folder of a training; go on with `rolegraph train --resume`")
    if begun.checkpoint is not None:
        raise UsageError(
            f"{folder.path} is the trained side of an evaluation; go on with `rolegraph eval --resume --out "
            f"{folder.path.parent}`"
        )
    if begun.own_tasks and tasks is None:
        raise UsageError(f"{folder.path} was begun with tasks of its own; give them again to go on")
    if not (rollouts or begun.rollouts):
        raise UsageError(f"{folder.path} does not say how many tasks and rollouts it had; give both to go on")
    if seed not in (None, begun.seed):
        raise UsageError(f"{folder.path} was begun with the seed {begun.seed}, and goes on with no other")
    flow = load_begun(begun, spec, *overrides, model=model, base_url=base_url, imports=imports, allow=allow)
    flow.check_allowed()
    split, limit = split or begun.split, limit or begun.limit
    rows = flow.tasks(split, limit) if tasks is None else list(tasks)
    wanted = rollouts or begun.rollouts
    info = info_of_run(flow, split, limit, wanted, begun.seed, own_tasks=tasks is not None)
    folder.check_same(info, flow.plan.resolved)
    return RunJob(flow, folder, info, rows, finished_in(folder, retry_failed=retry_failed), resumed=True)


def load_begun(
    begun: RunInfo,
    spec: str | Path | None,
    *overrides: str,
    model: str | None,
    base_url: str | None,
    imports: Iterable[str | Path],
    allow: Iterable[str],
) -> Workflow:
    """The workflow that a run or a training was of; what is given goes before what it noted."""
    return load(
        spec or begun.spec,
        *(overrides or begun.overrides),
        model=model or begun.model_flag,
        base_url=base_url or begun.base_url,
        imports=[*imports] or begun.imports,
        allow=[*allow] or begun.allowed,
    )


def info_of_run(
    flow: Workflow,
    split: Split | None,
    limit: int | None,
    rollouts: int,
    seed: int,
    *,
    own_tasks: bool = False,
) -> RunInfo:
    """What a run is of that makes so many episodes of these tasks."""
    noted = {"split": split, "limit": limit, "rollouts": rollouts, "own_tasks": own_tasks}
    return describe(flow, "run", seed=seed).model_copy(update=noted)


def finished_in(folder: RunFolder, *, retry_failed: bool = False) -> list[tuple[str, int]]:
    """The task and rollout of each episode that a run has; without those that are to be made again."""
    from rolegraph.engine.records.episodes import EpisodeFile, drop_episodes

    if not folder.episodes.exists():
        return []
    if retry_failed:
        drop_episodes(folder.episodes, _has_failed)
    return [(entry.task, entry.rollout) for entry in EpisodeFile(folder.episodes).entries()]


def _has_failed(episode: Episode) -> bool:
    return "failures" in episode.metadata or any(t.failure is not None for t in episode.trajectories)


def new_folder(name: str) -> Path:
    """A folder for a run that begins now."""
    return RUNS / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def describe(flow: Workflow, kind: Kind, *, seed: int) -> RunInfo:
    """What a run of a workflow is of."""
    plan = flow.plan
    return RunInfo(
        kind=kind,
        name=plan.name,
        hash=plan.hash,
        command=command_line(),
        spec=flow.source.spec,
        overrides=flow.source.overrides,
        imports=tuple(str(file) for file in flow.source.imports),
        allowed=flow.source.allow,
        model_flag=flow.source.model,
        base_url=flow.source.base_url,
        model=_shown(plan.spec.model),
        seed=seed,
        roles={
            role.name: RoleInfo(
                estimator=role.estimator.name if role.estimator else None,
                loss=role.loss.name if role.run is None else None,
                trainable=role.spec.is_trained,
                policies=_policies(plan, role),
            )
            for role in plan.roles
        },
        metrics=tuple(plan.metrics),
        hidden=tuple(sorted(plan.hidden)),
        templates=_templates(flow),
    )


def but_episodes(observe: Observer, event: Event) -> None:
    """Passes on all but the ends of episodes, which are told when they are on disk."""
    if not isinstance(event, EpisodeDone):
        observe(event)


def nobody(_event: object) -> None:
    """Looks on where nobody does."""


def _policies(plan: Plan, role: RolePlan) -> tuple[str, ...]:
    """The policy of each instance, or the one of all; none for models as they are."""
    if not plan.policies_of(role.name):
        return ()
    policies = [plan.policy_of(role.name, index) for index in range(1, role.count + 1)]
    return (policies[0],) if len(set(policies)) == 1 else tuple(policies)


def _shown(ref: ModelRef) -> str:
    return f"{ref.provider}:{ref.name}" if ref.name else ref.provider


def _templates(flow: Workflow) -> dict[str, str]:
    """Every template by a name that a person knows it by."""
    templates: dict[str, str] = {}
    for role in flow.plan.roles:
        parts = {
            "prompt": role.prompt,
            "system": role.system,
            "tool": role.run.value if role.run else None,
            "demonstration": role.signal.demonstration if role.signal else None,
        }
        templates |= {f"the {part} of {role.name}": t.source for part, t in parts.items() if t is not None}
    return templates
