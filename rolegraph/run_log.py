"""`log.txt` in the folder of a run or a training: notes, warnings, failures, and the error that ended it."""

from __future__ import annotations

import logging
import os
import traceback
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from rolegraph.engine.errors import WorldError, os_errors_as, printable
from rolegraph.engine.models.keys import OPENAI, TINKER, redact
from rolegraph.engine.records import Episode, EpisodeDone, Event, Note, Observer, StepLogged
from rolegraph.engine.records.info import without_credentials

LOGGERS = ("rolegraph", "tinker")
"""Loggers whose warnings are written, too."""


@contextmanager
def logged(file: Path, command: str, observe: Observer) -> Generator[Observer]:
    """Give an observer that writes events to a log and passes them on, for the time of a block.

    Each kind of failure of each role is written once; an error that ends the block, with its traceback.

    Args:
        file: The log, which is appended to.
        command: Command line, the first line.
        observe: Observer that events are passed to.

    Raises:
        WorldError: The file cannot be written.
    """
    with os_errors_as(WorldError, f"cannot write {file}"):
        handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(_LogFormatter())
    handler.setLevel(logging.WARNING)
    for name in LOGGERS:
        logging.getLogger(name).addHandler(handler)
    log = _RunLog(handler, observe)
    log.say("INFO", command)
    try:
        yield log.observe
    except BaseException as error:
        log.say("ERROR", "".join(traceback.format_exception(error)).rstrip())
        raise
    else:
        log.say("INFO", f"done: {log.episodes} episodes, {log.failures.total()} failures")
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(handler)
        with suppress(OSError):
            handler.close()


class _RunLog:
    """Observer that writes events as lines of a log."""

    def __init__(self, handler: logging.Handler, observe: Observer) -> None:
        self._handler, self._observe = handler, observe
        self.episodes = 0
        self.failures: Counter[tuple[str, str]] = Counter()
        """Number of failures by role and failure name."""

    def observe(self, event: Event) -> None:
        if isinstance(event, Note) and event.text:
            self.say("WARNING" if event.kind == "warning" else "INFO", event.text)
        elif isinstance(event, StepLogged):
            figures = (f"{name}={value:.4g}" for name, value in event.metrics.items())
            self.say("INFO", f"step {event.step}: {' '.join(figures)}")
        elif isinstance(event, EpisodeDone):
            self._count(event.episode)
        self._observe(event)

    def _count(self, episode: Episode) -> None:
        self.episodes += 1
        for trajectory in episode.trajectories:
            if (failure := trajectory.failure) is None:
                continue
            kind = (trajectory.name, failure.name.value)
            self.failures[kind] += 1
            if self.failures[kind] == 1:
                where = f"{episode.id} {trajectory.name} {trajectory.index}"
                self.say("WARNING", f"{where}: {failure.name.value}: {failure.message}")

    def say(self, level: str, text: str) -> None:
        """Write one entry; its further lines are indented."""
        number = logging.getLevelNamesMapping()[level]
        self._handler.emit(logging.LogRecord("rolegraph", number, "", 0, text, None, None))


class _LogFormatter(logging.Formatter):
    """Formatter of a time, a level and a text, without keys and credentials."""

    def format(self, record: logging.LogRecord) -> str:
        text = printable(without_credentials(super().format(record)))
        for rule in (TINKER, OPENAI):
            text = redact(text, os.environ.get(rule.key_variable))
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        first, *rest = text.splitlines() or [""]
        return "\n".join([f"{time} {record.levelname} {first}", *(f"    {line}" for line in rest)])
