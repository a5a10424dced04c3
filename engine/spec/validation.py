"""Validation of resolved data: a `Spec` of the valid parts, and a finding for each invalid one.

Invalid parts are left out, so that later checks see the rest and all faults are reported at once. Pydantic
reports every fault of a model in one pass, so a part is validated twice at most: as written, and without the
faults. Each role is a separate part, which keeps the work linear in the number of roles.
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

REQUIRED: Mapping[str, Any] = {
    "rolegraph": 1,
    "name": "unnamed",
    "roles": {"unnamed": {"prompt": {"inline": ""}, "trainable": False}},
}
"""Values of the required keys that pass every check; they replace missing ones."""


class FittedPart(NamedTuple, Generic[M]):
    """The valid part of a mapping of a spec."""

    value: M
    findings: list[Finding]
    left_out: set[Path]
    """Paths of the values that were left out; later findings there are consequences."""


def validate(data: Mapping[str, Any]) -> FittedPart[Spec]:
    """Return the valid part of a spec's resolved data; never raise for data from YAML."""
    written = data.get("roles")
    named = cast("dict[str, Any]", written) if isinstance(written, dict) else {}
    if len(named) > SPEC_ROLES.most:
        message, here = f"the spec has {len(named):,} roles", ("roles",)
        found = [Finding(here, message, f"at most {SPEC_ROLES}", at_key=True)]
        top = fit_model(Spec, {**data, "roles": REQUIRED["roles"]}, REQUIRED, ())
        return FittedPart(top.value, [*found, *top.findings], {here, *top.left_out})
    parts = {name: fit_model(Role, role, {}, ("roles", name)) for name, role in named.items()}
    roles = {name: part.value for name, part in parts.items()}
    top = fit_model(Spec, {**data, "roles": roles} if roles else data, REQUIRED, ())
    findings, left_out = [*top.findings], set(top.left_out)
    for name, part in parts.items():
        if ("roles", name) not in top.left_out:
            findings += part.findings
        left_out |= part.left_out
    # A role with an invalid name is kept, for the roles that need it.
    spec = top.value.model_copy(update={"roles": roles}) if roles else top.value
    return FittedPart(spec, findings, left_out)


def fit_model(
    model: type[M], written: object, required: Mapping[str, Any], at: Path, root: type[SpecModel] = Spec
) -> FittedPart[M]:
    """Return the valid part of a value.

    Args:
        model: Expected model.
        written: Value of the part.
        required: Values for the model's required keys, in place of missing or invalid ones. The result has
            only these where further faults appear once the first are left out.
        at: Path of the part in the file.
        root: Model of the whole file.
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
        # A key that was left out is missing now, which is a consequence.
        more = findings_of(error, at, written, root)
        findings += [found for found in more if found.path[len(at) :] not in wrong]
        value, wrong = model.model_validate(required), {()}
    return FittedPart(value, findings, {(*at, *_outside_lists(path)) for path in wrong})


def _written_at(value: Any, path: Path) -> Path:
    """Shorten the path of a fault to a key that the file has: a short form such as `model: x:y` has no keys
    inside."""
    for depth, key in enumerate(path):
        if not isinstance(value, dict | list):
            return path[:depth]
        try:
            value = cast("Any", value)[key]
        except (LookupError, TypeError):  # a name as the index of a list
            return path[:depth] or path  # a missing key: its mapping, unless that is the whole part
    return path


def _outside_lists(path: Path) -> Path:
    """Cut a path before its first list position, because positions shift once a faulty item is left out."""
    return tuple(takewhile(lambda key: isinstance(key, str), path))


def _without(value: Any, wrong: Set[Path], at: Path = ()) -> Any:
    """Return a copy without the values at some paths and without mappings and lists that become empty."""
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
