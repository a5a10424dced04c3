"""Validation of resolved data: a `Spec` of the valid parts, and a finding for each invalid one.

Invalid parts are left out, so that later checks see the rest and all faults are reported at once. Pydantic
reports every fault of a model in one pass, so a part is validated twice at most: as written, and without the
faults. Each role is a separate part, which keeps the work linear in the number of roles.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import Any, Generic, NamedTuple, TypeVar, cast, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rolegraph.engine.errors import Suggestion, did_you_mean, nearest
from rolegraph.engine.limits.records import VALUE_SHOWN
from rolegraph.engine.limits.specs import SPEC_FAULTS, SPEC_ROLES
from rolegraph.engine.spec.base import SpecModel
from rolegraph.engine.spec.diagnostics import Finding, Path
from rolegraph.engine.spec.models import Spec, type_at
from rolegraph.engine.spec.role import Role
from rolegraph.engine.spec.yaml_repairs import quoted
from rolegraph.engine.spec.yaml_source import value_at
from rolegraph.engine.spec.yaml_text import dump_yaml
from rolegraph.engine.vocabulary import SCHEDULED_KEYS, STEP_NUMBER

M = TypeVar("M", bound=BaseModel)

REQUIRED: Mapping[str, Any] = {
    "rolegraph": 2,
    "name": "unnamed",
    "roles": {"unnamed": {"prompt": "The prompt."}},
}
"""Values of the required keys that pass every check, in place of missing values."""


class FittedPart(NamedTuple, Generic[M]):
    """The valid part of a mapping of a spec."""

    value: M
    findings: list[Finding]
    left_out: set[Path]
    """Paths of the values that were left out; later findings at these paths are consequences."""


def validate(data: Mapping[str, Any]) -> FittedPart[Spec]:
    """Return the valid part of a spec's resolved data; never raises for data from YAML."""
    written_roles = data.get("roles")
    roles_by_name = cast("dict[str, Any]", written_roles) if isinstance(written_roles, dict) else {}
    if len(roles_by_name) > SPEC_ROLES.most:
        message, roles_path = f"the spec has {len(roles_by_name):,} roles", ("roles",)
        finding = Finding(roles_path, message, f"at most {SPEC_ROLES}", at_key=True)
        fitted = fit_model(Spec, {**data, "roles": REQUIRED["roles"]}, REQUIRED, ())
        return FittedPart(fitted.value, [finding, *fitted.findings], {roles_path, *fitted.left_out})
    fitted_roles = {name: fit_model(Role, role, {}, ("roles", name)) for name, role in roles_by_name.items()}
    roles = {name: fitted_role.value for name, fitted_role in fitted_roles.items()}
    fitted = fit_model(Spec, {**data, "roles": roles} if roles else data, REQUIRED, ())
    kept_roles = (
        fitted_role for name, fitted_role in fitted_roles.items() if ("roles", name) not in fitted.left_out
    )
    findings = [
        *fitted.findings,
        *(finding for fitted_role in kept_roles for finding in fitted_role.findings),
    ]
    left_out = fitted.left_out.union(*(fitted_role.left_out for fitted_role in fitted_roles.values()))
    # A role with an invalid name is kept, for the roles that need it.
    spec = fitted.value.model_copy(update={"roles": roles}) if roles else fitted.value
    return FittedPart(spec, findings, left_out)


def fit_model(
    model: type[M], written: object, required: Mapping[str, Any], prefix: Path, root: type[SpecModel] = Spec
) -> FittedPart[M]:
    """Return the valid part of a value.

    Args:
        model: Expected model.
        written: The value.
        required: Values for the model's required keys, in place of missing or invalid ones. If further faults
            appear once the faulty parts are left out, the result has only these values.
        prefix: Path of the value in the file.
        root: Model of the whole file.
    """
    try:
        return FittedPart(model.model_validate(written), [], set())
    except ValidationError as error:
        findings = findings_of(error, prefix, written, root)
    wrong_paths = {_written_at(written, finding.path[len(prefix) :]) for finding in findings}
    remaining = _without(written, wrong_paths)
    try:
        value = model.model_validate({**required, **(remaining if isinstance(remaining, dict) else {})})
    except ValidationError as error:
        # A key that was left out is missing now, which is a consequence.
        more_findings = findings_of(error, prefix, written, root)
        findings += [finding for finding in more_findings if finding.path[len(prefix) :] not in wrong_paths]
        value, wrong_paths = model.model_validate(required), {()}
    # Cut before the first position in a list, because positions shift once a faulty item is left out.
    outside = (takewhile(lambda key: isinstance(key, str), path) for path in wrong_paths)
    return FittedPart(value, findings, {(*prefix, *path) for path in outside})


