"""A finished role instance as prompts and parsers see it, and all those that a name stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

VIEW_FIELDS = ("action", "response", "thought", "index")
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


class ScoredView(NamedTuple):
    """An instance as a demonstration sees it."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    action: Any
    response: str
    thought: str
    reward: float
    is_correct: bool


class Views:
    """The instances that a name stands for, in order of index: a list, whatever their number.

    Where there is exactly one, its fields can be read directly (`judge.action`); read from any other number
    at once they are a fault, an AttributeError.
    """

    __slots__ = ("_views",)

    def __init__(self, views: Sequence[View] | Sequence[ScoredView]) -> None:
        self._views = views

    def __getitem__(self, index: int) -> View | ScoredView:
        return self._views[index]

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Iterator[View | ScoredView]:
        return iter(self._views)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or len(self._views) != 1:
            raise AttributeError(f"{len(self._views)} instances have no {name!r} of their own; take one")
        return getattr(self._views[0], name)


Upstream = Mapping[str, Views]
"""The instances that a role instance sees, by the name it knows them by."""
