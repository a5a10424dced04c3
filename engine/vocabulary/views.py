"""A finished role instance as prompts and parsers see it, and all those that a name stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

VIEW_FIELDS = ("action", "response", "thought", "index", "lineage", "round", "ran", "role")
"""What may be read of a finished role instance."""
REWARD_FIELDS = ("reward", "is_correct")
"""What a demonstration may read besides: it is written when the episode is over."""


class View(NamedTuple):
    """One finished role instance. Rewards and labels are not here."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # a tuple's own is never used here
    """The instance's number, from 1."""
    action: Any
    """What the parser read: text, or parsed JSON; the parser's default where it found nothing."""
    response: str = ""
    """The model's whole answer, without its marked reasoning."""
    thought: str = ""
    """The model's marked reasoning."""
    round: int = 1
    """The round of its loop, from 1."""
    lineage: Sequence[int] = ()
    """Its number under each parent; the last is its own."""
    ran: bool = True
    """False where it was skipped: then the action is the parser's default."""
    failed: bool = False
    """Whether it gave no usable answer; for tools, which may pass it over."""
    role: str = ""
    """Whose instance it is."""


class SelfView(NamedTuple):
    """An instance as its own prompts and conditions see it: `self`."""

    role: str
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    lineage: Sequence[int]
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    """How many instances there are."""
    round: int
    times: int
    """How many rounds there are at most."""
    history: Views
    """Its own earlier turns that ran."""
    observation: str = ""
    """What it sees of its loop's environment before this turn."""


class ScoredView(NamedTuple):
    """An instance as a demonstration sees it."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    action: Any
    response: str
    thought: str
    reward: float
    is_correct: bool
    round: int = 1
    lineage: Sequence[int] = ()
    ran: bool = True


class Views:
    """The instances that a name stands for, in order of index: a list, whatever their number.

    Where there is exactly one, its fields can be read directly (`judge.action`); read from any other number
    at once they are a fault, an AttributeError. A single one that was skipped is in no list, but `absent`
    still answers for its fields.
    """

    __slots__ = ("_absent", "_views")

    def __init__(self, views: Sequence[View] | Sequence[ScoredView], absent: View | None = None) -> None:
        self._views, self._absent = views, absent

    def __getitem__(self, index: int) -> View | ScoredView:
        return self._views[index]

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Iterator[View | ScoredView]:
        return iter(self._views)

    def __reduce__(self) -> tuple[type[Views], tuple[object, View | None]]:
        return Views, (self._views, self._absent)

    def __getattr__(self, name: str) -> Any:
        if self._absent is not None and not self._views and not name.startswith("_"):
            return getattr(self._absent, name)
        if name.startswith("_") or len(self._views) != 1:
            raise AttributeError(f"{len(self._views)} instances have no {name!r} of their own; take one")
        return getattr(self._views[0], name)


Upstream = Mapping[str, Views]
"""The instances that a role instance sees, by the name it knows them by."""
