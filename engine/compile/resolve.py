"""A vocabulary item as written in a spec to the item itself, or to findings in words for its author."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from engine.errors import UserError, did_you_mean
from engine.spec import Finding, ModelRef, Path, PromptSource
from engine.spec.models import as_model, as_prompt
from engine.vocabulary import (
    BadOptions,
    Call,
    Dataset,
    Import,
    Item,
    Registry,
    Split,
    UnknownName,
    digest_of,
    open_dataset,
)

T = TypeVar("T", bound=Item)
M = TypeVar("M", bound=BaseModel)


def resolve(registry: Registry[T], call: Call, path: Path) -> tuple[T | None, list[Finding]]:
    """The item that a call at `path` of the spec names, or what is wrong with the call."""
    try:
        return registry.build(call), []
    except UnknownName as error:
        return None, [_unknown(error, path, ", ".join(error.known))]
    except BadOptions as error:
        return None, list(_options(error, path))
    except UserError as error:
        return None, [Finding(path, str(error))]


def resolve_dataset(
    call: Call, path: Path, split: Split, folder: FilePath
) -> tuple[Dataset | None, list[Finding]]:
    """The tasks that a call names, or what is wrong with it; `folder` is where its files may lie."""
    try:
        return open_dataset(call, split=split, folder=folder), []
    except UnknownName as error:
        known = ", ".join(error.known)
        return None, [_unknown(error, path, f"{known}, or the path of a .jsonl, .parquet or .csv file")]
    except BadOptions as error:
        return None, list(_options(error, path))
    except UserError as error:
        return None, [Finding(path, str(error))]


def resolve_teacher(written: object, path: Path) -> tuple[ModelRef | None, list[Finding]]:
    """The model that a signal's `teacher` names, if any: a reference, or `{model: reference}`."""
    if written is None:
        return None, []
    if isinstance(written, Mapping):
        mapping = cast("Mapping[str, object]", written)
        written = mapping["model"] if set(mapping) == {"model"} else mapping
    expected = "a model, such as tinker:NAME or local:FOLDER"
    ref, findings = _validated(as_model(written), ModelRef, path, key="teacher", expected=expected)
    if ref is not None and ref.provider not in ("local", "tinker"):
        message = f"a teacher must give the log-probabilities of given tokens, which {ref.provider} does not"
        return None, [Finding(path, message, "a local or a tinker model", word=ref.provider)]
    return ref, findings


def resolve_prompt(written: object, path: Path) -> tuple[PromptSource | None, list[Finding]]:
    """The template that a signal names, if any, written as a role's prompt is."""
    if written is None:
        return None, []
    expected = "a template's file name, or {inline: text}"
    return _validated(as_prompt(written), PromptSource, path, key="demonstration", expected=expected)


def _validated(
    value: object, kind: type[M], path: Path, *, key: str, expected: str
) -> tuple[M | None, list[Finding]]:
    try:
        return kind.model_validate(value), []
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        where = ".".join(map(str, (key, *detail["loc"])))
        return None, [Finding(path, f"{where}: {detail['msg'].lower()}", expected, word=key)]


def digest(factory: Callable[..., Any]) -> str:
    """Identifies the code behind a vocabulary item: the hex digest of the file that defines it.

    Without a file, as in a notebook, that of its function.
    """
    if (found := Import.of(factory)).file is not None:
        return found.digest()
    try:
        return digest_of(inspect.getsource(inspect.unwrap(factory)).encode())
    except (OSError, TypeError):
        return "unknown"


def _unknown(error: UnknownName, path: Path, expected: str) -> Finding:
    return Finding(path, str(error), expected, error.hint, word=error.name)


def _options(error: BadOptions, path: Path) -> Iterator[Finding]:
    known = [option.name for option in error.options]
    takes = ", ".join(known) or "no options"
    item = f"{error.kind} {error.name!r}"
    for detail in error.errors:
        where = [part for part in detail["loc"] if isinstance(part, str)]
        option = where[0] if where else ""
        said = detail["msg"].removeprefix("Value error, ")
        word = option or error.name
        if detail["type"] == "unexpected_keyword_argument":
            hint = did_you_mean(option, known)
            yield Finding(path, f"{item} has no option {option!r}", takes, hint, word=word)
        elif detail["type"].startswith("missing"):
            expected = takes if option else f"{{{error.name}: …}}"
            yield Finding(path, f"{item} needs {option or 'a value'}", expected, word=error.name)
        elif said.startswith("Input should be "):
            message = f"{item}: {option or 'its value'} cannot be {detail['input']!r}"
            yield Finding(path, message, said.removeprefix("Input should be "), word=word)
        else:
            yield Finding(path, f"{item}: {option + ': ' if option else ''}{said}", word=word)
