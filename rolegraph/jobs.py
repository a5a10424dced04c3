"""Parts of every verb's job: folders in `runs/`, the settings in `run.json`, twins of coroutine functions."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.errors import UsageError
from rolegraph.engine.records import RunFolder, RunInfo, Source
from rolegraph.engine.records.folder import newest
from rolegraph.engine.records.info import Kind, RoleInfo
from rolegraph.engine.spec import load_spec
from rolegraph.sealing import sealed_fields
from rolegraph.workflow import Workflow

P = ParamSpec("P")
T = TypeVar("T")
RUNS = Path("runs")
"""Folder of all runs for which no folder is named."""


def blocking(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return the twin of the coroutine function `NAME_async` for scripts, where no event loop runs.

    The twin raises UsageError where an event loop runs already.
    """

    @wraps(work)
    def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(work(*args, **kwargs))
        raise UsageError(f"an event loop is already running, as in a notebook: await rg.{work.__name__}(…)")

    twin.__name__ = twin.__qualname__ = work.__name__.removesuffix("_async")
    return twin


def folder_to_resume(out: str | Path | None, source: Source | None, kind: Kind) -> RunFolder:
    """Return the named folder, or the newest run or training in `runs/` of the source's spec, or of any."""
    if out:
        return RunFolder(Path(out))
    return newest(RUNS, load_spec(source.spec).spec.name if source and source.spec else None, kind)


def check_seed(folder: RunFolder, before: RunInfo, seed: int | None) -> None:
    """Raise UsageError where a seed differs from the one that a run or a training was started with."""
    if seed not in (None, before.seed):
        raise UsageError(f"{folder.path} was started with the seed {before.seed}; the seed cannot change")


def changed(folder: RunFolder) -> UsageError:
    """Return the error for a folder in which another process wrote after a job had read it."""
    return UsageError(f"another command wrote in {folder.path} meanwhile; give this one again")


def new_folder(name: str) -> Path:
    """Return the path of a folder for a run that starts now; the folder is not made.

    Args:
        name: First part of the folder's name, such as the workflow's name.

    Returns:
        `runs/NAME-TIME`, with the local time in seconds.
    """
    return RUNS / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def command_line() -> str:
    """Return the command line of this process, quoted for a shell."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def describe(flow: Workflow, kind: Kind, **fields: Any) -> RunInfo:
    """Return the RunInfo of a run or a training of a workflow.

    Args:
        flow: The workflow.
        kind: `run` or `train`.
        fields: Further fields of the RunInfo, such as `seed` and `rollouts`.

    Returns:
        What the folder's `run.json` holds when the run starts.
    """
    plan = flow.plan
    return RunInfo(
        kind=kind,
        name=plan.name,
        hash=plan.hash,
        command=command_line(),
        model=str(plan.spec.model),
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
        **sealed_fields(flow.source),
        **fields,
    )


def ignore_event(_event: object) -> None:
    """Do nothing; the observer where none is given."""


def _policies(plan: Plan, role: RolePlan) -> tuple[str, ...]:
    """Return the policy of each instance, one name where all have the same, none for an untrained model."""
    if not plan.policies_of(role.name):
        return ()
    policies = [plan.policy_of(role.name, index) for index in range(1, role.count + 1)]
    return (policies[0],) if len(set(policies)) == 1 else tuple(policies)


def _templates(flow: Workflow) -> dict[str, str]:
    """Return the text of every template, by a name such as `the prompt of solver`."""
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
