"""What a person sees while something takes its time, and Ctrl-C that does not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from rolegraph import EpisodeDone, Event, Note, printable
from rolegraph.engine.cli.output import OutputOptions

T = TypeVar("T")
REMEMBERED_SECONDS = 3600.0
"""How far back the speed is looked at that says how much time is left."""


def run_until_done(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`; interrupted, it leaves when `work` has closed what it opened.

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


class TimeLeftColumn(ProgressColumn):
    """The time left; where nobody can know it yet, the time since it began."""

    max_refresh = 0.5

    def __init__(self) -> None:
        super().__init__(Column(no_wrap=True))

    def render(self, task: Task) -> Text:
        """As in `0:42 left`."""
        left = task.time_remaining
        if task.completed and left is not None:
            return Text(f"{clock(left)} left")
        return Text(clock(task.elapsed or 0.0), style="dim")


class ProgressLine:
    """A line on what goes on, with a bar where it is known how many episodes it takes."""

    def __init__(self, output: OutputOptions, first: str) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TimeLeftColumn(),
            console=output.progress(),
            transient=True,
            speed_estimate_period=REMEMBERED_SECONDS,
        )
        self._task = self._progress.add_task(first, total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def observe(self, event: Event) -> None:
        """Hear what goes on, and of each episode that it takes."""
        if isinstance(event, Note):
            self._progress.remove_task(self._task)
            self._task = self._progress.add_task(printable(event.text), total=event.episodes or None)
        elif isinstance(event, EpisodeDone):
            self._progress.advance(self._task)


def clock(seconds: float) -> str:
    """A time as a person reads it.

    >>> clock(42.4), clock(3700)
    ('0:42', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
