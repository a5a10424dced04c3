"""List of all limits, read from the files that declare them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import ModuleType

from rolegraph.engine.limits import Limit, answers, prompts, records, specs, tools
from rolegraph.local import limits as local
from rolegraph.serving import limits as serving


def _reasons(module: ModuleType) -> Iterator[tuple[Limit, str]]:
    """Yield each limit that a module defines, with the docstring below it, which is its reason."""
    for statement, next_statement in pairwise(ast.parse(inspect.getsource(module)).body):
        match statement, next_statement:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(reason))):
                yield vars(module)[name], " ".join(reason.split())
            case _:
                pass


LIMITS: Mapping[Limit, str] = {
    limit: reason
    for module in (specs, prompts, answers, tools, records, serving, local)
    for limit, reason in _reasons(module)
}
"""All limits, file by file, each with its subject and the reason for its size."""
