"""Registries of vocabulary items: names from a decorator and from the entry points of installed packages.

A factory makes an item from a spec's call (`ItemCall`). Pydantic checks the options against the factory's
annotations. This file knows no particular kind of item.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Generator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any, Generic, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs, ErrorDetails

from rolegraph.engine.errors import (
    FOREIGN_ERRORS,
    RolegraphError,
    UsageError,
    did_you_mean,
    first_line,
)
from rolegraph.engine.plugins import load_point, own_points, package_of, points_of
from rolegraph.engine.vocabulary.call import ItemCall
from rolegraph.engine.vocabulary.imports import Definition, Import
from rolegraph.engine.vocabulary.options import (
    Option,
    options_of,
    takes_extra_options,
    value_option_of,
    written_name,
)

NAMES_ITEMS_OF = "x-rolegraph-items"
"""Key in the JSON Schema of a field: the entry-point group of the items that the field may name."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Call that made an item, with which another process can make the item again."""

    registry: Registry[Any]
    call: ItemCall
    context: Mapping[str, Any]

    def remake(self) -> Item:
        """Call the factory again with the same arguments, and return the new item."""
        return self.registry.build(self.call, **self.context)


@dataclass(frozen=True, slots=True)
class Item:
    """Base of all vocabulary items.

    An item is pickled as the call that made it, so its functions may be closures. An item that no registry
    made is pickled field by field.
    """

    permissions: tuple[str, ...] = field(default=(), kw_only=True)
    """Permissions that a user must give (`--allow`) before the item is used: `python`, or a URL."""
    origin: Origin | None = field(default=None, kw_only=True, repr=False, compare=False)
    """Call that made the item, set by `Registry.build`."""

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        if self.origin is not None:
            return Origin.remake, (self.origin,)
        return object.__reduce_ex__(self, protocol)


T = TypeVar("T", bound=Item)
F = TypeVar("F", bound=Callable[..., Item])


class UnknownName(LookupError):
    """Error for a name that no item has.

    `hint` names the kinds that have an item of this name, or the closest name; it is empty if there is
    neither.
    """

    def __init__(self, kind: str, name: str, names: list[str]) -> None:
        """Create the error, with a hint at the closest name or at other kinds with this name.

        Args:
            kind: The kind of item, such as "parser".
            name: The unknown name.
            names: The names that exist.
        """
        self.kind, self.name, self.names = kind, name, names
        self.hint = _kinds_with(name) or did_you_mean(name, names)
        super().__init__(f"unknown {kind} {name!r}")


_KEYS = ("estimator", "loss")
"""Kinds whose name is the key of a role, and whose items need no value."""


def _kinds_with(name: str) -> str:
    """Return a text such as `ppo is a loss` that lists all kinds of vocabulary with an item of this name;
    empty if no kind has one."""
    kinds = [registry.kind for registry in _REGISTRIES.values() if name in registry.names()]
    listed_kinds = " and ".join(f"an {kind}" if kind[0] in "aeiou" else f"a {kind}" for kind in kinds)
    key = f": write `{kinds[0]}: {name}`" if len(kinds) == 1 and kinds[0] in _KEYS else ""
    return f"{name} is {listed_kinds}{key}" if listed_kinds else ""


@dataclass(eq=False)
class BadOptions(ValueError):
    """Error for options that an item does not accept."""

    kind: str
    """Kind of item."""
    name: str
    call: ItemCall
    """Call in the spec."""
    errors: Sequence[ErrorDetails]
    """Errors in pydantic's form. Each `loc` is relative to the call: 0 for the item's value, or an option's
    name, then keys inside of it. A `ctx` with an `error` belongs to another item inside the item."""
    value: Option | None
    """Value that the item accepts; None for an item without a value."""
    options: list[Option]
    """Options that the item accepts."""

    def __str__(self) -> str:
        problems = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in self.errors)
        return f"{self.kind} {self.name!r}: {problems}"

    def type_at(self, loc: Sequence[int | str]) -> str:
        """Describe the values accepted at `loc`, a path that begins with an option's name."""
        option = self._option(loc[0])
        return option.type_at(loc[1:]) if option else "anything"

    def keys_at(self, loc: Sequence[int | str]) -> list[str]:
        """Return the keys of a mapping at `loc`, a path inside the call; for an empty path, the names of the
        options."""
        if not loc:
            return [option.name for option in self.options]
        option = self._option(loc[0])
        return option.keys_at(loc[1:]) if option else []

    def _option(self, key: int | str) -> Option | None:
        return self.value if key == 0 else next((o for o in self.options if o.name == key), None)