def _written_at(value: Any, path: Path) -> Path:
    """Return the beginning of `path` that exists in `value`, for messages: `model: x:y` has no keys
    inside."""
    for depth, key in enumerate(path):
        if not isinstance(value, dict | list):
            return path[:depth]
        try:
            value = cast("Any", value)[key]
        except (LookupError, TypeError):  # a name as the index of a list
            return path[:depth] or path  # a missing key: its mapping, unless that is the whole part
    return path


def _without(value: Any, wrong: Set[Path], prefix: Path = ()) -> Any:
    """Return a copy of nested data without the values at the paths in `wrong`.

    Mappings and lists that become empty are left out as well.
    """
    if not isinstance(value, dict | list):
        return value
    container = cast("dict[str, Any] | list[Any]", value)
    remaining: dict[str | int, Any] = {}
    for key, inner_value in container.items() if isinstance(container, dict) else enumerate(container):
        path = (*prefix, key)
        if path in wrong:
            continue
        kept_value = _without(inner_value, wrong, path)
        if kept_value or not inner_value:
            remaining[key] = kept_value
    return remaining if isinstance(value, dict) else list(remaining.values())


_MEANT = {("shows", False): "sees", ("calls", False): "max_calls", ("tool", True): "callable"}
"""Keys of the language, by (word that other tools use for the key, True if the value is a mapping)."""
_GONE = {"trainable": "leave it out: a role is trained if it has an `estimator` or a `signal`"}
"""Hints for keys of other tools and earlier versions, by key."""
_NAME = "letters, digits and _, not starting with a digit"
_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list, such as [solver]",
    **dict.fromkeys(("mapping_type", "dict_type", "model_type"), "a mapping"),
    "greater_than_equal": "at least {ge:,}",
    "greater_than": "more than {gt:,}",
    "less_than_equal": "at most {le:,}",
    "less_than": "less than {lt:,}",
    "string_pattern_mismatch": _NAME,
    "too_short": "at least one role",
    "value_error": "{error}",
}
"""Descriptions of expected values by the type of pydantic's error; `{}` names fields of the error's
context."""
_EXPRESSION_HINTS = {
    "count": "for a number that depends on an answer write the largest, and `when: self.index <= …`",
    "times": "for a number that depends on an answer write the largest, and `until: …`",
}
"""Hints for a key whose value must be a number, but is an expression."""


def findings_of(
    error: ValidationError, prefix: Path = (), written: object = None, root: type[SpecModel] = Spec
) -> list[Finding]:
    """Return one finding for each of pydantic's errors.

    Args:
        error: Error of the validation of one part of a file.
        prefix: Path of the part.
        written: Value of the part.
        root: Model of the whole file.
    """
    details = error.errors(include_url=False)
    # Findings past the limit are not shown and need only their paths, which mark the values to leave out.
    shown_details, hidden_details = details[: SPEC_FAULTS.most], details[SPEC_FAULTS.most :]
    findings = [
        replace(it, code=it.code or "wrong-value")
        for it in (_finding(detail, prefix, written, root) for detail in shown_details)
    ]
    return findings + [Finding((*prefix, *it["loc"]), it["msg"], at_key=True) for it in hidden_details]


def _finding(detail: ErrorDetails, prefix: Path, written: object, root: type[SpecModel]) -> Finding:
    kind, path = detail["type"], (*prefix, *detail["loc"])
    if kind == "extra_forbidden":
        return _unknown_key(path, detail["input"], root)
    if kind == "missing":
        return _missing_key(path, root)
    if kind.startswith("string_") and path[-1] == "[key]":  # pydantic's mark for a fault of the key itself
        return Finding(path[:-1], f"{path[-2]!r} cannot be a name", _NAME, at_key=True)
    if kind in ("literal_error", "enum"):
        return _unknown_word(detail, path, value_at(written, detail["loc"][:-1]), root)
    expected, hint = _expected(detail, path, root)
    problem = f"cannot be {short_value(detail['input'])}"
    if kind == "too_short":
        problem = "is empty"
    elif kind == "value_error" and isinstance(detail["input"], dict | list):
        problem = "is not valid"
    return Finding(path, f"{_key_of(path)} {problem}", expected, hint)


