"""Rewrite of the metrics of version 1 as expressions."""

from __future__ import annotations

from collections.abc import Iterator

from rolegraph.migrate.document import Change, Document, Problem, pairs, scalar
from rolegraph.migrate.raters import DocumentRoles, quoted

_READS = {
    "correct": ("{}.right", "all"),
    "any_correct": ("{}.right", "any"),
    "mean_reward": ("{}.reward", "mean"),
}


def metrics(document: Document) -> Iterator[Change | Problem]:
    """Yield changes that write an expression for each built-in metric of version 1."""
    graph = DocumentRoles.of(document)
    for entry in document.entries("episode.metrics.*"):
        keys = pairs(entry.value)
        kind = next(iter(keys), "")
        if not keys:
            continue
        role = scalar(keys[kind][1]) or ""
        template, aggregate = _READS.get(kind, ("", ""))
        if kind in ("term", "signal") and "name" in keys:
            template, aggregate = f"{{}}.terms.{scalar(keys['name'][1])}", "mean"
        if kind == "rounds":
            template = "{}.rounds"
        elif kind == "skipped" and not graph.is_many(role):
            template = "not {}.ran"
        elif kind == "skipped":
            message = f"the metric `skipped` of several instances is gone; count those of {role} that ran"
            yield Problem(keys[kind][0].start_mark.index, message)
        if template:
            expression = template.format(role)
            many = bool(aggregate) and graph.is_many(role)
            yield document.replace(entry.value, quoted(f"{aggregate}({expression})" if many else expression))
