"""Rewrites of rewards: an expression is written as the reward itself."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from rolegraph.engine.vocabulary.call import reward_call
from rolegraph.migrate.document import Change, Document, Problem, pairs, scalar
from rolegraph.migrate.raters import key_beside, rewards_in


def expressions(document: Document) -> Iterator[Change | Problem]:
    """Write an expression for `{value: …}`, and the role's `right` for its option `right`."""
    for entry in rewards_in(document):
        keys = pairs(entry.value)
        if [*keys] != ["value"]:
            continue
        (_, value) = keys["value"]
        options = pairs(value)
        text = options["expr"][1] if "expr" in options else value
        if "labels" in options:
            message = (
                "`labels` of a reward is gone: fields that it reads are hidden; `data.visible` shows one"
            )
            yield Problem(options["labels"][0].start_mark.index, message)
        elif "right" in options and len(entry.path) > 3:
            message = "`right` of a term is gone: give the role `right: …`"
            yield Problem(options["right"][0].start_mark.index, message)
        elif scalar(text) is not None and reward_call(scalar(text)).is_bare:
            right_node = options["right"][1] if "right" in options else None
            right_key = f"right: {_written(document, right_node)}" if right_node else ""
            yield document.replace(entry.value, _written(document, text) + key_beside(entry, right_key))


def _written(document: Document, text: yaml.Node) -> str:
    """Return an expression on one line; an expression of one line is returned as written."""
    source = document.source(text)
    return source if "\n" not in source else f'"{" ".join((scalar(text) or "").split())}"'
