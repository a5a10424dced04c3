"""Expressions as functions: Jinja2's syntax tree compiled to closures, with the value UNKNOWN.

An operation of fixed cost is paid for by the size of the expression, which is bounded. What grows, and each
instance that an aggregate reads, is paid for from the budget of `RenderScope`, as in a template.

- `and`, `or` and `not` are three-valued (Kleene). Comparisons, arithmetic, filters and functions are unknown
  where an operand is; `in` is true where the value is found among the known items.
- A field or an item that is missing is unknown. A division by zero, or a text where a number is needed, is an
  error, which `default` does not catch.
- An aggregate goes over the instances of the first role that it names. Other roles in it mean the turns on
  that instance's branch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from operator import neg, pos
from statistics import fmean
from typing import Any, cast

from jinja2 import TemplateSyntaxError, Undefined, nodes
from jinja2.utils import _PassArg as PassArg  # pyright: ignore[reportPrivateUsage]

from rolegraph.engine.prompts import scope as operations
from rolegraph.engine.prompts.sandbox import ENVIRONMENT, SELF
from rolegraph.engine.prompts.scope import ITEM, NODE, RECORDS, PromptError, RenderScope
from rolegraph.engine.vocabulary import (
    SCORERS,
    UNKNOWN,
    ItemCall,
    ParseFailure,
    Reward,
    Views,
    parsers,
    rewards,
)

Evaluate = Callable[[RenderScope], Any]
"""Compiled expression: function from the scope with the variables to the expression's value."""
AGGREGATES = frozenset("mean min max sum count any all first last sorted".split())
"""Functions over the instances of a role, or over a list."""
RAMP = "ramp"
"""Function for a number that follows the training step: `ramp(from, to, steps, after=0)`."""
NUMBER = "number"
"""Function that returns the number in a text, as the parser `number` reads it."""
CHANCE = "chance"
"""Function that is true with a probability: `chance(p, per="turn", key=None)`."""
PER = ("task", "episode", "turn")
"""Scopes in which a draw of `chance` is made once, the widest first."""
DRAW = "_draw"
"""Name of the variable that holds the `Draw` of `chance`."""
Draw = Callable[[str, "str | int"], float]
"""Function from (per, key) of a `chance` call to a number from 0 to below 1; a call without a key has its
position as the key."""
FUNCTIONS = (RAMP, NUMBER, CHANCE, *SCORERS)
"""Functions that an expression may call, besides aggregates and `range`."""
_PER_TURN = 8 * ITEM
"""Units for binding the roles of an aggregate to one instance."""


Roles = Mapping[str, int]
"""Names of roles in an expression, each with the largest number of instances that it can have."""


def compiled(node: nodes.Node, roles: Roles) -> Evaluate:
    """Return an expression as a function of its variables.

    Args:
        node: Root of the expression, in which `checks` found no fault.
        roles: Names of roles that the expression may read.
    """
    part: Callable[[nodes.Node], Evaluate] = partial(compiled, roles=roles)
    match node:
        case nodes.Const(value=value):
            return lambda scope: value
        case nodes.Name(name=name):
            key = SELF if name == "self" else name
            return lambda scope: scope.vars.get(key, UNKNOWN)
        case nodes.Getattr(node=inner, attr=str(attribute)):
            holder = part(inner)
            return lambda scope: _field(holder(scope), attribute)
        case nodes.Getitem(node=inner, arg=nodes.Slice() as arg):
            holder, ends = part(inner), _each(roles, [arg.start, arg.stop, arg.step])
            return lambda scope: operations.slice_(scope, holder(scope), *ends(scope))
        case nodes.Getitem(node=inner, arg=arg):
            holder, key_of = part(inner), part(arg)
            return lambda scope: _item(holder(scope), key_of(scope))
        case nodes.And() | nodes.Or():
            return _logic(isinstance(node, nodes.And), part(node.left), part(node.right))
        case nodes.Not(node=inner):
            operand = part(inner)
            return lambda scope: operations.negated(scope, operand(scope))
        case nodes.CondExpr(test=test, expr1=one, expr2=other):
            return _choice(part(test), part(one), part(other) if other is not None else lambda scope: UNKNOWN)
        case nodes.Compare(expr=first, ops=operands):
            one, signs = part(first), tuple(each.op for each in operands)
            other_operands = _each(roles, [each.expr for each in operands])
            return lambda scope: operations.compare_chain(scope, one(scope), signs, *other_operands(scope))
        case nodes.Neg(node=inner) | nodes.Pos(node=inner):
            operand, sign = part(inner), neg if isinstance(node, nodes.Neg) else pos
            return lambda scope: _if_known(sign, operand(scope))
        case nodes.Concat(nodes=inside):
            texts = _each(roles, inside)
            return lambda scope: operations.concat(scope, texts(scope))
        case nodes.BinExpr(left=left, right=right, operator=str(sign)):
            one, other = part(left), part(right)
            return lambda scope: operations.binary(scope, sign, one(scope), other(scope))
        case nodes.List(items=items):
            return _each(roles, items)
        case nodes.Tuple(items=items):
            members = _each(roles, items)
            return lambda scope: tuple(members(scope))
        case nodes.Dict(items=pairs):
            keys, values = _each(roles, [it.key for it in pairs]), _each(roles, [it.value for it in pairs])
            return lambda scope: dict(
                zip([operations.key(scope, key) for key in keys(scope)], values(scope), strict=True)
            )
        case nodes.Filter():
            return _filter(node, roles)
        case nodes.Test():
            return _test(node, roles)
        case nodes.Call(node=nodes.Name(name=name)):
            return _aggregate(name, node, roles) if name in AGGREGATES else _function(name, node, roles)
        case _:
            raise TypeError(f"{type(node).__name__} has no value")


