"""Finished role instances, as prompts, parsers, rewards and tools see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from rolegraph.engine.records import FailureName
from rolegraph.engine.vocabulary.unknown import UNKNOWN, Unknown

Lineage = Mapping[str, frozenset[int]]
"""Numbers of the instances from which an instance descends, its own included, by role."""


def on_branch(mine: Lineage, theirs: Lineage) -> bool:
    """Return True if two instances are compatible: wherever both descend from a role, they share an instance
    of it."""
    return all(not numbers.isdisjoint(theirs[role]) for role, numbers in mine.items() if role in theirs)


class View(NamedTuple):
    """Turn of a role instance, as prompts, expressions, parsers, rewards and tools see it. A field without a
    value is UNKNOWN.

    | turn | fields |
    |---|---|
    | readable | all are known |
    | not readable | `failed`; `action` is the parser's default, unknown without a default |
    | a program that failed | `failed`; `action` is its output with the error |
    | no answer | `failed`; all fields of the answer are unknown |
    | skipped | `ran` False; all other fields are unknown |

    `reward`, `right` and `terms` are unknown until the episode has ended, and if a reward raised an error.
    """

    index: int = cast("Any", UNKNOWN)  # pyright: ignore[reportIncompatibleMethodOverride]  # a tuple's own is never used here
    """Number of the instance, from 1 to N."""
    action: Any = UNKNOWN
    """Action that the parser read, text or parsed JSON."""
    response: Any = ""
    """Whole answer of the model, without its marked reasoning."""
    thought: Any = ""
    """Marked reasoning of the model."""
    round: Any = 1
    """Round of the instance's loop, from 1."""
    lineage: Any = ()
    """Index under each parent; the last is the instance's own."""
    ran: bool = True
    failure: str | Unknown = ""
    """Name of the failure; empty without one. A failure of the reward does not count."""
    role: str = ""
    """Name of the instance's role."""
    tokens: Any = 0
    """Number of tokens that the model sampled in the turn; UNKNOWN if the endpoint does not report it."""
    calls: Any = 0
    """Number of the turn's answered model calls."""
    outer: Any = 1
    """Round of the outer loop around the instance's loop, from 1."""
    chosen: View | Unknown = UNKNOWN
    """Turn that the answer chooses, for a role whose parser is `choice`; else UNKNOWN."""
    reward: float | Unknown = UNKNOWN
    right: bool | Unknown = UNKNOWN
    terms: Mapping[str, float] | Unknown = UNKNOWN
    """Named parts of the reward."""
    within: Lineage = MappingProxyType({})
    """Instances from which the turn's instance descends; texts and expressions cannot read it."""

    @property
    def failed(self) -> bool | Unknown:
        """True if the instance gave no usable action."""
        return self.failure if isinstance(self.failure, Unknown) else self.failure != ""

    @property
    def ok(self) -> bool | Unknown:
        """True for a usable action, False for an unreadable answer or a program that failed."""
        failure = self.failure
        is_known = not isinstance(failure, Unknown) and (not failure or FailureName(failure).is_result)
        return not failure if is_known else UNKNOWN

    @property
    def known_action(self) -> Any:
        """The action; UNKNOWN if an unreadable answer has no default."""
        return UNKNOWN if self.failure and self.action in ("", None) else self.action

    @property
    def public(self) -> View:
        """The view as other roles see it; if the turn has no answer, only its position and its failure are
        set."""
        if self.ok is not UNKNOWN:
            return self._replace(action=self.known_action)
        fields = {name: getattr(self, name) for name in ("index", "round", "lineage", "outer", "role")}
        return SKIPPED._replace(**fields, ran=self.ran, failure=self.failure)

    def earning(
        self,
        reward: float | Unknown,
        right: bool | Unknown,
        terms: Mapping[str, float] | Unknown,
        within: Lineage,
    ) -> View:
        """Return the view with the results that are known after the episode: reward, verdict, terms and
        lineage."""
        earlier_values = tuple(self)[:_EARNED_FROM]  # `_replace` takes twice as long
        return View._make((*earlier_values, reward, right, terms, within))

    def is_beside(self, other: View) -> bool:
        """Return True if another turn is on the same branch: their instances have a common ancestor in every
        role that both descend from."""
        return on_branch(self.within, other.within)


_EARNED_FROM = View._fields.index("reward")
_TEXTS_AND_NUMBERS: dict[str, Any] = dict.fromkeys(
    ("failure", "response", "thought", "round", "lineage", "tokens", "calls", "outer"), UNKNOWN
)
SKIPPED = View(ran=False, **_TEXTS_AND_NUMBERS)
"""View of a turn that was skipped."""
VIEW_FIELDS = (
    *("action", "ok", "failed", "failure", "ran", "response", "thought"),
    *("index", "lineage", "round", "outer", "role", "tokens", "calls", "chosen"),
)
"""Fields of a turn that a text or an expression may read."""
REWARD_FIELDS = ("reward", "right", "terms")
"""Further fields for texts and expressions that are computed after the episode."""
TURN_FIELDS = (*VIEW_FIELDS, *REWARD_FIELDS)
"""Fields of a turn after the episode."""
LINKS = ("previous", "history", "final")
"""Words after a role's name, in expressions after the episode, for other turns than the name alone means: of
the previous round, all earlier turns, and the last turn that ran."""
RECORDED_FIELDS = tuple(name for name in TURN_FIELDS if name != "chosen")
"""Fields of a turn that a file of episodes records."""


def named_turns(mentions: Set[str], roles: Iterable[str]) -> list[str]:
    """Return the names of turns among `mentions`, such as `judge` and `judge.history`, in the order of the
    roles."""
    linked_names = ((role, *(f"{role}.{link}" for link in LINKS)) for role in roles)
    return [name for names in linked_names for name in names if name in mentions]


class SelfView(NamedTuple):
    """Instance as its own prompts and conditions read it, under the name `self`."""

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
    """Round of the outer loop around the instance's loop, from 1."""


class Views:
    """Turns of one name in an expression, in order of index; turns of several rounds are ordered by round
    first.

    If it holds a single turn, the turn's fields can be read from the sequence itself (`judge.action`); if it
    is empty, the fields of a skipped turn. With several turns, reading a field raises AttributeError.
    """

    __slots__ = ("_views",)

    def __init__(self, views: Sequence[View]) -> None:
        self._views = views

    def __getitem__(self, index: int) -> View:
        return self._views[index]

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Iterator[View]:
        return iter(self._views)

    def __reduce__(self) -> tuple[type[Views], tuple[object]]:
        return type(self), (self._views,)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or len(self._views) > 1:
            raise AttributeError(f"{len(self._views)} instances have no {name!r} of their own; take one")
        return getattr(self._views[0] if self._views else SKIPPED, name)

    def beside(self, view: View) -> Views:
        """Return the turns that are on the branch of `view`."""
        return Views([other for other in self._views if view.is_beside(other)])


Upstream = Mapping[str, Views]
"""Turns that a role instance reads, by the name in its `needs`."""