class BadParts(ValueError):
    """Raised by a factory whose item contains other items that cannot be made.

    `faults` holds each error by its path, in the form of `BadOptions.errors`: the path `(0, "right",
    "reward")` is in the factory's value.
    """

    def __init__(self, faults: Mapping[tuple[int | str, ...], UnknownName | BadOptions]) -> None:
        self.faults = faults
        super().__init__("; ".join(map(str, faults.values())))


class Registry(Generic[T]):
    """Items of one kind, by name."""

    def __init__(self, item: type[T], group: str, context: Collection[str] = ()) -> None:
        """Create the registry of one kind of items.

        Args:
            item: The class of the items.
            group: The entry-point group in which packages name their factories.
            context: Factory parameters that the engine passes, and a spec cannot.
        """
        self.item, self.group, self.context = item, group, context
        self.kind = item.__name__.lower()
        self._factories: dict[str, Callable[..., T]] = {}
        self._definitions: dict[str, Definition] = {}
        _REGISTRIES[group] = self

    def __reduce__(self) -> tuple[Callable[..., Registry[Any]], tuple[str]]:
        return registry_of, (self.group,)

    def register(self, name: str) -> Callable[[F], F]:
        """Return a decorator that registers a factory in this process.

        Args:
            name: The name that specs write.

        Raises:
            UsageError: Raised by the decorator if another function has the name. A function of a changed file
                or a rerun notebook cell replaces its former version.
        """

        def add(factory: F) -> F:
            definition_before, this = self._definitions.get(name), Definition.of(factory)
            is_taken = name in own_points(self.group) or name in self._factories
            if is_taken and not (definition_before and this.replaces(definition_before)):
                where = f"by {definition_before}" if definition_before else "built in or installed"
                raise UsageError(
                    f"{self.kind} {name!r} is registered already, {where}; choose another name for {this}"
                )
            self._factories[name] = cast("Callable[..., T]", factory)
            self._definitions[name] = this
            return factory

        return add

    def names(self) -> list[str]:
        """Return all names that a spec may write, sorted: built-in, installed and registered ones.

        A name that begins with `_` is internal and left out.
        """
        return sorted(name for name in {*self._factories, *points_of(self.group)} if not name.startswith("_"))

    def factory(self, name: str) -> Callable[..., T]:
        """Return the factory of a name.

        Raises:
            UnknownName: No factory has that name.
            UsageError: The package that names the factory cannot be imported.
        """
        if name not in self._factories:
            point = self._point(name)
            if point is None:
                raise UnknownName(self.kind, name, self.names())
            self._factories[name] = self._load(point)
        return self._factories[name]

    def _point(self, name: str) -> EntryPoint | None:
        """Return the entry point of a name, preferring a built-in one; None for an unknown name."""
        return own_points(self.group).get(name) or points_of(self.group).get(name)

    def _load(self, point: EntryPoint) -> Callable[..., T]:
        factory = load_point(point, self.kind)
        if not callable(factory):
            noun = f"the {self.kind} {point.name!r} of {package_of(point)}"
            raise UsageError(f"{noun} is no function: {point.value}")
        # A decorated function is not its factory, which the decorator has registered.
        made = (entry for entry in self._factories.values() if getattr(entry, "__wrapped__", None) is factory)
        return next(made, cast("Callable[..., T]", factory))

    def imported_from(self, name: str) -> Import | None:
        """Return the module that registered a name; None for a name of an entry point."""
        definition = self._definitions.get(name)
        return definition.source if definition else None

    def summary(self, name: str) -> str:
        """Return the first line of the factory's docstring."""
        return (inspect.getdoc(self.factory(name)) or "").partition("\n")[0]

    def value(self, name: str) -> Option | None:
        """Return the Option (type, default, meaning) for the value beside an item's name; None for an item
        without a value."""
        return value_option_of(self.factory(name))

    def options(self, name: str) -> list[Option]:
        """Return the options that a spec may write, in the factory's order."""
        return options_of(self.factory(name), self.context)

    def takes_extra_options(self, name: str) -> bool:
        """Return True if the item accepts options beyond `options`, which only its factory can check."""
        return takes_extra_options(self.factory(name))

    def build(self, call: ItemCall, **context: Any) -> T:
        """Check the options of a call and make the item.

        Args:
            call: The item's name, value and options.
            context: Arguments of the engine, such as a dataset's folder; the factory gets those that it has
                parameters for.

        Raises:
            UnknownName: No item has that name.
            BadOptions: The item does not accept these options.
            UsageError: The factory fails, or makes an item of another kind.
        """
        factory = self.factory(call.name)
        if (used_items := _used.get()) is not None:
            used_items[self, call.name] = None
        parameters = inspect.signature(factory).parameters
        given_context = {name: value for name, value in context.items() if name in parameters}
        has_own_value = call.has_value and _is_value(call.value, next(iter(parameters.values()), None))
        args = (call.value,) if has_own_value else ()
        options = call.options if has_own_value else self.option_values(call, call.name)
        if clashing_names := [name for name in options if name in self.context]:
            unknown = "unknown option", "unexpected_keyword_argument"
            raise self._bad(call, call.name, [option_error((name,), *unknown) for name in clashing_names])
        try:
            item = _adapter(factory).validate_python(ArgsKwargs(args, {**options, **given_context}))
        except ValidationError as error:
            raise self._bad(call, call.name, error.errors(include_url=False)) from None
        except RolegraphError:
            raise
        except BadParts as error:
            raise self._bad(call, call.name, [_part(*fault) for fault in error.faults.items()]) from error
        except ValueError as error:  # the factory's own check of its options
            raise self._bad(call, call.name, [option_error((), str(error))]) from error
        except FOREIGN_ERRORS as error:  # a factory may be a package's own code
            message = f"{type(error).__name__}: {first_line(error)}"
            raise UsageError(f"{self._described(call.name)} cannot be made: {message}") from error
        if not isinstance(item, self.item):
            made = type(item).__name__
            raise UsageError(f"{self._described(call.name)} made a {made}, expected a {self.item.__name__}")
        return replace(item, origin=Origin(self, call, context))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        """Mark a field's JSON Schema with this registry's group; pydantic calls it for `Annotated[…,
        rewards]`."""
        return {**handler(schema), NAMES_ITEMS_OF: self.group}

    def option_values(self, call: ItemCall, name: str) -> Mapping[str, Any]:
        """Return the options of a call; its value may hold further options, as in `{countdown: {count: 8}}`.

        Args:
            call: The call.
            name: Name of the item, for the error.

        Raises:
            BadOptions: The value is neither a mapping nor empty.
        """
        if isinstance(call.value, Mapping):
            return {**cast("Mapping[str, Any]", call.value), **call.options}
        if call.value is None or call.value is True:
            return call.options
        message = "takes no value of its own, only options"
        raise self._bad(call, name, [option_error((), message, "unexpected_positional_argument", call.value)])

    def _bad(self, call: ItemCall, name: str, errors: Sequence[ErrorDetails]) -> BadOptions:
        return BadOptions(self.kind, name, call, errors, self.value(name), self.options(name))

    def _described(self, name: str) -> str:
        """Return a text such as `the reward 'f1' of PACKAGE`, with the package or file that registered the
        item."""
        definition, point = self._definitions.get(name), self._point(name)
        source = str(definition) if definition else package_of(point) if point else "this process"
        return f"the {self.kind} {name!r} of {source}"


