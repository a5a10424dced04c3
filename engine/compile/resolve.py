"""Resolution of vocabulary items: from the call in a spec to the item, or to findings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path as FilePath
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rolegraph.engine.errors import UserError, did_you_mean, first_line
from rolegraph.engine.spec import Finding, ModelRef, Path, PromptSource
from rolegraph.engine.spec.faults import short_value
from rolegraph.engine.vocabulary import (
    BadOptions,
    Dataset,
    Import,
    Item,
    ItemCall,
    Registry,
    Split,
    UnknownName,
    digest_of,
    open_dataset,
)
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS

T = TypeVar("T", bound=Item)
M = TypeVar("M", bound=BaseModel)


def resolve(
    registry: Registry[T], call: ItemCall, path: Path, **context: Any
) -> tuple[T | None, list[Finding]]:
    """Build the item that a call at `path` of a spec names, or return None and findings.

    Args:
        registry: Registry of the item's kind.
        call: The item's name and options.
        path: Key of the spec.
        context: Other arguments of `Registry.build`.
    """
    return _resolved(partial(registry.build, call, **context), path)


def resolve_dataset(
    call: ItemCall, path: Path, split: Split, folder: FilePath
) -> tuple[Dataset | None, list[Finding]]:
    """Open the data set that a call names, or return None and findings; its files lie in `folder`."""
    files = ", or the path of a .jsonl, .parquet or .csv file"
    return _resolved(partial(open_dataset, call, split=split, folder=folder), path, files)


def _resolved(make: Callable[[], T], path: Path, others: str = "") -> tuple[T | None, list[Finding]]:
    """Return the result of `make`, or None and findings; `others` is added to the known names."""
    try:
        return make(), []
    except (UnknownName, BadOptions) as error:
        return None, list(_findings(error, path, others))
    except UserError as error:
        return None, [Finding(path, str(error))]
    except FOREIGN_ERRORS as error:  # raised by a package's item
        said = short_value(f"{type(error).__name__}: {first_line(error)}")
        return None, [Finding(path, f"building this item failed: {said}")]


def resolve_teacher(written: object, path: Path) -> tuple[ModelRef | None, list[Finding]]:
    """Return the model of a signal's `teacher`, a reference or `{model: reference}`; None without one."""
    if written is None:
        return None, []
    if isinstance(written, Mapping):
        mapping = cast("Mapping[str, object]", written)
        written = mapping["model"] if set(mapping) == {"model"} else mapping
    expected = "a model, such as tinker:NAME or local:FOLDER"
    ref, findings = _validated(written, ModelRef, path, key="teacher", expected=expected)
    if ref is not None and ref.provider not in ("local", "tinker"):
        message = f"a teacher must give the log-probabilities of given tokens, which {ref.provider} does not"
        return None, [Finding(path, message, "a local or a tinker model", word=ref.provider)]
    return ref, findings


def resolve_prompt(written: object, path: Path) -> tuple[PromptSource | None, list[Finding]]:
    """Return the template that a signal names, written like a role's prompt; None without one."""
    if written is None:
        return None, []
    expected = "a template's file name, or {inline: text}"
    return _validated(written, PromptSource, path, key="demonstration", expected=expected)


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
    """Return the hex digest of the file that defines a vocabulary item.

    Without a file, as in a notebook, the digest is of the function's source.
    """
    if (found := Import.of(factory)).file is not None:
        return found.digest()
    try:
        return digest_of(inspect.getsource(inspect.unwrap(factory)).encode())
    except (OSError, TypeError):
        return "unknown"


def _findings(error: UnknownName | BadOptions, path: Path, others: str = "") -> Iterator[Finding]:
    if isinstance(error, UnknownName):
        expected = ", ".join(error.known) + others
        yield Finding(path, str(error), expected, error.hint, word=error.name)
        return
    for detail in error.errors:
        at = (*path, *error.call.path_of(detail["loc"]))
        inner = detail.get("ctx", {}).get("error")
        if isinstance(inner, UnknownName | BadOptions):
            yield from _findings(inner, at)
        elif detail["loc"]:
            yield _of_argument(error, detail, at)
        else:
            said = detail["msg"].removeprefix("Value error, ")
            expected = _takes(error) if detail["type"] == "unexpected_positional_argument" else ""
            yield Finding(path, f"{error.kind} {error.name!r}: {said}", expected, word=error.name)


def _of_argument(error: BadOptions, detail: ErrorDetails, at: Path) -> Finding:
    """Return the finding for a wrong value or option of a call; `at` is its key in the spec."""
    loc, kind, item = detail["loc"], detail["type"], f"{error.kind} {error.name!r}"
    name = ".".join(str(part) for part in loc[isinstance(loc[0], int) :])
    said = detail["msg"].removeprefix("Value error, ")
    *inside, key = loc
    around = error.type_at(inside) if inside else _takes(error)
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        hint = did_you_mean(str(key), error.keys_at(inside))
        return Finding(at, f"{item} has no option {name!r}", around, hint, at_key=True)
    if kind.startswith("missing"):
        expected = around if name else f"{{{error.name}: …}}"
        return Finding(at, f"{item} needs {name or 'a value'}", expected, at_key=True)
    expected = error.type_at(loc)
    if not said.startswith("Input should be "):
        expected = "" if kind == "value_error" else expected
        return Finding(at, f"{item}: {name + ': ' if name else ''}{said}", expected, at_key=True)
    if kind == "finite_number" or expected == "anything":
        expected = said.removeprefix("Input should be ")
    return Finding(
        at, f"{item}: {name or 'its value'} cannot be {short_value(detail['input'])}", expected, at_key=True
    )


def _takes(error: BadOptions) -> str:
    return ", ".join(option.name for option in error.options) or "no options"
