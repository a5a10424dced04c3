"""What happens while a plan runs or is trained, for whoever looks on: a table, a tracker, a bridge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from rolegraph.engine.records.episode import Episode
from rolegraph.engine.records.identity import CallId


class CallDone(NamedTuple):
    """A model call has ended. `seconds` does not count the wait for a free slot."""

    id: CallId
    seconds: float
    answered: bool


class EpisodeDone(NamedTuple):
    """An episode has ended; one that was interrupted holds what was done by then, and is not `finished`."""

    episode: Episode
    finished: bool


class StepLogged(NamedTuple):
    """A training step's metrics are safe on disk; step 0 is the validation before training."""

    step: int
    metrics: Mapping[str, float]


class Note(NamedTuple):
    """A sentence for the person: what is going on just now, or a warning."""

    text: str
    kind: Literal["progress", "warning"] = "progress"
    about: str = ""
    """What a warning is about: of many about one thing, the first is enough."""
    episodes: int = 0
    """How many `EpisodeDone` what goes on takes, where it is known: who counts them can say what is left."""


Event = CallDone | EpisodeDone | StepLogged | Note
Observer = Callable[[Event], None]
