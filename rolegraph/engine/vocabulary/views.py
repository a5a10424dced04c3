"""Finished role instances, as prompts, parsers, rewards and tools see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

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
    """Arguments of the call that this turn answers, in a role with `tool`."""
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


class Views:
    """Sequence of the instances of one name, in order of index; of several rounds, by round first.

    The fields of a single instance can be read from the sequence itself (`judge.action`); with any other
    number of instances that raises AttributeError. A single instance that was skipped is not in the sequence,
    but its fields can still be read.
    """

    __slots__ = ("_absent", "_views")

    def __init__(self, views: Sequence[View | ScoredView], absent: View | ScoredView | None = None) -> None:
        """Create the sequence of views that one `needs` entry reads.

        Args:
            views: The instances that ran.
            absent: The only instance, where it was skipped.
        """
        self._views, self._absent = views, absent

    def __getitem__(self, index: int) -> View | ScoredView:
        return self._views[index]

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Iterator[View | ScoredView]:
        return iter(self._views)

    def __reduce__(self) -> tuple[type[Views], tuple[object, View | ScoredView | None]]:
        return Views, (self._views, self._absent)

    def __getattr__(self, name: str) -> Any:
        if self._absent is not None and not self._views and not name.startswith("_"):
            return getattr(self._absent, name)
        if name.startswith("_") or len(self._views) != 1:
            raise AttributeError(f"{len(self._views)} instances have no {name!r} of their own; take one")
        return getattr(self._views[0], name)


Upstream = Mapping[str, Views]
"""Instances that a role instance sees, by the name under which its role needs them."""
