"""`rolegraph run`: episodes of a workflow, on disk as they finish."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from engine.compile import Plan, RolePlan
from engine.errors import UsageError
from engine.records import (
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
from engine.records.info import Kind, RoleInfo
from engine.spec import ModelRef
from engine.vocabulary import Split
from rolegraph.workflow import Workflow

P = ParamSpec("P")
T = TypeVar("T")
RUNS = Path("runs")
"""Where runs are kept unless a folder is named."""


@dataclass(frozen=True, slots=True)
class Ran:
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
) -> Ran:
    """Run a workflow on its tasks, and write each episode as it finishes to `out/episodes.jsonl`.

    `limit` is how many tasks of the `split`, `tasks` are given in their place; `rollouts` is how many
    episodes of each. The default folder is `runs/NAME-TIME`. `observe` hears of each model call and each
    episode. Raises SpecError, UsageError (a folder that holds a run, no key) and WorldError. Cancelled, it
    leaves what was finished on disk.
    """
    from engine.records.episodes import EpisodeWriter

    told = observe or nobody
    flow.check_allowed()
    rows = flow.tasks(split, limit) if tasks is None else tasks
    folder = RunFolder(Path(out) if out else new_folder(flow.name))
    folder.check_new("run")
    folder.begin(describe(flow, "run", seed=seed), flow.plan.resolved)
    with folder.ending(), EpisodeWriter(folder.episodes) as writer:
        told(Note("starting the model …"))
        async with flow.open() as opened:
            told(Note(""))
            episodes = opened.stream(
                tasks=rows,
                rollouts=rollouts,
                seed=seed,
                concurrency=concurrency,
                observe=partial(_but_episodes, observe) if observe else None,
            )
            async with aclosing(episodes):
                async for episode in episodes:
                    writer.append(episode)
                    told(EpisodeDone(episode, finished=True))
    return Ran(folder.path)


run = blocking(run_async)


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
                loss=role.loss if role.run is None else None,
                trainable=role.trainable,
                policies=_policies(plan, role),
            )
            for role in plan.roles
        },
        metrics=tuple(plan.metrics),
        templates=_templates(flow),
    )


def _but_episodes(observe: Observer, event: Event) -> None:
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
