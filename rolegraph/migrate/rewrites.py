"""Rewrites from version 1 to version 2, a function for each construct.

To add a rewrite, write a function, here or in a new file, and add it to `REWRITES`. Each rewrite gets the
document that the previous rewrite returned.
"""

from __future__ import annotations

from collections.abc import Iterator

from rolegraph.engine.vocabulary.call import OF_A_TURN
from rolegraph.migrate.correct import correct
from rolegraph.migrate.document import Change, Document, Problem, Rewrite, pairs, scalar
from rolegraph.migrate.metrics import metrics
from rolegraph.migrate.parsers import last_matches, parsers
from rolegraph.migrate.raters import raters
from rolegraph.migrate.rewards import expressions
from rolegraph.migrate.texts import texts
from rolegraph.migrate.training import frozen, precomputed, stops, trainable
from rolegraph.migrate.words import argument_types, bodies, numbers, short_forms, verdicts, words


def header(document: Document) -> Iterator[Change]:
    """Write `rolegraph: 2` for `rolegraph: 1`, and add it to a spec that has `extends` and no version."""
    root = document.root
    top_pairs = pairs(root) if root is not None else {}
    if "rolegraph" in top_pairs:
        node = top_pairs["rolegraph"][1]
        if scalar(node) == "1":
            yield document.replace(node, "2")
    elif root is not None and "extends" in top_pairs:
        first = min(key.start_mark.index for key, _ in top_pairs.values())
        line_start = document.text.rfind("\n", 0, first) + 1
        between = ", " if document.text[line_start:first].strip() else f"\n{document.text[line_start:first]}"
        yield Change(first, first, f"rolegraph: 2{between}")


def names(document: Document) -> Iterator[Problem]:
    """Find the roles whose names are values of a turn in version 2.

    They are not renamed, because a role's seeds depend on its name.
    """
    for entry in document.entries("roles.*"):
        if entry.name in OF_A_TURN and entry.key is not None:
            message = f"{entry.name!r} is a value of the turn in expressions; give the role another name"
            yield Problem(entry.key.start_mark.index, message)


REWRITES: tuple[Rewrite, ...] = (
    header,
    names,
    texts,
    raters,
    numbers,
    expressions,
    metrics,
    parsers,
    frozen,
    precomputed,
    trainable,
    stops,
    argument_types,
    bodies,
    words,
    verdicts,
    short_forms,
    correct,
)
"""All rewrites, in the order in which they are made."""
NOTES: tuple[Rewrite, ...] = (last_matches,)
"""Functions that yield a Problem for each construct with a new meaning in version 2; they change nothing."""
