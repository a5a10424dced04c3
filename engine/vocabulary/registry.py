"""Names that a spec may use: a dict, a decorator, and the entry points of installed packages.

A vocabulary item is made by a factory, which a spec calls (see `ItemCall`). Options are checked by pydantic
against the factory's annotations. This file knows no particular vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Generator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import Distribution, EntryPoint, EntryPoints, PackageNotFoundError, entry_points
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs, ErrorDetails

from rolegraph.engine.errors import RolegraphError, UsageError, did_you_mean, first_line
from rolegraph.engine.vocabulary.call import ItemCall
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS, describe_error
from rolegraph.engine.vocabulary.imports import Definition, Import
from rolegraph.engine.vocabulary.options import (
    Option,
    options_of,
    takes_extra_options,
    takes_value,
    value_option_of,
)

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

DISTRIBUTION = "rolegraph"
NAMES_ITEMS_OF = "x-rolegraph-items"
"""In the JSON Schema of a field, the entry-point group of the items that it names."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What an item was made by, so that another process can make it again."""

    registry: Registry[Any]
    call: ItemCall
    context: Mapping[str, Any]

    def remake(self) -> Item:
        """The item, made anew."""
        return self.registry.build(self.call, **self.context)

    def __reduce__(self) -> tuple[Callable[..., Origin], tuple[str, ItemCall, Mapping[str, Any]]]:
        return _origin, (self.registry.group, self.call, self.context)


@dataclass(frozen=True, slots=True)
class Item:
    """What all kinds of vocabulary have in common: an item is pickled as the call that made it.

    So its functions may be anything; one that no registry made is pickled as it stands.
    """

    permissions: tuple[str, ...] = field(default=(), kw_only=True)
    """What a person must allow before it is used, as `--allow` names it: `python`, or a URL."""
    origin: Origin | None = field(default=None, kw_only=True, repr=False, compare=False)

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        if self.origin is not None:
            return Origin.remake, (self.origin,)
        return object.__reduce_ex__(self, protocol)


T = TypeVar("T", bound=Item)
F = TypeVar("F", bound=Callable[..., Item])


class UnknownName(LookupError):
    """No item of that name; `hint` says what else it is, or names the closest one that exists, if any is."""

    def __init__(self, kind: str, name: str, known: list[str]) -> None:
        self.kind, self.name, self.known = kind, name, known
        self.hint = _elsewhere(name) or did_you_mean(name, known)
        super().__init__(f"unknown {kind} {name!r}")


FIXED: dict[str, Collection[str]] = {}
"""By kind, the names that a spec may use of kinds to which no package adds."""


def _elsewhere(name: str) -> str:
    """What a name is, in words, where it is one of another kind."""
    kinds = [other.kind for other in _REGISTRIES.values() if name in other.names()]
    kinds += [kind for kind, names in FIXED.items() if name in names]
    told = " and ".join(f"an {kind}" if kind[0] in "aeiou" else f"a {kind}" for kind in kinds)
    return f"{name} is {told}" if told else ""


class BadOptions(ValueError):
    """Options that the item does not take.

    `errors` are pydantic's, each `loc` relative to the call: 0 for the item's value, or an option's name.
    One whose `ctx` holds an `error` is of an item inside this one. `value` and `options` are what it takes.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        call: ItemCall,
        errors: Sequence[ErrorDetails],
        value: Option | None,
        options: list[Option],
    ) -> None:
        self.kind, self.name, self.call, self.errors = kind, name, call, errors
        self.value, self.options = value, options
        super().__init__(
            f"{kind} {name!r}: " + "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in errors)
        )

    def type_at(self, loc: Sequence[int | str]) -> str:
        """What may be written at a place inside the call, in words."""
        option = self._option(loc[0])
        return option.type_at(loc[1:]) if option else "anything"

    def keys_at(self, loc: Sequence[int | str]) -> list[str]:
        """The names that a mapping at a place inside the call may have; without a place, the options'."""
        if not loc:
            return [option.name for option in self.options]
        option = self._option(loc[0])
        return option.keys_at(loc[1:]) if option else []

    def _option(self, key: int | str) -> Option | None:
        named = {option.name: option for option in self.options}
        return self.value if key == 0 else named.get(str(key))


class BadParts(ValueError):
    """A factory raises this for items inside its own that could not be made, each with its place.

    A place is as in `BadOptions.errors`: `(0, "right", "reward")` is in the factory's value.
    """

    def __init__(self, faults: Mapping[tuple[int | str, ...], UnknownName | BadOptions]) -> None:
        self.faults = faults
        super().__init__("; ".join(map(str, faults.values())))