@cache
def _adapter(factory: Callable[..., Item]) -> TypeAdapter[Any]:
    config: ConfigDict = {"arbitrary_types_allowed": True, "alias_generator": written_name}
    return TypeAdapter(cast("Any", factory), config=config)


_REGISTRIES: dict[str, Registry[Any]] = {}
"""Registries by entry-point group."""


def registry_of(group: str) -> Registry[Any]:
    """Return the registry of an entry-point group, such as `rolegraph.parsers`."""
    return _REGISTRIES[group]


_used: ContextVar[MutableMapping[tuple[Registry[Any], str], None] | None] = ContextVar("used", default=None)


@contextmanager
def record_items(used: MutableMapping[tuple[Registry[Any], str], None]) -> Generator[None, None, None]:
    """Add every item that is built in the block, at any depth, to a mapping.

    Args:
        used: The mapping; its keys are (registry, name) of the items, in the order in which they are built.
    """
    token = _used.set(used)
    try:
        yield
    finally:
        _used.reset(token)


def _is_value(written: object, first: inspect.Parameter | None) -> bool:
    """Return True if `written`, the value beside an item's name, is the factory's first argument, False if it
    holds options.

    A mapping holds options if the factory's first argument may be left out.
    """
    if first is None or first.kind is not first.POSITIONAL_ONLY:
        return False
    return not isinstance(written, Mapping) or first.default is not None


def option_error(
    loc: tuple[int | str, ...], message: str, kind: str = "value_error", value: object = None
) -> ErrorDetails:
    """Return an entry of `BadOptions.errors`.

    Args:
        loc: Place in the call: 0 for the item's value, or an option's name, then keys inside of it.
        message: Text of the error.
        kind: Pydantic's name of the error.
        value: The faulty value.
    """
    return {"type": kind, "loc": loc, "msg": message, "input": value}


def _part(loc: tuple[int | str, ...], error: UnknownName | BadOptions) -> ErrorDetails:
    """Convert an error of an item inside another item to pydantic's error details at `loc`."""
    hint = error.hint if isinstance(error, UnknownName) else ""
    message = "; ".join(filter(None, (str(error), hint)))
    return {**option_error(loc, message), "ctx": {"error": error}}