def named_in(node: nodes.Node, names: Set[str]) -> list[str]:
    """Return the names among `names` that a syntax tree reads, in the order of their first mention."""
    places_and_names = [(n.lineno, n.name) for n in node.find_all(nodes.Name)]
    if isinstance(node, nodes.Name):
        places_and_names.append((node.lineno, node.name))
    return [name for _, name in sorted(places_and_names) if name in names]


def _known(value: Any) -> Any:
    """Return a value of Jinja2; UNKNOWN for a value that Jinja2 calls undefined or missing."""
    return UNKNOWN if isinstance(value, Undefined) else value


def _if_known(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return `function(*arguments)`; UNKNOWN where an argument is unknown."""
    return UNKNOWN if any(it is UNKNOWN for it in arguments) else _known(function(*arguments))


def _each(roles: Roles, inside: Sequence[nodes.Node | None]) -> Callable[[RenderScope], list[Any]]:
    evaluators = [compiled(node or nodes.Const(None), roles) for node in inside]
    return lambda scope: [part(scope) for part in evaluators]


def _field(value: Any, attribute: str) -> Any:
    """Return `value.attribute`; UNKNOWN for a key that a mapping lacks."""
    if type(value) in RECORDS and attribute[:1] != "_":  # first, because most fields are those of a turn
        return getattr(value, attribute)
    result = ENVIRONMENT.getattr(value, attribute)
    if isinstance(result, Undefined) and not isinstance(value, Mapping):
        raise PromptError(f"{_kind(value)} has no {attribute!r}")
    return _known(result)


def _item(value: Any, key: Any) -> Any:
    """Return `value[key]`; UNKNOWN for a key that a mapping lacks, and for a position after a list's end."""
    result = ENVIRONMENT.getitem(value, key)
    may_end = isinstance(key, int) and type(value) in (str, list, tuple)
    if isinstance(result, Undefined) and not (may_end or isinstance(value, Mapping)):
        raise PromptError(f"{_kind(value)} has no {key!r}")
    return _known(result)


def _logic(is_and: bool, left: Evaluate, right: Evaluate) -> Evaluate:
    """Return the function that evaluates `left and right`, or `left or right`.

    The right side is not evaluated where the left one decides.
    """

    def evaluate(scope: RenderScope) -> Any:
        first_value = left(scope)
        if first_value is not UNKNOWN and bool(first_value) is not is_and:
            return first_value
        second = right(scope)
        if first_value is not UNKNOWN or second is UNKNOWN:
            return second
        return second if bool(second) is not is_and else UNKNOWN

    return evaluate


def _choice(test: Evaluate, one: Evaluate, other: Evaluate) -> Evaluate:
    def evaluate(scope: RenderScope) -> Any:
        holds = test(scope)
        return UNKNOWN if holds is UNKNOWN else one(scope) if holds else other(scope)

    return evaluate


def _taken(function: Any, scope: RenderScope) -> Callable[..., Any]:
    """Return a Jinja2 filter or test with its first parameter bound, if it takes a context or an environment
    before the value."""
    match PassArg.from_obj(function):
        case PassArg.context:
            return partial(function, scope)
        case PassArg.environment:
            return partial(function, ENVIRONMENT)
        case PassArg.eval_context:
            return partial(function, RenderScope.eval_ctx)
        case _:
            return function


_Arguments = Callable[[RenderScope], tuple[list[Any], dict[str, Any]]]


def _arguments(node: nodes.Filter | nodes.Test | nodes.Call, roles: Roles) -> _Arguments:
    """Return a function that computes the positional and the named arguments of a call from the variables."""
    positional = _each(roles, node.args)
    keywords = [(str(it.key), compiled(it.value, roles)) for it in node.kwargs]

    def evaluate(scope: RenderScope) -> tuple[list[Any], dict[str, Any]]:
        return positional(scope), {name: value(scope) for name, value in keywords}

    return evaluate


def _filter(node: nodes.Filter, roles: Roles) -> Evaluate:
    function = ENVIRONMENT.filters[node.name]
    value_of, arguments = compiled(cast("nodes.Node", node.node), roles), _arguments(node, roles)

    def evaluate(scope: RenderScope) -> Any:
        given, keywords = arguments(scope)
        return _known(_taken(function, scope)(value_of(scope), *given, **keywords))

    return evaluate


def _test(node: nodes.Test, roles: Roles) -> Evaluate:
    name, function = node.name, ENVIRONMENT.tests.get(node.name)
    if function is None:
        raise TemplateSyntaxError(f"No test named {name!r}.", node.lineno)
    value_of, arguments = compiled(node.node, roles), _arguments(node, roles)

    def evaluate(scope: RenderScope) -> Any:
        given, keywords = arguments(scope)
        return _taken(function, scope)(value_of(scope), *given, **keywords)

    return evaluate


def _function(name: str, node: nodes.Call, roles: Roles) -> Evaluate:
    arguments = _arguments(node, roles)
    if name == RAMP:
        step = compiled(nodes.Name("step", "load", lineno=node.lineno), roles)

        def ramp(scope: RenderScope) -> Any:
            values, keywords = arguments(scope)
            return _if_known(partial(_ramp, **keywords), step(scope), *values)

        return ramp
    if name == CHANCE:
        per, key = draw_of(node)
        return lambda scope: _if_known(partial(_chance, scope.vars[DRAW], per, key), *arguments(scope)[0])
    function = function_of(node)
    return lambda scope: _if_known(partial(function, scope), *arguments(scope)[0])


def draw_of(node: nodes.Call) -> tuple[str, str | int]:
    """Return the scope and the key of a call of `chance`; without a key, its position in the expression.

    Raises:
        ValueError: The call has other options, or its constant probability is not from 0 to 1.
        Impossible: An option is not a constant.
    """
    options = {str(it.key): it.value.as_const() for it in node.kwargs}
    per, key = options.pop("per", PER[-1]), options.pop("key", None)
    if options or len(node.args) != 1 or node.dyn_args or node.dyn_kwargs:
        raise ValueError('a probability, `per` and `key`: chance(0.25, per="episode", key="coin")')
    if per not in PER:
        raise ValueError(f"as `per` one of {', '.join(PER)}, not {per!r}")
    if key is not None and not (isinstance(key, str) and key):
        raise ValueError("as `key` a text")
    if key is not None and per == PER[-1]:
        raise ValueError('a `key` beside per="episode" or per="task": each turn has a draw of its own')
    with suppress(nodes.Impossible):
        _probability(node.args[0].as_const())
    return per, key or node.lineno


def _probability(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"a probability from 0 to 1, such as 0.25, not {value!r}")
    return value


def _chance(draw: Draw, per: str, key: str | int, probability: Any) -> bool:
    try:
        return draw(per, key) < _probability(probability)
    except ValueError as error:
        raise PromptError(f"{CHANCE} takes {error}") from None


def _ramp(step: float, start: float, end: float, steps: float, after: float = 0) -> float:
    """Return the number of a training step: `start` until `after`, then `steps` steps on a line to `end`."""
    return start + (end - start) * min(max((step - after) / steps, 0.0), 1.0)


_Function = Callable[..., Any]
"""Function of (scope, *arguments) that an expression calls."""


def function_of(node: nodes.Call) -> _Function:
    """Return the function that a call names: `range`, `number`, or a scorer of the vocabulary.

    Raises:
        BadOptions: The scorer does not take these options.
    """
    name = cast("nodes.Name", node.node).name
    if name == "range":
        return partial(_unmetered, operations.GLOBALS["range"])
    if name == NUMBER:
        return partial(_number, parsers.build(ItemCall(NUMBER)).parse)
    compare = scorer_of(node).compare
    assert compare is not None  # each of SCORERS has one
    return partial(_unmetered, compare)


def _unmetered(function: Callable[..., Any], scope: RenderScope, *given: Any) -> Any:
    return function(*given)


def scorer_of(node: nodes.Call) -> Reward:
    """Return the scorer that a call names, with the options that the call has; raises as `function_of`."""
    name = cast("nodes.Name", node.node).name
    options = {str(it.key): it.value.as_const() for it in node.kwargs}
    return rewards.build(ItemCall(name, None, options, has_value=True) if options else ItemCall(name))


def scorers_in(node: nodes.Node) -> list[Reward]:
    """Return the scorers that an expression calls."""
    calls = [it for it in (node, *node.find_all(nodes.Call)) if isinstance(it, nodes.Call)]
    return [scorer_of(it) for it in calls if cast("nodes.Name", it.node).name in SCORERS]


def _number(parse: Callable[..., Any], scope: RenderScope, value: Any) -> Any:
    """Return a number, or the number in a text; UNKNOWN for a text without one."""
    if isinstance(value, bool | int | float):
        return value
    try:
        return parse(scope.text(value), {})
    except ParseFailure:
        return UNKNOWN


def _aggregate(name: str, node: nodes.Call, roles: Roles) -> Evaluate:
    """Return an aggregate as a function of its variables: `name` reduces the values of its argument.

    The argument is evaluated for each instance of the first role that it names. If it names no role, or a
    single instance whose value is a list, the list's items are reduced; if the call has several arguments, or
    a written list, their values are.
    """
    reduce = _REDUCTIONS[name]
    argument = node.args[0]
    items = argument.items if isinstance(argument, nodes.List | nodes.Tuple) else node.args
    if len(items) != 1 or items is not node.args:
        values_of = _each(roles, items)
        return lambda scope: reduce(values_of(scope))
    body = compiled(argument, roles)
    condition = next((compiled(it.value, roles) for it in node.kwargs if it.key == "where"), None)
    names_read = dict.fromkeys(named_in(node, roles.keys()))
    if not names_read:
        return lambda scope: reduce(_listed(scope, name, body(scope)))
    first_name, *other_names = names_read
    is_single = roles[first_name] == 1
    is_role = isinstance(argument, nodes.Name)

    def evaluate(scope: RenderScope) -> Any:
        outer = scope.vars
        values: list[Any] = []
        turns = outer[first_name]
        scope.vars = dict(outer)
        try:
            for turn in turns:
                scope.spend(_PER_TURN + NODE)
                scope.vars[first_name] = Views((turn,))
                for other in other_names:
                    scope.vars[other] = outer[other].beside(turn)
                if condition is None or condition(scope) is True:
                    values.append(turn if is_role else body(scope))
        finally:
            scope.vars = outer
        if is_single and len(values) == 1 and type(values[0]) in (list, tuple):
            return reduce(_listed(scope, name, values[0]))
        return reduce(values)

    return evaluate


def _listed(scope: RenderScope, name: str, value: Any) -> list[Any]:
    """Return the items of an aggregate's list; for an unknown list, one unknown item."""
    if value is UNKNOWN:
        return [UNKNOWN]
    if not isinstance(value, list | tuple | Views | range):
        raise PromptError(f"{name}(…) goes over a role or a list, and this is {_kind(value)}")
    return scope.items(cast("Sequence[Any]", value))


def _kind(value: object) -> str:
    kinds: Mapping[type, str] = {
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "a mapping",
        type(None): "null",
    }
    return kinds.get(type(value), "this")


def _numbers(name: str, values: Sequence[Any]) -> list[float]:
    items = [it for it in values if it is not UNKNOWN]
    wrong_value = next((it for it in items if not isinstance(it, bool | int | float)), None)
    if wrong_value is not None:
        raise PromptError(f"{name}(…) takes numbers, and this is {_kind(wrong_value)}")
    return items


def _over_numbers(name: str, function: Callable[[list[float]], Any], values: Sequence[Any]) -> Any:
    items = _numbers(name, values)
    return function(items) if items else UNKNOWN


def _sum(values: Sequence[Any]) -> Any:
    return UNKNOWN if any(it is UNKNOWN for it in values) else sum(_numbers("sum", values))


def _count(values: Sequence[Any]) -> Any:
    """Count values: true counts 1, false 0, any other value 1."""
    if any(it is UNKNOWN for it in values):
        return UNKNOWN
    return sum(1 for it in values if it is not False)


def _quantified(decides: bool, values: Sequence[Any]) -> Any:
    """Return the value of `any` (`decides` is True) or `all` (False) of some values.

    That is `decides` if a known value equals it; else UNKNOWN for no values, or if a value is unknown; else
    the opposite.
    """
    if any(it is not UNKNOWN and bool(it) is decides for it in values):
        return decides
    return UNKNOWN if not values or any(it is UNKNOWN for it in values) else not decides


def _of_known(function: Callable[[list[Any]], Any], values: Sequence[Any]) -> Any:
    items = [it for it in values if it is not UNKNOWN]
    return function(items) if items else UNKNOWN


_REDUCTIONS: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "mean": partial(_over_numbers, "mean", fmean),
    "min": partial(_over_numbers, "min", min),
    "max": partial(_over_numbers, "max", max),
    "sum": _sum,
    "count": _count,
    "any": partial(_quantified, True),
    "all": partial(_quantified, False),
    "first": partial(_of_known, lambda items: items[0]),
    "last": partial(_of_known, lambda items: items[-1]),
    "sorted": partial(_of_known, sorted),
}