def _key_of(path: Path) -> str:
    """Return the last key of a path that is a name, not a list position; empty if there is no name."""
    return str(next((key for key in reversed(path) if isinstance(key, str)), ""))


def _unknown_key(path: Path, value: object, root: type[SpecModel]) -> Finding:
    model = _model_at(path[:-1], root)
    extends = ["extends"] if root is Spec and len(path) == 1 else []
    keys = [*extends, *(model.model_fields if model else ())]
    key = str(path[-1])
    meant_key = _MEANT.get((key, isinstance(value, Mapping)))
    if meant_key in keys:
        near_key, hint = meant_key, Suggestion(key, meant_key, certain=True)
    else:
        near_key = nearest(key, keys)
        hint = _GONE.get(key) or _right_place(path, root) or did_you_mean(key, keys)
    covers = ((*path[:-1], near_key),) if near_key else ()
    return Finding(
        path, f"unknown key {key!r}", ", ".join(keys), hint, at_key=True, covers=covers, code="unknown-key"
    )


def _missing_key(path: Path, root: type[SpecModel]) -> Finding:
    model = _model_at(path[:-1], root)
    field = model.model_fields.get(str(path[-1])) if model else None
    expected = ((field.description if field else None) or "").rstrip(".")
    hint = f"add `{path[-1]}: {2 if path == ('rolegraph',) else '…'}`"
    where = ".".join(map(str, path[:-1])) or "the spec"
    return Finding(path, f"{where} has no {str(path[-1])!r}", expected, hint, at_key=True, code="missing-key")


def _unknown_word(detail: ErrorDetails, path: Path, around: object, root: type[SpecModel]) -> Finding:
    """Return the finding for a value that is not among the words that its key allows.

    `around` is the mapping that holds the key.
    """
    key, word = _key_of(path), str(detail["input"])
    choices = re.findall("'([^']*)'", str(detail.get("ctx", {}).get("expected", "")))
    hint = did_you_mean(word, choices)
    if key == "[key]":  # pydantic's mark for a fault of the key itself
        message, expected = f"unknown key {word!r}", _either(choices)
        return Finding(path[:-1], message, expected, hint, at_key=True, code="unknown-key")
    model = _model_at(path[:-1], root)
    short_forms = _short_forms(model)
    if short_forms and isinstance(around, str):  # a short form: the word stands in place of the mapping
        key, choices = _key_of(path[:-1]), short_forms
        needs_value = f"write {{{word}: …}}" if model and word in model.model_fields else ""
        hint = did_you_mean(word, choices) or needs_value
    if path == ("rolegraph",):
        choices, hint = ["2"], "this engine reads version 2 of the language"
    elif key == "provider" and isinstance(around, str):
        is_name = ":" not in around and "local" not in hint  # no provider but `local` stands alone
        hint = f"did you mean openai:{around}?" if is_name or not hint else hint
    return Finding(path, f"{key} cannot be {short_value(detail['input'])}", _either(choices), hint)


def _expected(detail: ErrorDetails, path: Path, root: type[SpecModel]) -> tuple[str, str]:
    """Return (expected value, hint) for a value of the wrong type or out of range."""
    kind, key = detail["type"], str(path[-1]) if path else ""
    if key in _EXPRESSION_HINTS and kind == "int_type" and re.search(r"[a-z]\W", str(detail["input"])):
        return _EXPECTED[kind], _EXPRESSION_HINTS[key]
    if kind != "model_type":
        default = detail["msg"][:1].lower() + detail["msg"][1:]
        expected = _EXPECTED.get(kind, default).format(**detail.get("ctx", {}))
        is_scheduled = kind == "float_type" and key in SCHEDULED_KEYS
        return STEP_NUMBER if is_scheduled else expected, _as_written(key, detail["input"])
    model = _model_at(path, root)
    hint = _name_missing(path, root) or _colon_missing(model, detail["input"])
    hint = hint or _as_written(key, detail["input"])
    if short_forms := _short_forms(model):
        return f"{_either(short_forms, ', ')}, or a mapping", hint
    example = "" if hint or model is None else _example(model, detail["input"])
    return f"a mapping, such as {key}: {example}" if example else "a mapping", hint


