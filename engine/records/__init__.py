"""What a run leaves: Episode > Trajectory > Step, who and which they are, and how they lie on disk."""

from engine.records.episode import (
    WITHHELD,
    Advantage,
    Episode,
    Failure,
    FailureName,
    Message,
    Step,
    Task,
    TerminationReason,
    Trajectory,
    TrajectoryGroup,
    plain_advantage,
)
from engine.records.events import CallDone, EpisodeDone, Event, Note, Observer, StepLogged
from engine.records.identity import CallId, GroupKey, NodeId, call_seed, derive_seed, salt_of

__all__ = [
    "WITHHELD",
    "Advantage",
    "CallDone",
    "CallId",
    "Episode",
    "EpisodeDone",
    "Event",
    "Failure",
    "FailureName",
    "GroupKey",
    "Message",
    "NodeId",
    "Note",
    "Observer",
    "Step",
    "StepLogged",
    "Task",
    "TerminationReason",
    "Trajectory",
    "TrajectoryGroup",
    "call_seed",
    "derive_seed",
    "plain_advantage",
    "salt_of",
]