class Registry(Generic[T]):
    """The items of one kind. `group` is the entry-point group where packages, ours first, name theirs.

    `context` names the parameters that the engine gives to factories, and no spec can.
    """

    def __init__(self, item: type[T], group: str, context: Collection[str] = ()) -> None:
        self.item, self.group, self.context = item, group, context
        self.kind = item.__name__.lower()
        self._factories: dict[str, Callable[..., T]] = {}
        self._definitions: dict[str, Definition] = {}
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        _REGISTRIES[group] = self

    def register(self, name: str) -> Callable[[F], F]:
        """Decorator: make the factory known under `name`, in this process.

        A taken name is a UsageError, unless it is the same function again: of a file that has changed, or of
        a notebook's cell.
        """

        def add(factory: F) -> F:
            before, this = self._definitions.get(name), Definition.of(factory)
            taken = name in _own_points(self.group) or name in self._factories
            if taken and not (before and this.again(before)):
                where = f"by {before}" if before else "built in or installed"
                raise UsageError(
                    f"{self.kind} {name!r} is registered already, {where}; choose another name for {this}"
                )
            self._adapters.pop(name, None)
            self._factories[name] = cast("Callable[..., T]", factory)
            self._definitions[name] = this
            return factory

        return add

    def names(self) -> list[str]:
        """Every name, ours and those of installed packages, sorted."""
        return sorted({*self._factories, *_own_points(self.group), *_installed_points(self.group)})

    def factory(self, name: str) -> Callable[..., T]:
        """The factory of that name; raises UnknownName, or UsageError where a package's cannot be loaded."""
        if name not in self._factories:
            point = _own_points(self.group).get(name) or _installed_points(self.group).get(name)
            if point is None:
                raise UnknownName(self.kind, name, self.names())
            self._factories[name] = self._load(point)
        return self._factories[name]

    def _load(self, point: EntryPoint) -> Callable[..., T]:
        try:
            factory = point.load()
        except FOREIGN_ERRORS as error:  # importing it runs the package's own code
            package = _package(point)
            said = describe_error(error)
            raise UsageError(
                f"the {self.kind} {point.name!r} of {package} cannot be loaded: {said}"
            ) from error
        if not callable(factory):
            package = _package(point)
            raise UsageError(f"the {self.kind} {point.name!r} of {package} is no function: {point.value}")
        return cast("Callable[..., T]", factory)

    def imported_from(self, name: str) -> Import | None:
        """What another process must import to know this name; None for what its entry point finds."""
        known = self._definitions.get(name)
        return known.source if known else None

    def summary(self, name: str) -> str:
        """The first line of the factory's docstring."""
        return (inspect.getdoc(self.factory(name)) or "").partition("\n")[0]

    def value(self, name: str) -> Option | None:
        """What a spec writes beside the name, if the item takes anything there."""
        return value_option_of(self.factory(name))

    def options(self, name: str) -> list[Option]:
        """The options that a spec may write, in the factory's order."""
        return options_of(self.factory(name), self.context)

    def takes_extra_options(self, name: str) -> bool:
        """Whether the item has options beside these, which only its factory knows."""
        return takes_extra_options(self.factory(name))

    def build(self, call: ItemCall, **context: Any) -> T:
        """Check a call's options and make the item; raises UnknownName or BadOptions.

        `context` is what the engine gives the factory (a dataset's folder, say); only the parameters that it
        declares are passed.
        """
        factory = self.factory(call.name)
        if (used := _used.get()) is not None:
            used[self, call.name] = None
        parameters = inspect.signature(factory).parameters
        given = {name: value for name, value in context.items() if name in parameters}
        own_value = call.has_value and takes_value(parameters) and not _are_options(call, parameters)
        args = (call.value,) if own_value else ()
        options = call.options if own_value else self.keywords(call, call.name)
        taken = [name for name in options if name in self.context]
        if taken:
            clash = [_error((name,), "unexpected_keyword_argument", "unknown option") for name in taken]
            raise self._bad(call, call.name, clash)
        try:
            adapter = self._adapter(call.name, factory)
            item = adapter.validate_python(ArgsKwargs(args, {**options, **given}))
        except ValidationError as error:
            raise self._bad(call, call.name, error.errors(include_url=False)) from None
        except RolegraphError:
            raise
        except BadParts as error:
            raise self._bad(call, call.name, [_part(*fault) for fault in error.faults.items()]) from error
        except ValueError as error:  # the factory's own check of its options
            raise self._bad(call, call.name, [_error((), "value_error", str(error))]) from error
        except FOREIGN_ERRORS as error:  # a factory may be a package's own code
            said = f"{type(error).__name__}: {first_line(error)}"
            raise UsageError(
                f"the {self.kind} {call.name!r} of {self._giver(call.name)} cannot be made: {said}"
            ) from error
        if not isinstance(item, self.item):
            kind = type(item).__name__
            raise UsageError(
                f"the {self.kind} {call.name!r} of {self._giver(call.name)} made a {kind}, "
                f"expected a {self.item.__name__}"
            )
        return replace(item, origin=Origin(self, call, context))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Say whose items a field names that this stands beside, as in `Annotated[CallField, rewards]`."""
        return {**handler(schema), NAMES_ITEMS_OF: self.group}

    def keywords(self, call: ItemCall, name: str) -> Mapping[str, Any]:
        """The options for the item of that name, of a call whose value can only be a mapping of more of them.

        Raises BadOptions for any other value.
        """
        if isinstance(call.value, Mapping):
            return {**cast("Mapping[str, Any]", call.value), **call.options}
        if call.value is None or call.value is True:
            return call.options
        raise self._bad(call, name, [_no_value(call)])

    def _bad(self, call: ItemCall, name: str, errors: Sequence[ErrorDetails]) -> BadOptions:
        return BadOptions(self.kind, name, call, errors, self.value(name), self.options(name))

    def _giver(self, name: str) -> str:
        """Whose an item is: a package's, or where it was registered."""
        if (known := self._definitions.get(name)) is not None:
            return str(known)
        point = _own_points(self.group).get(name) or _installed_points(self.group).get(name)
        return _package(point) if point is not None else "this process"

    def _adapter(self, name: str, factory: Callable[..., T]) -> TypeAdapter[Any]:
        if name not in self._adapters:
            self._adapters[name] = TypeAdapter(cast("Any", factory), config={"arbitrary_types_allowed": True})
        return self._adapters[name]


