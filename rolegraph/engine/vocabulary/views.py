"""Finished role instances, as prompts, parsers, rewards and tools see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from rolegraph.engine.vocabulary.unknown import UNKNOWN, Unknown

REWARD_FIELDS = ("reward", "is_correct")
"""Further fields for texts that are rendered after the episode: demonstrations, and prompts of teachers."""


class View(NamedTuple):
    """Finished role instance, without its rewards and labels."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # a tuple's own is never used here
    """Number of the instance, from 1 to N."""
    action: Any
    """Action that the parser read, text or parsed JSON; the parser's default where the parser failed."""
    response: str = ""
    """Whole answer of the model, without its marked reasoning."""
    thought: str = ""
    """Marked reasoning of the model."""
    round: int = 1
    """Round of the instance's loop, from 1."""
    lineage: Sequence[int] = ()
    """Index under each parent; the last is the instance's own."""
    ran: bool = True
    """False where the instance was skipped; then `action` is the parser's default."""
    failed: bool = False
    """True where the instance gave no usable answer."""
    role: str = ""
    """Name of the instance's role."""
    tokens: int | None = 0
    """Number of tokens that the model sampled in the turn; None where the endpoint tells no number."""
    calls: int = 0
    """Number of the turn's calls of the model that were answered."""
    outer: int = 1
    """Round of the loop that the instance's loop is in, from 1."""


VIEW_FIELDS = tuple("action response thought index lineage round ran role tokens calls outer".split())
"""Fields of a finished instance that a template may read."""


class SelfView(NamedTuple):
    """Instance as its own prompts and conditions see it, under the name `self`."""

    role: str
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    lineage: Sequence[int]
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    """Number of instances, N."""
    round: int
    times: int
    """Largest number of rounds of the instance's loop."""
    history: Views
    """Earlier turns of the same instance that ran."""
    observation: str = ""
    """Observation of the loop's environment before this turn."""
    arguments: Mapping[str, Any] = MappingProxyType({})
    """Arguments of the call that this turn answers, in a role with `callable`."""
    outer: int = 1
    """Round of the loop that the instance's loop is in, from 1."""


class ScoredView(NamedTuple):
    """Finished role instance as a text sees it that is rendered after the episode, with its reward."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    action: Any
    response: str
    thought: str
    reward: float
    is_correct: bool
    round: int = 1
    lineage: Sequence[int] = ()
    ran: bool = True
    role: str = ""
    tokens: int | None = 0
    calls: int = 0
    outer: int = 1
    count: int = 1  # pyright: ignore[reportIncompatibleMethodOverride]
    times: int = 1
    history: Sequence[Any] = ()
    prompt: str = ""
    """User message of the turn, in a text that is rendered for this very turn."""


Lineage = Mapping[str, frozenset[int]]
"""Numbers of the instances that an instance descends from, by role, with its own."""


def on_branch(mine: Lineage, theirs: Lineage) -> bool:
    """Return True if two instances are compatible: wherever both descend from a role, they share an instance
    of it."""
    return all(not numbers.isdisjoint(theirs[role]) for role, numbers in mine.items() if role in theirs)


class Turn(NamedTuple):
    """Turn of a role as an expression sees it after the episode. A field without a value is
    UNKNOWN.

    | turn | fields |
    |---|---|
    | readable | all are known; `reward` and `right` where its reward said so |
    | not readable | `failed`, `right` False, `reward` as `on_failure` gives it, `action` the default if any |
    | its reward raised | `reward` and `right` are unknown |
    | no answer | `failed`; all else is unknown |
    | skipped | `ran` False; all else is unknown |
    """

    index: Any = UNKNOWN  # pyright: ignore[reportIncompatibleMethodOverride]
    action: Any = UNKNOWN
    ok: bool | Unknown = UNKNOWN
    """True for a turn that gave a usable action."""
    failed: bool | Unknown = UNKNOWN
    failure: str | Unknown = UNKNOWN
    """Name of the failure; empty without one."""
    reward: float | Unknown = UNKNOWN
    right: bool | Unknown = UNKNOWN
    terms: Mapping[str, float] | Unknown = UNKNOWN
    """Named parts of the reward."""
    response: str | Unknown = UNKNOWN
    thought: str | Unknown = UNKNOWN
    round: int | Unknown = UNKNOWN
    outer: int | Unknown = UNKNOWN
    lineage: Sequence[int] | Unknown = UNKNOWN
    ran: bool = False
    role: str = ""
    tokens: int | Unknown | None = UNKNOWN
    calls: int | Unknown = UNKNOWN
    within: Lineage = MappingProxyType({})
    """Instances that the turn's instance descends from; no expression reads it."""

    def is_beside(self, other: Turn) -> bool:
        """Return True if another turn is on the branch of this one."""
        return on_branch(self.within, other.within)


TURN_FIELDS = tuple(name for name in Turn._fields if name != "within")
"""Fields of a turn that an expression may read after the episode."""


class Views:
    """Sequence of the instances of one name, in order of index; of several rounds, by round first.

    The fields of a single instance can be read from the sequence itself (`judge.action`); with any other
    number of instances that raises AttributeError. A single instance that was skipped is not in the sequence,
    but its fields can still be read.
    """

    __slots__ = ("_absent", "_views")

    def __init__(self, views: Sequence[AnyView], absent: AnyView | None = None) -> None:
        """Create the sequence of views that one `needs` entry reads.

        Args:
            views: The instances that ran.
            absent: The only instance, where it was skipped.
        """
        self._views, self._absent = views, absent

    def __getitem__(self, index: int) -> AnyView:
        return self._views[index]

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Iterator[AnyView]:
        return iter(self._views)

    def __reduce__(self) -> tuple[type[Views], tuple[object, AnyView | None]]:
        return type(self), (self._views, self._absent)

    def __getattr__(self, name: str) -> Any:
        if self._absent is not None and not self._views and not name.startswith("_"):
            return getattr(self._absent, name)
        if name.startswith("_") or len(self._views) != 1:
            raise AttributeError(f"{len(self._views)} instances have no {name!r} of their own; take one")
        return getattr(self._views[0], name)


class Turns(Views):
    """Turns that a role's name means in an expression after the episode.

    Of no turn every field is unknown, but `ran`, which is False.
    """

    __slots__ = ()

    def beside(self, turn: Turn) -> Turns:
        """Return those that are on the branch of a turn."""
        return Turns([it for it in self if isinstance(it, Turn) and turn.is_beside(it)])

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if self._views else getattr(_SKIPPED, name)


_SKIPPED = Turn()
AnyView = View | ScoredView | Turn
Upstream = Mapping[str, Views]
"""Instances that a role instance sees, by the name under which its role needs them."""
