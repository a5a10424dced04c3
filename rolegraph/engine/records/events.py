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
    """True if the model answered, False if the call failed."""


class EpisodeDone(NamedTuple):
    """Event: an episode has ended."""

    episode: Episode
    """The episode; if it was interrupted, the part that was done."""
    finished: bool
    """True if the episode ran to its end, False if it was interrupted."""


class StepLogged(NamedTuple):
    """Event: a training step's metrics were written to disk."""

    step: int
    """Number of the step, from 1; 0 for the validation before training."""
    metrics: Mapping[str, float]
    """Metrics by name, as in a line of `metrics.jsonl`."""
    constants: Mapping[str, str] = {}
    """Best constant answer of each role with discrete answers; `answers/constant/{role}` is its reward."""


class Note(NamedTuple):
    """Event: a message for the user, such as the current activity or a warning."""

    text: str
    """The message, one sentence."""
    kind: Literal["progress", "notice", "warning"] = "progress"
    """`progress` replaces the message before it; a `notice` or a `warning` is kept."""
    about: str = ""
    """Subject; of several warnings about one subject, only the first is shown, and progress about the subject
    of the note before is of one activity. If empty, all are shown."""
    episodes: int = 0
    """Number of `EpisodeDone` events until the activity ends, for a display of the remaining time; 0 if
    unknown."""


Event = CallDone | EpisodeDone | StepLogged | Note
"""Event of a run or training."""
Observer = Callable[[Event], None]
"""Function called with each event, in the event loop's thread; it should return quickly."""