def _as_written(key: str, value: object) -> str:
    """Return a hint with the number that a text with commas means, or the text that a mapping holds."""
    if re.fullmatch(r"[-+]?\d+,[\d,]+", number := str(value)):
        thousands = re.fullmatch(r"[-+]?[1-9]\d{0,2}(,\d{3})+", number)
        return f"write {number.replace(',', '' if thousands else '.')}"
    texts = [*cast("Mapping[str, object]", value).values()] if isinstance(value, Mapping) else []
    if key in ("prompt", "system") and len(texts) == 1 and isinstance(texts[0], str):
        return f"write {key}: {quoted(texts[0])}"
    return ""


def name_not_found(
    kind: str, name: str, names: Collection[str], path: Path = (), looked_in: Path = ()
) -> Finding:
    """Return the finding for a name that no role, or other `kind` of part, has.

    Args:
        kind: Kind of the part, for the message.
        name: The name.
        names: Names that the spec has.
        path: Place of the name.
        looked_in: Mapping of the spec that holds the names.
    """
    expected = f"one of {', '.join(names)}" if names else f"a {kind} of the spec, which has none"
    return Finding(
        path,
        f"no {kind} {name!r}",
        expected,
        did_you_mean(name, names),
        word=name,
        looked_in=looked_in,
        code="unknown-name",
    )


def short_value(value: object) -> str:
    """Return a value as YAML, cut for a message; for a mapping or list, only its kind."""
    if isinstance(value, bool | None):
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, Mapping | list):
        return "a mapping" if isinstance(value, Mapping) else "a list"
    text = repr(value)
    return text if len(text) <= VALUE_SHOWN.most else text[: VALUE_SHOWN.most - 3] + "..."


def _either(words: Sequence[str], last: str = " or ") -> str:
    return last.join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _model_at(path: Path, root: type[SpecModel]) -> type[BaseModel] | None:
    kind = type_at(path, root)
    return kind if kind is not None and issubclass(kind, BaseModel) else None


def _short_forms(model: type[BaseModel] | None) -> list[str]:
    """Return the words that a spec may write in place of a mapping of this model, such as `all` for an
    edge."""
    nested_types = [get_args(part) or (part,) for part in get_args(getattr(model, "SHORT", None))]
    return [word for words in nested_types for word in words if isinstance(word, str)]


def _name_missing(path: Path, root: type[SpecModel]) -> str:
    """Return a hint if a key, as in `roles.prompt`, stands where a name should be; else empty."""
    model = _model_at(path, root)
    if model is None or len(path) < 2 or path[-1] not in model.model_fields or _model_at(path[:-1], root):
        return ""
    return f"each of `{path[-2]}` has a name: {path[-2]}: {{mine: {{{path[-1]}: …}}}}"


def _colon_missing(model: type[BaseModel] | None, value: object) -> str:
    """Return a hint if a text is a key of the mapping without its colon, such as `correct judge`; else
    empty."""
    match = re.fullmatch(r"(\w+)\s*[ =:]\s*(\S.*)", value) if isinstance(value, str) else None
    if model is None or match is None or match[1] not in model.model_fields:
        return ""
    return f"a colon or its space is missing: write {match[1]}: {match[2]}"


def _right_place(path: Path, root: type[SpecModel]) -> str:
    """Return a hint that names the mapping in which a misplaced key, such as `temperature`, belongs; else
    empty."""
    if path[0] == path[-1] == "loops":
        return "write it beside the other under `loops`, and its name among the `roles` of the other"
    if root is Spec and len(path) == 3 and path[-1] in Spec.model_fields:
        return f"`{path[-1]}` stands at the top of the spec"
    model = _model_at(path[:-1], root)
    for name in model.model_fields if model else ():
        inner_model = _model_at((*path[:-1], name), root)
        if inner_model and path[-1] in inner_model.model_fields:
            return f"put it under `{name}`"
    return ""


def _example(model: type[BaseModel], value: object) -> str:
    """Return YAML of a mapping that puts a bare value under the first key of the model that accepts it; else
    empty."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    if len(text := str(value)) > VALUE_SHOWN.most or not text.isprintable():
        return ""
    for name in model.model_fields:
        with suppress(ValidationError):
            model.model_validate({name: value})
            return dump_yaml({name: value}, one_line=True)
    return ""
