"""Workflows that validate a training in place of its own, named by `train.validation.workflow`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath

from rolegraph.engine.compile.plan import Plan
from rolegraph.engine.compile.trainable import metric_findings
from rolegraph.engine.errors import UsageError, did_you_mean
from rolegraph.engine.records import Source
from rolegraph.engine.records.episode import REMARKS
from rolegraph.engine.records.files import is_file
from rolegraph.engine.shipped import SPECS
from rolegraph.engine.spec import Finding, Path
from rolegraph.engine.spec.files import names_in, resolve_path
from rolegraph.engine.spec.loader import LoadedSpec, find_spec

PATH: Path = ("train", "validation", "workflow")
_TAKEN = ("answers", "failures", "n", "reward", *REMARKS)
"""Names that no validation workflow may have, because metrics of every validation begin with them."""


def validation_sources(loaded: LoadedSpec, source: Source) -> tuple[list[Source], list[Finding]]:
    """Find the specs that validate a training, beside its spec, below it or among the shipped ones.

    A spec is untrusted, so a path that it names may not leave its folder; one of the command line may, and is
    relative to the working folder.

    Args:
        loaded: The spec of the training.
        source: Its source, whose options hold for the other specs, too; its overrides do not.
    """
    sources: list[Source] = []
    findings: list[Finding] = []
    if loaded.spec.train.validation.workflow and loaded.source.overridden(("data", "validation")):
        message = "the training validates on the rows of `train.validation.workflow`, not on these"
        findings.append(Finding(("data", "validation"), message, severity="warning", at_key=True))
    for index, name in enumerate(loaded.spec.train.validation.workflow):
        path = (*PATH, index)
        file = _as_typed(name, path) if loaded.source.is_overridden(path) else _beside(loaded, name, path)
        if isinstance(file, Finding):
            findings.append(file)
        else:
            sources.append(replace(source, spec=str(file), overrides=()))
    return sources, findings


def _as_typed(name: str, path: Path) -> FilePath | Finding:
    try:
        return find_spec(name)
    except UsageError as error:
        return Finding(path, str(error), word=name)


def _beside(loaded: LoadedSpec, name: str, path: Path) -> FilePath | Finding:
    expected = "a spec beside this one or below it, or a shipped one"
    candidates = [(folder, folder / name) for folder in loaded.folders]
    allowed_files = [file for folder, file in candidates if resolve_path(file).is_relative_to(folder)]
    shipped_file = SPECS / f"{FilePath(name).name.removesuffix('.yaml')}.yaml"
    file = next((file for file in (*allowed_files, shipped_file) if is_file(file)), None)
    if not allowed_files or (file is None and any(is_file(file) for _, file in candidates)):
        return Finding(path, f"{name} lies outside the spec's folder", expected, word=name)
    if file is not None:
        return file
    hint = did_you_mean(name, names_in([*loaded.folders, SPECS], "*.yaml"), "{}")
    return Finding(path, f"there is no spec {name!r}", expected, hint, word=name)


def fit_validations(plan: Plan, others: Sequence[Plan | None]) -> tuple[dict[str, Plan], list[Finding]]:
    """Check that the workflows of `train.validation.workflow` fit the training.

    Args:
        plan: The plan of the training.
        others: The plan of each spec of `validation_sources`; None for a spec with faults.

    Returns:
        The plans by name, and findings in the training's spec.
    """
    plans: dict[str, Plan] = {}
    findings: list[Finding] = []
    for index, other_plan in enumerate(others):
        if other_plan is not None:
            findings += _unfit(plan, other_plan, plans, (*PATH, index))
            plans.setdefault(other_plan.name, other_plan)
    if plans and len(plans) == len(others):
        findings += metric_findings(plan.spec, replace(plan, validations=plans).validation_metric_names)
    return plans, findings


def _unfit(plan: Plan, other: Plan, before: Mapping[str, Plan], path: Path) -> Iterator[Finding]:
    """Yield a finding for each reason why a workflow cannot validate a training."""
    policies = ", ".join(plan.policies)
    if unknown_policies := [name for name in other.policies if name not in plan.policies]:
        message = f"{other.name} asks the policy {unknown_policies[0]}, which {plan.name} does not train"
        yield Finding(path, message, f"the policies of the training: {policies}", at_key=True)
    elif not other.policies:
        message = f"{other.name} asks none of the policies that {plan.name} trains"
        yield Finding(
            path, message, f"roles that are trained, or have one as `policy`: {policies}", at_key=True
        )
    if "validation" not in other.data:
        message = f"{other.name} has no validation data"
        yield Finding(path, message, "`data: {validation: FILE}` in it", at_key=True)
    if other.name in before:
        message = f"two workflows that validate are called {other.name}"
        yield Finding(path, message, "another `name`", at_key=True)
    if other.name in _TAKEN:
        message = f"a workflow called {other.name} would mix its figures with those of another"
        yield Finding(path, message, "another `name`", at_key=True)