_REGISTRIES: dict[str, Registry[Any]] = {}
"""By entry-point group."""


def registry_of(group: str) -> Registry[Any]:
    """The registry of an entry-point group."""
    return _REGISTRIES[group]


_used: ContextVar[MutableMapping[tuple[Registry[Any], str], None] | None] = ContextVar("used", default=None)


@contextmanager
def record_items(used: MutableMapping[tuple[Registry[Any], str], None]) -> Generator[None, None, None]:
    """Note every item that is built in the block, those inside others too."""
    token = _used.set(used)
    try:
        yield
    finally:
        _used.reset(token)


def _origin(group: str, call: ItemCall, context: Mapping[str, Any]) -> Origin:
    return Origin(registry_of(group), call, context)


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an installed package"


@cache
def _own_points(group: str) -> Mapping[str, EntryPoint]:
    """The built-in items of one group."""
    return {point.name: point for point in _points_of_ours().select(group=group)}


@cache
def _points_of_ours() -> EntryPoints:
    """Those of our own distribution, which is found without a look at all the others."""
    try:
        return Distribution.from_name(DISTRIBUTION).entry_points
    except PackageNotFoundError as error:
        raise UsageError(
            "Rolegraph is not installed, so its parsers, rewards and so on cannot be found; "
            "in a checkout: pip install -e ."
        ) from error


def _installed_points(group: str) -> Mapping[str, EntryPoint]:
    """Every package's items. Looked up anew: a notebook may install one as it goes."""
    return {point.name: point for point in entry_points(group=group)}


def _are_options(call: ItemCall, parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether a mapping beside the name holds options, of an item that may have no value of its own."""
    first = next(iter(parameters.values()))
    return isinstance(call.value, Mapping) and first.default is None


def _error(loc: tuple[int | str, ...], kind: str, message: str, value: object = None) -> ErrorDetails:
    return {"type": kind, "loc": loc, "msg": message, "input": value}


def _part(loc: tuple[int | str, ...], error: UnknownName | BadOptions) -> ErrorDetails:
    hint = error.hint if isinstance(error, UnknownName) else ""
    said = "; ".join(filter(None, (str(error), hint)))
    return {**_error(loc, "value_error", said), "ctx": {"error": error}}


def _no_value(call: ItemCall) -> ErrorDetails:
    return _error((), "unexpected_positional_argument", "takes no value of its own, only options", call.value)
