"""Check of the arguments of public functions: a wrong one is named at once, with what to write."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from rolegraph.engine.errors import UsageError, did_you_mean
from rolegraph.engine.spec.models import setting_named

P = ParamSpec("P")
T = TypeVar("T")
_KINDS: Mapping[Any, tuple[type, ...]] = {
    int: (Integral,),
    float: (Real,),
    str: (str,),
    bool: (bool,),
    Path: (str, PathLike),
    NoneType: (NoneType,),
}
"""Classes of the values that a type of an annotation takes; other types are not checked."""


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function with its arguments checked by `check_call`."""

    @wraps(function)
    def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        check_call(function, args, kwargs)
        return function(*args, **kwargs)

    return twin


def check_call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check the arguments of a call of a public function.

    Args:
        function: The function, or its twin that ends with `_async`.
        args: Positional arguments.
        kwargs: Arguments by name.

    Raises:
        UsageError: An argument is unknown, missing or of another type; the message has the text to write.
    """
    call = f"rg.{function.__name__.removesuffix('_async')}()"
    signature = inspect.signature(function)
    parameter_kinds = {parameter.kind for parameter in signature.parameters.values()}
    for name in kwargs if inspect.Parameter.VAR_KEYWORD not in parameter_kinds else ():
        if name not in signature.parameters:
            raise UsageError(f"{call} has no argument {name!r}; {_instead(name, signature, kwargs[name])}")
    for value in args[1:] if inspect.Parameter.VAR_POSITIONAL not in parameter_kinds else ():
        if isinstance(value, str) and re.match(r"[A-Za-z_][\w.]*=", value):
            raise UsageError(f"{call} takes no override: write rg.load(SPEC, {value!r})")
    try:
        bound_arguments = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise UsageError(f"{call}: {error}") from None
    hints = _hints(function)
    for name, value in bound_arguments.items():
        kind = signature.parameters[name].kind
        for item in value if kind is inspect.Parameter.VAR_POSITIONAL else (value,):
            _check_value(call, name, item, hints.get(name))


def _instead(name: str, signature: inspect.Signature, value: object) -> str:
    """Return what to write in place of an unknown argument."""
    if near_name := did_you_mean(name, signature.parameters):
        return near_name
    if setting := setting_named(name):
        return f"it is a key of the spec: write rg.load(SPEC, '{setting}={value}')"
    return f"expected some of {', '.join(signature.parameters)}"


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(function)
    except NameError:  # a type that is imported for type checkers alone
        return {}


def _check_value(call: str, name: str, value: object, hint: Any) -> None:
    if getattr(hint, "__name__", "") == "Workflow" and isinstance(value, str | Path):
        raise UsageError(f"{call} takes a workflow, not its name: write rg.load({str(value)!r})")
    if not _fits(value, hint):
        example = ", such as 'train.steps=5'" if name == "overrides" else ""
        raise UsageError(f"{call}: {name} is {value!r:.80}; expected {' or '.join(_words(hint))}{example}")


def _fits(value: object, hint: Any) -> bool:
    """Return False for a value that a type cannot take; types that are not simple take every value."""
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, alternative) for alternative in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    return hint not in _KINDS or isinstance(value, _KINDS[hint])


def _words(hint: Any) -> list[str]:
    if get_origin(hint) in (Union, UnionType):
        return [word for argument in get_args(hint) for word in _words(argument)]
    if get_origin(hint) is Literal:
        return [repr(argument) for argument in get_args(hint)]
    return ["None" if hint is NoneType else getattr(hint, "__name__", str(hint))]
