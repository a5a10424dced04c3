"""The sandbox that prompts render in: few filters, no calls, and a meter on loops and growing text.

Templates are data from strangers. What remains of Jinja2 here is pure, and every way to make time or memory
grow is bounded, so that rendering ends without a watcher. There is no switch to turn any of it off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sized
from time import monotonic
from typing import Any, cast

from jinja2 import StrictUndefined, TemplateSyntaxError, nodes, pass_context
from jinja2.filters import FILTERS as JINJA_FILTERS  # pyright: ignore[reportUnknownVariableType]
from jinja2.filters import make_attrgetter
from jinja2.lexer import TokenStream
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import missing

from engine.vocabulary import Own, ScoredView, View, Views

MAX_TEXT = 1_000_000
"""Characters of a rendered prompt, and of any text made on the way to it."""
MAX_ITERATIONS = 100_000
"""Loop iterations of one rendering, all loops together."""
MAX_SECONDS = 1.0
"""Seconds of one rendering, looked at in each iteration."""

FILTERS: list[str] = list(
    (
        "abs capitalize count d default dictsort escape e first float format groupby int items join last "
        "length list lower map max min reject rejectattr replace reverse round select selectattr sort string "
        "sum title tojson trim truncate unique upper wordcount"
    ).split()
)
"""The filters that a prompt may use."""


GLOBALS: dict[str, Any] = {"range": safe_range}
"""What a prompt may call."""


class PromptError(ValueError):
    """A template that could not be rendered for one task."""


SELF = "_self"
"""The variable behind `self`, a name that Jinja2 has for something else."""


def metered(tree: nodes.Template) -> nodes.Template:
    """Meter each loop, let `~` join through the guarded filter, and `self` be the instance."""
    for name in tree.find_all(nodes.Name):
        if name.name == "self":
            name.name = SELF
    for loop in tree.find_all(nodes.For):
        loop.iter = _filtered(loop.iter, "_metered", loop.lineno)
    _replace_concat(tree)
    tree.set_environment(ENVIRONMENT)
    return tree


def _replace_concat(node: nodes.Node) -> None:
    for name, value in list(node.iter_fields()):
        if isinstance(value, list):
            setattr(node, name, [_joined(item) for item in cast("list[Any]", value)])
        else:
            setattr(node, name, _joined(value))
    for child in node.iter_child_nodes():
        _replace_concat(child)


def _joined(value: Any) -> Any:
    if isinstance(value, nodes.Concat):
        parts = nodes.List(value.nodes, lineno=value.lineno)
        return _filtered(parts, "join", value.lineno)
    return value


def _filtered(value: nodes.Node, name: str, line: int) -> nodes.Filter:
    # A node takes all its fields, and by position: here no arguments, keywords, *args or **kwargs.
    return nodes.Filter(value, name, [], [], None, None, lineno=line)


class Meter:
    """What one rendering has spent."""

    __slots__ = ("deadline", "iterations")

    def __init__(self) -> None:
        self.iterations = 0
        self.deadline = monotonic() + MAX_SECONDS

    def each(self, items: Iterable[Any]) -> Iterator[Any]:
        """Pass the items on, and raise PromptError when the rendering has spent too much."""
        for item in items:
            self.iterations += 1
            if self.iterations > MAX_ITERATIONS:
                raise PromptError(f"the template loops more than {MAX_ITERATIONS:,} times")
            if monotonic() > self.deadline:
                raise PromptError(f"the template takes longer than {MAX_SECONDS:g} s")
            yield item


class Scope:
    """What one rendering sees: Jinja2's Context, less the inheritance and exports that prompts cannot use."""

    __slots__ = ("environment", "eval_ctx", "exported_vars", "meter", "name", "vars")

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self.vars = {**GLOBALS, **variables}
        self.meter = Meter()
        self.environment = ENVIRONMENT
        self.eval_ctx = _EVALUATION
        self.exported_vars: set[str] = set()
        self.name = None

    def resolve_or_missing(self, key: str) -> Any:
        """A variable's value, or Jinja2's mark for one that is not there."""
        return self.vars.get(key, missing)

    def call(
        self, function: Any, *args: Any, _loop_vars: Any = None, _block_vars: Any = None, **kwargs: Any
    ) -> Any:
        """Call what the sandbox lets through, without the variables that Jinja2 adds in a loop."""
        return function(*args, **kwargs)


