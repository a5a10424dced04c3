"""What pydantic found wrong in a spec, in words for the person who wrote it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rolegraph.engine.errors import did_you_mean
from rolegraph.engine.limits.records import VALUE_SHOWN
from rolegraph.engine.limits.specs import SPEC_FAULTS
from rolegraph.engine.spec.base import SpecModel
from rolegraph.engine.spec.diagnostics import Finding, Path
from rolegraph.engine.spec.models import Spec, type_at
from rolegraph.engine.spec.yaml_source import value_at

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list, such as [solver]",
    "mapping_type": "a mapping",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
_DECIDED = {
    "count": "for what an answer decides, say the most, and `when: self.index <= …`",
    "times": "for what an answer decides, say the most, and `when: self.round <= …` or `until: …`",
}
"""Hints for an expression where a number stands."""
_WORDS = {
    "greater_than_equal": "at least {ge:,}",
    "greater_than": "more than {gt:,}",
    "less_than_equal": "at most {le:,}",
    "less_than": "less than {lt:,}",
}


def findings_of(
    error: ValidationError, at: Path = (), written: object = None, root: type[SpecModel] = Spec
) -> list[Finding]:
    """One finding for each of pydantic's errors with the part that stands, `written`, at a path of a spec, or
    of another file that `root` is the model of."""
    details = error.errors(include_url=False)
    told, rest = details[: SPEC_FAULTS.most], details[SPEC_FAULTS.most :]
    # The rest is not shown, so that it needs no words, but what is at fault has to be left out.
    return [
        *(_finding(detail, at, written, root) for detail in told),
        *(Finding((*at, *detail["loc"]), detail["msg"], at_key=True) for detail in rest),
    ]


def _finding(detail: ErrorDetails, at: Path, written: object, root: type[SpecModel]) -> Finding:
    kind, context = detail["type"], detail.get("ctx", {})
    path: Path = (*at, *detail["loc"])
    is_name = kind.startswith("string_") and path[-1:] == ("[key]",)
    if is_name:  # pydantic's word for the key itself, not its value
        path = path[:-1]
    key = str(path[-1]) if path else ""
    value = short_value(detail["input"])
    if kind == "extra_forbidden":
        known = _keys_at(path[:-1], root)
        hint = _belongs(path, root) or did_you_mean(key, known)
        return Finding(path, f"unknown key {key!r}", _listed(known), hint, at_key=True)
    if kind == "missing":
        where = ".".join(map(str, path[:-1])) or "the spec"
        hint = "add `rolegraph: 1`" if path == ("rolegraph",) else ""
        return Finding(path, f"{where} has no {key!r}", _description(path, root), hint, at_key=True)
    if is_name:
        return Finding(
            path, f"{key!r} cannot be a name", "letters, digits and _, not starting with a digit", at_key=True
        )
    if kind == "literal_error":
        choices = [
            word.strip("'") for word in str(context.get("expected", "")).replace(" or ", ", ").split(", ")
        ]
        hint = did_you_mean(str(detail["input"]), choices)
        shorts = _shorts(path[:-1], root)
        if shorts and isinstance(value_at(written, detail["loc"][:-1]), str):  # all of it is one word
            key, choices = str(path[-2]), shorts
            hint = did_you_mean(str(detail["input"]), choices) or _needs_value(
                path[:-1], str(detail["input"]), root
            )
        if path == ("rolegraph",):
            hint = "this engine reads version 1 of the language"
        elif (
            key == "provider" and not hint and isinstance(name := value_at(written, detail["loc"][:-1]), str)
        ):
            hint = f"did you mean openai:{name}?"
        return Finding(path, f"{key} cannot be {value}", _listed(choices, " or "), hint)
    if kind in _WORDS:
        return Finding(path, f"{key} cannot be {value}", _WORDS[kind].format(**context))
    if kind == "string_pattern_mismatch":
        return Finding(path, f"{key} cannot be {value}", "letters, digits and _, not starting with a digit")
    if kind == "too_short":
        return Finding(path, f"{key} is empty", "at least one role")
    if key in _DECIDED and re.search(r"[a-z]\W", str(detail["input"])):
        return Finding(path, f"{key} cannot be {value}", _EXPECTED["int_type"], _DECIDED[key])
    if kind == "value_error":
        return Finding(path, f"{key}: {value} does not fit", str(context.get("error", detail["msg"])))
    if kind == "model_type" and (shorts := _shorts(path, root)):
        return Finding(
            path, f"{key} cannot be {value}", f"{_listed(shorts)}, or a mapping", _unnamed(path, root)
        )
    if kind == "model_type" and (hint := _unnamed(path, root)):
        return Finding(path, f"{key} cannot be {value}", "a mapping", hint)
    if kind == "model_type" and (meant := _meant(path, detail["input"], root)):
        return Finding(path, f"{key} cannot be {value}", f"a mapping, such as {key}: {meant}")
    return Finding(
        path, f"{key} cannot be {value}", _EXPECTED.get(kind, detail["msg"][:1].lower() + detail["msg"][1:])
    )


def role_not_found(name: str, roles: Collection[str], path: Path = ()) -> Finding:
    """No role has that name."""
    expected = f"one of {', '.join(roles)}" if roles else "a role of the spec, which has none"
    return Finding(path, f"no role {name!r}", expected, did_you_mean(name, roles), word=name)


def short_value(value: object) -> str:
    """A value as YAML has it, in short."""
    text = (
        repr(value)
        if not isinstance(value, bool | None)
        else {True: "true", False: "false", None: "null"}[value]
    )
    if isinstance(value, Mapping):
        text = "a mapping"
    elif isinstance(value, list):
        text = "a list"
    return text if len(text) <= VALUE_SHOWN.most else text[: VALUE_SHOWN.most - 3] + "..."


def _listed(names: list[str], last: str = ", ") -> str:
    return ", ".join(names[:-1]) + last + names[-1] if len(names) > 1 else "".join(names)


def _model_at(path: Path, root: type[SpecModel]) -> type[BaseModel] | None:
    kind = type_at(path, root)
    return kind if kind is not None and issubclass(kind, BaseModel) else None


def _shorts(path: Path, root: type[SpecModel]) -> list[str]:
    """The words that stand for a mapping at a path."""
    short = getattr(_model_at(path, root), "SHORT", None)
    nested = [get_args(part) or (part,) for part in get_args(short)]
    return [word for words in nested for word in words if isinstance(word, str)]


def _needs_value(path: Path, word: str, root: type[SpecModel]) -> str:
    """A hint where a bare word is a key of what it stands for."""
    model = _model_at(path, root)
    return f"write {{{word}: …}}" if model and word in model.model_fields else ""


def _keys_at(path: Path, root: type[SpecModel]) -> list[str]:
    model = _model_at(path, root)
    return [*(["extends"] if root is Spec and not path else []), *(model.model_fields if model else [])]


def _unnamed(path: Path, root: type[SpecModel]) -> str:
    """A hint where a key of one of several, which have names, stands in the place of a name."""
    model = _model_at(path, root)
    if model is None or len(path) < 2 or path[-1] not in model.model_fields or _model_at(path[:-1], root):
        return ""
    return f"each of `{path[-2]}` has a name: {path[-2]}: {{mine: {{{path[-1]}: …}}}}"


def _belongs(path: Path, root: type[SpecModel]) -> str:
    """A hint where the key of a path is another mapping's: `temperature`, one of `sampling` beside it."""
    if root is Spec and len(path) == 3 and path[-1] in Spec.model_fields:
        return f"`{path[-1]}` stands at the top of the spec"
    model = _model_at(path[:-1], root)
    for name in model.model_fields if model else ():
        inner = _model_at((*path[:-1], name), root)
        if inner and path[-1] in inner.model_fields:
            return f"put it under `{name}`"
    return ""


def _meant(path: Path, value: object, root: type[SpecModel]) -> str:
    """The mapping that a bare value was meant for, as YAML: the first of its keys that takes the value."""
    model = _model_at(path, root)
    if model is None or isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    if len(text := str(value)) > VALUE_SHOWN.most or not text.isprintable():
        return ""
    for name in model.model_fields:
        with suppress(ValidationError):
            model.model_validate({name: value})
            flow = yaml.safe_dump({name: value}, default_flow_style=True, allow_unicode=True, width=1000)
            return flow.rstrip()
    return ""


def _description(path: Path, root: type[SpecModel]) -> str:
    model = _model_at(path[:-1], root)
    field = model.model_fields.get(str(path[-1])) if model else None
    return ((field.description if field else None) or "").rstrip(".")
