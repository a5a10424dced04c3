"""Progress on standard error, and Ctrl-C that does not wait for threads."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

import rolegraph as rg
from rolegraph.engine.cli.output import OutputOptions

T = TypeVar("T")
SPEED_SECONDS = 3600.0
"""Seconds of progress from which the time left is estimated."""


def run_until_done(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does; after Ctrl-C, return without waiting for its threads.

    A thread that imports, or waits for the network, cannot be stopped, and `asyncio.run` would wait for it.
    The command ends the process next.
    """
    runner = asyncio.Runner()
    interrupted = False
    try:
        return runner.run(work)
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        if not interrupted:
            runner.close()


class NoteProgress:
    """Progress line of the latest note, such as a batch of episodes, with the time left."""

    def __init__(self, text: str = "", console: Console | None = None) -> None:
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            speed_estimate_period=SPEED_SECONDS,
        )
        self._line = self.progress.add_task(text, total=None, visible=bool(text))

    def observe(self, event: rg.Event) -> None:
        """Show a note in place of the one before, or count an episode."""
        if isinstance(event, rg.Note) and event.text:
            self.progress.remove_task(self._line)
            self._line = self.progress.add_task(rg.printable(event.text), total=event.episodes or None)
        elif isinstance(event, rg.EpisodeDone):
            self.progress.advance(self._line)


@contextmanager
def progress_line(output: OutputOptions, text: str) -> Generator[rg.Observer]:
    """Show a progress line for the time of a block; give an observer that updates the line."""
    line = NoteProgress(text, output.progress())
    with line.progress:
        yield line.observe


def clock(seconds: float) -> str:
    """Format a duration as minutes and seconds, with hours where it has some.

    >>> clock(42.4), clock(3700)
    ('0:42', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