@pass_context
def _meter_loop(context: Scope, items: Iterable[Any]) -> Iterator[Any]:
    return context.meter.each(items)


def _guard(size: int) -> None:
    if size > MAX_TEXT:
        raise PromptError(f"the template makes a text of more than {MAX_TEXT:,} characters")


def _join(items: Iterable[Any], separator: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        items = map(make_attrgetter(ENVIRONMENT, attribute), items)
    texts = [str(item) for item in items]
    _guard(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _substitute(text: object, old: str, new: str, count: int | None = None) -> str:
    text = str(text)
    limit = -1 if count is None else count
    times = text.count(old) if limit < 0 else min(text.count(old), limit)  # below 0 means all of them
    _guard(len(text) + times * len(new))
    return text.replace(old, new, limit)


_FORMAT = re.compile(r"%(?:\(\w+\))?[-+ #0]*\d{0,3}(?:\.\d{0,3})?[sdifgex%]")


def _format(pattern: object, *args: object) -> str:
    text = str(pattern)
    if re.sub(_FORMAT, "", text).count("%"):
        raise PromptError(f"format cannot use the pattern {text!r}")
    _guard(len(text) + sum(len(str(arg)) + 1000 for arg in args))
    return text % args


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "+", "%"})

    def _tokenize(
        self, source: str, name: str | None, filename: str | None = None, state: str | None = None
    ) -> TokenStream:
        """Tokens with their position in the source, from 0, for a line: so have nodes and errors."""
        source = re.sub(r"\r\n?", "\n", source)
        try:
            tokens = list(self.lexer.tokeniter(source, name, filename, state))
        except TemplateSyntaxError as error:
            error.lineno = sum(len(line) + 1 for line in source.split("\n")[: error.lineno - 1])
            raise
        return TokenStream(self.lexer.wrap(_positioned(source, tokens), name, filename), name, filename)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """A field of plain data straight away; anything else as the sandbox has it.

        A mapping's own keys come first, so that a task's field may be called `items`.
        """
        kind = cast("type[object]", type(obj))
        if kind is dict and attribute in obj:
            return obj[attribute]
        if (kind is View or kind is Views or kind is ScoredView or kind is Own) and attribute[0] != "_":
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(side) for side in (left, right) if isinstance(side, Sized)]
        if sizes and operator == "%":
            raise PromptError("% cannot format text here; use the filter format")
        if sizes and operator == "*":
            times = [side for side in (left, right) if isinstance(side, int)]
            _guard(sizes[0] * max(times, default=1))
        elif sizes:
            _guard(sum(sizes))
        elif operator == "*" and all(isinstance(side, int) for side in (left, right)):
            _guard((left.bit_length() + right.bit_length()) // 3)
        return super().call_binop(context, operator, left, right)


def _positioned(source: str, tokens: Iterable[tuple[int, str, str]]) -> Iterator[tuple[int, str, str]]:
    at = 0
    for _, kind, value in tokens:
        at = source.find(value, at)  # between tokens is only the white space that a tag strips
        yield at, kind, value
        at += len(value)


def _environment() -> _Environment:
    environment = _Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, cache_size=0, optimized=False
    )
    kept: dict[str, Any] = {name: JINJA_FILTERS[name] for name in FILTERS}
    ours = {"join": _join, "replace": _substitute, "format": _format, "_metered": _meter_loop}
    environment.filters = cast("Any", {**kept, **ours})
    environment.globals = cast("Any", GLOBALS)
    return environment


ENVIRONMENT = _environment()
_EVALUATION = EvalContext(ENVIRONMENT)
