"""Progress of a run or a training in a terminal; the commands show further tables."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from rich import progress
from rich.console import Console

from rolegraph.engine.errors import printable
from rolegraph.engine.records import EpisodeDone, Event, Note, Observer, StepLogged

SPEED_SECONDS = 3600.0
"""Number of latest seconds of progress from which the remaining time is estimated."""
LINE_SECONDS = 10.0
"""Seconds between two lines of progress if no terminal shows bars, as in CI."""

_DRAWN = (progress.BarColumn, progress.SpinnerColumn)
"""Columns without text."""


class SteadyProgress(progress.Progress):
    """Progress bars on a terminal and in a notebook; elsewhere, a line every `LINE_SECONDS`."""

    _stopped: threading.Event | None = None
    """Event that is set to stop the printing of lines; None if bars are shown."""

    def start(self) -> None:
        """Show the bars, or start a thread that prints lines."""
        if self.console.is_terminal or self.console.is_jupyter:
            super().start()
        else:
            self._stopped = threading.Event()
            threading.Thread(target=self._print_lines, args=(self._stopped,), daemon=True).start()

    def stop(self) -> None:
        """Remove the bars; or print the last line, unless progress is transient."""
        if self._stopped is None:
            super().stop()
            return
        self._stopped.set()
        if not self.live.transient:
            self._print_line()

    def _print_lines(self, stopped: threading.Event) -> None:
        while not stopped.wait(LINE_SECONDS):
            self._print_line()

    def _print_line(self) -> None:
        """Print the texts of each visible task, with a percentage in place of a bar."""
        for task in [task for task in self.tasks if task.visible]:
            texts = [f"{task.percentage:.0f}%" if task.total else ""]
            for column in self.columns:
                if isinstance(column, progress.ProgressColumn) and not isinstance(column, _DRAWN):
                    texts.append(str(column(task)))
            self.console.print(" ".join(filter(None, texts)), soft_wrap=True, markup=False, highlight=False)


class NoteProgress:
    """Progress line on the terminal: the text of the latest note, a bar of episodes, and the time left; for a
    training with a bar of its steps above."""

    def __init__(self, text: str = "", console: Console | None = None, steps: int | None = None) -> None:
        self.progress = SteadyProgress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=12),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            speed_estimate_period=SPEED_SECONDS,
        )
        self._steps = self.progress.add_task("steps", total=steps, visible=steps is not None)
        self._line = self.progress.add_task(text, total=None, visible=bool(text))
        self._about = ""

    def observe(self, event: Event) -> None:
        """Replace the note, or count an episode or a step."""
        if isinstance(event, Note) and (event.text or event.episodes):
            text = printable(event.text) or "episodes"
            if event.about and event.about == self._about:
                self.progress.update(self._line, description=text)
                return
            self._about = event.about
            self.progress.remove_task(self._line)
            self._line = self.progress.add_task(text, total=event.episodes or None)
        elif isinstance(event, EpisodeDone):
            self.progress.advance(self._line)
        elif isinstance(event, StepLogged):
            self.progress.update(self._steps, completed=event.step)


@contextmanager
def progress_bars(observe: Observer, steps: int | None) -> Generator[Observer]:
    """Show the progress of a run or a training on standard error for the time of a block.

    Args:
        observe: Function that gets each event as well.
        steps: For a training: number of its steps.

    Returns:
        A context manager that yields the observer for the work in the block.
    """
    line = NoteProgress(console=Console(stderr=True), steps=steps)
    with line.progress:

        def watch(event: Event) -> None:
            line.observe(event)
            observe(event)

        yield watch
