"""A vocabulary item as written in a spec to the item itself, or to findings in words for its author."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import TypeVar

from engine.errors import UserError
from engine.registry import BadOptions, Call, Registry, UnknownName, nearest
from engine.spec.diagnostics import Finding, Path
from roles import open_dataset
from roles.vocabulary import Dataset, Split

T = TypeVar("T")


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


def digest(factory: object) -> str:
    """Identifies the code behind a vocabulary item: the hex digest of the file that defines it."""
    module = sys.modules.get(getattr(factory, "__module__", ""))
    file = getattr(module, "__file__", None)
    return _digest(file) if file else "unknown"


@functools.cache
def _digest(file: str) -> str:
    return hashlib.sha256(FilePath(file).read_bytes()).hexdigest()[:16]


def _unknown(error: UnknownName, path: Path, expected: str) -> Finding:
    hint = f"did you mean {error.nearest!r}?" if error.nearest else ""
    return Finding(path, str(error), expected, hint, word=error.name)


def _options(error: BadOptions, path: Path) -> Iterator[Finding]:
    takes = ", ".join(error.options) or "no options"
    item = f"{error.kind} {error.name!r}"
    for detail in error.errors:
        where = [part for part in detail["loc"] if isinstance(part, str)]
        option = where[0] if where else ""
        said = detail["msg"].removeprefix("Value error, ")
        word = option or error.name
        if detail["type"] == "unexpected_keyword_argument":
            close = nearest(option, error.options)
            hint = f"did you mean {close!r}?" if close else ""
            yield Finding(path, f"{item} has no option {option!r}", takes, hint, word=word)
        elif detail["type"].startswith("missing"):
            expected = takes if option else f"{{{error.name}: …}}"
            yield Finding(path, f"{item} needs {option or 'a value'}", expected, word=error.name)
        elif said.startswith("Input should be "):
            message = f"{item}: {option or 'its value'} cannot be {detail['input']!r}"
            yield Finding(path, message, said.removeprefix("Input should be "), word=word)
        else:
            yield Finding(path, f"{item}: {option + ': ' if option else ''}{said}", word=word)
