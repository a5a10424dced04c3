"""Checks of stages of imitation, and of demonstrations on the rows that they are written for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from rolegraph.engine.compile.names import ResolvedNames
from rolegraph.engine.compile.plan import Plan
from rolegraph.engine.compile.role_plan import RolePlan
from rolegraph.engine.compile.trainable import learning_findings
from rolegraph.engine.errors import FOREIGN_ERRORS, describe_error
from rolegraph.engine.prompts import PromptError, Template
from rolegraph.engine.records import Task
from rolegraph.engine.spec import Finding, Path, Spec
from rolegraph.engine.spec.train import BEST
from rolegraph.engine.spec.validation import name_not_found
from rolegraph.engine.vocabulary import ParseFailure, short_repr


def stages_findings(spec: Spec) -> Iterator[Finding]:
    """Find roles of stages that do not exist or are not trained, and stages longer than the training."""
    for index, stage in enumerate(spec.train.stages):
        for name in stage.imitation:
            path: Path = ("train", "stages", index, "imitation", name)
            if name not in spec.roles:
                yield name_not_found("role", name, spec.roles, path, ("roles",))
            elif not spec.roles[name].is_trained:
                message, hint = (
                    f"{name} is not trained, so it imitates nothing",
                    f"give {name} an `estimator`",
                )
                yield Finding(path, message, "a trained role", hint)
    total, limit = sum(stage.steps for stage in spec.train.stages), spec.train.steps
    if limit is not None and total > limit:
        message = f"the stages take {total:,} steps, and the training has {limit:,}"
        yield Finding(("train", "stages"), message, f"{limit:,} or fewer, and RL takes the rest", at_key=True)


def stage_findings(place: int, names: ResolvedNames) -> Iterator[Finding]:
    """Find the reasons why a stage's roles cannot learn, each at the key of the stage.

    Args:
        place: Position of the stage in `train.stages`, from 0.
        names: Resolved names of the spec in the stage.
    """
    stage: Path = ("train", "stages", place)
    for finding in (*names.findings, *learning_findings(names)):
        if finding.severity != "error":  # a key that only RL reads is no fault here
            continue
        path, path_inside = stage, ()
        if finding.path[:1] == ("roles",) and finding.path[1] in names.spec.train.stages[place].imitation:
            path = (*stage, "imitation", finding.path[1])
            path_inside = finding.path[5:] if finding.path[2:3] == ("signal",) else ()
        rests_on: tuple[Path, ...] = (finding.path,)
        message = f"stage {place + 1}: {finding.message}"
        yield replace(finding, path=(*path, *path_inside), message=message, rests_on=rests_on)


def demonstrations(plan: Plan) -> Mapping[Path, tuple[RolePlan, Template]]:
    """Return each role that imitates a demonstration, with its template, by the template's key."""
    by_key: dict[Path, RolePlan] = {("roles", name, "signal"): role for name, role in plan.trained.items()}
    for index, stage in enumerate(plan.stages):
        names = {name for name, target in stage.stage.imitation.items() if target != BEST}
        imitating_roles = (role for role in stage.roles if role.name in names)
        by_key |= {("train", "stages", index, "imitation", role.name): role for role in imitating_roles}
    return {
        key: (role, role.signal.demonstration)
        for key, role in by_key.items()
        if role.signal is not None and role.signal.demonstration is not None
    }


def demonstration_findings(plan: Plan, rows: Iterable[Task]) -> Iterator[Finding]:
    """Find demonstrations that cannot be written for a row, or that the role's own parser refuses.

    Only demonstrations that follow from the row alone are checked; the first row at fault is named.

    Args:
        plan: The plan.
        rows: Training tasks.
    """
    unchecked_fields = {
        path: (role, template)
        for path, (role, template) in demonstrations(plan).items()
        if not role.parser.roles and all(name.partition(".")[0] == "task" for name in template.mentions)
    }
    for row in rows if unchecked_fields else ():
        for path, (role, template) in [*unchecked_fields.items()]:
            if fault := _fault_of(role, template, row):
                message = f"the demonstration of {role.name} for row {row['id']} {fault}"
                yield Finding(path, message, "an answer that the role's parser reads")
                del unchecked_fields[path]


def _fault_of(role: RolePlan, template: Template, row: Task) -> str:
    """Return the reason why a role cannot learn a template's demonstration for a row; empty if it can."""
    try:
        text = template.render({"task": row}).strip()
    except PromptError as error:
        return f"cannot be written: {error}"
    try:
        if text:
            role.parser.parse(text, {})
    except ParseFailure as error:
        return f"is {error.name.value}: {error}; it is {short_repr(text)}"
    except FOREIGN_ERRORS as error:  # a package's parser
        return f"cannot be parsed: {describe_error(error)}"
    return ""
