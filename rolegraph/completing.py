"""Completion of an override: the keys of a spec, its own names, and the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, cast, get_args, get_origin

from pydantic import BeforeValidator
from pydantic_core import PydanticUndefined

from rolegraph.engine.errors import UserError
from rolegraph.engine.spec import Spec, load_spec
from rolegraph.engine.spec.base import SpecModel
from rolegraph.engine.vocabulary import ItemCall, Registry

ROLE_KEYS = frozenset({"needs", "correct", "players", "roles"})
"""Keys whose value is a role or a list of roles, where it is not a mapping."""


class CompletionItem(NamedTuple):
    """A word in a shell's list of completions."""

    word: str
    meaning: str = ""
    """Description beside the word; empty where there is none."""


def completions(spec: str | None, word: str) -> list[CompletionItem]:
    """Complete an override of a spec, such as `roles.solver.pa`.

    Args:
        spec: Path of a spec file or name of a shipped spec, for its own names; None, or a spec that cannot be
            read, has none.
        word: The override so far: `roles.so` is completed by keys, `roles.solver.parser=` by values.

    Returns:
        The words that begin with `word`, sorted; a key ends in `.` or, before a value, in `=`.
    """
    whole = _written(spec)
    path, equals, _ = word.partition("=")
    *above, key = path.split(".")
    types: list[Any] = [Spec]
    written: object = whole
    for name in above:
        types = [part for type_ in types for part in _types_below(type_, name)]
        written = _mapping(written).get(name)
    if equals:
        roles = _mapping(whole.get("roles")) if key in ROLE_KEYS else ()
        items = [item._replace(word=f"{path}={item.word}") for item in _values(types, key, roles)]
    else:
        prefix = "".join(f"{name}." for name in above)
        items = [item._replace(word=f"{prefix}{item.word}") for item in _keys(types, _mapping(written))]
    offered = {item.word: item for item in reversed(items) if item.word.startswith(word)}
    return sorted(offered.values())


def _written(spec: str | None) -> Mapping[str, Any]:
    """Return the spec's values, extended, or an empty mapping where there is no spec."""
    try:
        return load_spec(spec).data if spec else {}
    except UserError:
        return {}


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _types(annotation: Any, metadata: Iterable[Any] = ()) -> Iterator[Any]:
    """Yield the types that a field takes, without unions; a Registry stands for the names of its items."""
    for mark in metadata:
        if isinstance(mark, Registry):
            yield mark
            return
        if isinstance(mark, BeforeValidator) and mark.json_schema_input_type is not PydanticUndefined:
            annotation = mark.json_schema_input_type
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        yield from _types(inner, marks)
    elif get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _types(part)
    elif annotation is not NoneType:
        yield annotation
        if (short := getattr(annotation, "SHORT", None)) is not None:
            yield from _types(short)


def _is_mapping(type_: Any) -> bool:
    return get_origin(type_) is Mapping


def _is_model(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, SpecModel)


def _types_below(type_: Any, key: str) -> Iterator[Any]:
    """Yield the types of a key of a model or a mapping."""
    if _is_mapping(type_):
        yield from _types(get_args(type_)[1])
    elif _is_model(type_) and key in type_.model_fields:
        field = type_.model_fields[key]
        yield from _types(field.annotation, field.metadata)


def _keys(types: Iterable[Any], written: Mapping[str, Any]) -> Iterator[CompletionItem]:
    for type_ in types:
        meanings: Mapping[str, str] = {}
        if _is_model(type_):
            meanings = {name: field.description or "" for name, field in type_.model_fields.items()}
        elif _is_mapping(type_):
            meanings = dict.fromkeys(written, "")
        for name, meaning in meanings.items():
            below = [_is_model(part) or _is_mapping(part) for part in _types_below(type_, name)]
            if any(below):
                yield CompletionItem(f"{name}.", meaning)
            if not all(below):
                yield CompletionItem(f"{name}=", meaning)


def _values(types: Iterable[Any], key: str, roles: Iterable[str]) -> Iterator[CompletionItem]:
    yield from (CompletionItem(role, "a role of the spec") for role in roles)
    for parent in types:
        for type_ in _types_below(parent, key):
            if isinstance(type_, Registry):
                registry = cast("Registry[Any]", type_)
                yield from (CompletionItem(name, registry.summary(name)) for name in registry.names())
            elif get_origin(type_) is Literal:
                yield from (CompletionItem(str(value)) for value in get_args(type_))
            elif type_ is bool:
                yield from (CompletionItem("true"), CompletionItem("false"))
        if _is_model(parent) and key in parent.model_fields:
            default = parent.model_fields[key].default
            default = default.dump() if isinstance(default, ItemCall) else default
            if isinstance(default, str | int | float) and not isinstance(default, bool):
                yield CompletionItem(str(default), "the default")
