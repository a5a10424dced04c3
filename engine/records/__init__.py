"""What a run leaves: Episode > Trajectory > Step, who and which they are, and how they lie on disk."""

from engine.records.episode import (
    WITHHELD,
    Episode,
    Failure,
    FailureName,
    Message,
    Step,
    Task,
    TerminationReason,
    Trajectory,
    TrajectoryGroup,
)

__all__ = [
    "WITHHELD",
    "Episode",
    "Failure",
    "FailureName",
    "Message",
    "Step",
    "Task",
    "TerminationReason",
    "Trajectory",
    "TrajectoryGroup",
]
