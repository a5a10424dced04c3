"""Size and depth of templates, checked before any step whose time grows faster with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jinja2 import TemplateSyntaxError, nodes

from rolegraph.engine.limits.prompts import PROMPT_BLOCKS, PROMPT_DEPTH, PROMPT_PARTS

_CALLS: Mapping[type[nodes.Node], int] = {
    nodes.Filter: 40,
    nodes.Test: 16,
    nodes.Call: 16,
    nodes.Concat: 16,
    nodes.Compare: 8,
    nodes.Getattr: 2,
    nodes.Getitem: 4,
    nodes.Slice: 8,
    nodes.Output: 4,
    nodes.For: 40,
}
"""Cost of the call behind a node, in nodes."""
_ARITHMETIC = 20
"""Cost of an arithmetic operation, in nodes."""


def check_shape(tree: nodes.Template) -> int:
    """Return the number of nodes of a tree; raises TemplateSyntaxError if it is too large or too deep."""
    parts = 0
    todo: list[tuple[nodes.Node, int, int, int]] = [(tree, 0, 0, 0)]
    while todo:
        node, blocks, depth, at = todo.pop()
        at = node.lineno or at
        parts += 1
        if parts > PROMPT_PARTS.most:
            raise TemplateSyntaxError(PROMPT_PARTS.exceeded("the template has"), at)
        if blocks > PROMPT_BLOCKS.most:
            raise TemplateSyntaxError(PROMPT_BLOCKS.exceeded("tags inside one another in"), at)
        if depth > PROMPT_DEPTH.most * 2:
            raise TemplateSyntaxError(too_deep(), at)
        elifs: Sequence[nodes.Node] = node.elif_ if isinstance(node, nodes.If) else ()
        if len(elifs) > PROMPT_DEPTH.most:
            raise TemplateSyntaxError(PROMPT_DEPTH.exceeded("`elif` after `elif` in"), at)
        inside = depth + 1 if isinstance(node, nodes.Expr) else 0
        for child in node.iter_child_nodes():
            is_block = isinstance(child, nodes.For | nodes.If | nodes.With) and child not in elifs
            todo.append((child, blocks + is_block, inside, at))
        _check_names(node, at)
    return parts


def _check_names(node: nodes.Node, at: int) -> None:
    """Raise TemplateSyntaxError for a keyword argument given twice, which Python would not compile."""
    if isinstance(node, nodes.Call | nodes.Filter | nodes.Test):
        names = [keyword.key for keyword in node.kwargs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise TemplateSyntaxError(f"the argument {twice!r} is given twice", at)


def cost_of(loop: nodes.For) -> int:
    """Count the template nodes that one pass of a loop visits at most, each inner loop counted once."""
    return sum(1 + _calls(node) for node in _of_a_turn(loop))


def text_of(loop: nodes.For) -> int:
    """Return the most characters of literal text that one iteration of a template's `for` loop writes,
    without the loops inside it."""
    return sum(len(node.data) for node in _of_a_turn(loop) if isinstance(node, nodes.TemplateData))


def _of_a_turn(loop: nodes.For) -> Iterator[nodes.Node]:
    for part in (*loop.body, loop.test):
        if part is not None:
            yield from _evaluated(part)


def _calls(node: nodes.Node) -> int:
    return _ARITHMETIC if isinstance(node, nodes.BinExpr) else _CALLS.get(type(node), 0)


def _evaluated(node: nodes.Node) -> Iterator[nodes.Node]:
    yield node
    inside = [node.iter, *node.else_] if isinstance(node, nodes.For) else node.iter_child_nodes()
    for child in inside:
        yield from _evaluated(child)


def too_deep() -> str:
    """Return the message for brackets or operations beyond `prompt_depth`."""
    return PROMPT_DEPTH.exceeded("expressions inside one another in")
