"""Forks of the command, with a line in the file `$TOLD` for each episode and step that it tells as finished.

A run tells an observer of an episode when it is on disk, a training of a step when its metrics are.
"""

from __future__ import annotations

import os

from rolegraph.api.jobs import RunLog
from rolegraph.engine.records import EpisodeDone, Event, StepLogged
from tests import forks

_observe = RunLog.observe


def _noted(self: RunLog, event: Event) -> None:
    _observe(self, event)
    match event:
        case EpisodeDone(episode, True):
            _tell(episode.id)
        case StepLogged(step):
            _tell(f"step {step}")
        case _:
            pass


def _tell(name: str) -> None:
    file = os.open(os.environ["TOLD"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{name}\n".encode())
    os.close(file)


RunLog.observe = _noted
forks.IMPORTED = (
    *forks.IMPORTED,
    "rolegraph.local.service.exporting",
    "gepa",
)
forks.main()
