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
from engine.records.episodes import read_episodes
from engine.records.events import CallDone, EpisodeDone, Event, Note, Observer, StepLogged
from engine.records.folder import RunFolder, Split
from engine.records.identity import (
    MAIN,
    SEEDS,
    CallId,
    GroupKey,
    NodeId,
    PolicyOf,
    call_seed,
    derive_seed,
    salt_of,
)
from engine.records.info import Checkpoint, Control, RunInfo, Saved
from engine.records.plain import check_plain, check_recordable

__all__ = [
    "MAIN",
    "SEEDS",
    "WITHHELD",
    "Advantage",
    "CallDone",
    "CallId",
    "Checkpoint",
    "Control",
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
    "PolicyOf",
    "RunFolder",
    "RunInfo",
    "Saved",
    "Split",
    "Step",
    "StepLogged",
    "Task",
    "TerminationReason",
    "Trajectory",
    "TrajectoryGroup",
    "call_seed",
    "check_plain",
    "check_recordable",
    "derive_seed",
    "plain_advantage",
    "read_episodes",
    "salt_of",
]
