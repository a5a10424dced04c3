"""Rewrites of training: the trained roles, and the condition that stops a training."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from rolegraph.migrate.document import Change, Document, Entry, Problem, bases, between_keys, pairs, scalar
from rolegraph.migrate.words import as_scalar

_LEARNS = ("estimator", "signal")
"""Keys that make a role trained in version 2."""
_FALSE = ("false", "no", "off")


def frozen(document: Document) -> Iterator[Change | Problem]:
    """Yield changes that remove the signals of roles with `trainable: false`."""
    yield from _of_frozen(document, "signal")


def precomputed(document: Document) -> Iterator[Change | Problem]:
    """Yield changes that remove `estimator: precomputed`, and estimators of roles with `trainable: false`."""
    yield from _of_frozen(document, "estimator")
    for entry in document.entries("roles.*.estimator"):
        name = scalar(entry.value) or next(iter(pairs(entry.value)), "")
        if name == "precomputed" and not _is_frozen(entry.parent):
            is_elsewhere = _is_open(document, entry.parent, "estimator") or len(pairs(entry.parent)) == 1
            yield document.replace(entry.value, "null") if is_elsewhere else _removed(document, entry)


def trainable(document: Document) -> Iterator[Change | Problem]:
    """Remove `trainable`; write `null` for an estimator or signal that comes from another mapping or file."""
    for entry in document.entries("roles.*.trainable"):
        key = pairs(entry.parent).get("trainable")
        if key is None:
            continue
        start, keys = key[0].start_mark.index, pairs(entry.parent)
        inherited_keys = [name for name in _LEARNS if _is_open(document, entry.parent, name)]
        if _is_false(entry.value):
            if inherited_keys or len(keys) == 1:
                separator = between_keys(entry.parent, key[0])
                nulls = separator.join(f"{name}: null" for name in inherited_keys or ["estimator"])
                yield Change(start, document.end(entry.value), nulls)
            else:
                yield _removed(document, entry)
        elif not keys.keys() & {*_LEARNS} and (
            _is_extending(document) or any(map(_is_frozen, bases(entry.parent)))
        ):
            yield Problem(start, "`trainable` is gone: give the role its estimator here")
        else:
            yield _removed(document, entry)
    for entry in document.entries("roles.*"):
        merged_keys = {key for base in bases(entry.value) for key in pairs(base)}
        is_unset = "trainable" not in pairs(entry.value)
        if is_unset and merged_keys & {*_LEARNS} and _is_frozen(entry.value):
            message = "`trainable` is gone, and `<<` gives this role an estimator: write `estimator: null`"
            yield Problem(document.start(entry.value), message)


def stops(document: Document) -> Iterator[Change | Problem]:
    """Write the number of validations without a new best for `stop: {patience: …}`."""
    for entry in document.entries("train.stop"):
        keys = pairs(entry.value)
        figure, patience = keys.get("figure"), keys.get("patience")
        best = next((scalar(entry_.value) for entry_ in document.entries("train.validation.best")), None)
        if figure and scalar(figure[1]) != (best or (None if _is_extending(document) else "correct")):
            message = "`stop` counts by `validation.best`, and no longer by a figure of its own"
            yield Problem(figure[0].start_mark.index, message)
        elif patience or (isinstance(entry.value, yaml.MappingNode) and not _is_extending(document)):
            yield as_scalar(document, entry, document.source(patience[1]) if patience else "5")
        elif isinstance(entry.value, yaml.MappingNode):
            message = "`stop` is the number of validations without a new best: stop: 5"
            yield Problem(entry.value.start_mark.index, message)


def _of_frozen(document: Document, name: str) -> Iterator[Change | Problem]:
    """Remove a key from the roles with `trainable: false`, and from the mappings that they merge."""
    for entry in document.entries(f"roles.*.{name}"):
        if _is_frozen(entry.parent):
            yield _removed(document, entry)


def _removed(document: Document, entry: Entry) -> Change | Problem:
    """Return the change that removes a key from a mapping that has further keys; a comment after the value
    stays.

    Return a Problem if the value has an anchor.
    """
    if document.text[entry.value.start_mark.index] == "&":
        message = f"`{entry.name}` is gone here, and its anchor is not: write the value where it is used"
        return Problem(entry.value.start_mark.index, message)
    change = document.without(entry.parent, entry.name)
    line = document.text[change.start : change.end]
    comment = line[document.end(entry.value) - change.start :].strip() if line.endswith("\n") else ""
    if not comment.startswith("#"):
        return change
    return change._replace(text=line[: len(line) - len(line.lstrip())] + comment + "\n")


def _is_frozen(mapping: yaml.Node) -> bool:
    """Return True for a role with `trainable: false`, in its own mapping or in a merged one."""
    trainable_pairs = (pairs(node).get("trainable") for node in (mapping, *bases(mapping)))
    first_pair = next(filter(None, trainable_pairs), None)
    return first_pair is not None and _is_false(first_pair[1])


def _is_false(node: yaml.Node) -> bool:
    return (scalar(node) or "").lower() in _FALSE


def _is_extending(document: Document) -> bool:
    """Return True for a spec with `extends`, whose base may set further keys of a role."""
    return document.root is not None and "extends" in pairs(document.root)


def _is_open(document: Document, mapping: yaml.Node, name: str) -> bool:
    """Return True if a role's key may also come from the base spec or from `<<`."""
    return _is_extending(document) or any(name in pairs(base) for base in bases(mapping))
