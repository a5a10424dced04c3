"""Progress of a run or a training in a terminal or a notebook; the command shows tables beside it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rich import progress
from rich.console import Console

from rolegraph.engine.errors import printable
from rolegraph.engine.records import EpisodeDone, Event, Note, Observer, StepLogged

SPEED_SECONDS = 3600.0
"""Seconds of progress from which the time left is estimated."""


class NoteProgress:
    """Progress line on the terminal: the text of the latest note, a bar of episodes, and the time left."""

    def __init__(self, text: str = "", console: Console | None = None) -> None:
        self.progress = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=12),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            speed_estimate_period=SPEED_SECONDS,
        )
        self._line = self.progress.add_task(text, total=None, visible=bool(text))

    def observe(self, event: Event) -> None:
        """Show a note in place of the one before, or count an episode."""
        if isinstance(event, Note) and (event.text or event.episodes):
            self.progress.remove_task(self._line)
            text = printable(event.text) or "episodes"
            self._line = self.progress.add_task(text, total=event.episodes or None)
        elif isinstance(event, EpisodeDone):
            self.progress.advance(self._line)


@contextmanager
def progress_bars(observe: Observer, steps: int | None) -> Generator[Observer]:
    """Show the progress of a run or a training on standard error for the time of a block.

    Args:
        observe: Function that gets each event as well.
        steps: For a training: number of its steps.

    Returns:
        A context manager that gives the observer for the work in the block.
    """
    line = NoteProgress(console=Console(stderr=True))
    with line.progress as bars:
        bar = bars.add_task("steps", total=steps, visible=steps is not None)

        def watch(event: Event) -> None:
            line.observe(event)
            if isinstance(event, StepLogged):
                bars.update(bar, completed=event.step)
            observe(event)

        yield watch
