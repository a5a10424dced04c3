"""Events of a run or training, sent to an observer such as a table, a tracker or the rLLM bridge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from rolegraph.engine.records.episode import Episode
from rolegraph.engine.records.identity import CallId


class CallDone(NamedTuple):
    """Event: a model call has ended."""

    id: CallId
    """Identity of the call."""
    seconds: float
    """Duration in seconds, without the wait for a free slot."""
    answered: bool
    """Whether the model answered; False where the call failed."""


class EpisodeDone(NamedTuple):
    """Event: an episode has ended."""

    episode: Episode
    """The episode; of an interrupted one the part that was done."""
    finished: bool
    """Whether it ran to its end; False where it was interrupted."""


class StepLogged(NamedTuple):
    """Event: a training step's metrics were written to disk."""

    step: int
    """Number of the step, from 1; 0 for the validation before training."""
    metrics: Mapping[str, float]
    """Figures by name, as in a line of `metrics.jsonl`."""


class Note(NamedTuple):
    """Event: a message for the user, such as the current activity or a warning."""

    text: str
    """The message, one sentence."""
    kind: Literal["progress", "notice", "warning"] = "progress"
    """`progress` replaces the message before it; a `notice` or a `warning` is kept."""
    about: str = ""
    """Subject of a warning; of several warnings with one subject, only the first is shown. Empty shows
    all."""
    episodes: int = 0
    """Number of `EpisodeDone` events until the activity ends, for a display of the time left; 0 where
    unknown."""


Event = CallDone | EpisodeDone | StepLogged | Note
"""Event of a run or training."""
Observer = Callable[[Event], None]
"""Function called with each event, in the event loop's thread; it should return at once."""
