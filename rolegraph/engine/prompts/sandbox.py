"""The sandbox that templates render in: few filters, no calls, and a budget for whatever can grow.

Templates are untrusted. The part of Jinja2 that remains is pure, and time and memory are paid for from one
budget before they are used, so that rendering ends without a timeout. The sandbox cannot be turned off.

Operations of fixed cost are charged with each pass of the loop around them; outside loops, the template's
size bounds their number. All others are rewritten in the syntax tree to calls of
`rolegraph.engine.prompts.scope`, which take the scope as the filters do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import isinf
from typing import Any, cast

from jinja2 import StrictUndefined, TemplateSyntaxError, Undefined, nodes, pass_context
from jinja2.filters import _GroupTuple as GroupTuple  # pyright: ignore[reportPrivateUsage]
from jinja2.lexer import Token, TokenStream
from jinja2.nodes import EvalContext
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rolegraph.engine.limits.prompts import PROMPT_BLOCKS, PROMPT_DEPTH, PROMPT_DIGITS, PROMPT_PARTS
from rolegraph.engine.prompts import scope
from rolegraph.engine.prompts.filters import FILTERS
from rolegraph.engine.prompts.scope import RECORDS, RenderScope, binary
from rolegraph.engine.spec.files import pair_surrogates
from rolegraph.engine.vocabulary import UNKNOWN, Views

_CALLS: Mapping[type[nodes.Node], int] = {
    **dict.fromkeys((nodes.Filter, nodes.For), 40),
    **dict.fromkeys((nodes.Test, nodes.Call, nodes.Concat, nodes.Not), 16),
    **dict.fromkeys((nodes.Compare, nodes.Slice), 8),
    **dict.fromkeys((nodes.Getitem, nodes.Output), 4),
    nodes.Getattr: 2,
}
"""Cost of the call that a syntax node makes, as a number of nodes."""
_ARITHMETIC = 20
"""Cost of an arithmetic operation, as a number of nodes."""


def check_shape(tree: nodes.Template) -> int:
    """Return the number of nodes of a tree; raises TemplateSyntaxError if it is too large or too deep."""
    part_count = 0
    nodes_left: list[tuple[nodes.Node, int, int, int]] = [(tree, 0, 0, 0)]
    while nodes_left:
        node, blocks, depth, position = nodes_left.pop()
        position = node.lineno or position
        part_count += 1
        if part_count > PROMPT_PARTS.most:
            raise TemplateSyntaxError(PROMPT_PARTS.exceeded("the template has"), position)
        if blocks > PROMPT_BLOCKS.most:
            raise TemplateSyntaxError(PROMPT_BLOCKS.exceeded("tags inside one another in"), position)
        if depth > PROMPT_DEPTH.most * 2:
            raise TemplateSyntaxError(too_deep(), position)
        elifs: Sequence[nodes.Node] = node.elif_ if isinstance(node, nodes.If) else ()
        if len(elifs) > PROMPT_DEPTH.most:
            raise TemplateSyntaxError(PROMPT_DEPTH.exceeded("`elif` after `elif` in"), position)
        inner_depth = depth + 1 if isinstance(node, nodes.Expr) else 0
        for child in node.iter_child_nodes():
            is_block = isinstance(child, nodes.For | nodes.If | nodes.With) and child not in elifs
            nodes_left.append((child, blocks + is_block, inner_depth, position))
        if isinstance(node, nodes.Call | nodes.Filter | nodes.Test):  # Python would not compile one twice
            names = [keyword.key for keyword in node.kwargs]
            if repeated_name := next((name for name in names if names.count(name) > 1), None):
                raise TemplateSyntaxError(f"the argument {repeated_name!r} is given twice", position)
    return part_count


def _units_of(loop: nodes.For) -> int:
    """Return the largest number of budget units of one pass of a template's loop: its nodes, calls and
    literal text.

    Each inner loop counts once; its own passes are charged as they run.
    """
    visited = [node for part in (*loop.body, loop.test) if part for node in _evaluated(part)]
    calls = (_ARITHMETIC if isinstance(it, nodes.BinExpr) else _CALLS.get(type(it), 0) for it in visited)
    texts = (len(it.data) for it in visited if isinstance(it, nodes.TemplateData))
    return 8 * scope.ITEM + scope.NODE * (len(visited) + sum(calls)) + sum(texts)


def _evaluated(node: nodes.Node) -> Iterator[nodes.Node]:
    """Yield a node and the nodes inside it that run once for each evaluation; the bodies of loops are left
    out."""
    yield node
    inner_nodes = [node.iter, *node.else_] if isinstance(node, nodes.For) else node.iter_child_nodes()
    for child in inner_nodes:
        yield from _evaluated(child)


def too_deep() -> str:
    """Return the message for brackets or operations beyond `prompt_depth`."""
    return PROMPT_DEPTH.exceeded("expressions inside one another in")


SELF = "_self"
"""Name of the variable that holds `self`, which has another meaning in Jinja2."""
_MOST_TOKENS = 8 * PROMPT_PARTS.most
"""Tokens, white space among them, of the largest template that can be within `prompt_parts`."""
_FIELDS: Mapping[type, Sequence[str]] = {
    **dict.fromkeys((str, int, float, bool, list, tuple, range, type(None)), ()),
    LoopContext: "depth depth0 first index index0 last length nextitem previtem revindex revindex0".split(),
    GroupTuple: ("grouper", "list"),
}
"""Fields that a template may read of values of other types than mappings and records."""


def metered(tree: nodes.Template) -> nodes.Template:
    """Rewrite a syntax tree, in place, so that its operations are charged to the rendering budget; return the
    tree.

    `self` becomes the variable `SELF`.
    """
    _rewrite(tree)
    tree.set_environment(ENVIRONMENT)
    return tree


def _rewrite(node: nodes.Node) -> None:
    units = _units_of(node) if isinstance(node, nodes.For) else 0
    for name, value in list(node.iter_fields()):
        if isinstance(value, list):
            setattr(node, name, [_rewritten(item) for item in cast("list[Any]", value)])
        else:
            setattr(node, name, _rewritten(value))
    if isinstance(node, nodes.Name) and node.name == "self":
        node.name = SELF
    elif isinstance(node, nodes.For):
        node.iter = _operation("_each", cast("nodes.Expr", node.iter), nodes.Const(units))
    elif isinstance(node, nodes.Pair) and not isinstance(node.key, nodes.Const):
        node.key = _operation("_key", node.key)
    elif isinstance(node, nodes.Call | nodes.Filter | nodes.Test):
        node.dyn_args = _operation("_spread", node.dyn_args) if node.dyn_args else None
        node.dyn_kwargs = _operation("_spread", node.dyn_kwargs) if node.dyn_kwargs else None


def _rewritten(value: Any) -> Any:
    """Return the call that replaces an operation (`~`, comparison, slice) and charges it; any other value is
    rewritten inside and returned."""
    if not isinstance(value, nodes.Node):
        return value
    _rewrite(value)
    if isinstance(value, nodes.Concat):
        return _operation("_concat", nodes.List(value.nodes, lineno=value.lineno))
    if isinstance(value, nodes.Not):
        return _operation("_not", value.node)
    if isinstance(value, nodes.Compare):
        signs = nodes.Const(tuple(operand.op for operand in value.ops))
        return _operation("_compare", value.expr, signs, *(operand.expr for operand in value.ops))
    if isinstance(value, nodes.Getitem) and isinstance(value.arg, nodes.Slice):
        bounds = (value.arg.start, value.arg.stop, value.arg.step)
        return _operation("_slice", value.node, *(bound or nodes.Const(None) for bound in bounds))
    return value


def _operation(name: str, value: nodes.Expr, *arguments: nodes.Expr) -> nodes.Filter:
    # A node takes all its fields, and by position: after the arguments keywords, *args and **kwargs.
    return nodes.Filter(value, name, list(arguments), [], None, None, lineno=value.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def _tokenize(
        self, source: str, name: str | None, filename: str | None = None, state: str | None = None
    ) -> TokenStream:
        """Return tokens whose line numbers are positions in the source, from 0, which faults report."""
        source = re.sub(r"\r\n?", "\n", source)
        try:
            tokens = list(islice(self.lexer.tokeniter(source, name, filename, state), _MOST_TOKENS))
        except TemplateSyntaxError as error:
            error.lineno = sum(len(line) + 1 for line in source.split("\n")[: error.lineno - 1])
            raise
        placed_tokens = list(_positioned(source, tokens))
        if len(placed_tokens) == _MOST_TOKENS:
            raise TemplateSyntaxError(PROMPT_PARTS.exceeded("the template has"), placed_tokens[-1][0])
        return TokenStream(map(_paired, self.lexer.wrap(placed_tokens, name, filename)), name, filename)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return `obj.attribute` in a template; Jinja2's sandbox decides for values that are neither data nor
        records."""
        value: object = obj
        kind = type(value)
        if value is UNKNOWN:
            return UNKNOWN
        if kind is dict:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if kind in RECORDS and attribute[:1] != "_":
            return getattr(obj, attribute)
        if attribute in _FIELDS.get(kind, ()):
            return getattr(obj, attribute)
        if kind in _FIELDS or attribute.startswith("_") or issubclass(kind, LoopContext):
            return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item of a list or mapping, or the field of that name; UNKNOWN for a turn that does not
        exist."""
        if obj is UNKNOWN or argument is UNKNOWN:
            return UNKNOWN
        if isinstance(argument, str | int | float | None) or isinstance(obj, Undefined):
            try:
                return obj[argument]
            except (TypeError, LookupError):
                if isinstance(argument, str):
                    return self.getattr(obj, argument)
                if type(cast("object", obj)) is Views:
                    return UNKNOWN
        return self.undefined(obj=obj, name=cast("Any", argument) if isinstance(argument, int) else "item")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute a binary operation, and charge it to the budget."""
        return binary(cast("Any", context), operator, left, right)


