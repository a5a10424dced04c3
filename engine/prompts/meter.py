"""What one rendering may cost, counted without a clock: the same template comes to the same end everywhere.

What grows is paid before it is made. A unit of work is at most some 8 ns of time and 6 bytes, as
`benchmarks/metering.py` measures it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, cast

from jinja2 import Undefined

from rolegraph.engine.limits.prompts import PROMPT_BITS, PROMPT_ITEMS, PROMPT_TEXT, PROMPT_WORK
from rolegraph.engine.vocabulary import ScoredView, SelfView, View, Views

ITEM = 20
"""Units for a value of a list that is made or looked through."""
NODE = 16
"""Units for evaluating a node of the syntax tree."""
_LOOK = 4 * ITEM
"""Units for a value that is measured with all that it is in."""
_SCALAR = 32
"""Characters that a value takes that is neither text, a whole number, a list nor a mapping."""
_PLAIN: frozenset[type] = frozenset({float, bool, type(None)})
_LISTS = (list, tuple, Views)
RECORDS: frozenset[type] = frozenset({View, ScoredView, Views, SelfView})
"""What prompts see of roles: it has fields, and is no text."""
_WRITTEN = 24 * ITEM
"""Units for writing a value that is measured first, whatever its size."""
_MOST_TEXT, _MOST_ITEMS, _MOST_BITS, _WORK = (
    limit.most for limit in (PROMPT_TEXT, PROMPT_ITEMS, PROMPT_BITS, PROMPT_WORK)
)


class PromptError(ValueError):
    """A template that could not be rendered for one task."""


class Meter:
    """What is left to one rendering. Whatever goes past a limit raises PromptError."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _WORK

    @property
    def spent(self) -> int:
        """Units of work so far."""
        return _WORK - self.left

    def spend(self, units: int) -> None:
        """Pay for work."""
        self.left -= units
        if self.left < 0:
            raise PromptError(PROMPT_WORK.exceeded("the template takes"))

    def make_text(self, size: int) -> None:
        """Pay for a text of so many characters."""
        if size > _MOST_TEXT:
            raise PromptError(PROMPT_TEXT.exceeded("the template makes a text of"))
        self.spend(size)

    def make_list(self, size: int) -> None:
        """Pay for a list of so many items."""
        if size > _MOST_ITEMS:
            raise PromptError(PROMPT_ITEMS.exceeded("the template makes a list of"))
        self.spend(ITEM * size)

    def make_number(self, bits: int) -> None:
        """Allow a whole number of so many bits."""
        if bits > _MOST_BITS:
            raise PromptError(PROMPT_BITS.exceeded("the template makes a number of"))

    def each(self, items: Iterable[Any], units: int) -> Iterator[Any]:
        """Pass items on, each for so many units."""
        for item in items:
            self.left -= units
            if self.left < 0:
                self.spend(0)  # past the limit: raises
            yield item

    def items(self, value: Iterable[Any]) -> list[Any]:
        """The items of anything that has some, as a list."""
        if isinstance(value, Collection):
            self.make_list(len(value))
            return list(value)
        found: list[Any] = []
        for item in value:
            self.make_list(1)
            found.append(item)
        return found

    def measure(self, value: object, *, written: bool = False) -> int:
        """About how many characters a value has as text, with all that is in it, which is paid for here.

        One that is to be `written` holds no instance of a role, which is no text.
        """
        if isinstance(value, str):
            return len(value)
        size = 0
        todo: list[object] = [value]
        while todo:
            one = todo.pop()
            kind = type(one)
            if kind is str:
                size += len(cast("str", one)) + 2
            elif kind is int:
                size += cast("int", one).bit_length() // 3 + 2
            elif kind in _PLAIN:
                size += _SCALAR
            elif isinstance(one, dict):
                inside = cast("dict[object, object]", one)
                self.spend(2 * _LOOK * len(inside))
                todo += [*inside, *inside.values()]
            elif written and kind in RECORDS:
                raise PromptError("an instance of a role is no text; write .action behind it")
            elif isinstance(one, _LISTS):
                many = cast("Sequence[object]", one)
                self.spend(_LOOK * len(many))
                todo += many
            else:
                size += len(one) + 2 if isinstance(one, str) else _SCALAR
        return size

    def text(self, value: object) -> str:
        """A value as text."""
        if type(value) is str:  # nearly every one
            self.left -= len(value)
            if self.left < 0:
                self.spend(0)  # past the limit: raises
            return value
        if type(value) is int:  # its bits are bounded wherever it comes from
            self.spend(value.bit_length() // 2)
            return str(value)
        if type(value) in _PLAIN:
            return str(value)
        self.spend(_WRITTEN)
        if not isinstance(value, Undefined):
            self.make_text(self.measure(value, written=True))
        text = str(value)
        self.make_text(len(text))
        return text
