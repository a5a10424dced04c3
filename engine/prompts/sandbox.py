"""The sandbox that templates render in: few filters, no calls, and a budget for whatever can grow.

Templates come from strangers. The part of Jinja2 that remains is pure, and time and memory are paid for from
one budget before they are used, so that rendering ends without a timeout. The sandbox cannot be turned off.

Operations of fixed cost are paid for with the turn of the loop around them; outside loops, the template's
size bounds their number. All others are rewritten in the syntax tree to calls of
`rolegraph.engine.prompts.operations`, which take the scope as the filters do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from math import isinf
from typing import Any, cast

from jinja2 import StrictUndefined, TemplateSyntaxError, Undefined, nodes, pass_context
from jinja2.filters import _GroupTuple as GroupTuple  # pyright: ignore[reportPrivateUsage]
from jinja2.lexer import TokenStream
from jinja2.nodes import EvalContext
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rolegraph.engine.limits.prompts import PROMPT_DEPTH, PROMPT_DIGITS, PROMPT_PARTS
from rolegraph.engine.prompts.filters import FILTERS
from rolegraph.engine.prompts.operations import OPERATIONS, TESTS, binary
from rolegraph.engine.prompts.scope import GLOBALS, ITEM, NODE, RECORDS, RenderScope
from rolegraph.engine.prompts.shape import cost_of, text_of, too_deep

SELF = "_self"
"""Variable behind `self`, which Jinja2 uses for something else."""
_MOST_TOKENS = 8 * PROMPT_PARTS.most
"""Tokens, white space among them, of the largest template that can be within `prompt_parts`."""
_OF_A_LOOP = frozenset(
    "depth depth0 first index index0 last length nextitem previtem revindex revindex0".split()
)
_OF_A_GROUP = frozenset({"grouper", "list"})
_HAVE_NO_FIELDS = (str, int, float, bool, list, tuple, range, type(None))


def metered(tree: nodes.Template) -> nodes.Template:
    """Rewrite a checked tree so that its operations are paid for and `self` is the role instance."""
    _rewrite(tree)
    tree.set_environment(ENVIRONMENT)
    return tree


def _rewrite(node: nodes.Node) -> None:
    units = 8 * ITEM + NODE * cost_of(node) + text_of(node) if isinstance(node, nodes.For) else 0
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
    """Return the replacement of a node; anything but a node unchanged."""
    if not isinstance(value, nodes.Node):
        return value
    _rewrite(value)
    if isinstance(value, nodes.Concat):
        return _operation("_concat", nodes.List(value.nodes, lineno=value.lineno))
    if isinstance(value, nodes.Compare):
        further = [part for operand in value.ops for part in (nodes.Const(operand.op), operand.expr)]
        return _operation("_compare", value.expr, *further)
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
        """Return tokens whose line numbers are positions in the source, from 0, as faults are reported."""
        source = re.sub(r"\r\n?", "\n", source)
        try:
            tokens = list(islice(self.lexer.tokeniter(source, name, filename, state), _MOST_TOKENS))
        except TemplateSyntaxError as error:
            error.lineno = sum(len(line) + 1 for line in source.split("\n")[: error.lineno - 1])
            raise
        placed = list(_positioned(source, tokens))
        if len(placed) == _MOST_TOKENS:
            raise TemplateSyntaxError(PROMPT_PARTS.exceeded("the template has"), placed[-1][0])
        return TokenStream(self.lexer.wrap(placed, name, filename), name, filename)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return `obj.attribute` in a template; beyond data and records Jinja2's sandbox decides."""
        value: object = obj
        kind = type(value)
        if kind is dict:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if kind in RECORDS and attribute[:1] != "_":
            return getattr(obj, attribute)
        if (kind is LoopContext and attribute in _OF_A_LOOP) or (
            kind is GroupTuple and attribute in _OF_A_GROUP
        ):
            return getattr(obj, attribute)
        if (
            kind in _HAVE_NO_FIELDS
            or attribute.startswith("_")
            or issubclass(kind, LoopContext)
            or kind is GroupTuple
        ):
            return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item of a list or mapping, or the field of that name."""
        if isinstance(argument, str | int | float | None) or isinstance(obj, Undefined):
            try:
                return obj[argument]
            except (TypeError, LookupError):
                if isinstance(argument, str):
                    return self.getattr(obj, argument)
        return self.undefined(obj=obj, name=cast("Any", argument) if isinstance(argument, int) else "item")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute a binary operation through the budget."""
        return binary(cast("Any", context), operator, left, right)


def _positioned(source: str, tokens: Iterable[tuple[int, str, str]]) -> Iterator[tuple[int, str, str]]:
    at = depth = 0
    for _, kind, value in tokens:
        at = source.find(value, at)  # between tokens is only the white space that a tag strips
        if kind in ("integer", "float") and len(value) > PROMPT_DIGITS.most:
            raise TemplateSyntaxError(PROMPT_DIGITS.exceeded("a number of"), at)
        if kind == "float" and isinf(float(value)):
            raise TemplateSyntaxError("a number too large to be counted with", at)
        if kind == "operator":  # brackets leave no trace in the syntax tree
            depth += (value in "([{") - (value in ")]}")
        if depth > PROMPT_DEPTH.most:
            raise TemplateSyntaxError(too_deep(), at)
        yield at, kind, value
        at += len(value)


def _environment() -> _Environment:
    environment = _Environment(
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        cache_size=0,
        optimized=False,
        finalize=pass_context(RenderScope.text),  # applied to every `{{ … }}`
    )
    environment.filters = cast("Any", {**FILTERS, **OPERATIONS})
    environment.tests = cast("Any", TESTS)
    environment.globals = cast("Any", GLOBALS)
    return environment


ENVIRONMENT = _environment()
RenderScope.environment, RenderScope.eval_ctx = ENVIRONMENT, EvalContext(ENVIRONMENT)