def _paired(token: Token) -> Token:
    """Return a token; in a string, surrogate pairs (an emoji as JSON escapes it) become one character."""
    return token._replace(value=pair_surrogates(token.value)) if token.type == "string" else token


def _positioned(source: str, tokens: Iterable[tuple[int, str, str]]) -> Iterator[tuple[int, str, str]]:
    position = depth = 0
    for _, kind, value in tokens:
        position = source.find(value, position)  # between tokens is only the white space that a tag strips
        if kind in ("integer", "float") and len(value) > PROMPT_DIGITS.most:
            raise TemplateSyntaxError(PROMPT_DIGITS.exceeded("a number of"), position)
        if kind == "float" and isinf(float(value)):
            raise TemplateSyntaxError("a number beyond the range of a float", position)
        if kind == "operator":  # brackets leave no trace in the syntax tree
            depth += (value in "([{") - (value in ")]}")
        if depth > PROMPT_DEPTH.most:
            raise TemplateSyntaxError(too_deep(), position)
        yield position, kind, value
        position += len(value)


ENVIRONMENT = _Environment(
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    cache_size=0,
    optimized=False,
    finalize=pass_context(RenderScope.text),  # applied to every `{{ … }}`
)
ENVIRONMENT.filters = cast("Any", {**FILTERS, **scope.OPERATIONS})
ENVIRONMENT.tests = cast("Any", scope.TESTS)
ENVIRONMENT.globals = cast("Any", scope.GLOBALS)
RenderScope.environment, RenderScope.eval_ctx = ENVIRONMENT, EvalContext(ENVIRONMENT)
