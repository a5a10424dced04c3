"""Names that a spec may use: a dict, a decorator, and the entry points of installed packages.

A vocabulary item is a factory: a function whose parameters are the options a spec may write. In YAML it is
called in one of three ways, and `Call.parse` reads them all:

    reward: countdown                                   # a name
    parser: {choice: solver}                            # a name and its value (the positional-only parameter)
    parser: {tag: answer, keep_tag: true}               # the first key names it, further keys are options
    data:   {countdown: {numbers: [2, 3], seed: 7}}     # a mapping for a factory without a positional one

Options are checked by pydantic against the factory's annotations. This file knows no particular vocabulary.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Generic, TypeVar, cast

from pydantic import BeforeValidator, PlainSerializer, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs, ErrorDetails

from engine.errors import RolegraphError, UsageError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Call:
    """A vocabulary item as written in a spec: its name, its value if any, and its options."""

    name: str
    value: Any = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    has_value: bool = False

    @classmethod
    def parse(cls, raw: object) -> Call:
        """Read the YAML form; raises ValueError with what was expected."""
        if isinstance(raw, Call):
            return raw
        if isinstance(raw, str) and raw:
            return cls(raw)
        if isinstance(raw, Mapping) and raw:
            items = list(cast("Mapping[Any, Any]", raw).items())
            if not all(isinstance(key, str) for key, _ in items):
                raise ValueError("option names must be text")
            (name, value), *rest = items
            return cls(name, value, dict(rest), has_value=True)
        raise ValueError("expected a name, or a mapping whose first key is the name")

    def dump(self) -> Any:
        """The YAML form again."""
        return {self.name: self.value, **self.options} if self.has_value else self.name


CallField = Annotated[Call, BeforeValidator(Call.parse), PlainSerializer(Call.dump)]
"""A `Call` as a field of a pydantic model."""


class UnknownName(LookupError):
    """No item of that name; `nearest` is the closest one that exists, or None."""

    def __init__(self, kind: str, name: str, known: list[str]) -> None:
        self.kind, self.name, self.known = kind, name, known
        self.nearest = nearest(name, known)
        super().__init__(f"unknown {kind} {name!r}")


class BadOptions(ValueError):
    """Options that the item does not take; `errors` are pydantic's, each `loc` relative to the call."""

    def __init__(self, kind: str, name: str, errors: list[ErrorDetails], options: list[str]) -> None:
        self.kind, self.name, self.errors, self.options = kind, name, errors, options
        super().__init__(
            f"{kind} {name!r}: " + "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in errors)
        )


def nearest(name: str, known: list[str]) -> str | None:
    """The known name closest to a misspelt one, or None where none is close."""
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return close[0] if close else None


class Registry(Generic[T]):
    """The items of one kind. `group` is the entry-point group where installed packages add theirs."""

    def __init__(self, kind: str, group: str) -> None:
        self.kind, self.group = kind, group
        self._factories: dict[str, Callable[..., T]] = {}
        self._adapters: dict[str, TypeAdapter[Any]] = {}

    def register(self, name: str) -> Callable[[F], F]:
        """Decorator: make the factory known under `name`. A taken name is an error."""

        def add(factory: F) -> F:
            if name in self._factories:
                raise ValueError(f"{self.kind} {name!r} is registered already")
            self._factories[name] = factory
            return factory

        return add

    def names(self) -> list[str]:
        """Every name, ours and those of installed packages, sorted."""
        return sorted({*self._factories, *self._entry_points()})

    def factory(self, name: str) -> Callable[..., T]:
        """The factory of that name; raises UnknownName, or UsageError where a package's cannot be loaded."""
        if name not in self._factories:
            points = self._entry_points()
            if name not in points:
                raise UnknownName(self.kind, name, self.names())
            self._factories[name] = self._load(points[name])
        return self._factories[name]

    def _load(self, point: EntryPoint) -> Callable[..., T]:
        package = point.dist.name if point.dist else "an installed package"
        try:
            factory = point.load()
        except Exception as error:  # importing it runs the package's own code
            said = f"{type(error).__name__}: {error}"
            raise UsageError(
                f"the {self.kind} {point.name!r} of {package} cannot be loaded: {said}"
            ) from error
        if not callable(factory):
            raise UsageError(f"the {self.kind} {point.name!r} of {package} is no function: {point.value}")
        return cast("Callable[..., T]", factory)

    def summary(self, name: str) -> str:
        """The first line of the factory's docstring."""
        return (inspect.getdoc(self.factory(name)) or "").partition("\n")[0]

    def build(self, call: Call, **context: Any) -> T:
        """Check a call's options and make the item; raises UnknownName or BadOptions.

        `context` is what the engine, not the spec, gives the factory (a dataset's folder, say); only the
        parameters that it declares are passed.
        """
        factory = self.factory(call.name)
        parameters = inspect.signature(factory).parameters.values()
        own = {p.name: context[p.name] for p in parameters if p.name in context}
        positional = any(p.kind is p.POSITIONAL_ONLY for p in parameters)
        options = dict(call.options)
        args: tuple[Any, ...] = ()
        if call.has_value and positional:
            args = (call.value,)
        elif call.has_value and isinstance(call.value, Mapping):
            options = {**cast("Mapping[str, Any]", call.value), **options}
        elif call.has_value and call.value is not None and call.value is not True:
            raise BadOptions(self.kind, call.name, [_no_value(call)], _option_names(factory, context))
        clash = [
            _error((name,), "unexpected_keyword_argument", "unknown option")
            for name in options
            if name in own
        ]
        if clash:
            raise BadOptions(self.kind, call.name, clash, _option_names(factory, context))
        try:
            return cast(
                "T", self._adapter(call.name, factory).validate_python(ArgsKwargs(args, {**options, **own}))
            )
        except ValidationError as error:
            raise BadOptions(
                self.kind, call.name, error.errors(include_url=False), _option_names(factory, context)
            ) from None
        except RolegraphError:
            raise
        except ValueError as error:  # the factory's own check of its options
            problem = _error((), "value_error", str(error))
            raise BadOptions(self.kind, call.name, [problem], _option_names(factory, context)) from error

    def _adapter(self, name: str, factory: Callable[..., T]) -> TypeAdapter[Any]:
        if name not in self._adapters:
            self._adapters[name] = TypeAdapter(cast("Any", factory), config={"arbitrary_types_allowed": True})
        return self._adapters[name]

    def _entry_points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}


def _option_names(factory: Callable[..., Any], context: Mapping[str, Any]) -> list[str]:
    parameters = inspect.signature(factory).parameters.values()
    return [p.name for p in parameters if p.name not in context and p.kind is not p.POSITIONAL_ONLY]


def _error(loc: tuple[int | str, ...], kind: str, message: str, value: object = None) -> ErrorDetails:
    return {"type": kind, "loc": loc, "msg": message, "input": value}


def _no_value(call: Call) -> ErrorDetails:
    return _error((), "unexpected_positional_argument", "takes no value of its own, only options", call.value)
