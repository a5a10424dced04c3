"""Where runs are kept unless the person says otherwise, and what is noted of one when it begins."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from engine.compile import Plan
from engine.records import RunInfo
from engine.records.info import Kind, RoleInfo
from engine.spec import ModelRef

RUNS = Path("runs")


def new_folder(name: str) -> Path:
    """A folder for a run that begins now."""
    return RUNS / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join(["rolegraph", *sys.argv[1:]])


def describe(
    plan: Plan,
    kind: Kind,
    *,
    seed: int,
    spec: str,
    overrides: Sequence[str] = (),
    model: str | None = None,
    base_url: str | None = None,
) -> RunInfo:
    """What a run of a plan is of; `spec`, `overrides`, `model` and `base_url` as they were given."""
    return RunInfo(
        kind=kind,
        name=plan.name,
        hash=plan.hash,
        command=command_line(),
        spec=spec,
        overrides=tuple(overrides),
        model_flag=model,
        base_url=base_url,
        model=_shown(plan.spec.model),
        seed=seed,
        roles={
            role.name: RoleInfo(
                estimator=role.estimator.name if role.estimator else None,
                loss=role.loss,
                trainable=role.trainable,
            )
            for role in plan.roles
        },
        metrics=tuple(plan.metrics),
        templates=_templates(plan),
    )


def _shown(ref: ModelRef) -> str:
    return f"{ref.provider}:{ref.name}" if ref.name else ref.provider


def _templates(plan: Plan) -> dict[str, str]:
    """Every template of a plan by a name that a person knows it by."""
    templates: dict[str, str] = {}
    for role in plan.roles:
        demonstration = role.signal.demonstration if role.signal else None
        parts = {"prompt": role.prompt, "system": role.system, "demonstration": demonstration}
        templates |= {f"the {part} of {role.name}": t.source for part, t in parts.items() if t is not None}
    return templates
