"""Resolved data to a `Spec` of all that fits the language, and a finding for each part that does not.

What does not fit is left out, so that later checks see the rest and all faults come at once. Pydantic names
all that is wrong with a model in one pass, so a part is validated twice at most: as written, and without what
did not fit. Each role is a part of its own, so that the work grows with the number of roles and no faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from itertools import takewhile
from typing import Any, Generic, NamedTuple, TypeVar, cast

from pydantic import BaseModel, ValidationError

from rolegraph.engine.limits.specs import SPEC_ROLES
from rolegraph.engine.spec.base import SpecModel
from rolegraph.engine.spec.diagnostics import Finding, Path
from rolegraph.engine.spec.faults import findings_of
from rolegraph.engine.spec.models import Spec
from rolegraph.engine.spec.role import Role

M = TypeVar("M", bound=BaseModel)

_REQUIRED_OF_ROLE: Mapping[str, Any] = {}
REQUIRED: Mapping[str, Any] = {
    "rolegraph": 1,
    "name": "unnamed",
    "roles": {"unnamed": {"prompt": {"inline": ""}, "trainable": False}},
}
"""What every spec must have, in a form that no check has anything against. Stands in for what is missing."""


class FittedPart(NamedTuple, Generic[M]):
    """As much of a part of a spec as fits its model."""

    value: M
    findings: list[Finding]
    left_out: set[Path]
    """Paths whose value did not fit; whatever later checks say of them is a consequence."""


def validate(data: Mapping[str, Any]) -> FittedPart[Spec]:
    """The spec that resolved data describe, as far as they describe one. Never raises for YAML's values."""
    written = data.get("roles")
    named = cast("dict[str, Any]", written) if isinstance(written, dict) else {}
    if len(named) > SPEC_ROLES.most:
        # What is wrong with so many is of no use to anyone.
        message, here = f"the spec has {len(named):,} roles", ("roles",)
        found = [Finding(here, message, f"at most {SPEC_ROLES}", at_key=True)]
        top = fit_model(Spec, {**data, "roles": REQUIRED["roles"]}, REQUIRED, ())
        return FittedPart(top.value, [*found, *top.findings], {here, *top.left_out})
    parts = {name: fit_model(Role, role, _REQUIRED_OF_ROLE, ("roles", name)) for name, role in named.items()}
    roles = {name: part.value for name, part in parts.items()}
    top = fit_model(Spec, {**data, "roles": roles} if roles else data, REQUIRED, ())
    findings, left_out = [*top.findings], set(top.left_out)
    for name, part in parts.items():
        if ("roles", name) not in top.left_out:
            findings += part.findings
        left_out |= part.left_out
    # A role is there for others to need, even if its name is at fault.
    spec = top.value.model_copy(update={"roles": roles}) if roles else top.value
    return FittedPart(spec, findings, left_out)


def fit_model(
    model: type[M], written: object, required: Mapping[str, Any], at: Path, root: type[SpecModel] = Spec
) -> FittedPart[M]:
    """What of the value at a path fits a model; `required` stands in for what the model insists on.

    The path is one of a spec, or of another file that `root` is the model of.

    Where faults show only when others have gone, nothing but `required` is left.
    """
    try:
        return FittedPart(model.model_validate(written), [], set())
    except ValidationError as error:
        findings = findings_of(error, at, written, root)
    wrong = {_written_at(written, finding.path[len(at) :]) for finding in findings}
    rest = _without(written, wrong)
    try:
        value = model.model_validate({**required, **(rest if isinstance(rest, dict) else {})})
    except ValidationError as error:
        # That a key is missing which did not fit is no news.
        more = findings_of(error, at, written, root)
        findings += [found for found in more if found.path[len(at) :] not in wrong]
        value, wrong = model.model_validate(required), {()}
    return FittedPart(value, findings, {(*at, *_outside_lists(path)) for path in wrong})


def _written_at(value: Any, path: Path) -> Path:
    """What has to go for a fault at a path: all of `model: x:y`, where no key `provider` was written."""
    for depth, key in enumerate(path):
        if not isinstance(value, dict | list):
            return path[:depth]
        try:
            value = cast("Any", value)[key]
        except (LookupError, TypeError):  # a list has no names
            return path[:depth] or path  # what lacks it, but for what the whole part lacks
    return path


def _outside_lists(path: Path) -> Path:
    """As much of a path as still holds when an item of a list has gone, and those after it have moved up."""
    return tuple(takewhile(lambda key: isinstance(key, str), path))


def _without(value: Any, wrong: Set[Path], at: Path = ()) -> Any:
    """A copy without the values at some paths, nor mappings and lists that have nothing left in them."""
    if not isinstance(value, dict | list):
        return value
    container = cast("dict[str, Any] | list[Any]", value)
    rest: dict[str | int, Any] = {}
    for key, inner in container.items() if isinstance(container, dict) else enumerate(container):
        path = (*at, key)
        if path in wrong:
            continue
        kept = _without(inner, wrong, path)
        if kept or not inner:
            rest[key] = kept
    return rest if isinstance(value, dict) else list(rest.values())
